"""A fake of Anthropic's Messages API."""

from __future__ import annotations

import json
import re
from typing import Any

from aiohttp import web

from fakes.server import FakeServer, Received, Said, need, only, sse

USAGE = {
    "input_tokens": 10,
    "cache_read_input_tokens": 6,
    "cache_creation_input_tokens": 4,
    "output_tokens": 10,
}
_FIELDS = {
    "model",
    "messages",
    "max_tokens",
    "system",
    "stream",
    "temperature",
    "top_p",
    "stop_sequences",
    "tools",
    "tool_choice",
    "thinking",
    "output_config",
    "cache_control",
}


NO_SAMPLING = re.compile(r"claude-(opus-4-[78]|(opus|sonnet|haiku|fable)-5)")
"""Models that answer 400 to temperature, top_p, top_k and thinking budgets."""
NO_FORCED_TOOLS = re.compile(r"claude-((opus|sonnet)-5-5|fable-5-[12])")
ALWAYS_THINKING = re.compile(r"claude-(opus-5-5|fable-5)")
"""Models that answer 400 to `disabled`; Sonnet 5.5 wants `between_tools` in its place."""


class FakeAnthropic(FakeServer):
    """`url` is the base URL, without `/v1`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.models: list[dict[str, Any]] = []
        """What `/v1/models` lists; nothing: it is not there."""

    async def _models(self, _: web.Request) -> web.Response:
        status = 200 if self.models else 404
        return web.json_response({"data": self.models, "has_more": False}, status=status)

    @property
    def url(self) -> str:
        return self.origin

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/messages", self.handle), web.get("/v1/models", self._models)]

    def refuse(self, status: int, kind: str, code: str | None, message: str) -> dict[str, Any]:
        return {"type": "error", "error": {"type": code or kind, "message": message}}

    def validate(self, received: Received) -> None:
        body = received.body
        need(received.headers.get("x-api-key") == self.key, "wrong key")
        need("authorization" not in received.headers, "two keys")
        need(received.headers.get("anthropic-version") == "2023-06-01", "version")
        only(body, _FIELDS, "body")
        need(isinstance(body.get("max_tokens"), int) and body["max_tokens"] > 0, "max_tokens")
        thinking = body.get("thinking")
        if thinking:
            need("temperature" not in body and "top_p" not in body, "sampling while thinking")
            if thinking["type"] == "enabled":
                need(1024 <= thinking["budget_tokens"] < body["max_tokens"], "budget")
            else:
                need(thinking.keys() == {"type"}, "thinking")
                need(thinking["type"] in _THINKING, "thinking")
        _rules_of(body)
        if "system" in body:
            need(body["system"], "empty system")
        _turns(body["messages"])
        if "tool_choice" in body:
            need("tools" in body, "choice without tools")
            need(body["tool_choice"]["type"] in {"auto", "any", "none", "tool"}, "tool_choice")
        for tool in body.get("tools", []):
            only(tool, {"name", "description", "input_schema", "strict", "cache_control"}, "tool")
            need(tool["input_schema"].get("type") == "object", "input_schema")

    def whole(self, said: Said, received: Received, *, usage: bool) -> dict[str, Any]:
        content: list[dict[str, Any]] = []
        if said.reasoning:
            content.append({"type": "thinking", "thinking": said.reasoning, "signature": "s"})
        if said.text:
            content.append({"type": "text", "text": said.text})
        content += [
            {"type": "tool_use", "id": call_id, "name": name, "input": arguments}
            for call_id, name, arguments in said.calls
        ]
        body = {
            "id": "m1",
            "type": "message",
            "role": "assistant",
            "model": received.body["model"] + "-2026",
            "content": content,
            "stop_reason": _stop(said),
            "stop_sequence": None,
        }
        return body | ({"usage": said.usage or USAGE} if usage else {})

    def events(self, said: Said, received: Received, *, usage: bool) -> list[bytes]:
        told = (said.usage or USAGE) if usage else {}
        first = {**told, "output_tokens": 1} if usage else {}
        start = self.whole(Said(), received, usage=False) | {"usage": first, "stop_reason": None}
        events = [_event("message_start", message=start), _event("ping")]
        blocks: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
        if said.reasoning:
            deltas = [
                {"type": "thinking_delta", "thinking": p} for p in self.pieces(said.reasoning)
            ]
            deltas.append({"type": "signature_delta", "signature": "s"})
            blocks.append(({"type": "thinking", "thinking": ""}, deltas))
        if said.text:
            deltas = [{"type": "text_delta", "text": piece} for piece in self.pieces(said.text)]
            blocks.append(({"type": "text", "text": ""}, deltas))
        for call_id, name, arguments in said.calls:
            pieces = self.pieces(json.dumps(arguments)) if arguments else [""]
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
            blocks.append(({"type": "tool_use", "id": call_id, "name": name, "input": {}}, deltas))
        for index, (block, deltas) in enumerate(blocks):
            events.append(_event("content_block_start", index=index, content_block=block))
            events += [_event("content_block_delta", index=index, delta=d) for d in deltas]
            events.append(_event("content_block_stop", index=index))
        delta = {"stop_reason": _stop(said), "stop_sequence": None}
        last = {"output_tokens": told["output_tokens"]} if usage else None
        events.append(_event("message_delta", delta=delta, usage=last))
        return [*events, _event("message_stop")]


_THINKING = {"adaptive", "disabled", "between_tools"}


def _rules_of(body: dict[str, Any]) -> None:
    """What the model refuses, by Anthropic's migration guides."""
    model, thinking = body["model"], body.get("thinking", {}).get("type")
    if NO_SAMPLING.match(model):
        need(not {"temperature", "top_p", "top_k"} & body.keys(), "sampling is not supported")
        need(thinking != "enabled", "thinking.type.enabled is not supported")
    if ALWAYS_THINKING.match(model):
        need(thinking in {None, "adaptive"}, f"thinking.type.{thinking} is not supported")
    if model.startswith("claude-sonnet-5-5"):
        need(thinking != "disabled", "use between_tools")
    else:
        need(thinking != "between_tools", "between_tools is not supported")
    if thinking in {"disabled", "between_tools"}:
        effort = body.get("output_config", {}).get("effort", "high")
        need(effort in {"low", "medium", "high"}, "thinking is off at this effort")
    forced = body.get("tool_choice", {}).get("type") in {"any", "tool"}
    need(not (forced and NO_FORCED_TOOLS.match(model)), "forced tool use is not supported")
    thinks = thinking in {"enabled", "adaptive"} or (
        thinking is None and re.match(r"claude-(opus|sonnet|haiku|fable)-5", model)
    )
    need(not (forced and thinks), "a tool is forced while the model thinks")


