"""Tools that the server runs in a model's own loop, where a client asks for them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self, runtime_checkable

from batuta.core.conductor import Client
from batuta.core.message import Tool, WrittenFile
from batuta.core.worker import Worker

WEB_SEARCH = "web_search"
WEB_FETCH = "web_fetch"
CODE_INTERPRETER = "code_interpreter"
FILE_SEARCH = "file_search"


class NamedFiles(Protocol):
    """Files of one tenant, some of which are named.

    Laws: a file that was deleted or has expired is in no list and has no text.
    """

    @property
    def tenant(self) -> str:
        """The tenant to whom they belong."""
        ...

    async def list_names(self) -> Mapping[str, str]:
        """Return the named files that exist: their names by their ids."""
        ...

    async def list_all(self) -> Collection[str]:
        """Return the ids of all files of the tenant."""
        ...

    async def read_texts(self, ids: Sequence[str]) -> list[tuple[str, str]]:
        """Return the texts of files by their ids."""
        ...

    async def read_vectors(self, ids: Sequence[str]) -> Mapping[str, bytes]:
        """Return the vectors that are kept of files' passages, of those that have some."""
        ...

    async def read_contents(self) -> list[tuple[str, bytes]]:
        """Return the names of the named files that exist, with what is in them.

        Raises:
            StoreError: they cannot be read.
        """
        ...

    async def keep(self, name: str, content: bytes) -> WrittenFile:
        """Keep a file that a program wrote for the tenant.

        Raises:
            StoreError: it is not kept; the sentence says why.
        """
        ...


@runtime_checkable
class TakesFiles(Protocol):
    """A client whose programs can read the files of a request and write some."""

    def with_files(self, files: NamedFiles) -> Self:
        """Return it with those files."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedTool:
    """A tool of the server that a client lets the models call."""

    tool: str
    """The name by which models know it."""
    field: str
    """The part of the request that says so, as the header of what is ignored names it."""
    is_refused: bool = False
    """Whether a request is refused where there is no such tool; else it is ignored."""
    is_forced: bool = False
    """Whether each model must call it before it answers."""
    opens_pages: bool = False
    """Whether a search may also read the pages that it finds, where pages are read here."""
    max_uses: int | None = None
    """Calls in one call of a model, at most; None: as many as the operator allows."""
    allow: tuple[str, ...] = ()
    """Domains; empty: all."""
    deny: tuple[str, ...] = ()
    file_ids: tuple[str, ...] = ()
    """The files that are to be searched, or that programs read, as the client names them."""
    file_names: tuple[str, ...] = ()
    """The names of those that programs read, as they have them."""
    files: NamedFiles | None = None
    """The same where there are files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTools:
    """The tools that clients may ask for, and how a worker's client is given them."""

    tools: Mapping[str, Tool]
    """The tools as models are offered them, by their names."""
    wrap_client: Callable[[Client, Worker, tuple[RequestedTool, ...]], Client]
    """Returns a client that runs the calls of the tools that are asked for itself, or has its
    provider run them."""
    native_only: frozenset[str] = frozenset()
    """The tools that only providers of some workers run."""
