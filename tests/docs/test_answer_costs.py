"""The table of the quick start is what the list prices give."""

import subprocess
import sys
from importlib.metadata import version

import pytest

from batuta.clients.providers import PROVIDERS
from docs.shell import ROOT

PAGE = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")


def test_the_models_of_the_table_are_those_that_a_key_gives():
    for name in ("openai", "anthropic", "gemini", "openrouter", "deepseek"):
        models = ", ".join(f"`{model}`" for model in PROVIDERS[name].models)
        assert f"| {name} | {models} |" in PAGE


def test_the_dollars_of_the_table_are_computed_by_its_command():
    if f"genai-prices {version('genai-prices')}" not in PAGE:
        pytest.skip("the table is of another list of prices")
    command = [sys.executable, ROOT / "bench" / "answer_costs.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    rows = [line for line in done.stdout.splitlines() if line.startswith("|")]
    assert len(rows) == 5
    for row in rows:
        assert row in PAGE
