"""Tools that the server runs inside a model's call, if the client requests them."""

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
    """The files of one tenant, with a selection named by the request.

    Laws: a deleted or expired file is in no list and has no text; every method raises a
    `StoreError` if the files cannot be read.
    """

    @property
    def tenant(self) -> str:
        """The tenant that owns the files."""
        ...

    async def list_names(self) -> Mapping[str, str]:
        """Return the names of the selected files that exist, by id."""
        ...

    async def list_all(self) -> Collection[str]:
        """Return the ids of all files of the tenant that exist."""
        ...

    async def read_texts(self, ids: Sequence[str]) -> list[tuple[str, str]]:
        """Return (id, text) of the files with these ids that exist; a text may be empty."""
        ...

    async def read_vectors(self, ids: Sequence[str]) -> Mapping[str, bytes]:
        """Return the stored vectors of files' passages by file id, for files that have some."""
        ...

    async def read_contents(self) -> list[tuple[str, bytes]]:
        """Return (name, content) of the selected files that exist.

        Raises:
            StoreError: the files cannot be read, or are too large together.
        """
        ...

    async def keep(self, name: str, content: bytes) -> WrittenFile:
        """Store a file that a program wrote for the tenant.

        Raises:
            StoreError: the file could not be stored; the message says why.
        """
        ...


@runtime_checkable
class TakesFiles(Protocol):
    """A client whose programs can read the files of a request and write new ones."""

    def with_files(self, files: NamedFiles) -> Self:
        """Return a client of the same kind with these files."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedTool:
    """A tool of the server that a client lets the models call."""

    tool: str
    """The tool's name as the models see it."""
    field: str
    """The request field that asks for the tool, as the header of ignored fields names it."""
    is_refused: bool = False
    """Whether the request is refused if the server has no such tool; else the field is ignored."""
    is_forced: bool = False
    """Whether each model must call the tool before it answers."""
    opens_pages: bool = False
    """Whether a search may also read the pages it finds, if the server can read pages."""
    max_uses: int | None = None
    """Maximum number of tool calls within one call of a model; None: the operator's maximum."""
    allow: tuple[str, ...] = ()
    """Domains that may be searched or read; empty: all."""
    deny: tuple[str, ...] = ()
    """Domains that must not be searched or read."""
    file_ids: tuple[str, ...] = ()
    """The ids of the files to search, or that programs can read."""
    file_names: tuple[str, ...] = ()
    """The file names under which programs find the files of `file_ids`."""
    files: NamedFiles | None = None
    """Access to the files of `file_ids`; None if the request names none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTools:
    """The tools that clients may request, and the function that adds them to a worker's client."""

    tools: Mapping[str, Tool]
    """The tools as offered to models, by name."""
    wrap_client: Callable[[Client, Worker, tuple[RequestedTool, ...]], Client]
    """Returns a client that runs calls of the requested tools itself, or has its provider run them.
    """
    native_only: frozenset[str] = frozenset()
    """The tools that only some workers' providers can run."""
