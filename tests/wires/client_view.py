"""The three dialects from a client's side: its requests, and its reading of the answers."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
THINKING = {"type": "enabled", "budget_tokens": 1024}


@dataclass
class Seen:
    """The content that a client was shown, independent of the dialect."""

    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str, str]] = field(default_factory=list)
    """Id, name and arguments."""
    finish: str | None = None
    searches: list[str] = field(default_factory=list)
    cited: list[str] = field(default_factory=list)
    usage: Json = field(default_factory=dict)
    status: int = 200
    error: Json | None = None
    whole: Json = field(default_factory=dict)
    """The answer as an object of the dialect, which a client gives back."""


def first_body(dialect: str, model: str, text: str, tools: list[str]) -> Json:
    """The body of the first turn."""
    said = [{"role": "user", "content": text}]
    functions = [{"name": name, "description": f"The {name} of a city."} for name in tools]
    if dialect == "chat":
        offered = [{"type": "function", "function": {**f, "parameters": SCHEMA}} for f in functions]
        body: Json = {"messages": said, "tools": offered}
    elif dialect == "responses":
        offered = [{"type": "function", **f, "parameters": SCHEMA} for f in functions]
        body = {"input": said, "tools": offered}
    else:
        offered = [{**f, "input_schema": SCHEMA} for f in functions]
        body = {"messages": said, "tools": offered, "max_tokens": 4000}
    if not tools:
        del body["tools"]
    return {"model": model, **body}


@dataclass(frozen=True)
class Way:
    """A way in which a client continues after the calls of a turn."""

    dialect: str
    name: str
    fields: Json = field(default_factory=dict)
    """Further fields of its first body."""


WAYS = (
    Way("chat", "all that it was shown"),
    Way("chat", "only the fields that OpenAI knows"),
    Way("responses", "the items"),
    Way(
        "responses",
        "the items, nothing stored",
        {"store": False, "include": ["reasoning.encrypted_content"]},
    ),
    Way("responses", "the previous response's id"),
    Way("messages", "with thinking", {"thinking": THINKING}),
    Way("messages", "without thinking"),
)


def next_body(way: Way, body: Json, seen: Seen, results: list[tuple[str, str]]) -> Json:
    """The body of the next turn, with the results of calls by their ids."""
    if way.dialect == "chat":
        message = {k: v for k, v in seen.whole["choices"][0]["message"].items() if v is not None}
        if way.name.startswith("only"):
            message = {k: v for k, v in message.items() if k in {"role", "content", "tool_calls"}}
            calls = message.get("tool_calls", [])
            message["tool_calls"] = [{k: c[k] for k in ("id", "type", "function")} for c in calls]
        message.setdefault("content", None)
        told = [{"role": "tool", "tool_call_id": i, "content": text} for i, text in results]
        return {**body, "messages": [*body["messages"], message, *told]}
    if way.dialect == "responses":
        searches = {c["call_id"] for c in seen.whole["output"] if c["type"] == "tool_search_call"}
        told = [
            {
                "type": "tool_search_output",
                "call_id": i,
                "execution": "client",
                "tools": json.loads(t),
            }
            if i in searches
            else {"type": "function_call_output", "call_id": i, "output": t}
            for i, t in results
        ]
        if "previous" in way.name:
            return {**body, "input": told, "previous_response_id": seen.whole["id"]}
        return {**body, "input": [*body["input"], *seen.whole["output"], *told]}
    blocks = [{"type": "tool_result", "tool_use_id": i, "content": t} for i, t in results]
    said = [{"role": "assistant", "content": seen.whole["content"]}]
    return {
        **body,
        "messages": [*body["messages"], *said, {"role": "user", "content": blocks}],
    }


def read_answer(dialect: str, status: int, raw: bytes, *, streamed: bool) -> Seen:
    """Read an answer as a client does."""
    if status != 200 or not streamed:
        whole = json.loads(raw)
        if status != 200 or whole.get("error"):
            return Seen(status=status, error=whole["error"], whole=whole)
    else:
        events = read_events(raw)
        failed = next((e for e in events if e.get("error") or e.get("type") == "error"), None)
        if failed is not None:
            return Seen(error=failed["error"], whole=failed)
        whole = JOINED[dialect](events)
        if whole.get("error"):
            return Seen(error=whole["error"], whole=whole)
    return READ[dialect](whole)


def read_events(raw: bytes) -> list[Json]:
    """The data of server-sent events."""
    frames = raw.decode().replace("\r\n", "\n").split("\n\n")
    data = [
        line.removeprefix("data: ")
        for frame in frames
        for line in frame.split("\n")
        if line.startswith("data: ")
    ]
    return [json.loads(line) for line in data if line != "[DONE]"]


def _join_chunks(events: list[Json]) -> Json:
    """A streamed chat completion as a whole one, as OpenAI's own client joins it."""
    message: Json = {"role": "assistant", "content": ""}
    calls: dict[int, Json] = {}
    finish = usage = None
    for event in events:
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            finish = choice["finish_reason"] or finish
            for name, value in choice["delta"].items():
                if name == "tool_calls":
                    for piece in value:
                        _join_call(calls, piece)
                elif name in {"content", "reasoning_content", "refusal"}:
                    message[name] = (message.get(name) or "") + (value or "")
                elif name != "role" and value:
                    message[name] = [*message.get(name, []), *value]
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return {"choices": [{"message": message, "finish_reason": finish}], "usage": usage}


