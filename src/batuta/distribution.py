"""The name under which Batuta is installed, its version, and how to install an extra."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from pathlib import Path

DISTRIBUTION = "batuta-llm"
"""The name on PyPI; `batuta` there is an unrelated project. The import stays `batuta`."""


@cache
def package_version() -> str:
    """The version that is installed."""
    return version(DISTRIBUTION)


@cache
def is_clone() -> bool:
    """Whether this code runs from a clone of the repository, not from an installed wheel."""
    return (Path(__file__).parents[2] / "pyproject.toml").is_file()


def install_hint(*extras: str) -> str:
    """The command that installs these extras where this code runs."""
    names = ",".join(extras)
    if is_clone():
        return f".venv/bin/pip install -e '.[{names}]'"
    return f"pip install '{DISTRIBUTION}[{names}]'"
