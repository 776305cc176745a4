"""Reads what an upstream's bytes say by the documents of its dialect: words, and counts of tokens."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

from wires.bending import INPUTS, OUTPUTS, Bent

THOUGHT, CALL = "\0", "\1"
ENDS = ("message_stop", "response.completed", "response.incomplete", "response.done")
"""Events after which nothing is read."""
END = re.compile(rb"\r\n|\n|\r")


def words_said(answer: Bent, mode: str) -> tuple[list[str], Counter[str]]:
    """Pieces of text, of thoughts (after `THOUGHT`), of arguments (after `CALL`), and the counts.

    Of an answer that is no answer, or that cannot be read as JSON or as events, nothing.
    """
    pieces: list[str] = []
    counts: Counter[str] = Counter()
    if (
        answer.status != 200
        or answer.is_garbled
        or any(name == "content-encoding" for name, _ in answer.headers)
    ):
        return pieces, counts
    body = answer.body
    if answer.length is not None:
        body = body[: answer.length]
    for data in data_of(body) if mode == "streamed" or b"data:" in body[:200] else [body]:
        if data == b"[DONE]":
            break
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            hear(value, pieces, counts)
            if value.get("type") in ENDS:
                break
    return pieces, counts


def data_of(body: bytes) -> list[bytes]:
    """The data of the events, by the standard's grammar."""
    found: list[bytes] = []
    lines: list[bytes] = []
    for line in [*END.split(body.removeprefix(b"\xef\xbb\xbf")), b""]:
        if line.startswith(b"data:"):
            lines.append(line[5:].removeprefix(b" "))
        elif not line and lines:
            found.append(b"\n".join(lines))
            lines = []
    return found or [body]


def hear(value: dict[str, Any], pieces: list[str], counts: Counter[str]) -> None:
    for choice in dicts(value.get("choices")):
        message = of(choice, "delta") or of(choice, "message")  # some tell all so far beside it
        add(pieces, message.get("content") or message.get("refusal") or choice.get("text"))
        add(pieces, message.get("reasoning_content"), THOUGHT)
        for call in dicts(message.get("tool_calls")):
            add(pieces, of(call, "function").get("arguments"), CALL)
        count(counts, of(choice, "usage"))
    count(counts, of(value, "usage"))
    count(counts, of(of(value, "message"), "usage"))
    count(counts, of(of(value, "response"), "usage"))
    count(counts, of(value, "usageMetadata"))
    for candidate in dicts(value.get("candidates")):
        for part in dicts(of(candidate, "content").get("parts")):
            add(pieces, part.get("text"), THOUGHT if part.get("thought") else "")
    match value.get("type"):
        case "content_block_delta":
            delta = of(value, "delta")
            add(pieces, delta.get("text") if delta.get("type") == "text_delta" else None)
            call = delta.get("type") == "input_json_delta"
            add(pieces, delta.get("partial_json") if call else None, CALL)
        case "content_block_start" if of(value, "content_block").get("type") == "text":
            add(pieces, of(value, "content_block").get("text"))
        case "message":
            for block in dicts(value.get("content")):
                add(pieces, block.get("text") if block.get("type") == "text" else None)
        case "response.output_text.delta":
            add(pieces, value.get("delta"))
        case "response.function_call_arguments.delta":
            add(pieces, value.get("delta"), CALL)
        case _ if value.get("object") == "response":
            output(value, pieces)
        case "response.completed" | "response.incomplete" | "response.done":
            output(of(value, "response"), pieces)
        case _:
            pass


def output(response: dict[str, Any], pieces: list[str]) -> None:
    for item in dicts(response.get("output")):
        if item.get("type") == "message":
            for part in dicts(item.get("content")):
                add(pieces, part.get("text") if part.get("type") == "output_text" else None)
        elif item.get("type") == "function_call":
            add(pieces, item.get("arguments"), CALL)


def add(pieces: list[str], value: Any, kind: str = "") -> None:
    if isinstance(value, str) and value:
        pieces.append(kind + value)


def of(value: dict[str, Any], name: str) -> dict[str, Any]:
    inner = value.get(name)
    return inner if isinstance(inner, dict) else {}


def dicts(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def count(counts: Counter[str], usage: dict[str, Any]) -> None:
    for name, kind in [(n, "input") for n in INPUTS] + [(n, "output") for n in OUTPUTS]:
        if type(told := usage.get(name)) is int:
            counts[kind] = max(counts[kind], told)
