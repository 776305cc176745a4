"""Environment variables, the files and folders that they name, and this machine's memory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from batuta.errors import ConfigError

FILE_SUFFIX = "_FILE"
"""Suffix of the variable that names a file with the value, as in `BATUTA_SECRET_FILE`."""


def read_variable(environ: Mapping[str, str], name: str) -> str:
    """Return the variable's value, or the content of the file that `{name}_FILE` names.

    White space around the value is removed. Return "" if neither variable is set.

    Raises:
        ConfigError: the file cannot be read or is empty.
    """
    if given := environ.get(name, "").strip():
        return given
    path = environ.get(f"{name}{FILE_SUFFIX}", "").strip()
    if not path:
        return ""
    try:
        value = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{name}{FILE_SUFFIX} names {path}, which cannot be read: {error}"
        ) from None
    if not value:
        raise ConfigError(f"{name}{FILE_SUFFIX} names {path}, which is empty")
    return value


def data_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of runs and keys: BATUTA_HOME, or `batuta` in the user's data folder."""
    if home := environ.get("BATUTA_HOME"):
        return Path(home)
    base = environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "batuta"


def benchmark_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of benchmarks and records: BATUTA_DATA, or `data` in `data_folder`."""
    named = environ.get("BATUTA_DATA")
    return Path(named) if named else data_folder(environ) / "data"


def models_cache(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of model files, in the user's cache."""
    base = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or Path.home()) / ".cache"
    return Path(base) / "batuta" / "models"


def host_memory() -> int:
    """Return this machine's memory in bytes, without GPU memory; a container's limit is ignored."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def available_memory() -> int:
    """Return this machine's free memory in bytes, counting caches as free.

    A container's limit is ignored. Where `/proc/meminfo` does not state the free memory, as on
    macOS, return the whole memory.
    """
    try:
        lines = Path("/proc/meminfo").read_text("utf-8").splitlines()
    except OSError:
        return host_memory()
    free = next((line.split()[1] for line in lines if line.startswith("MemAvailable:")), None)
    return host_memory() if free is None else int(free) * 1024
