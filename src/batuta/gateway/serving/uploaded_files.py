"""Uploaded files in request bodies: replaces each part that names a file by the file's content.

The new part has the file's text between tags, or the picture or PDF, in the form of the dialect; a
part that only gives a file to a program gets the file's name. This happens before anything else
parses the body.
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
from batuta.gateway.serving.attachments import IMAGE_TYPES, read_office_files
from batuta.gateway.serving.parsed_call import ParsedCall
from batuta.language.material import wrap_fetched
from batuta.store import Store
from batuta.store.files import FileQuotaError, FileTable, FileText, StoredFile

Json = dict[str, Any]
NO_FILES = "This server keeps no files: its settings have no [files]."
UNKNOWN_TYPE = "application/octet-stream"
WRITTEN_PURPOSE = "code_output"
"""The purpose of files written by programs."""
WRITTEN_SECONDS = 30 * 86_400.0
"""Maximum number of seconds for which a file written by a program is kept."""
MAX_READ_BYTES = 20_000_000
"""Maximum number of bytes of all files given to a program."""
PROGRAM_FILES = "The files that the question names are in its working folder, by their names."
ALL = "all"
"""In a file search, this name stands for all files of the tenant."""
MAX_NAMED = 50
"""Maximum number of parts of a request that name files. Files of earlier turns are added for
programs up to this number."""
_FIELDS_WITH_PARTS = ("messages", "input", "system")
"""Fields of a body that contain parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLimits:
    """Limits on stored files."""

    max_bytes: int
    """Maximum number of bytes of a file."""
    tenant_files: int
    """Maximum number of files of a tenant."""
    tenant_bytes: int
    """Maximum number of bytes of all files of a tenant."""
    keep_seconds: float | None
    """How long a file is kept; None: until it is deleted."""
    max_characters: int
    """Maximum number of characters of a file's text; the rest is cut off."""
    encoder: SentenceEncoder | None = None
    """Embeds a file's passages when it is stored; None: only keyword (BM25) search."""
    encoding: CapacityLimiter = field(default_factory=partial(CapacityLimiter, 1))
    """Limits how many files are encoded at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _NamedFile:
    """A part of a body that names a file."""

    holder: list[Any]
    """The array that contains the part."""
    index: int
    part: Json
    file_id: str
    path: str
    """The path of the file's id in the body, for error messages."""

    @property
    def is_of_responses(self) -> bool:
        """Whether the part is in the dialect of `/v1/responses`."""
        return self.part["type"].startswith("input_")


@final
class StoredNamedFiles:
    """The files of a tenant that a request names, or all files of the tenant."""

    def __init__(
        self, table: FileTable, tenant: str, names: tuple[str, ...], limits: FileLimits
    ) -> None:
        self._table = table
        self.tenant = tenant
        self._names = names
        self._limits = limits

    async def list_names(self) -> Mapping[str, str]:
        """Return the file names of the named files that exist, by id."""
        found = await self._table.names(self.tenant)
        if ALL in self._names:
            return found
        return {name: found[name] for name in self._names if name in found}

    async def list_all(self) -> Collection[str]:
        """Return the ids of all files of the tenant, whether the request names them or not."""
        return await self._table.names(self.tenant)

    async def read_texts(self, ids: Sequence[str]) -> list[tuple[str, str]]:
        """Return the id and the text of each of these files; a file without text has an empty one.

        Files that do not exist are left out.
        """
        found = await self._table.texts(ids, self.tenant)
        return [(file.id, file.text or "") for file in found]

    async def read_vectors(self, ids: Sequence[str]) -> Mapping[str, bytes]:
        """Return the vectors of files' passages by file id; files without any are left out."""
        return await self._table.vectors(ids, self.tenant)

    async def read_contents(self) -> list[tuple[str, bytes]]:
        """Return the names and contents of the named files that exist.

        Raises:
            StoreError: the files cannot be read, or are too large together.
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
        """Store a file written by a program, for at most 30 days, and return what describes it.

        Raises:
            StoreError: the file is not stored; the message says why.
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
            raise StoreError(f"a file may have at most {limits.max_bytes} bytes")
        try:
            await keep_file(self._table, file, content, limits)
        except FileQuotaError as error:
            raise StoreError(f"there is no room for it: {error}") from None
        return WrittenFile(id=file.id, name=name, size=file.size)


