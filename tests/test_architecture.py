"""The house rules that a program can check; the import rules are import-linter's."""

import ast
import re
import tomllib
from pathlib import Path

from source_files import SOURCE, complaints, house_trees, nodes, source_texts

LONGEST_FUNCTION = 55
"""Lines of a function, with its signature and without its docstring."""
LONGER_FUNCTIONS = {
    ("lab/learners/selector_training.py", "fit_selector"),
}
"""Functions whose signatures still make them longer: their arguments belong into a dataclass."""


def _docstring_lines(node):
    """Lines of the docstring of a module, class or function, which are not counted as its size."""
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return 0
    return len((ast.get_docstring(node, clean=False) or "").splitlines())


def large_or_silent(name, tree, text=None):
    if not ast.get_docstring(tree):
        yield "a module says what it is"
    spoken = sum(_docstring_lines(node) for node in nodes(tree))
    lines = len((text or source_texts()[name]).splitlines()) - spoken
    if lines > 520:  # what is one thing stays one module; arguments by name take lines
        yield f"{lines} lines"


def long_functions(name, tree):
    for node in nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            doc = ast.get_docstring(node, clean=False) or ""
            lines = (node.end_lineno or 0) - node.lineno + 1 - len(doc.splitlines())
            if lines > LONGEST_FUNCTION and (name, node.name) not in LONGER_FUNCTIONS:
                yield f"{node.name} has {lines} lines"


def loose_tasks(name, tree):
    for node in nodes(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            named = f"{node.value.id}.{node.attr}"
            if named in {"asyncio.create_task", "asyncio.gather", "asyncio.ensure_future"}:
                yield f"{named} in line {node.lineno}"


def vague_name(name, tree):
    vague = ("util", "helper", "manager", "common", "misc")
    yield from (word for word in vague if word in Path(name).stem)


def test_modules_are_small_and_speak():
    assert complaints(large_or_silent) == []


def test_functions_are_short():
    assert complaints(long_functions) == []
    names = {
        (name, node.name)
        for name, tree in house_trees().items()
        for node in nodes(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert names >= LONGER_FUNCTIONS


def test_no_task_outlives_its_block():
    assert complaints(loose_tasks) == []


def test_names_tell_something():
    assert complaints(vague_name) == []


def test_planted_faults_are_found():
    """The rules of this file see what they are for, and they look at every file."""
    silent = "\n" * 521
    assert list(large_or_silent("a.py", ast.parse(silent), silent)) == [
        "a module says what it is",
        "521 lines",
    ]
    long = "def add_up():\n" + "    pass\n" * 60
    assert list(long_functions("a.py", ast.parse(long))) == ["add_up has 61 lines"]
    many = "def add(\n" + "".join(f"    a{n},\n" for n in range(56)) + "):\n    pass\n"
    assert list(long_functions("a.py", ast.parse(many))) == ["add has 59 lines"]
    loose = ast.parse("import asyncio\nasyncio.gather()")
    assert list(loose_tasks("a.py", loose)) == ["asyncio.gather in line 2"]
    assert list(vague_name("core/helpers.py", ast.parse(""))) == ["helper"]
    assert len(house_trees()) > 500


def test_core_and_language_use_the_standard_library_only():
    import sys

    for path in [
        *(SOURCE / "core").glob("*.py"),
        *(SOURCE / "language").glob("*.py"),
        SOURCE / "errors.py",
    ]:
        for node in nodes(house_trees()[str(path.relative_to(SOURCE))]):
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
        text = path.read_text(encoding="utf-8")
        if "unittest" not in text:  # as almost everywhere: nothing to parse
            continue
        for node in ast.walk(ast.parse(text)):
            modules = (
                [a.name for a in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            assert not any(m.startswith("unittest") for m in modules), path


def test_type_checks_need_no_extra():
    """`make check` of a fresh clone has neither llama.cpp nor inspect: no import may need them."""
    project = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]
    absent = {re.split(r"[<>=\[]", name)[0].replace("-", "_") for name in extras["local"]}
    absent |= {re.split(r"[<>=\[]", name)[0].replace("-", "_") for name in extras["inspect"]}
    assert absent == {"gguf", "xllamacpp", "inspect_ai"}
    for path in [*SOURCE.rglob("*.py"), *Path(__file__).parent.rglob("*.py")]:
        text = path.read_text(encoding="utf-8")
        if not any(name in text for name in absent) or "reportMissingImports=false" in text:
            continue
        lines = text.splitlines()
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Import | ast.ImportFrom):
                continue
            named = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            named += [one.name for one in node.names]
            if absent & {name.split(".")[0] for name in named}:
                line = lines[node.lineno - 1]
                assert "pyright: ignore[reportMissingImports]" in line, f"{path}: {line.strip()}"


_WRITERS = {"typer.echo", "typer.secho", "click.echo", "click.secho", "rich.print", "print"}
_WRITERS |= {
    f"{module}.{name}"
    for module in ("sys.stdout", "sys.stderr")
    for name in ("write", "writelines")
}
_WRITERS |= {
    "Console",
    "rich.console.Console",
    "sys.stdout.buffer.write",
    "sys.stderr.buffer.write",
}
_LAST_NAMES = {name.rpartition(".")[2] for name in _WRITERS}
_OUTPUT_MODULES = ("rendering/terminal.py", "rendering/console.py", "sandbox/")
"""Where output is escaped; in a sandbox nobody's terminal is written to."""


def last_name(called):
    """The attribute or the name that is called; None: it is another expression."""
    return getattr(called, "attr", None) or getattr(called, "id", None)


def raw_output(name, tree):
    if not name.startswith(_OUTPUT_MODULES):
        for node in nodes(tree):
            if not isinstance(node, ast.Call) or last_name(node.func) not in _LAST_NAMES:
                continue
            if (called := ast.unparse(node.func)) in _WRITERS:
                yield f"{called} in line {node.lineno}"


def test_what_is_written_to_a_terminal_is_escaped():
    """A command writes by `batuta.rendering.terminal` or `batuta.rendering.console`, which escape strangers' text."""
    planted = "import sys\nsys.stdout.write(run.answer)\ntyper.echo(x)\nConsole().print(x)"
    assert len(list(raw_output("cli/new.py", ast.parse(planted)))) == 3
    assert complaints(raw_output) == []
