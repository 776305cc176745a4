"""A fake of OpenAI's chat completions; with `strict_openai=False` of its imitators'."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from fakes.server import FakeServer, Received, Said, need, only, sse

USAGE = {
    "prompt_tokens": 20,
    "completion_tokens": 10,
    "total_tokens": 30,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 3},
}
_FIELDS = {
    "model",
    "messages",
    "stream",
    "stream_options",
    "temperature",
    "top_p",
    "stop",
    "seed",
    "reasoning_effort",
    "max_completion_tokens",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "response_format",
    "prompt_cache_key",
    "prompt_cache_retention",
    "n",
    "logprobs",
    "top_logprobs",
    "frequency_penalty",
    "presence_penalty",
}
_IMITATORS = {
    "max_tokens",
    "continue_final_message",
    "add_generation_prompt",
    "reasoning",
    "top_k",
    "usage",
}


class FakeOpenAI(FakeServer):
    """`url` is the base URL, with `/v1`."""

    def __init__(self, *args: Any, strict_openai: bool = True, **options: Any) -> None:
        super().__init__(*args, **options)
        self.strict_openai = strict_openai
        self.reasoning_field = "reasoning_content"
        self.ignored: set[str] = set()
        """Fields that it takes and does not honour."""
        self.models: list[dict[str, Any]] = []
        """What `/v1/models` lists."""
        self.tags: list[str] = []
        """What Ollama's `/api/tags` lists."""
        self.shown: dict[str, Any] = {}
        """What Ollama's `/api/show` says of each."""

    @property
    def url(self) -> str:
        return f"{self.origin}/v1"

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/chat/completions", self.handle),
            web.get("/v1/models", self._models),
            web.get("/api/tags", self._tags),
            web.post("/api/show", self._show),
        ]

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": self.models})

    async def _show(self, request: web.Request) -> web.Response:
        named = (await request.json())["model"]
        known = self.shown.get(named)
        return web.json_response(known or {"error": "unknown"}, status=200 if known else 404)

    async def _tags(self, _: web.Request) -> web.Response:
        return web.json_response({"models": [{"name": name} for name in self.tags]})

    def refuse(self, status: int, kind: str, code: str | None, message: str) -> dict[str, Any]:
        return {"error": {"message": message, "type": kind, "param": None, "code": code}}

    def validate(self, received: Received) -> None:
        body = received.body
        need(received.headers.get("authorization") == f"Bearer {self.key}", "wrong key")
        need(received.headers.get("content-type") == "application/json", "content type")
        only(body, _FIELDS | (set() if self.strict_openai else _IMITATORS), "body")
        need(isinstance(body.get("model"), str) and body["model"], "model")
        need(isinstance(body.get("messages"), list) and body["messages"], "messages")
        if body.get("stream"):
            need(body.get("stream_options") == {"include_usage": True}, "usage not asked for")
        else:
            need("stream_options" not in body, "stream_options without stream")
        _tools(body)
        open_calls: set[str] = set()
        for message in body["messages"]:
            open_calls = self._message(message, open_calls)
        need(not open_calls, f"tool calls without a result: {open_calls}")

    def _message(self, message: dict[str, Any], open_calls: set[str]) -> set[str]:
        role = message.get("role")
        roles = {"system", "user", "assistant", "tool"} | (
            {"developer"} if self.strict_openai else set()
        )
        need(role in roles, f"role {role}")
        if role == "tool":
            only(message, {"role", "tool_call_id", "content"}, "tool message")
            need(message["tool_call_id"] in open_calls, "a result without its call")
            return open_calls - {message["tool_call_id"]}
        need(not open_calls, "a tool call was not answered")
        if role == "assistant":
            only(
                message,
                {"role", "content", "tool_calls", "name", "reasoning_content", "reasoning"},
                "assistant",
            )
            calls = message.get("tool_calls", [])
            need(calls or isinstance(message["content"], str), "an empty assistant message")
            for call in calls:
                need(set(call) == {"id", "type", "function"}, "call")
                need(isinstance(call["function"]["arguments"], str), "arguments are not a string")
            return {call["id"] for call in calls}
        only(message, {"role", "content", "name"}, str(role))
        _content(message["content"])
        return set()

    def whole(self, said: Said, received: Received, *, usage: bool) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": said.text or None}
        if said.reasoning:
            message[self.reasoning_field] = said.reasoning
        if said.calls:
            message["tool_calls"] = [
                {
                    "id": call_id,
                    "type": "function",
                    "function": {"name": name, "arguments": json.dumps(arguments)},
                }
                for call_id, name, arguments in said.calls
            ]
        choices = [
            {
                "index": index,
                "message": message | ({"content": text} if text else {}),
                "logprobs": self.logprobs(text, received),
                "finish_reason": _finish(said),
            }
            for index, text in enumerate(self.texts(said, received))
        ]
        body = {"id": "c1", "object": "chat.completion", "model": received.body["model"] + "-2026"}
        body["choices"] = choices[::-1]  # a client reads the numbers, not the order
        if usage:
            body["usage"] = said.usage or USAGE
        return body

    def texts(self, said: Said, received: Received) -> list[str]:
        """What each choice says."""
        count = 1 if "n" in self.ignored else received.body.get("n", 1)
        return [said.text] + [f"{said.text} ({number})" for number in range(1, count)]

    def logprobs(self, text: str, received: Received) -> dict[str, Any] | None:
        if not received.body.get("logprobs") or "logprobs" in self.ignored:
            return None
        others = received.body.get("top_logprobs", 0)
        rows = [
            {"token": piece, "logprob": -0.5, "bytes": list(piece.encode())}
            for piece in self.pieces(text)
        ]
        tops = [[{**row, "token": f"{row['token']}{k}"} for k in range(others)] for row in rows]
        return {
            "content": [{**row, "top_logprobs": top} for row, top in zip(rows, tops, strict=True)]
        }

    def events(self, said: Said, received: Received, *, usage: bool) -> list[bytes]:
        model = received.body["model"] + "-2026"

        def chunk(
            delta: dict[str, Any], finish: str | None = None, number: int = 0, told: Any = None
        ) -> bytes:
            choice = {"index": number, "delta": delta, "logprobs": told, "finish_reason": finish}
            return sse(
                {
                    "id": "c1",
                    "object": "chat.completion.chunk",
                    "model": model,
                    "choices": [choice],
                    "usage": None,
                }
            )

        events = [b": hello\n\n", chunk({"role": "assistant", "content": ""})]
        events += [chunk({self.reasoning_field: piece}) for piece in self.pieces(said.reasoning)]
        spoken = [
            (number, piece)
            for number, text in enumerate(self.texts(said, received))
            for piece in self.pieces(text)
        ]
        events += [
            chunk({"content": piece}, None, number, self.logprobs(piece, received))
            for number, piece in spoken
            if number
        ]
        events += [
            chunk({"content": piece}, None, 0, self.logprobs(piece, received))
            for piece in self.pieces(said.text)
        ]
        for index, (call_id, name, arguments) in enumerate(said.calls):
            function = {"name": name, "arguments": ""}
            call = {"index": index, "id": call_id, "type": "function", "function": function}
            events.append(chunk({"tool_calls": [call]}))
            events += [
                chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
                for piece in self.pieces(json.dumps(arguments))
            ]
        for number in range(len(self.texts(said, received))):
            events.append(chunk({}, _finish(said), number))
        if usage:
            events.append(sse({"model": model, "choices": [], "usage": said.usage or USAGE}))
        return [*events, b"data: [DONE]\n\n"]


def _finish(said: Said) -> str:
    return said.finish or ("tool_calls" if said.calls else "stop")


def _content(content: Any) -> None:
    if isinstance(content, str):
        return
    need(isinstance(content, list) and content, "content")
    for part in content:
        need(part["type"] in {"text", "image_url", "file", "input_audio"}, "part")
        if part["type"] == "file":
            only(part["file"], {"filename", "file_data"}, "file")
            need(part["file"]["file_data"].startswith("data:application/pdf;base64,"), "file_data")
        if part["type"] == "input_audio":
            only(part["input_audio"], {"data", "format"}, "input_audio")
        if part["type"] == "image_url":
            only(part["image_url"], {"url", "detail"}, "image_url")


def _tools(body: dict[str, Any]) -> None:
    if "tools" not in body:
        need("tool_choice" not in body and "parallel_tool_calls" not in body, "choice, no tools")
        return
    for tool in body["tools"]:
        need(tool["type"] == "function", "tool type")
        only(tool["function"], {"name", "description", "parameters", "strict"}, "function")
