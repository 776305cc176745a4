"""The house rules that a program can check; the import rules are import-linter's."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "batuta"
FILES = sorted(p for p in SOURCE.rglob("*.py") if "versions" not in p.parts)
NAMES = [str(p.relative_to(SOURCE)) for p in FILES]


def _docstring_lines(node):
    """Lines of the docstring of a module, class or function, which are not counted as its size."""
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return 0
    return len((ast.get_docstring(node, clean=False) or "").splitlines())


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_modules_are_small_and_speak(path):
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "a module says what it is"
    spoken = sum(_docstring_lines(node) for node in ast.walk(tree))
    assert len(text.splitlines()) - spoken <= 440  # arguments by name take lines


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_functions_are_short(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            doc = ast.get_docstring(node, clean=False) or ""
            lines = (node.end_lineno or 0) - node.lineno + 1 - len(doc.splitlines())
            signature = node.body[0].lineno - node.lineno
            assert lines - signature <= 55, f"{node.name} has {lines} lines"


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_no_task_outlives_its_block(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert (node.value.id, node.attr) not in {
                ("asyncio", "create_task"),
                ("asyncio", "gather"),
                ("asyncio", "ensure_future"),
            }


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_names_tell_something(path):
    vague = ("util", "helper", "manager", "common", "misc")
    assert not any(word in path.stem for word in vague)


def test_core_and_language_use_the_standard_library_only():
    import sys

    for path in [
        *(SOURCE / "core").glob("*.py"),
        *(SOURCE / "language").glob("*.py"),
        SOURCE / "errors.py",
    ]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = (
                [a.name for a in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            for name in names:
                assert name.split(".")[0] in {"batuta", *sys.stdlib_module_names}, f"{path}: {name}"


def test_tests_patch_nothing():
    for path in Path(__file__).parent.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            modules = (
                [a.name for a in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            assert not any(m.startswith("unittest") for m in modules), path
