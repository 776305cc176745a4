"""Tries every regular expression of the package with texts that make a careless one slow.

    python tests/pattern_tries.py

It prints, as JSON, the patterns that took too long. It runs in a process of its own, as a pattern
that never returns is ended by a signal.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import gc
import importlib
import json
import pkgutil
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from re import _parser  # pyright: ignore[reportAttributeAccessIssue]
from typing import Any

import regex

import batuta
from batuta.clients.error_mapping import error_from_reply, error_from_response
from batuta.core import Pool, Reply, Worker, WorkerId
from batuta.core.redaction import clean_message, hide_addresses
from batuta.errors import BatutaError
from batuta.gateway.serving.similar_questions import question_core
from batuta.lab.baselines.answers import find_final_answer
from batuta.lab.baselines.best_of_n import find_judged_sample
from batuta.lab.tasks.graders.answer_form import canonical_answer
from batuta.lab.tasks.graders.code_extraction import extract_program
from batuta.language import parse_workflow
from batuta.language.answer_extraction import without_end_tokens
from batuta.schemas.checker import strip_code_fence

CHARACTERS = 20_000
SECONDS = 0.15
"""The most processor time for one text; a linear pattern needs some milliseconds."""
GLANCE = 20
"""A twentieth of a text is tried first: what is quadratic needs a four-hundredth of the time there."""
UNITS = (
    *("-", "a-", "1/", "1.", "1,", "1 ", "a ", "a.", "a:", "a@", "a=", "A", "a", "1", "0", "é "),
    *("\n", " ", "\n ", "a\n", "\t", '"', "'", "\\", "[", "]", "[[", "]]", "(", "()", "{", "{}"),
    *(
        "</s>",
        "</s> user",
        "<",
        "<a",
        "</",
        "`",
        "```\n",
        "*",
        "**",
        "$",
        "$$",
        "\\(",
        "\\[",
        "\\boxed{",
        "&",
        "_",
        "|",
    ),
    *("#", "# ", "/", "//", "@", "%", "=", ":", ".", "!"),
)
BEHIND = ("a", " ", "\n", "1", "a ", "a\n")
"""What is repeated behind a word of the pattern."""
TICK = 0.02
"""What a timer can tell apart; shorter times are measured."""
BOUNDED: dict[str, tuple[int, str]] = {
    "batuta.language.answer_extraction._JOINT": (60, "what is longer joins nothing"),
    "batuta.lab.tasks.graders.answer_form._BOX": (2000, "a longer answer keeps its dress"),
    "batuta.lab.tasks.graders.answer_form._SPACE_AT_MARK": (
        2000,
        "a longer answer keeps its dress",
    ),
}
"""Patterns that see at most this many characters, with the reason; so many are tried."""
_METHODS = ("finditer", "match", "fullmatch")
_LATE = type(functools.cache(len))
"""Functions that compile a pattern when it is first needed."""
_SKIPPED = ("batuta.lab.train", "batuta.store.migrations", "batuta.sandbox.inside")
"""Modules that are not loaded here: torch, Alembic, and a sandbox's own program."""


class _TooSlowError(Exception):
    pass


def _stop(*_: object) -> None:
    raise _TooSlowError


@contextlib.contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _is_slow(look: Callable[[str], Any], text: str, seconds: float = SECONDS) -> bool:
    for _ in range(2):  # the first time may be the garbage collector's fault
        begun = time.process_time()
        try:
            with _time_limit(max(seconds, TICK)):
                look(text)
        except _TooSlowError:
            continue
        if time.process_time() - begun <= seconds:
            return False
    return True


def _patterns_in(value: Any, seen: set[int], depth: int = 0) -> Iterator[Any]:
    """Every compiled pattern in a value: in its items, its attributes, its arguments."""
    if isinstance(value, re.Pattern | regex.Pattern):
        yield value
        return
    if isinstance(value, _LATE) and value.__annotations__ == {"return": "re.Pattern[str]"}:
        yield value()
        return
    if id(value) in seen or depth > 4:
        return
    seen.add(id(value))
    for one in _held_by(value):
        yield from _patterns_in(one, seen, depth + 1)


def _held_by(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value, *value.values()]
    if isinstance(value, list | tuple | set | frozenset):
        return list(value)
    if isinstance(value, partial):
        return [*value.args, *value.keywords.values()]
    own = type(value) if not isinstance(value, type) else value
    if not own.__module__.startswith("batuta"):
        return []
    slots = [getattr(value, name, None) for name in getattr(own, "__slots__", ())]
    return [*slots, *getattr(value, "__dict__", {}).values()]


