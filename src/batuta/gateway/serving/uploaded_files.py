"""Uploaded files in the bodies of requests: each is put in place as the text that it has.

A part that names a file becomes a part of its dialect with the file's text between tags, or its
picture, before anything else reads the body.
"""

from __future__ import annotations

import base64
import mimetypes
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import time
from typing import Any, cast, final

from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from starlette.types import Receive, Scope

from batuta.core import Client, Pool, WorkerId, WrittenFile
from batuta.core.formatting import folder_names
from batuta.core.server_tools import CODE_INTERPRETER, FILE_SEARCH, RequestedTool, TakesFiles
from batuta.core.worker import PROGRAM
from batuta.encoder import SentenceEncoder
from batuta.errors import StoreError
from batuta.gateway.access.caller import Caller, CallerRole, caller_of
from batuta.gateway.errors import APIError, invalid_value, require_part
from batuta.gateway.http.body import Fields, parse_fields, read_fields
from batuta.gateway.http.request_slots import MAX_BODY
from batuta.gateway.http.stored_reads import make_room
from batuta.gateway.serving.attachments import read_office_files
from batuta.gateway.serving.parsed_call import ParsedCall
from batuta.language.material import wrap_fetched
from batuta.store import Store
from batuta.store.files import FileQuotaError, FileTable, FileText, StoredFile

Json = dict[str, Any]
NO_FILES = "This server keeps no files: its settings have no [files]."
UNKNOWN_TYPE = "application/octet-stream"
WRITTEN_PURPOSE = "code_output"
"""The purpose of files that programs wrote."""
WRITTEN_SECONDS = 30 * 86_400.0
"""For how long they are kept, if not deleted before."""
MAX_READ_BYTES = 20_000_000
"""Bytes of the files together that a program is given."""
PROGRAM_FILES = "The files that the question names are in its working folder, by their names."
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
    encoder: SentenceEncoder | None = None
    """Finds what passages mean, as a file is kept; None: they are found by their words alone."""
    encoding: CapacityLimiter = field(default_factory=partial(CapacityLimiter, 1))
    """One file at a time is encoded, so that a core is left for the server."""


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

    def __init__(
        self, table: FileTable, tenant: str, names: tuple[str, ...], limits: FileLimits
    ) -> None:
        self._table = table
        self.tenant = tenant
        self._names = names
        self._limits = limits

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

    async def read_vectors(self, ids: Sequence[str]) -> Mapping[str, bytes]:
        """Return the vectors that are kept of files' passages, of those that have some."""
        return await self._table.vectors(ids, self.tenant)

    async def read_contents(self) -> list[tuple[str, bytes]]:
        """Return the names of the named files that exist, with what is in them.

        Raises:
            StoreError: they cannot be read, or are too large together.
        """
        heads = await self._table.heads(self._names, self.tenant)
        check_room(heads.values())
        found: list[tuple[str, bytes]] = []
        for file_id in self._names:
            content = await self._table.read(file_id, self.tenant) if file_id in heads else None
            if content is not None:
                found.append((heads[file_id].name, content))
        return found

    async def keep(self, name: str, content: bytes) -> WrittenFile:
        """Keep a file that a program wrote, for a month at most.

        Raises:
            StoreError: it is not kept; the sentence says why.
        """
        now, limits = time(), self._limits
        file = StoredFile(
            id=new_file_id(),
            tenant=self.tenant,
            name=name,
            media_type=mimetypes.guess_type(name)[0] or UNKNOWN_TYPE,
            purpose=WRITTEN_PURPOSE,
            created=now,
            expires=now + min(limits.keep_seconds or WRITTEN_SECONDS, WRITTEN_SECONDS),
            size=len(content),
        )
        if len(content) > limits.max_bytes:
            raise StoreError(f"a file may have {limits.max_bytes} bytes")
        try:
            await keep_file(self._table, file, content, limits)
        except FileQuotaError as error:
            raise StoreError(f"there is no room for it: {error}") from None
        return WrittenFile(id=file.id, name=name, size=file.size)