@final
class UploadedFiles:
    """The uploaded files of this server; without a store or limits, no files are kept."""

    def __init__(self, store: Store | None = None, limits: FileLimits | None = None) -> None:
        self._store = store if limits is not None else None
        self._limits = limits

    @property
    def limits(self) -> FileLimits:
        """The limits on files.

        Raises:
            APIError: files are not configured.
        """
        return require_part(self._limits, NO_FILES)

    def require_table(self) -> FileTable:
        """Return the table of files.

        Raises:
            APIError: files are not configured.
        """
        return require_part(self._store, NO_FILES).files

    def find_named(self, caller: Caller, names: tuple[str, ...]) -> StoredNamedFiles | None:
        """Return the files that a caller names; None for the admin, or if no files are kept."""
        if self._store is None or self._limits is None or caller.role is CallerRole.ADMIN:
            return None
        return StoredNamedFiles(self._store.files, caller.tenant, names, self._limits)

    async def bind(self, call: ParsedCall, caller: Caller) -> ParsedCall:
        """Give the call's requested tools their files, and replace its Office files by their texts.

        Programs also get the files of earlier turns, as many as fit.

        Raises:
            APIError: a program's file does not exist, its files are too large, an Office file
                cannot be read, or a program is to get files and no files are kept.
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
        """Return the ids of files of earlier turns that fit besides those now given to programs.

        Of several files with the same name, only the newest is returned.
        """
        if self._store is None or caller.role is CallerRole.ADMIN:
            return []
        tools = [each for each in call.server_tools if each.tool == CODE_INTERPRETER]
        named = {*call.files, *(file_id for tool in tools for file_id in tool.file_ids)}
        heads = await self._store.files.heads((*named, *call.earlier_files), caller.tenant)
        existing = [heads[file_id] for file_id in named if file_id in heads]
        names, size = {file.name for file in existing}, sum(file.size for file in existing)
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
        """Return the pool and clients, with the call's files given to workers that run programs."""
        ids = {worker.id for worker in pool if PROGRAM in worker.tags}
        files = self.find_named(caller, call.files) if ids else None
        if files is None:
            return pool, clients
        own: dict[WorkerId, Client] = {}
        for worker_id in ids:
            client = clients.get(worker_id)
            if isinstance(client, TakesFiles):
                own[worker_id] = cast("Client", client.with_files(files))
        workers = [
            replace(worker, description=f"{worker.description} {PROGRAM_FILES}")
            if call.files and worker.id in own
            else worker
            for worker in pool
        ]
        return Pool(tuple(workers)), {**clients, **own}

    async def read_fields(self, scope: Scope, receive: Receive) -> Fields:
        """Read a body, with its named files replaced by their contents.

        Raises:
            ClientGone: the client has disconnected.
            APIError: the body is malformed or refused, or names too many or too large files, or a
                file that does not exist or cannot be read, or this server keeps no files.
        """
        body = await read_fields(scope, receive)
        named = await parse_fields(_find_named, body)
        if len(named) > MAX_NAMED:
            raise invalid_value(named[MAX_NAMED].path, f"at most {MAX_NAMED} files are allowed.")
        if named:
            await self._replace_parts(named, scope)
            body.files = tuple(dict.fromkeys(each.file_id for each in named))
        return body

    async def _replace_parts(self, named: list[_NamedFile], scope: Scope) -> None:
        """Replace the parts by their files' contents, which may be as large as a body.

        Raises:
            APIError: a file does not exist or cannot be read, or the files are too large together.
        """
        table, tenant = self.require_table(), caller_of(scope).tenant
        ids = list({each.file_id for each in named})
        heads = await table.heads(ids, tenant)
        size = sum(heads[each.file_id].size for each in named if each.file_id in heads)
        if size > MAX_BODY:
            message = f"The named files have {size} bytes together; {MAX_BODY} are allowed."
            raise APIError(413, "request_too_large", message)
        await make_room(scope, size)
        texts = {file.id: file for file in await table.texts(ids, tenant)}
        for each in named:
            file = texts.get(each.file_id)
            if file is None:
                raise invalid_value(each.path, f"there is no file '{each.file_id[:100]}'.")
            each.holder[each.index] = await self._read_part(each, file, tenant)

    async def _read_part(self, named: _NamedFile, file: FileText, tenant: str) -> Json:
        """Return a part with the file's text, picture or PDF; for a container its name and id.

        Raises:
            APIError: the file cannot be read.
        """
        kept = {key: named.part[key] for key in ("cache_control",) if key in named.part}
        if named.part["type"] == "container_upload":
            return {"type": "text", "text": f"The file {file.name} ({file.id}) is uploaded."} | kept
        if file.text is not None and file.text.strip():
            kind = "input_text" if named.is_of_responses else "text"
            file_text = f"File {file.name} ({file.id}):\n{wrap_fetched(file.text)}"
            return {"type": kind, "text": file_text, **kept}
        table = self.require_table()
        head = await table.find(file.id, tenant)
        content = await table.read(file.id, tenant) if head is not None else None
        if head is None or content is None:
            raise invalid_value(named.path, f"there is no file '{file.id}'.")
        data = base64.b64encode(content).decode()
        if head.media_type in IMAGE_TYPES:
            return _picture_part(named, head.media_type, data) | kept
        if content.lstrip()[:5] == b"%PDF-":  # scanned: workers that read files see its pages
            return _pdf_part(named, head.name, data) | kept
        unread = "its type is not supported" if content else "it is empty"
        why = file.fault or unread
        raise invalid_value(named.path, f"nothing can be read of this file: {why}.")


