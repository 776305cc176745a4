"""Names are the field's: what a reader meets in a signature needs no private vocabulary."""

import ast
from collections import defaultdict
from functools import cache
from itertools import takewhile
from pathlib import Path

from source_files import complaints, house_trees, nodes

ONE_WORD = {
    ("__init__.py", "__getattr__"): "Python's hook for lazy names",
    ("__init__.py", "__dir__"): "Python's hook for lazy names",
    ("session/session.py", "ask"): "the front door: batuta.ask",
    ("engine/run_loop.py", "conduct"): "the front door: batuta.conduct",
    ("cli/__init__.py", "main"): "the entry point",
    ("lab/commands/train.py", "selector"): "typer: batuta train selector",
    ("embedded/client.py", "softmax"): "a term of the field that needs no object",
    ("sandbox/inside/kernel.py", "prctl"): "the name of the system call",
}
"""Functions at module level whose name is one word, each with its reason."""

FIGURES = {
    "archive", "bells", "cast", "cell", "chorus", "crowd", "customs", "desk", "ear", "entrance",
    "flight", "gate", "house", "keyring", "line", "mind", "mint", "once", "overheard", "patience",
    "play", "shelf", "stage", "standing", "tape", "teller", "together", "town", "trade", "troupe",
    "verdict", "visitor", "waiting", "warden", "wishes", "witness", "worst",
}  # fmt: skip
"""Names of modules that are a figure of speech, a participle or a comparison."""


VAGUE = {"heard", "said", "told"}
"""Names of variables that say how a value came and not what it is."""


def vague_variables(tree: ast.Module) -> list[str]:
    """Variables and arguments that say how a value came and not what it is."""
    bound = (
        node.arg if isinstance(node, ast.arg) else node.id
        for node in nodes(tree)
        if isinstance(node, ast.arg)
        or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    )
    return sorted(VAGUE & set(bound))


def is_command(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """A function of the command line: its name is the name of the command."""
    marks = [ast.unparse(d) for d in node.decorator_list]
    return node.name == "command" or any("command(" in m or "callback(" in m for m in marks)


def one_word_functions(tree: ast.Module) -> list[str]:
    return [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and "_" not in node.name.strip("_")
        and not is_command(node)
    ]


def wide_dataclasses(tree: ast.Module) -> list[str]:
    """Dataclasses of which more than three fields can be filled by position."""
    found = []
    for node in nodes(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        marks = [ast.unparse(d) for d in node.decorator_list]
        annotations = [ast.unparse(n.annotation) for n in node.body if isinstance(n, ast.AnnAssign)]
        by_position = takewhile(lambda one: one != "KW_ONLY", annotations)
        fields = [one for one in by_position if "ClassVar" not in one]
        if (
            any(m.startswith("dataclass") for m in marks)
            and len(fields) > 3
            and not any("kw_only=True" in m for m in marks)
        ):
            found.append(node.name)
    return found


def own_names(tree: ast.Module) -> set[str]:
    """What this module defines or takes from this package, by the name it calls it."""
    names = {
        n.name
        for n in nodes(tree)
        if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    for node in nodes(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("batuta"):
            names |= {a.asname or a.name for a in node.names}
    return names


def long_calls(tree: ast.Module, variadic: frozenset[str]) -> list[str]:
    """Calls of this package's own functions with more than four positional arguments."""
    own = own_names(tree)
    found = []
    for node in nodes(tree):
        if isinstance(node, ast.Call) and len(node.args) > 4:
            name = (
                node.func.id
                if isinstance(node.func, ast.Name)
                else node.func.attr
                if isinstance(node.func, ast.Attribute)
                else ""
            )
            if name in own and name not in variadic:
                found.append(f"{name} in line {node.lineno}")
    return found


@cache
def variadic_functions() -> frozenset[str]:
    """Functions that take any number of arguments; and a system call, and a class whose base does."""
    found = {
        node.name
        for tree in house_trees().values()
        for node in nodes(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.args.vararg
    }
    return frozenset(found | {"prctl", "ProgressBars"})


def test_a_function_at_module_level_has_a_verb_and_its_object():
    def wrong(name, tree):
        return [one for one in one_word_functions(tree) if (name, one) not in ONE_WORD]

    assert complaints(wrong) == []


def test_a_module_is_named_by_what_it_holds():
    assert complaints(lambda name, tree: FIGURES & {Path(name).stem}) == []


def test_a_variable_is_named_by_what_it_holds():
    assert complaints(lambda name, tree: vague_variables(tree)) == []


def test_many_fields_are_filled_by_name():
    assert complaints(lambda name, tree: wide_dataclasses(tree)) == []


def test_no_call_passes_five_arguments_by_position():
    assert complaints(lambda name, tree: long_calls(tree, variadic_functions())) == []


def public_classes(trees: dict[str, ast.Module]) -> dict[str, list[str]]:
    homes = defaultdict(list)
    for where, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(where)
    return {name: found for name, found in homes.items() if len(found) > 1}


def test_a_public_class_name_has_one_meaning():
    assert public_classes(house_trees()) == {}


def test_every_exception_is_still_needed():
    for where, name in ONE_WORD:
        assert name in one_word_functions(house_trees()[where])


def test_planted_faults_are_found():
    """The rules of this file see what they are for."""
    assert vague_variables(ast.parse("def read(said):\n    told = said")) == ["said", "told"]
    assert one_word_functions(ast.parse("def told(): ...\nasync def _asked(): ...")) == [
        "told",
        "_asked",
    ]
    assert public_classes({"a": ast.parse("class Line: ..."), "b": ast.parse("class Line: ...")})
    planted = "def add_up(*, a): ...\nadd_up(1, 2, 3, 4, 5)"
    assert long_calls(ast.parse(planted), frozenset()) == ["add_up in line 2"]
    wide = "@dataclass(frozen=True)\nclass Wide:\n    a: int\n    b: int\n    c: int\n    d: int"
    assert wide_dataclasses(ast.parse(wide)) == ["Wide"]
