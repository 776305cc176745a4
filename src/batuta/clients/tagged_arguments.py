"""Parses arguments of a tool call that a model writes between tags instead of as JSON.

Qwen3-Coder, GLM, MiniMax and DeepSeek do so. A value between tags has no type; the tool's schema
determines it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from batuta.clients.decoding import as_array, as_object, load_json

DSML = "\uff5cDSML\uff5c"
"""DeepSeek's prefix of tag names."""
_PARAMETER = re.compile(
    rf'\s*+(?:<(?:{DSML})?parameter(?:=|\s+name=)"?([^<>"\n]{{1,128}}+)"?'
    r'(?:\s+string="(true|false)")?>'
    r"|<arg_key>([^<>\n]{1,128}+)</arg_key>\s*+<arg_value>)"
)
_END_OF_CALL = rf"\s*+</(?:{DSML})?(?:function|invoke|tool_call)>"
_END_OF_VALUE = re.compile(
    rf"</(?:{DSML})?parameter>(?=\s*+<(?:{DSML})?parameter[= ]|{_END_OF_CALL})"
    rf"|</arg_value>(?=\s*+<arg_key>|{_END_OF_CALL})"
)
"""Matches an end tag only where the value can end, as a value may contain the same tag."""
_END = re.compile(_END_OF_CALL)
_MAX_ARGUMENTS = 256
_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
    "null": (type(None),),
}
_PYTHON_CONSTANTS = {"True": True, "False": False, "None": None}
_MAX_NESTING = 4


class NoCallError(ValueError):
    """The text is not a complete tool call.

    No call begins before the position `at`, so the text up to there is not searched again.
    """

    def __init__(self, at: int) -> None:
        super().__init__("not the arguments of a tool call")
        self.at = at


def read_arguments(text: str, at: int, schema: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """Return the arguments from `at` on, and the position after their call.

    Args:
        text: the answer.
        at: the position after the tool's name.
        schema: JSON schema of the tool's arguments.

    Raises:
        NoCallError: the arguments are incomplete, or there are too many.
    """
    arguments: dict[str, Any] = {}
    while len(arguments) < _MAX_ARGUMENTS and (begun := _PARAMETER.match(text, at)):
        name = (begun[1] or begun[3]).strip()
        ended = _END_OF_VALUE.search(text, begun.end())
        if ended is None:
            raise NoCallError(len(text))
        arguments[name] = _read_value(begun, text[begun.end() : ended.start()], schema)
        at = ended.end()
    end = _END.match(text, at)
    if end is None:
        raise NoCallError(at)
    return arguments, end.end()


def _read_value(begun: re.Match[str], written: str, schema: Mapping[str, Any]) -> Any:
    """Return a value with the type in its tag or the schema; without a type, parsed if possible."""
    value = written
    if begun[1] and begun[2] is None:  # the value is on separate lines
        value = value.removeprefix("\n").removesuffix("\n")
    name = (begun[1] or begun[3]).strip()
    types = _types_of(as_object(schema.get("properties")).get(name))
    if begun[2] == "true" or types == {"string"}:
        return value
    try:
        plain = value.strip()
        read = _PYTHON_CONSTANTS[plain] if plain in _PYTHON_CONSTANTS else load_json(plain.encode())
    except ValueError:
        return value
    return read if not types or any(_has_type(read, one) for one in types) else value


def _has_type(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _TYPES.get(kind, ()))


def _types_of(schema: Any, nested: int = _MAX_NESTING) -> set[str]:
    """Return the types that a schema allows at its top level; empty if it allows any."""
    fields = as_object(schema)
    stated = fields.get("type")
    types = {one for one in (stated, *as_array(stated)) if isinstance(one, str)}
    if not types and isinstance(fields.get("enum"), list):
        types = {
            name for one in as_array(fields["enum"]) for name in _TYPES if _has_type(one, name)
        }
    for word in ("anyOf", "oneOf") if nested and not types else ():
        for one in as_array(fields.get(word)):
            types |= _types_of(one, nested - 1)
    return types
