"""A fake of Anthropic's API that keeps marked prompts and bills what it reads and writes."""

from __future__ import annotations

import json
from typing import Any

from fakes.anthropic import FakeAnthropic
from fakes.server import Received, Said, need

MARKS = 4
"""Marks that a request may have."""


class CachingAnthropic(FakeAnthropic):
    """A token is four characters of JSON; what was marked stays for ever."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.kept: set[int] = set()
        self.usages: list[dict[str, int]] = []

    def whole(self, said: Said, received: Received, *, usage: bool) -> dict[str, Any]:
        body = super().whole(said, received, usage=usage)
        if usage:
            body["usage"] = self._bill(received.body, said)
        return body

    def _bill(self, body: dict[str, Any], said: Said) -> dict[str, int]:
        sizes, marks = [], []
        prefix, read_to, found = 0, 0, 0
        blocks = _blocks(body)
        if "cache_control" in body:
            blocks[-1]["cache_control"] = body["cache_control"]
        for number, block in enumerate(blocks):
            marked = block.pop("cache_control", None)
            text = json.dumps(block, sort_keys=True)
            sizes.append(len(text) // 4)
            prefix = hash((prefix, text))
            if prefix in self.kept:
                found = number + 1
            if marked:
                marks.append((number + 1, prefix))
                read_to = found  # what is kept is looked for at marks alone
        need(len(marks) <= MARKS, f"{len(marks)} marks")
        written_to = max([read_to, *(number for number, _ in marks)])
        self.kept.update(prefix for _, prefix in marks)
        usage = {
            "input_tokens": sum(sizes[written_to:]),
            "cache_read_input_tokens": sum(sizes[:read_to]),
            "cache_creation_input_tokens": sum(sizes[read_to:written_to]),
            "output_tokens": max(1, len(json.dumps([said.text, said.calls])) // 4),
        }
        self.usages.append(usage)
        return usage


def _blocks(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The prompt in the order in which it is kept: tools, system, turns."""
    system = body.get("system") or []
    if isinstance(system, str):
        system = [{"type": "text", "text": system}]
    turns = [{"role": m["role"], **block} for m in body["messages"] for block in m["content"]]
    return [dict(block) for block in (*body.get("tools", []), *system, *turns)]


def dollars(usages: list[dict[str, int]]) -> float:
    """At $3 a million tokens in, $15 out; a tenth for what is read, a quarter more if written."""
    weights = {
        "input_tokens": 3.0,
        "cache_read_input_tokens": 0.3,
        "cache_creation_input_tokens": 3.75,
        "output_tokens": 15.0,
    }
    return sum(weights[name] * count for one in usages for name, count in one.items()) / 1e6
