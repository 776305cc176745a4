"""The transcript of a coding agent's task as the client kept it, the same in all three dialects, without what differs by chance."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

Json = dict[str, Any]
CHANCE = (
    (re.compile(r"Chunk ID: \w+"), "Chunk ID"),
    (re.compile(r"Wall time: [0-9.]+ seconds"), "Wall time"),
    (re.compile(r"Original token count: \d+"), "Original token count"),
    (re.compile(r"[\w.:+-]*\d\d:\d\d(:\d\d)?[\w.:+-]*"), "a time"),
    (re.compile(r"batuta-clients-\w+"), "a folder"),
)
"""What is another at each run."""
FOUND = "WebSearch"
"""A tool whose result is the server's: without Batuta nobody searches."""
_RESULTS = ("function_call_output", "custom_tool_call_output", "tool_search_output")


def as_chat(body: Json) -> Json:
    """Return what a scripted model looks at of a body of any dialect, in the form of chat completions."""
    if "input" in body:
        messages = [
            item if "role" in item else {"role": "tool", "content": ""} for item in body["input"]
        ]
        tools = [{"function": tool} for tool in body.get("tools", ()) if tool["type"] == "function"]
        return {"model": body["model"], "messages": messages, "tools": tools}
    if "max_tokens" in body and "system" in body:
        tools = [
            {"function": {"name": tool["name"], "parameters": tool.get("input_schema", {})}}
            for tool in body.get("tools", ())
        ]
        form = (body.get("output_config") or {}).get("format")
        held = {"response_format": {"json_schema": form}} if form else {}
        return {"model": body["model"], "messages": body["messages"], "tools": tools, **held}
    return body


def plain(text: Any) -> str:
    """Return the text without what is another at each run."""
    told = text if isinstance(text, str) else json.dumps(text, sort_keys=True)
    for pattern, instead in CHANCE:
        told = pattern.sub(instead, told)
    return told


def _arguments(given: Any) -> str:
    return plain(json.loads(given) if isinstance(given, str) and given.startswith("{") else given)


def _events_of_items(items: Iterable[Json]) -> Iterator[tuple[str, str, str]]:
    for item in items:
        if item.get("type", "").endswith("_call") and "call_id" in item:
            told = item.get("arguments", item.get("input", ""))
            yield "call", item["call_id"], f"{item.get('name', item['type'])} {_arguments(told)}"
        elif item.get("type") in _RESULTS:
            yield "result", item["call_id"], plain(item.get("output", item.get("tools", "")))


def _events_of_message(message: Json) -> Iterator[tuple[str, str, str]]:
    for call in message.get("tool_calls") or ():
        told = call["function"]
        yield "call", call["id"], f"{told['name']} {_arguments(told['arguments'])}"
    if message["role"] == "tool":
        yield "result", message["tool_call_id"], plain(message["content"])
    for block in message["content"] if isinstance(message["content"], list) else ():
        if block.get("type") == "tool_use":
            yield "call", block["id"], f"{block['name']} {plain(block['input'])}"
        elif block.get("type") == "tool_result":
            content = block["content"]
            texts = content if isinstance(content, str) else "".join(one.get("text", "") for one in content)  # fmt: skip
            yield "result", block["tool_use_id"], plain(texts)


def events_of(body: Json) -> Iterator[tuple[str, str, str]]:
    """Yield each call and each result in a body: `call` or `result`, the call's id, and what was said."""
    yield from _events_of_items(body.get("input") or ())
    for message in body.get("messages") or ():
        yield from _events_of_message(message)


def transcript(bodies: Iterable[Json]) -> list[str]:
    """Return each call with its result, in the order in which the client first told them.

    A conversation that was compacted is told anew: what was told before counts once.
    """
    calls: dict[str, str] = {}
    results: dict[str, str] = {}
    for body in bodies:
        for kind, call, said in events_of(body):
            (calls if kind == "call" else results).setdefault(call, said)
    return [
        f"{said} -> {'(found)' if said.startswith(FOUND) else results.get(call, 'no result')}"
        for call, said in calls.items()
    ]
