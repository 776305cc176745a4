"""Arguments of a call that a model writes between tags, one by one and not as JSON.

Qwen3-Coder, GLM, MiniMax and DeepSeek do. A value between tags has no type: its tool's schema does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from batuta.clients.decoding import as_array, as_object, load_json

DSML = "\uff5cDSML\uff5c"
"""DeepSeek writes it before the names of its tags."""
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
"""Matches a tag that stands in a value as well only if the value could end there."""
_END = re.compile(_END_OF_CALL)
_MOST_ARGUMENTS = 256
_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
    "null": (type(None),),
}
_OF_PYTHON = {"True": True, "False": False, "None": None}
_MOST_NESTED = 4


class NoCallError(ValueError):
    """Arguments whose call has no end, or that are none.

    No call begins before `at`, so that a text is not searched for one again and again.
    """

    def __init__(self, at: int) -> None:
        super().__init__("these are no arguments of a call")
        self.at = at


def read_arguments(text: str, at: int, schema: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """Return the arguments that stand from `at` on, and where their call ends.

    Args:
        text: the answer.
        at: where the name of the tool ends.
        schema: JSON schema of the tool's arguments.

    Raises:
        NoCallError: they have no end.
    """
    arguments: dict[str, Any] = {}
    while len(arguments) < _MOST_ARGUMENTS and (begun := _PARAMETER.match(text, at)):
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
    """Return a value in the type that its tag or the schema says; a text, if neither says one."""
    value = written
    if begun[1] and begun[2] is None:  # on lines of its own
        value = value.removeprefix("\n").removesuffix("\n")
    name = (begun[1] or begun[3]).strip()
    types = _types_of(as_object(schema.get("properties")).get(name))
    if begun[2] == "true" or types == {"string"}:
        return value
    try:
        plain = value.strip()
        read = _OF_PYTHON[plain] if plain in _OF_PYTHON else load_json(plain.encode())
    except ValueError:
        return value
    return read if not types or any(_is_of(read, one) for one in types) else value


def _is_of(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _TYPES.get(kind, ()))


def _types_of(schema: Any, nested: int = _MOST_NESTED) -> set[str]:
    """Return the types that a schema allows at its top; none: any."""
    fields = as_object(schema)
    stated = fields.get("type")
    types = {one for one in (stated, *as_array(stated)) if isinstance(one, str)}
    if not types and isinstance(fields.get("enum"), list):
        types = {name for one in as_array(fields["enum"]) for name in _TYPES if _is_of(one, name)}
    for word in ("anyOf", "oneOf") if nested and not types else ():
        for one in as_array(fields.get(word)):
            types |= _types_of(one, nested - 1)
    return types