def _join_call(calls: dict[int, Json], piece: Json) -> None:
    new = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
    call = calls.setdefault(piece["index"], new)
    call["id"] += piece.get("id") or ""
    for name, value in piece["function"].items():
        call["function"][name] += value or ""
    call |= {k: v for k, v in piece.items() if k not in {"index", "id", "type", "function"}}


def _join_response(events: list[Json]) -> Json:
    """The last event's response; what came before it must say the same."""
    whole = events[-1]["response"]
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    if whole["status"] in {"completed", "incomplete"}:
        words = {"response.output_text.delta", "response.refusal.delta"}
        text = "".join(e["delta"] for e in events if e["type"] in words)
        assert text == read_response(whole).text, "the deltas are the text"
        for place, item in enumerate(whole["output"]):
            if item["type"] == "function_call":
                kind = "response.function_call_arguments.delta"
                told = (e["delta"] for e in events if e["type"] == kind and e["output_index"] == place)  # fmt: skip
                assert "".join(told) == item["arguments"], "the deltas are the arguments"
    return whole


def _join_message(events: list[Json]) -> Json:
    """A streamed message as a whole one, as Anthropic's own client joins it."""
    blocks: dict[int, Json] = {}
    pieces: dict[int, str] = {}
    whole: Json = {}
    for event in events:
        match event["type"]:
            case "message_start":
                whole = dict(event["message"])
            case "content_block_start":
                blocks[event["index"]] = dict(event["content_block"])
            case "content_block_delta":
                block, delta = blocks[event["index"]], event["delta"]
                kind = delta["type"]
                if kind == "citations_delta":
                    block.setdefault("citations", []).append(delta["citation"])
                elif kind == "input_json_delta":
                    at = event["index"]
                    pieces[at] = pieces.get(at, "") + delta["partial_json"]
                else:
                    name = {"text_delta": "text", "thinking_delta": "thinking"}.get(
                        kind, "signature"
                    )
                    block[name] = block.get(name, "") + delta[name]
            case "message_delta":
                whole |= event["delta"]
                whole["usage"] = event["usage"]
            case _:
                pass
    for at, text in pieces.items():
        blocks[at]["input"] = _parsed(text)
    return {**whole, "content": [blocks[at] for at in sorted(blocks)]}


def _parsed(arguments: str) -> Any:
    """The arguments; as a text what an upstream sent that is no JSON, or nested without end."""
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments


def _written(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments)


def read_chat(whole: Json) -> Seen:
    [choice] = whole["choices"]
    message, usage = choice["message"], whole.get("usage") or {}
    calls = [
        (c["id"], c["function"]["name"], c["function"]["arguments"])
        for c in message.get("tool_calls") or ()
    ]
    told = {"input": usage.get("prompt_tokens"), "output": usage.get("completion_tokens")}
    text = message.get("content") or message.get("refusal") or ""
    reasoning = message.get("reasoning_content") or ""
    cited = [each["url_citation"] for each in message.get("annotations") or ()]
    seen = Seen(text, reasoning, calls, choice["finish_reason"], usage=told, whole=whole)
    seen.cited = [each["url"] for each in cited]
    return seen


def read_response(whole: Json) -> Seen:
    seen = Seen(whole=whole)
    for item in whole["output"]:
        if item["type"] == "message":
            parts = item["content"]
            seen.text += "".join(part.get("text") or part.get("refusal", "") for part in parts)
            seen.cited += [a["url"] for part in parts for a in part.get("annotations", ())]
        elif item["type"] == "web_search_call":
            seen.searches.append(item["action"]["query"])
        elif item["type"] == "function_call":
            name = "/".join(filter(None, [item.get("namespace"), item["name"]]))
            seen.calls.append((item["call_id"], name, item["arguments"]))
        elif item["type"] == "tool_search_call":
            arguments = json.dumps(item["arguments"])
            seen.calls.append((item["call_id"], "tool_search", arguments))
        elif item["type"] == "reasoning":
            seen.reasoning += "".join(part["text"] for part in item["summary"])
    usage = whole.get("usage") or {}
    seen.usage = {"input": usage.get("input_tokens"), "output": usage.get("output_tokens")}
    reason = (whole.get("incomplete_details") or {}).get("reason")
    words = {"max_output_tokens": "length", None: "tool_calls" if seen.calls else "stop"}
    seen.finish = words.get(reason, reason)
    return seen


def read_message(whole: Json) -> Seen:
    seen = Seen(whole=whole)
    for block in whole["content"]:
        if block["type"] == "text":
            seen.text += block["text"]
            seen.cited += [each["url"] for each in block.get("citations") or ()]
        elif block["type"] == "server_tool_use":
            seen.searches.append(block["input"]["query"])
        elif block["type"] == "tool_use":
            seen.calls.append((block["id"], block["name"], _written(block["input"])))
        elif block["type"] == "thinking":
            seen.reasoning += block["thinking"]
    usage = whole["usage"]
    names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    read = sum(usage.get(name) or 0 for name in names)
    seen.usage = {"input": read, "output": usage["output_tokens"]}
    words = {"end_turn": "stop", "max_tokens": "length", "tool_use": "tool_calls", "refusal": "content_filter"}  # fmt: skip
    seen.finish = words.get(whole["stop_reason"], whole["stop_reason"])
    return seen


JOINED = {"chat": _join_chunks, "responses": _join_response, "messages": _join_message}
READ = {"chat": read_chat, "responses": read_response, "messages": read_message}
