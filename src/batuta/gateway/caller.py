"""Who asks: what a request is told to belong to."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.types import Scope

_KEY = "batuta.caller"


@dataclass(frozen=True, slots=True)
class Caller:
    """The tenant that a request is counted to, and whose runs and responses it may see."""

    tenant: str = "local"


LOCAL = Caller()
"""Whoever asks a server that has no keys: it serves the loopback only."""


def caller_of(scope: Scope) -> Caller:
    """Who asks; the middleware that checks keys has written it down."""
    found = scope.get(_KEY)
    return found if isinstance(found, Caller) else LOCAL


def name_caller(scope: Scope, caller: Caller) -> None:
    """Writes down who asks, for `caller_of`."""
    scope[_KEY] = caller