def _modules() -> Iterator[Any]:
    for found in pkgutil.walk_packages(batuta.__path__, "batuta."):
        if found.name.startswith(_SKIPPED) or found.name.endswith("__main__"):
            continue
        with contextlib.suppress(ImportError, BatutaError):  # an extra is not installed
            yield importlib.import_module(found.name)


_Form = tuple[str, str, str]
"""Of a text: what it begins with, what is repeated, what it ends with."""
_Sources = list[tuple[str, list[ast.AST]]]


def _read_sources() -> _Sources:
    """Return the nodes of each module's source that name something or call something."""
    root = Path(batuta.__path__[0])
    return [
        (
            ".".join(("batuta", *path.relative_to(root).with_suffix("").parts)),
            [
                node
                for node in ast.walk(ast.parse(path.read_text()))
                if isinstance(node, ast.Attribute | ast.Name | ast.Call)
            ],
        )
        for path in sorted(root.rglob("*.py"))
    ]


def _methods_by_name(sources: _Sources) -> dict[str, set[str]]:
    """Return the uses of each constant, by `module.name`; those of a public one are joined.

    A constant that is used as a plain value counts as used in every way.
    """
    used: dict[str, set[str]] = {}

    def note(module: str, name: str, method: str) -> None:
        key = f"{module}.{name}" if name.startswith("_") else name
        used.setdefault(key, set()).add(method)

    for module, nodes in sources:
        attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
        bases = {id(node.value) for node in attributes}
        for node in attributes:
            match node.value:
                case ast.Name(id=name) | ast.Attribute(attr=name):
                    note(module, name, node.attr)
                case _:
                    pass
            if id(node) not in bases and node.attr.isupper():
                note(module, node.attr, "any")
        for node in nodes:
            match node:
                case ast.Name(id=name, ctx=ast.Load()) if id(node) not in bases:
                    note(module, name, "any")
                case _:
                    pass
    return used


def _tried_methods(attributes: set[str]) -> tuple[str, ...]:
    searching = {"search", "finditer", "findall", "sub", "subn", "split", "any"} & attributes
    anchored = {"match", "fullmatch"} & attributes
    if not attributes or "any" in attributes:
        return _METHODS
    return (*(("finditer",) if searching else ()), *sorted(anchored))


def _named_patterns(sources: _Sources) -> Iterator[tuple[str, Any, tuple[str, ...]]]:
    """Each pattern that a module holds: its name, itself, and how it is used."""
    used, told = _methods_by_name(sources), set[int]()
    for module in _modules():
        for name, value in list(vars(module).items()):
            for pattern in _patterns_in(value, set()):
                if id(pattern) not in told:
                    told.add(id(pattern))
                    direct = isinstance(value, re.Pattern | regex.Pattern)
                    where = f"{module.__name__}.{name}"
                    known = used.get(where if name.startswith("_") else name, set())
                    yield where, pattern, _tried_methods(known if direct else set())


def _inline_patterns(sources: _Sources) -> Iterator[tuple[str, Any, tuple[str, ...]]]:
    """Each pattern that stands in a call of `re`."""
    for name, nodes in sources:
        for node in nodes:
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="re"), attr=method),
                    args=[ast.Constant(value=str(source)), *_],
                ) if method not in {"escape", "compile"}:
                    pattern = re.compile(source)
                    yield f"{name}: {source}", pattern, _tried_methods({method})


def _letters_of(pattern: Any) -> list[str]:
    """The characters that the pattern names."""
    found: set[str] = set()

    def walk(node: Any) -> None:
        if isinstance(node, _parser.SubPattern):
            node = node.data
        match node:
            case (kind, int(code)) if str(kind) in {"LITERAL", "NOT_LITERAL"}:
                found.add(chr(code))
            case (kind, (int(first), int(last))) if str(kind) == "RANGE":
                found.update((chr(first), chr(last)))
            case [*parts] | (*parts,):
                for part in parts:
                    walk(part)
            case _:
                pass

    with contextlib.suppress(re.error):  # a pattern that only `regex` understands
        walk(_parser.parse(pattern.pattern, pattern.flags & re.VERBOSE))
    return sorted(found)[:40]


def _words_of(pattern: Any) -> list[str]:
    """The words that the pattern names: what stands before the part of it that is slow."""
    found: set[str] = set()

    def walk(node: Any) -> str:
        """Returns the letters with which a part ends."""
        if isinstance(node, _parser.SubPattern):
            word = ""
            for part in node.data:
                word += walk(part)
                found.add(word[-12:])
            return word
        match node:
            case (kind, int(code)) if str(kind) == "LITERAL":
                return chr(code)
            case (kind, (int(least), _, part)) if "REPEAT" in str(kind):
                return walk(part) * min(max(least, 1), 3)
            case (kind, (_, _, _, part)) if str(kind) == "SUBPATTERN":
                return walk(part)
            case (kind, (_, [*branches])) if str(kind) == "BRANCH":
                return next(walk(branch) for branch in branches)
            case _:
                return ""

    with contextlib.suppress(re.error):  # a pattern that only `regex` understands
        walk(_parser.parse(pattern.pattern, pattern.flags & re.VERBOSE))
    return sorted(found - {""})[:40]