_THOUGHTS = ("thinking", "redacted_thinking")


def _event(name: str, **data: Any) -> bytes:
    return sse({"type": name, **data}, name)


def _stop(said: Said) -> str:
    return said.finish or ("tool_use" if said.calls else "end_turn")


def _turns(messages: list[dict[str, Any]]) -> None:
    need(messages, "no messages")
    open_calls: set[str] = set()
    for number, message in enumerate(messages):
        only(message, {"role", "content"}, "message")
        wanted = "user" if number % 2 == 0 else "assistant"
        need(message["role"] == wanted, f"turn {number} is not {wanted}")
        need(isinstance(message["content"], list) and message["content"], "empty turn")
        kinds = [block["type"] for block in message["content"]]
        need(
            kinds == sorted(kinds, key=lambda kind: kind != "tool_result"),
            "results must come first",
        )
        results = {b["tool_use_id"] for b in message["content"] if b["type"] == "tool_result"}
        need(results == open_calls, f"results {results} do not answer {open_calls}")
        open_calls = set()
        for block in message["content"]:
            _block(block, message["role"])
            if block["type"] == "tool_use":
                open_calls.add(block["id"])


def _block(block: dict[str, Any], role: str) -> None:
    kind = block["type"]
    need(
        kind in {"text", "image", "document", "tool_use", "tool_result", *_THOUGHTS},
        f"block {kind}",
    )
    mark = block.get("cache_control")
    need(mark is None or kind not in _THOUGHTS, "a marked thought")
    need(mark is None or mark.get("type") == "ephemeral", "mark")
    if kind == "text":
        need(block["text"].strip(), "empty text")
    elif kind in _THOUGHTS:
        need(role == "assistant", "a user's thought")
        need(block.get("signature") or block.get("data"), "a thought without a signature")
    elif kind == "tool_use":
        need(role == "assistant" and isinstance(block["input"], dict), "tool_use")
        need(re.fullmatch(r"[a-zA-Z0-9_-]+", block["id"]), "id of a tool call")
    elif kind == "tool_result":
        need(role == "user", "tool_result")
    else:
        fields = {"base64": {"type", "media_type", "data"}, "url": {"type", "url"}}
        need(set(block["source"]) == fields[block["source"]["type"]], "source")