NO_FILES_KEPT = UploadedFiles()
"""The files of a server without the settings `[files]`."""


def check_room(files: Iterable[StoredFile]) -> None:
    """Check the total size of files for a program.

    Raises:
        StoreError: the files are too large together.
    """
    if sum(file.size for file in files) > MAX_READ_BYTES:
        raise StoreError(f"programs may read at most {MAX_READ_BYTES} bytes of files")


def new_file_id() -> str:
    """Return a new file id, which cannot be guessed."""
    return f"file-{secrets.token_hex(12)}"


async def keep_file(table: FileTable, file: StoredFile, content: bytes, limits: FileLimits) -> None:
    """Store a file with its text and, with an encoder, the vectors of its passages.

    Raises:
        FileQuotaError: the tenant's quota is exhausted.
        StoreError: the database fails.
    """
    text, fault = await read_file_text(file.name, content, limits.max_characters)
    vectors = None
    if text and limits.encoder is not None:
        from batuta.tools.text_index import encode_text  # noqa: PLC0415 - only with an encoder

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
    """Return a file's text, of at most `most` characters, and the error if reading failed.

    The text is None if the file has no text or reading failed. The error is empty unless reading
    failed.
    """
    from batuta.tools.parsing import read_document  # noqa: PLC0415 - only if files are stored
    from batuta.tools.source import ToolError  # noqa: PLC0415 - same

    try:
        return await read_document(name, content, most), ""
    except ToolError as error:
        return None, str(error)


def _picture_part(named: _NamedFile, media_type: str, data: str) -> Json:
    url = f"data:{media_type};base64,{data}"
    if named.is_of_responses:
        return {"type": "input_image", "image_url": url}
    if named.part["type"] == "file":
        return {"type": "image_url", "image_url": {"url": url}}
    source = {"type": "base64", "media_type": media_type, "data": data}
    return {"type": "image", "source": source}


def _pdf_part(named: _NamedFile, name: str, data: str) -> Json:
    given = {"filename": name, "file_data": f"data:application/pdf;base64,{data}"}
    if named.is_of_responses:
        return {"type": "input_file", **given}
    if named.part["type"] == "file":
        return {"type": "file", "file": given}
    source = {"type": "base64", "media_type": "application/pdf", "data": data}
    return {"type": "document", "source": source, "title": name}


def _find_named(body: Fields) -> list[_NamedFile]:
    """Return the parts of a body that name files, at any depth of its contents and outputs."""
    found: list[_NamedFile] = []
    waiting: list[tuple[Any, str]] = [(body.get(field), field) for field in _FIELDS_WITH_PARTS]
    while waiting:
        value, path = waiting.pop()
        if isinstance(value, list):
            entries = cast("list[Any]", value)
            for at, entry in enumerate(entries):
                where = f"{path}[{at}]"
                file_id, inner = _named_id(entry)
                if file_id:
                    named = _NamedFile(
                        holder=entries, index=at, part=entry, file_id=file_id, path=where + inner
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
    """Return the file id in a part, and its path within the part; empty if there is none."""
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
