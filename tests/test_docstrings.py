"""Docstrings name what there is: each error under "Raises" is a class that can be raised, said once."""

import ast
import builtins
import re
from collections import Counter
from functools import cache

import pytest

from source_files import complaints, nodes, source_trees

_ENTRY = re.compile(r"    ([A-Za-z_][\w.]*(?:(?:, | or )[A-Za-z_][\w.]*)*):")


def names_of(tree):
    """What a module defines, imports or assigns."""
    for node in nodes(tree):
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


OTHERS = {"jsonschema_rs", "SQLAlchemyError", "DBAPIError"}
"""Of libraries that are imported late, or raised through."""


@cache
def known_classes():
    defined = (node for tree in source_trees().values() for node in nodes(tree))
    return {*dir(builtins), *OTHERS, *(n.name for n in defined if isinstance(n, ast.ClassDef))}


def documented(tree):
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)
    for node in nodes(tree):
        if isinstance(node, kinds) and (docstring := ast.get_docstring(node)):
            yield getattr(node, "lineno", 1), docstring


def wrong_entries(tree):
    known = known_classes() | set(names_of(tree))
    for line, docstring in documented(tree):
        named = Counter(errors_in(docstring))
        yield from (
            f"{line}: no such error: {name}"
            for name in named
            if name.partition(".")[0] not in known
        )
        yield from (f"{line}: named twice: {name}" for name, times in named.items() if times > 1)


def test_what_is_raised_exists():
    found = complaints(lambda name, tree: wrong_entries(tree), source_trees())
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
    (found,) = wrong_entries(ast.parse(planted))
    assert fault in found


def test_the_tree_of_errors_names_every_error():
    """The module's docstring is the documentation of the errors: it has each class, and no other."""
    named = set(re.findall(r"\b\w+Error\b", ast.get_docstring(source_trees()["errors.py"]) or ""))
    defined = {n.name for n in source_trees()["errors.py"].body if isinstance(n, ast.ClassDef)}
    assert named == defined
