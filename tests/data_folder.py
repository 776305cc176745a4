"""Benchmarks and recorded answers that some tests read; they are not distributed with Batuta."""

import os
from pathlib import Path

import pytest

NAMED = os.environ.get("BATUTA_DATA", "")
FOLDER = Path(NAMED)


def explain_missing(*paths):
    """Why a test is skipped, and how to have what it reads."""
    return (
        f"BATUTA_DATA names no folder with {', '.join(paths)}: `batuta tasks fetch` downloads benchmarks; "
        "recorded answers are their authors' (docs/evaluation.md)"
    )


def needs_data(*paths):
    """The mark of tests that read those files or folders of it."""
    there = NAMED and all((FOLDER / path).exists() for path in paths)
    return pytest.mark.skipif(not there, reason=explain_missing(*paths))
