"""Parses tool calls that a model writes as Python: `[weather(city="Rome", days=3)]`.

Llama 3.2 and 4 do so, and Gemma in a code block. Nothing is executed: a name must be that of an
offered tool, and arguments must be literals.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Sequence
from math import isfinite
from typing import Any, cast

from batuta.clients.tagged_arguments import NoCallError

_NAME = r"([A-Za-z_][\w.-]{0,127}+)\s*+"
_CALL = re.compile(rf"\s*+{_NAME}\(\s*+")
_BEGUN = re.compile(r"\s*+(\[?+)\s*+([\w.-]{0,128}+)\s*+(.?)", re.DOTALL)
_KEY = re.compile(rf"{_NAME}=\s*+")
_BETWEEN = re.compile(r"\s*+([,;]?+)\s*+")
_STRING = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*+"""' + r"|'''(?:[^'\\]|\\.|'(?!''))*+'''"
    r'|"(?:[^"\\]|\\.)*+"' + r"|'(?:[^'\\]|\\.)*+'",
    re.DOTALL,
)
_ATOM = re.compile(
    r"[-+]?(?:\d{1,300}+(?:\.\d{0,300}+)?+|\.\d{1,300}+)(?:[eE][-+]?\d{1,3}+)?+(?![\w.])"
    r"|(?:True|False|None|true|false|null)\b"
)
_SPELLED = {"true": "True", "false": "False", "null": "None"}
_PUNCTUATION = re.compile(r"[\[\](){},:]")
_PAIRS = {"[": "]", "(": ")", "{": "}"}
_CALL_TOKENS = 16
"""The approximate time to read a call, as a number of tokens."""
_BLANKS = re.compile(r"\s*+")
_ESCAPE = re.compile(r"\\(.)|\n|\r|\0", re.DOTALL)
_RAW = {"\n": r"\n", "\r": r"\r", "\0": r"\0", "\\\n": ""}
_ESCAPED = frozenset("\\'\"abfnrtvxuUN01234567")
_MAX_NESTING = 32
_MAX_TOKENS = 4096
"""Maximum number of tokens (numbers, strings, punctuation) that are read of an answer's calls."""
_ESCAPES_PER_TOKEN = 5
"""Escape sequences in a string that take about as long as one token."""


def begins_python_call(text: str, at: int, names: Collection[str], *, in_list: bool) -> bool:
    """Return True if Python calls may begin at `at`, judged by the text so far.

    Args:
        text: the answer.
        at: the position to check.
        names: the names of the offered tools.
        in_list: whether the calls must be in a list.
    """
    begun = _BEGUN.match(text, at)
    if begun is None or (in_list and not begun[1]):
        return False
    if begun[3]:
        return begun[3] == "(" and begun[2] in names
    return any(name.startswith(begun[2]) for name in names)


def read_python_calls(
    text: str, at: int, names: Collection[str]
) -> tuple[list[dict[str, Any]], int]:
    """Return the calls at `at` as names and arguments, and the position after them.

    Raises:
        NoCallError: there are no valid calls, or they are too long.
    """
    calls: list[dict[str, Any]] = []
    budget = _MAX_TOKENS
    at = _skip_blanks(text, at)
    in_list = text.startswith("[", at)
    at += in_list
    while (begun := _CALL.match(text, at)) is not None and begun[1] in names:
        arguments, at, budget = _read_arguments(text, begun.end(), budget - _CALL_TOKENS)
        calls.append({"name": begun[1], "arguments": arguments})
        end, between = at, _BETWEEN.match(text, at)
        at = between.end() if between else at
        if in_list and text.startswith("]", at):
            return calls, at + 1
        if not in_list and _CALL.match(text, at) is None:
            return calls, end
    raise NoCallError(at)


def _read_arguments(text: str, at: int, budget: int) -> tuple[dict[str, Any], int, int]:
    """Return a call's arguments, the position after its bracket, and the remaining token budget."""
    arguments: dict[str, Any] = {}
    while not text.startswith(")", at):
        key = _KEY.match(text, at)
        if key is None or key[1] in arguments:
            raise NoCallError(at)
        value, at, budget = _read_value(text, key.end(), budget)
        arguments[key[1]] = value
        if text.startswith(",", at):
            at = _skip_blanks(text, at + 1)
        elif not text.startswith(")", at):
            raise NoCallError(at)
    return arguments, at + 1, budget


def _read_value(text: str, at: int, budget: int) -> tuple[Any, int, int]:
    """Return a literal's value, the position after it, and the remaining token budget."""
    pieces: list[str] = []
    closing: list[str] = []
    while closing or text[at : at + 1] not in {",", ")"}:
        token, end = _next_token(text, at)
        budget -= 1 + (token.count("\\") // _ESCAPES_PER_TOKEN)
        if token in _PAIRS:
            closing.append(_PAIRS[token])
        elif token in {"]", ")", "}"} and (not closing or closing.pop() != token):
            raise NoCallError(at)
        if budget < 0 or len(closing) > _MAX_NESTING:
            raise NoCallError(at)
        pieces.append(token)
        at = _skip_blanks(text, end)
    try:
        return _to_json_value(ast.literal_eval(" ".join(pieces))), at, budget
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        raise NoCallError(at) from None


def _next_token(text: str, at: int) -> tuple[str, int]:
    """Return a token of a literal, in a form that Python accepts, and the position after it."""
    if (found := _PUNCTUATION.match(text, at)) is not None:
        return found[0], found.end()
    if (found := _ATOM.match(text, at)) is not None:
        return _SPELLED.get(found[0], found[0]), found.end()
    if (found := _STRING.match(text, at)) is not None:
        escapes = found[0].count("\\") + found[0].count("\n")
        if escapes > _ESCAPES_PER_TOKEN * _MAX_TOKENS:
            raise NoCallError(found.end())
        return _ESCAPE.sub(_keep_escape, found[0]), found.end()
    raise NoCallError(len(text) if text[at : at + 1] in {'"', "'"} else at)


def _keep_escape(found: re.Match[str]) -> str:
    """Return an escape sequence or a control character in a form that Python accepts."""
    known = found[0] in _RAW or found[1] in _ESCAPED
    return _RAW.get(found[0], found[0]) if known else f"\\{found[0]}"


def _to_json_value(value: Any) -> Any:
    """Return a Python literal as a JSON value.

    Raises:
        TypeError or ValueError: the literal has no JSON equivalent.
    """
    if isinstance(value, list | tuple):
        return [_to_json_value(one) for one in cast("Sequence[Any]", value)]
    if isinstance(value, dict):
        fields = cast("dict[Any, Any]", value)
        if all(isinstance(name, str) for name in fields):
            return {name: _to_json_value(one) for name, one in fields.items()}
    elif value is None or isinstance(value, str | int) or isfinite(value):
        return value
    raise ValueError("not a JSON value")


def _skip_blanks(text: str, at: int) -> int:
    found = _BLANKS.match(text, at)
    return found.end() if found else at