def _begun_texts(words: list[str]) -> Iterator[_Form]:
    """A word once, and then what nothing ends."""
    return ((word, unit, "") for word in words for unit in BEHIND)


def _repeated_texts(letters: list[str]) -> Iterator[_Form]:
    """What is repeated to make a text, with what stands at its end."""
    own = [f"{letter}{end}" for letter in letters for end in ("", "a", " ", "1")]
    return (("", unit, end) for unit in dict.fromkeys((*UNITS, *own)) for end in ("", "\x00!"))


def _text_of(form: _Form, most: int) -> str:
    begin, unit, end = form
    return begin + unit * (most // len(unit)) + end


def _looks(pattern: Any, methods: tuple[str, ...]) -> Iterator[tuple[str, Callable[[str], Any]]]:
    for method in methods:
        used = getattr(pattern, method)
        yield (
            method,
            (lambda text, used=used: sum(1 for _ in used(text)))
            if (method == "finditer")
            else used,
        )


def _encode(text: str, binary: bool) -> Any:
    return text.encode() if binary else text


def _repeats_without_end(pattern: Any) -> bool:
    """Tell whether a part may repeat without end; where none does, time is linear in the text."""

    def walk(node: Any) -> bool:
        match node:
            case _parser.SubPattern():
                return walk(node.data)
            case (kind, (int(), last, _)) if "REPEAT" in str(kind) and last == _parser.MAXREPEAT:
                return True
            case [*parts] | (*parts,):
                return any(walk(part) for part in parts)
            case _:
                return False

    try:
        return walk(_parser.parse(pattern.pattern, pattern.flags & re.VERBOSE))
    except re.error:  # a pattern that only `regex` understands
        return True


def slow_patterns() -> Iterator[str]:
    """Tell each pattern that took too long, with how it was used and on what."""
    sources = _read_sources()
    for name, pattern, methods in (*_named_patterns(sources), *_inline_patterns(sources)):
        if not _repeats_without_end(pattern):
            continue
        most = BOUNDED.get(name, (CHARACTERS, ""))[0]
        binary = isinstance(pattern.pattern, bytes)
        letters = [] if binary else _letters_of(pattern)
        words = [] if binary else _words_of(pattern)
        for method, look in _looks(pattern, methods):
            for form in (*_repeated_texts(letters), *_begun_texts(words)):
                short = _text_of(form, most // GLANCE)
                if not _is_slow(look, _encode(short, binary), SECONDS / GLANCE**2 / 2):
                    continue
                text = _text_of(form, most)
                if _is_slow(look, _encode(text, binary)):
                    yield f"{name}.{method} on {text[:12]!r}…{text[-2:]!r}"
                    break


_POOL = Pool((Worker(id=WorkerId("ann"), model="m"),))
READERS: dict[str, Callable[[str], Any]] = {
    "clean_message": clean_message,
    "hide_addresses": hide_addresses,
    "error_from_response": partial(error_from_response, 400),
    "error_from_reply": lambda text: error_from_reply({"error": {"message": text, "code": text}}),
    "find_judged_sample": lambda text: find_judged_sample(text, {1: Reply(text=text)}),
    "find_final_answer": find_final_answer,
    "without_end_tokens": without_end_tokens,
    "canonical_answer": canonical_answer,
    "extract_program": extract_program,
    "question_core": question_core,
    "strip_code_fence": strip_code_fence,
    "parse_workflow": lambda text: _or_error(partial(parse_workflow, pool=_POOL), text),
}
"""Functions that read text of callers, models or providers while a server waits for them."""
READER_SECONDS = 0.5


def _or_error(read: Callable[[str], Any], text: str) -> Any:
    with contextlib.suppress(BatutaError):
        return read(text)


def slow_readers() -> Iterator[str]:
    """Tell each function that took too long, with what it was given."""
    for name, read in READERS.items():
        for form in _repeated_texts([]):
            text = _text_of(form, CHARACTERS)
            if _is_slow(read, text, READER_SECONDS):
                yield f"{name} on {text[:12]!r}…{text[-2:]!r}"
                break


def main() -> None:
    """Print what is slow."""
    gc.disable()  # every source read would be looked through again and again
    signal.signal(signal.SIGPROF, _stop)
    json.dump([*slow_readers(), *slow_patterns()], sys.stdout)


if __name__ == "__main__":
    main()
