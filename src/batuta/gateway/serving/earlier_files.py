"""Finds the ids of files in a conversation's earlier turns.

An id gives no access by itself: only files of the caller's tenant are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, cast

Json = dict[str, Any]
MAX_EARLIER = 50
"""Maximum number of files of earlier turns."""
_WRITTEN = frozenset({"container_file_citation", "code_execution_output"})
"""Types of parts that name a file written by a program."""
_TEXT_TYPES = frozenset({"input_text", "text"})
_HEAD = 500
"""Number of characters at the beginning of a text that are searched for the file's id."""
_GIVEN = re.compile(
    r"\A(?:File|The file) [^\n]{0,300}? \((file-[0-9a-f]{24})\)(?::\n| is uploaded)"
)
"""The beginning of the text that replaced an uploaded file in an earlier turn."""
_NESTED_FIELDS = ("content", "output", "annotations")


def find_earlier_files(turns: Iterable[Any]) -> tuple[str, ...]:
    """Return the ids of at most `MAX_EARLIER` uploaded and written files, newest first."""
    named = list(dict.fromkeys(list(_walk_names(list(turns)))[::-1]))
    return tuple(named[:MAX_EARLIER])


def _walk_names(turns: list[Any]) -> Iterator[str]:
    waiting = turns[::-1]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += cast("list[Any]", value)[::-1]
        elif isinstance(value, dict):
            part = cast("Json", value)
            file_id, text = part.get("file_id"), part.get("text")
            if part.get("type") in _WRITTEN and isinstance(file_id, str):
                yield file_id
            elif isinstance(text, str) and part.get("type") in _TEXT_TYPES:
                yield from _GIVEN.findall(text[:_HEAD])
            waiting += [part[key] for key in _NESTED_FIELDS[::-1] if key in part]


def container_response(tools: Any) -> str | None:
    """Return the id of the response whose container one of the tools names, if any."""
    for tool in cast("list[Any]", tools) if isinstance(tools, list) else ():
        named = cast("Json", tool).get("container") if isinstance(tool, dict) else None
        if isinstance(named, str) and named.startswith("cntr_"):
            return "resp_" + named.removeprefix("cntr_")
    return None


def container_files(tools: Any) -> tuple[str, ...]:
    """Return the ids of the files that these tools give to their containers."""
    found: list[str] = []
    for tool in cast("list[Any]", tools) if isinstance(tools, list) else ():
        held = cast("Json", tool).get("container") if isinstance(tool, dict) else None
        ids = cast("Json", held).get("file_ids") if isinstance(held, dict) else None
        named = cast("list[Any]", ids) if isinstance(ids, list) else []
        found += [each for each in named if isinstance(each, str)]
    return tuple(found)
