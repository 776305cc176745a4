"""Uploaded files in the bodies of requests: each is put in place as the text that it has.

A part that names a file becomes a part of its dialect with the file's text between tags, or its
picture, before anything else reads the body.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast, final

from starlette.types import Receive, Scope

from batuta.gateway.access.caller import caller_of
from batuta.gateway.errors import invalid_value, require_part
from batuta.gateway.http.body import Fields, read_fields
from batuta.language.material import wrap_fetched
from batuta.store import Store
from batuta.store.files import FileTable, FileText

Json = dict[str, Any]
NO_FILES = "This server keeps no files: its settings have no [files]."
ALL = "all"
"""Stands for all files of the tenant where files to be searched are named."""
MAX_NAMED = 50
"""Files that one request may name."""
_PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_SPOKEN = ("messages", "input", "system")
"""Fields of a body that hold parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLimits:
    """How much is kept, and for how long."""

    max_bytes: int
    """Bytes of one file."""
    tenant_files: int
    tenant_bytes: int
    keep_seconds: float | None
    """None: until it is deleted."""
    max_characters: int
    """Characters of one file's text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _NamedFile:
    """A part of a body that names a file."""

    holder: list[Any]
    place: int
    part: Json
    file_id: str
    path: str

    @property
    def is_spoken_to_openai(self) -> bool:
        """Whether the part is one of the dialect of responses."""
        return self.part["type"].startswith("input_")


@final
class StoredNamedFiles:
    """Files of a tenant that a request names, or all of them."""

    def __init__(self, table: FileTable, tenant: str, names: tuple[str, ...]) -> None:
        """Reads nothing yet."""
        self._table = table
        self.tenant = tenant
        self._names = names

    async def list_names(self) -> Mapping[str, str]:
        """Return the named files that exist: their names by their ids."""
        found = await self._table.names(self.tenant)
        if ALL in self._names:
            return found
        return {name: found[name] for name in self._names if name in found}

    async def list_all(self) -> Collection[str]:
        """Return the ids of all files of the tenant."""
        return await self._table.names(self.tenant)

    async def read_texts(self, ids: Sequence[str]) -> list[tuple[str, str]]:
        """Return the texts of files by their ids."""
        found = await self._table.texts(ids, self.tenant)
        return [(file.id, file.text or "") for file in found]


@final
class UploadedFiles:
    """The files that were uploaded here."""

    def __init__(self, store: Store | None = None, limits: FileLimits | None = None) -> None:
        """Reads nothing yet."""
        self._store = store if limits is not None else None
        self._limits = limits

    @property
    def limits(self) -> FileLimits:
        """How much is kept.

        Raises:
            APIError: no files are kept here.
        """
        return require_part(self._limits, NO_FILES)

    def require_table(self) -> FileTable:
        """Return where the files are.

        Raises:
            APIError: no files are kept here.
        """
        return require_part(self._store, NO_FILES).files

    def find_named(self, tenant: str, names: tuple[str, ...]) -> StoredNamedFiles | None:
        """Return the files that a client names to be searched; None: no files are kept here."""
        table = None if self._store is None else self._store.files
        return None if table is None else StoredNamedFiles(table, tenant, names)

    async def read_text(self, name: str, content: bytes) -> tuple[str | None, str]:
        """Return what can be read of a file, and why nothing can be if it should."""
        from batuta.tools.parsing import read_document  # noqa: PLC0415 - only where files are kept
        from batuta.tools.source import ToolError  # noqa: PLC0415 - same

        try:
            return await read_document(name, content, self.limits.max_characters), ""
        except ToolError as error:
            return None, str(error)

    async def read_fields(self, scope: Scope, receive: Receive) -> Fields:
        """Read a body, its files in place.

        Raises:
            ClientGone: it will not come.
            APIError: it is malformed, or names a file that is not here.
        """
        body = await read_fields(scope, receive)
        named = list(_find_named(body.raw))
        if len(named) > MAX_NAMED:
            raise invalid_value(named[MAX_NAMED].path, f"more than {MAX_NAMED} files are named.")
        if named:
            await self._put_in_place(named, caller_of(scope).tenant)
        return body

    async def _put_in_place(self, named: list[_NamedFile], tenant: str) -> None:
        table = self.require_table()
        ids = list({one.file_id for one in named})
        texts = {file.id: file for file in await table.texts(ids, tenant)}
        for one in named:
            file = texts.get(one.file_id)
            if file is None:
                raise invalid_value(one.path, f"there is no file '{one.file_id[:100]}'.")
            one.holder[one.place] = await self._read_part(one, file, tenant)

    async def _read_part(self, named: _NamedFile, file: FileText, tenant: str) -> Json:
        """Return the part with the file's text, or its picture.

        Raises:
            APIError: no worker can read the file.
        """
        kept = {key: named.part[key] for key in ("cache_control",) if key in named.part}
        if file.text is not None and file.text.strip():
            kind = "input_text" if named.is_spoken_to_openai else "text"
            told = f"File {file.name} ({file.id}):\n{wrap_fetched(file.text)}"
            return {"type": kind, "text": told, **kept}
        table = self.require_table()
        head = await table.find(file.id, tenant)
        content = await table.read(file.id, tenant) if head is not None else None
        if head is None or content is None:
            raise invalid_value(named.path, f"there is no file '{file.id}'.")
        data = base64.b64encode(content).decode()
        if head.media_type in _PICTURES:
            return _picture_part(named, head.media_type, data) | kept
        if content.lstrip()[:5] == b"%PDF-":  # scanned: whoever can read files sees its pages
            return _pdf_part(named, head.name, data) | kept
        why = file.fault or "it is of a kind that is not read"
        raise invalid_value(named.path, f"nothing can be read of this file: {why}.")


NO_FILES_KEPT = UploadedFiles()


def _picture_part(named: _NamedFile, media_type: str, data: str) -> Json:
    url = f"data:{media_type};base64,{data}"
    if named.is_spoken_to_openai:
        return {"type": "input_image", "image_url": url}
    if named.part["type"] == "file":
        return {"type": "image_url", "image_url": {"url": url}}
    source = {"type": "base64", "media_type": media_type, "data": data}
    return {"type": "image", "source": source}


def _pdf_part(named: _NamedFile, name: str, data: str) -> Json:
    given = {"filename": name, "file_data": f"data:application/pdf;base64,{data}"}
    if named.is_spoken_to_openai:
        return {"type": "input_file", **given}
    if named.part["type"] == "file":
        return {"type": "file", "file": given}
    source = {"type": "base64", "media_type": "application/pdf", "data": data}
    return {"type": "document", "source": source, "title": name}


def _find_named(body: Any) -> Iterator[_NamedFile]:
    """Yield the parts of a body that name files, at any depth of what is said."""
    waiting: list[tuple[Any, str]] = [(body.get(field), field) for field in _SPOKEN]
    while waiting:
        value, path = waiting.pop()
        if isinstance(value, list):
            entries = cast("list[Any]", value)
            for at, entry in enumerate(entries):
                where = f"{path}[{at}]"
                file_id, inner = _named_id(entry)
                if file_id:
                    yield _NamedFile(
                        holder=entries, place=at, part=entry, file_id=file_id, path=where + inner
                    )
                elif isinstance(entry, dict | list):
                    waiting.append((cast("Any", entry), where))
        elif isinstance(value, dict):
            inside = cast("Json", value)
            waiting += [
                (inside[key], f"{path}.{key}") for key in ("content", "output") if key in inside
            ]


def _named_id(entry: Any) -> tuple[str, str]:
    """Return the id of the file that a part names, and where in it; empty: it names none."""
    if not isinstance(entry, dict):
        return "", ""
    part = cast("Json", entry)
    match part:
        case {"type": "input_file" | "input_image", "file_id": str(named)}:
            return named, ".file_id"
        case {"type": "file", "file": {"file_id": str(named)}}:
            return named, ".file.file_id"
        case {"type": "document" | "image", "source": {"type": "file", "file_id": str(named)}}:
            return named, ".source.file_id"
        case _:
            return "", ""
