"""Variables of the environment, or the files that hold them; and the folders that they name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from batuta.errors import ConfigError

SUFFIX = "_FILE"
"""After a variable's name: names a file with its value."""


def read_variable(environ: Mapping[str, str], name: str) -> str:
    """The variable's value, or what the file says that `name_FILE` names; empty: neither is set.

    Raises:
        ConfigError: the file cannot be read or is empty.
    """
    if given := environ.get(name, "").strip():
        return given
    path = environ.get(f"{name}{SUFFIX}", "").strip()
    if not path:
        return ""
    try:
        value = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name}{SUFFIX} names {path}, which cannot be read: {error}") from None
    if not value:
        raise ConfigError(f"{name}{SUFFIX} names {path}, which is empty")
    return value


def data_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where runs are stored: BATUTA_HOME, or the user's data folder."""
    if home := environ.get("BATUTA_HOME"):
        return Path(home)
    base = environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "batuta"


def benchmark_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where benchmarks and records are: BATUTA_DATA, or a folder in the data folder."""
    named = environ.get("BATUTA_DATA")
    return Path(named) if named else data_folder(environ) / "data"
