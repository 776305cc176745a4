"""Docstrings name what there is: each error under "Raises" is a class that can be raised, said once."""

import ast
import builtins
import re
from collections import Counter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "batuta"
FILES = sorted(PACKAGE.rglob("*.py"))
_ENTRY = re.compile(r"    ([A-Za-z_][\w.]*(?:(?:, | or )[A-Za-z_][\w.]*)*):")


def names_of(tree):
    """What a module defines, imports or assigns."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name):
                yield name
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                yield from ((alias.asname or alias.name).partition(".")[0] for alias in names)
            case ast.Assign(targets=[ast.Name(id=name)]):
                yield name
            case _:
                pass


def errors_in(docstring):
    """The names under "Raises:", in order; none if there is no such section."""
    section = docstring.partition("Raises:\n")[2]
    for line in section.splitlines():
        if line and not line.startswith("    "):
            return
        if entry := _ENTRY.match(line):
            yield from re.split(", | or ", entry[1])


TREES = {file: ast.parse(file.read_text(encoding="utf-8")) for file in FILES}
OTHERS = {"jsonschema_rs", "SQLAlchemyError", "DBAPIError"}
"""Of libraries that are imported late, or raised through."""
CLASSES = {*dir(builtins), *(n.name for tree in TREES.values() for n in ast.walk(tree) if isinstance(n, ast.ClassDef))}  # fmt: skip


def documented(tree):
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)
    for node in ast.walk(tree):
        if isinstance(node, kinds) and (docstring := ast.get_docstring(node)):
            yield getattr(node, "lineno", 1), docstring


def complaints(tree):
    known = CLASSES | OTHERS | set(names_of(tree))
    for line, docstring in documented(tree):
        named = Counter(errors_in(docstring))
        yield from (
            f"{line}: no such error: {name}"
            for name in named
            if name.partition(".")[0] not in known
        )
        yield from (f"{line}: named twice: {name}" for name, times in named.items() if times > 1)


def test_what_is_raised_exists():
    found = [
        f"{file.relative_to(PACKAGE)}:{one}"
        for file, tree in TREES.items()
        for one in complaints(tree)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("entries", "fault"),
    [
        ("NoSuchError: why.", "no such error"),
        ("OSError: one.\n        OSError: two.", "named twice"),
    ],
)
def test_a_planted_fault_is_found(entries, fault):
    planted = f'def f():\n    """Do it.\n\n    Raises:\n        {entries}\n    """\n'
    (found,) = complaints(ast.parse(planted))
    assert fault in found
