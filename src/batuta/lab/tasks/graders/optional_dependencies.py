"""Libraries that only some graders need."""

from __future__ import annotations

from importlib.util import find_spec

from batuta.distribution import install_hint
from batuta.errors import ConfigError


def require_extra(extra: str, *modules: str) -> None:
    """Check that those modules are installed.

    Raises:
        ConfigError: one is missing; the message says how to install it.
    """
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise ConfigError(f"{missing[0]} is not installed: run {install_hint(extra)}")
