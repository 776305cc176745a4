"""Each promise of SECURITY.md names a test, and each test that it names is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", TEXT)))
ROWS = [line for line in TEXT.splitlines() if line.startswith("|")][2:]


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_a_test_that_is_named_is_there(file, name):
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    tests = {n.name for n in ast.walk(tree) if isinstance(n, kinds) and n.name.startswith("test_")}
    assert tests if not name else name in tests


@pytest.mark.parametrize("row", ROWS)
def test_a_promise_names_a_test(row):
    _, promise, proof, _ = (
        row.split(" | ") if row.count(" | ") == 3 else ["", *row.strip("| ").split(" | "), ""]
    )
    assert promise.strip() and "`tests/" in proof, row
