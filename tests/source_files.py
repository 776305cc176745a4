"""The package's files, each read and parsed once for all tests that look at them."""

import ast
import gc
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "batuta"


@cache
def source_texts() -> dict[str, str]:
    """What each file of the package says, by its path from the package's folder."""
    files = sorted(SOURCE.rglob("*.py"))
    return {str(file.relative_to(SOURCE)): file.read_text(encoding="utf-8") for file in files}


@cache
def source_trees() -> dict[str, ast.Module]:
    """The parsed files; no test may change them.

    They stay to the end, and no collection of garbage looks through their million nodes.
    """
    gc.disable()
    trees = {name: ast.parse(text) for name, text in source_texts().items()}
    gc.freeze()
    gc.enable()
    return trees


@cache
def nodes(tree: ast.Module) -> tuple[ast.AST, ...]:
    """What `ast.walk` yields, walked once: for the whole package that takes a second."""
    return tuple(ast.walk(tree))


@cache
def house_trees() -> dict[str, ast.Module]:
    """Those for which the house rules hold: all but a database's migrations, which are numbered."""
    return {
        name: tree for name, tree in source_trees().items() if "versions" not in Path(name).parts
    }


def complaints(find, trees=None) -> list[str]:
    """What `find(name, tree)` yields for each file, one line each: empty where a rule is kept."""
    trees = house_trees() if trees is None else trees
    return [f"{name}: {one}" for name, tree in trees.items() for one in find(name, tree)]
