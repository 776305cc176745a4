"""A fake of OpenAI's Responses API, stateless, as a reasoning model speaks it."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from fakes.server import FakeServer, Received, Said, need, only, sse

USAGE = {
    "input_tokens": 20,
    "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
    "output_tokens": 10,
    "output_tokens_details": {"reasoning_tokens": 3},
    "total_tokens": 30,
}
_FIELDS = {
    "model",
    "input",
    "store",
    "stream",
    "max_output_tokens",
    "reasoning",
    "temperature",
    "top_p",
    "text",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "prompt_cache_key",
    "prompt_cache_retention",
    "include",
}
_ENCRYPTED = "reasoning.encrypted_content"
_INCLUDED = {
    _ENCRYPTED,
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "message.output_text.logprobs",
    "web_search_call.action.sources",
    "web_search_call.results",
}
_ITEMS = {
    "message": {"type", "role", "content"},
    "function_call": {"type", "call_id", "name", "arguments"},
    "function_call_output": {"type", "call_id", "output"},
    "reasoning": {"type", "id", "summary", "encrypted_content"},
}
_PARTS = {
    "input_text": {"type", "text"},
    "output_text": {"type", "text"},
    "input_image": {"type", "image_url", "detail"},
    "input_file": {"type", "filename", "file_data"},
}
_EFFORTS = {"none", "low", "medium", "high", "xhigh", "max"}


class FakeOpenAIResponses(FakeServer):
    """`url` is the base URL, with `/v1`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.commentary = ""
        """What the model says before its answer and marks as commentary."""

    @property
    def url(self) -> str:
        return f"{self.origin}/v1"

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/responses", self.handle)]

    def refuse(self, status: int, kind: str, code: str | None, message: str) -> dict[str, Any]:
        return {"error": {"message": message, "type": kind, "param": None, "code": code}}

    def validate(self, received: Received) -> None:
        body = received.body
        need(received.headers.get("authorization") == f"Bearer {self.key}", "wrong key")
        only(body, _FIELDS, "body")
        need(body.get("store") is False, "it would be stored")
        need(isinstance(body.get("input"), list) and body["input"], "input")
        need(body.get("max_output_tokens", 16) >= 16, "max_output_tokens below its minimum")
        need(_INCLUDED.issuperset(body.get("include", [])), f"include {body.get('include')}")
        effort = body.get("reasoning", {}).get("effort", "medium")
        need(effort in _EFFORTS, f"effort {effort}")
        if "-astra" in body["model"] or body["model"] == "gpt-6.1-sol":
            need(effort != "none", "this model always reasons")
        if effort != "none":
            need(not {"temperature", "top_p"} & body.keys(), "sampling while reasoning")
        for tool in body.get("tools", []):
            need(tool["type"] == "function", "tool type")
            only(tool, {"type", "name", "description", "parameters", "strict"}, "tool")
        need("tools" in body or "tool_choice" not in body, "choice, no tools")
        open_calls: set[str] = set()
        for item in body["input"]:
            only(item, _ITEMS[item["type"]], item["type"])
            if item["type"] == "function_call":
                open_calls.add(item["call_id"])
            elif item["type"] == "function_call_output":
                need(item["call_id"] in open_calls, "a result without its call")
                open_calls.discard(item["call_id"])
            elif item["type"] == "reasoning":
                need(item["id"].startswith("rs_"), "a reasoning item without its id")
            else:
                need(not open_calls, "a tool call was not answered")
                for part in item["content"]:
                    only(part, _PARTS[part["type"]], part["type"])
                    spoken = part["type"] == "output_text"
                    need(
                        spoken == (item["role"] == "assistant"), f"{part['type']} of {item['role']}"
                    )
        need(not open_calls, f"tool calls without a result: {open_calls}")

    def items(self, said: Said, received: Received) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = []
        if said.reasoning:
            summary = [{"type": "summary_text", "text": said.reasoning}]
            item: dict[str, Any] = {"type": "reasoning", "id": "rs_1", "summary": summary}
            if _ENCRYPTED in received.body.get("include", []):
                item["encrypted_content"] = "gAAA:b"
            items.append(item)
        if self.commentary:
            items.append(_message("msg_0", self.commentary) | {"phase": "commentary"})
        if said.text:
            items.append(_message("msg_1", said.text))
        items += [
            {
                "type": "function_call",
                "id": f"fc_{number}",
                "call_id": call_id,
                "name": name,
                "arguments": json.dumps(arguments),
            }
            for number, (call_id, name, arguments) in enumerate(said.calls)
        ]
        return items

    def whole(self, said: Said, received: Received, *, usage: bool) -> dict[str, Any]:
        cut = said.finish or None
        return {
            "id": "resp_1",
            "object": "response",
            "model": received.body["model"] + "-2026",
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": cut} if cut else None,
            "error": None,
            "output": self.items(said, received),
            "usage": (said.usage or USAGE) if usage else None,
        }

    def events(self, said: Said, received: Received, *, usage: bool) -> list[bytes]:
        whole = self.whole(said, received, usage=usage)
        begun = whole | {"output": [], "usage": None, "status": "in_progress"}
        events = [
            _event("response.created", response=begun),
            _event("response.in_progress", response=begun),
        ]
        for place, item in enumerate(whole["output"]):
            at = {"output_index": place, "item_id": item["id"]}
            started = item | {"content": [], "summary": [], "arguments": ""}
            events.append(_event("response.output_item.added", output_index=place, item=started))
            kind, text = _spoken(item)
            events += [_event(kind, delta=piece, **at) for piece in self.pieces(text)]
            events.append(_event(kind.replace(".delta", ".done"), text=text, **at))
            events.append(_event("response.output_item.done", output_index=place, item=item))
        return [*events, _event(f"response.{whole['status']}", response=whole)]


def _message(item_id: str, text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": item_id, "role": "assistant", "content": content}


def _spoken(item: dict[str, Any]) -> tuple[str, str]:
    if item["type"] == "reasoning":
        return "response.reasoning_summary_text.delta", item["summary"][0]["text"]
    if item["type"] == "function_call":
        return "response.function_call_arguments.delta", item["arguments"]
    return "response.output_text.delta", item["content"][0]["text"]


def _event(kind: str, **data: Any) -> bytes:
    return sse({"type": kind, "sequence_number": 0, **data}, kind)
