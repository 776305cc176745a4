"""Texts of a request beside its conversation: tools, the response format, stop sequences.

Descriptions are prose and can be redacted. Names, values of schemas, stop sequences and URLs of
pictures have meaning to programs, so redacting a part of one would change that meaning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from batuta.core import Image, Question, Tool, ToolCall, ToolResult

_PROSE = frozenset({"description", "title", "$comment"})
"""JSON Schema keywords whose texts only people and models read."""


@dataclass(frozen=True, slots=True)
class SideTexts:
    """The texts beside a conversation, without duplicates."""

    prose: tuple[str, ...]
    """Texts that may be redacted."""
    fixed: tuple[str, ...]
    """Texts that may not be redacted."""


def find_side_texts(question: Question) -> SideTexts:
    """Return the texts of tools, response format and stop sequences, and the names in messages.

    The names include call ids and pictures' URLs, except `data:` URLs.
    """
    prose: dict[str, None] = {}
    fixed: dict[str, None] = dict.fromkeys(question.sampling.stop)
    for tool in question.tools:
        prose[tool.description] = fixed[tool.name] = None
        _collect_texts(tool.parameters, prose, fixed)
    form = question.response_format
    if form is not None:
        fixed[form.name] = None
        _collect_texts(form.schema, prose, fixed)
    fixed |= dict.fromkeys(_participant_names(question))
    prose.pop("", None)
    fixed.pop("", None)
    return SideTexts(tuple(prose), tuple(fixed))


def replace_prose(question: Question, clean: Mapping[str, str]) -> Question:
    """Return the question with the changed descriptions in place of the old ones."""
    tools = tuple(_clean_tool(tool, clean) for tool in question.tools)
    form = question.response_format
    if form is not None:
        form = replace(form, schema=_clean_schema(form.schema, clean))
    return replace(question, tools=tools, response_format=form)


def _participant_names(question: Question) -> Iterator[str]:
    for message in question.messages:
        if message.name:
            yield message.name
        for part in message.parts:
            if isinstance(part, ToolCall):
                yield part.name
                yield part.id
            elif isinstance(part, ToolResult):
                yield part.call_id
            elif isinstance(part, Image) and not part.url.startswith("data:"):
                yield part.url


def _collect_texts(value: Any, prose: dict[str, None], fixed: dict[str, None]) -> None:
    """Collect the texts of a schema; its depth was bounded when it was read."""
    if isinstance(value, str):
        fixed[value] = None
    elif isinstance(value, Mapping):
        for key, inner in cast("Mapping[str, Any]", value).items():
            if key in _PROSE and isinstance(inner, str):
                prose[inner] = None
            else:
                fixed[key] = None
                _collect_texts(inner, prose, fixed)
    elif isinstance(value, list):
        for inner in cast("list[Any]", value):
            _collect_texts(inner, prose, fixed)


def _clean_tool(tool: Tool, clean: Mapping[str, str]) -> Tool:
    description = clean.get(tool.description, tool.description)
    return replace(tool, description=description, parameters=_clean_schema(tool.parameters, clean))


def _clean_schema(value: Any, clean: Mapping[str, str]) -> Any:
    if isinstance(value, Mapping):
        return {
            key: clean.get(inner, inner)
            if key in _PROSE and isinstance(inner, str)
            else _clean_schema(inner, clean)
            for key, inner in cast("Mapping[str, Any]", value).items()
        }
    if isinstance(value, list):
        return [_clean_schema(inner, clean) for inner in cast("list[Any]", value)]
    return value