@final
class UploadedFiles:
    """The files that were uploaded here."""

    def __init__(self, store: Store | None = None, limits: FileLimits | None = None) -> None:
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

    def find_named(self, caller: Caller, names: tuple[str, ...]) -> StoredNamedFiles | None:
        """Return the files that a caller names; None: no files are kept here for it."""
        if self._store is None or self._limits is None or caller.role is CallerRole.ADMIN:
            return None
        return StoredNamedFiles(self._store.files, caller.tenant, names, self._limits)

    async def bind(self, call: ParsedCall, caller: Caller) -> ParsedCall:
        """Return the call whose requested tools have the files that they name.

        Office files that came with it are there as their texts.

        Raises:
            APIError: a program is to read what is not here, or too much; or a file is not read.
        """
        question = await read_office_files(call.question)
        call = call if question is call.question else replace(call, question=question)
        if call.earlier_files:
            files = (*call.files, *await self._find_earlier(call, caller))
            call = replace(call, files=files, earlier_files=())
        if not call.server_tools:
            return call
        requested_tools = [
            await self._bind_requested_tool(requested, call, caller)
            for requested in call.server_tools
        ]
        return replace(call, server_tools=tuple(requested_tools))

    async def _find_earlier(self, call: ParsedCall, caller: Caller) -> list[str]:
        """Return the files of earlier turns that programs can be given beside those named now.

        Of several with one name it is the newest.
        """
        if self._store is None or caller.role is CallerRole.ADMIN:
            return []
        named = {
            *call.files,
            *(each for requested in call.server_tools for each in requested.file_ids),
        }
        heads = await self._store.files.heads((*named, *call.earlier_files), caller.tenant)
        here = [heads[each] for each in named if each in heads]
        names, size = {file.name for file in here}, sum(file.size for file in here)
        kept: list[str] = []
        for file_id in call.earlier_files:
            file = heads.get(file_id)
            if file is None or file_id in named or file.name in names:
                continue
            if size + file.size <= MAX_READ_BYTES and len(named) + len(kept) < MAX_NAMED:
                kept.append(file_id)
                names.add(file.name)
                size += file.size
        return kept

    async def _bind_requested_tool(
        self, requested: RequestedTool, call: ParsedCall, caller: Caller
    ) -> RequestedTool:
        if requested.tool == FILE_SEARCH:
            return replace(requested, files=self.find_named(caller, requested.file_ids))
        if requested.tool != CODE_INTERPRETER:
            return requested
        ids = tuple(dict.fromkeys((*requested.file_ids, *call.files)))
        files = self.find_named(caller, ids)
        if files is None:
            if requested.file_ids:
                raise invalid_value(f"{requested.field}.container.file_ids", NO_FILES)
            return requested
        found = await self.require_table().heads(ids, caller.tenant)
        for file_id in requested.file_ids:
            if file_id not in found:
                reason = f"there is no file '{file_id[:100]}'."
                raise invalid_value(f"{requested.field}.container.file_ids", reason)
        try:
            check_room(found.values())
        except StoreError as error:
            raise invalid_value(f"{requested.field}.container.file_ids", f"{error}.") from None
        names = folder_names(found[file_id].name for file_id in ids if file_id in found)
        return replace(requested, files=files, file_names=tuple(names))

    def open_for_programs(
        self, call: ParsedCall, caller: Caller, pool: Pool, clients: Mapping[WorkerId, Client]
    ) -> tuple[Pool, Mapping[WorkerId, Client]]:
        """Return the workers and clients; those that run programs have the files of the call."""
        programs = {worker.id for worker in pool if PROGRAM in worker.tags}
        files = self.find_named(caller, call.files) if programs else None
        if files is None:
            return pool, clients
        own: dict[WorkerId, Client] = {}
        for name in programs:
            client = clients.get(name)
            if isinstance(client, TakesFiles):
                own[name] = cast("Client", client.with_files(files))
        workers = [
            replace(worker, description=f"{worker.description} {PROGRAM_FILES}")
            if call.files and worker.id in own
            else worker
            for worker in pool
        ]
        return Pool(tuple(workers)), {**clients, **own}

    async def read_fields(self, scope: Scope, receive: Receive) -> Fields:
        """Read a body, its files in place.

        Raises:
            ClientGone: it will not come.
            APIError: it is malformed, or names a file that is not here.
        """
        body = await read_fields(scope, receive)
        named = await parse_fields(_find_named, body)
        if len(named) > MAX_NAMED:
            raise invalid_value(named[MAX_NAMED].path, f"more than {MAX_NAMED} files are named.")
        if named:
            await self._put_in_place(named, scope)
            body.files = tuple(dict.fromkeys(one.file_id for one in named))
        return body

    async def _put_in_place(self, named: list[_NamedFile], scope: Scope) -> None:
        """Put the files in place: as much as the request could have sent itself.

        Raises:
            APIError: one is not there, nothing can be read of it, or there is no room for them.
        """
        table, tenant = self.require_table(), caller_of(scope).tenant
        ids = list({one.file_id for one in named})
        heads = await table.heads(ids, tenant)
        size = sum(heads[one.file_id].size for one in named if one.file_id in heads)
        if size > MAX_BODY:
            reason = f"the files that are named have {size} bytes together; {MAX_BODY} are allowed."
            raise APIError(413, "request_too_large", f"Too much is named: {reason}")
        await make_room(scope, size)
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
        if named.part["type"] == "container_upload":
            return {"type": "text", "text": f"The file {file.name} ({file.id}) is uploaded."} | kept
        if file.text is not None and file.text.strip():
            kind = "input_text" if named.is_spoken_to_openai else "text"
            file_text = f"File {file.name} ({file.id}):\n{wrap_fetched(file.text)}"
            return {"type": kind, "text": file_text, **kept}
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
        unread = "it is of a kind that is not read" if content else "it is empty"
        why = file.fault or unread
        raise invalid_value(named.path, f"nothing can be read of this file: {why}.")


