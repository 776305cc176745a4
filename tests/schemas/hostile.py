"""Schemas that are small to send and large to follow."""

from __future__ import annotations

from typing import Any


def nested(depth: int, width: int = 10, keyword: str = "allOf") -> dict[str, Any]:
    """Definitions of `width` references each to the next: width ** depth checks of one value."""
    definitions: dict[str, Any] = {
        f"d{at}": {keyword: [{"$ref": f"#/$defs/d{at + 1}"}] * width} for at in range(depth)
    }
    definitions[f"d{depth}"] = {"type": "string"}
    return {"$defs": definitions, "$ref": "#/$defs/d0"}


def branching(branches: int = 8) -> dict[str, Any]:
    """Refers to itself from many branches: branches ** depth of the value."""
    place = {"$ref": "#/$defs/r"}
    options = [
        {"type": "object", "properties": {"a": place}, "required": [f"z{at}"], "additionalProperties": place}
        for at in range(branches)
    ]  # fmt: skip
    return {"$defs": {"r": {"anyOf": options}}, "$ref": "#/$defs/r"}


def towers(depth: int = 40) -> str:
    """A value on which `branching` takes for ever."""
    text = "1"
    for _ in range(depth):
        text = f'{{"a":{text},"b":1}}'
    return text
