"""Providers' own packages, loaded when a test first uses one: to load it takes each worker seconds."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Later:
    """A module that is not loaded before something of it is wanted."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest asks each name of a module, to know what it is
            raise AttributeError(name)
        return getattr(import_module(self._name), name)


anthropic: Any = Later("anthropic")