NO_FILES_KEPT = UploadedFiles()


def check_room(files: Iterable[StoredFile]) -> None:
    """Return if a program may be given these files.

    Raises:
        StoreError: they are too large together.
    """
    if sum(file.size for file in files) > MAX_READ_BYTES:
        raise StoreError(f"programs may read {MAX_READ_BYTES} bytes of files")


def new_file_id() -> str:
    """Return an id that nobody can guess."""
    return f"file-{secrets.token_hex(12)}"


async def keep_file(table: FileTable, file: StoredFile, content: bytes, limits: FileLimits) -> None:
    """Read what can be read of a file, and write it to the store.

    Raises:
        FileQuotaError: its tenant has no room for it.
    """
    text, fault = await read_file_text(file.name, content, limits.max_characters)
    vectors = None
    if text and limits.encoder is not None:
        from batuta.tools.text_index import encode_text  # noqa: PLC0415 - only where it is wanted

        vectors = await run_sync(encode_text, limits.encoder, text, limiter=limits.encoding)
    await table.put(
        file,
        content,
        text=text,
        fault=fault,
        vectors=vectors,
        most_files=limits.tenant_files,
        most_bytes=limits.tenant_bytes,
    )


async def read_file_text(name: str, content: bytes, most: int) -> tuple[str | None, str]:
    """Return what can be read of a file, and why nothing can be if it should."""
    from batuta.tools.parsing import read_document  # noqa: PLC0415 - only where files are kept
    from batuta.tools.source import ToolError  # noqa: PLC0415 - same

    try:
        return await read_document(name, content, most), ""
    except ToolError as error:
        return None, str(error)


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


def _find_named(body: Fields) -> list[_NamedFile]:
    """Return the parts of a body that name files, at any depth of what is said."""
    found: list[_NamedFile] = []
    waiting: list[tuple[Any, str]] = [(body.get(field), field) for field in _SPOKEN]
    while waiting:
        value, path = waiting.pop()
        if isinstance(value, list):
            entries = cast("list[Any]", value)
            for at, entry in enumerate(entries):
                where = f"{path}[{at}]"
                file_id, inner = _named_id(entry)
                if file_id:
                    named = _NamedFile(
                        holder=entries, place=at, part=entry, file_id=file_id, path=where + inner
                    )
                    found.append(named)
                elif isinstance(entry, dict | list):
                    waiting.append((cast("Any", entry), where))
        elif isinstance(value, dict):
            inside = cast("Json", value)
            waiting += [
                (inside[key], f"{path}.{key}") for key in ("content", "output") if key in inside
            ]
    return found


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
        case {"type": "container_upload", "file_id": str(named)}:
            return named, ".file_id"
        case {"type": "document" | "image", "source": {"type": "file", "file_id": str(named)}}:
            return named, ".source.file_id"
        case _:
            return "", ""
