"""Tools that the server runs in a model's own loop, where a client asks for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from batuta.core.conductor import Client
from batuta.core.message import Tool
from batuta.core.worker import Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchWish:
    """A client's wish that the models may search the web."""

    field: str
    """The part of the request that says so, as the header of what is ignored names it."""
    is_refused: bool = False
    """Whether a request is refused where there is no web search; else the wish is ignored."""
    is_forced: bool = False
    """Whether each model must search before it answers."""
    max_uses: int | None = None
    """Searches of one call of a model, at most; None: as many as the operator allows."""
    allow: tuple[str, ...] = ()
    """Domains; empty: all."""
    deny: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTool:
    """A tool, and how a worker's client is given it."""

    tool: Tool
    """The tool as models are offered it."""
    wrap_client: Callable[[Client, Worker, SearchWish], Client]
    """Returns a client that runs the tool's calls itself."""
