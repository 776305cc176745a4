"""/v1/files: uploads, lists, reads and deletes files in OpenAI's and Anthropic's dialects."""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.util import find_spec
from time import time
from typing import Any, final
from urllib.parse import quote

from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from batuta.core.formatting import plain_name
from batuta.distribution import install_hint
from batuta.gateway.access.caller import CallerRole, caller_of
from batuta.gateway.errors import (
    APIError,
    invalid_value,
    missing_parameter,
    not_found,
    unsupported_parameter,
)
from batuta.gateway.http.body import json_response, query_number, read_body, replay_body
from batuta.gateway.http.stored_reads import make_room
from batuta.gateway.serving.uploaded_files import (
    UNKNOWN_TYPE,
    UploadedFiles,
    keep_file,
    new_file_id,
)
from batuta.store.files import FileQuotaError, StoredFile

Json = dict[str, Any]
FILES_PATH = "/v1/files"
CONTAINER_PATH = "/v1/containers/{container}/files"
"""The path of files written by programs, for OpenAI's clients; the container id is not used."""
_MAX_PAGE = 1000
_AFTER_NAMES = ("after", "after_id", "page")
"""Parameters with the id of the previous page's last file: of OpenAI's clients, and of Anthropic's
older and newer clients."""
_MEDIA_TYPE = re.compile(r"[a-z0-9.+-]{1,60}/[a-z0-9.+-]{1,100}")
_REFUSED_QUERIES = frozenset({"before_id", "ids", "ids[]", "scope_id"})
"""Query parameters of Anthropic's clients that are refused: a list that ignored them would have
files that were not asked for."""
_PURPOSE = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_MIN_LIFE, _MAX_LIFE = 3600, 30 * 86_400
"""Bounds of a client's `expires_after[seconds]`."""


@final
class FileRoutes:
    """Serves the files of the caller's tenant.

    Every route raises `APIError` if the server keeps no files, or if the caller is the admin, who
    has none; and `StoreError` if the database fails.
    """

    def __init__(self, files: UploadedFiles) -> None:
        self._files = files

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route(FILES_PATH, self.list_files, methods=["GET"]),
            Route(FILES_PATH, self.upload, methods=["POST"]),
            Route(f"{FILES_PATH}/{{id}}", self.get_file, methods=["GET"]),
            Route(f"{FILES_PATH}/{{id}}", self.delete_file, methods=["DELETE"]),
            Route(f"{FILES_PATH}/{{id}}/content", self.get_content, methods=["GET"]),
            Route(f"{CONTAINER_PATH}/{{id}}", self.get_file, methods=["GET"]),
            Route(f"{CONTAINER_PATH}/{{id}}/content", self.get_content, methods=["GET"]),
        ]

    async def upload(self, request: Request) -> Response:
        """Store an uploaded file; Starlette refuses a malformed form with its `HTTPException`.

        Raises:
            ClientGone: the client has disconnected.
            APIError: the body is not a form, arrives too slowly or is too large, a field of it is
                missing or invalid, the tenant's quota is exhausted, or the form parser is not
                installed.
        """
        table = self._files.require_table()
        tenant = _owner_of(request)
        form = await _read_form(request)
        given = form.get("file")
        if not isinstance(given, UploadFile):
            raise missing_parameter("file")
        content = await given.read()
        limits = self._files.limits
        if len(content) > limits.max_bytes:
            most, size = limits.max_bytes, len(content)
            message = f"A file may have at most {most} bytes; this file has {size}."
            raise APIError(413, "request_too_large", message, param="file")
        name = plain_name(given.filename or "")
        now = time()
        file = StoredFile(
            id=new_file_id(),
            tenant=tenant,
            name=name,
            media_type=_media_type(name, given.content_type),
            purpose=_parse_purpose(form),
            created=now,
            expires=_parse_expiry(form, now, limits.keep_seconds),
            size=len(content),
        )
        try:
            await keep_file(table, file, content, limits)
        except FileQuotaError as error:
            message = f"There is no room for another file of this tenant: {error}."
            raise APIError(413, "file_quota_exceeded", message, param="file") from None
        return json_response(_file_object(file, request))

    async def list_files(self, request: Request) -> Response:
        """List the caller's files, by default the newest first.

        Raises:
            APIError: the query is malformed or not supported, or the previous page's last file does
                not exist any more.
        """
        query, table, tenant = request.query_params, self._files.require_table(), _owner_of(request)
        for name in _REFUSED_QUERIES & query.keys():
            raise unsupported_parameter(name, "the list cannot be narrowed by it.")
        limit = query_number(query.get("limit", "100"), "limit", 1, _MAX_PAGE)
        order = query.get("order", "desc")
        if order not in {"asc", "desc"}:
            raise invalid_value("order", "it must be 'asc' or 'desc'.")
        name = next((name for name in _AFTER_NAMES if query.get(name)), "after")
        after = query.get(name, "")
        if after and await table.find(after, tenant) is None:
            raise invalid_value(name, "there is no such file; list the files from the beginning.")
        found = await table.list(
            tenant,
            purpose=query.get("purpose", ""),
            after=after,
            limit=limit + 1,
            newest_first=order == "desc",
        )
        shown = [_file_object(file, request) for file in found[:limit]]
        first, last = (shown[0]["id"], shown[-1]["id"]) if shown else (None, None)
        has_more = len(found) > len(shown)
        page = {"object": "list", "data": shown, "has_more": has_more}
        following = last if has_more else None
        return json_response({**page, "first_id": first, "last_id": last, "next_page": following})

    async def get_file(self, request: Request) -> Response:
        """Describe a file.

        Raises:
            APIError: the file does not exist.
        """
        return json_response(_file_object(await self._find(request), request))

    async def get_content(self, request: Request) -> Response:
        """Return a file's bytes as an attachment, which no browser renders.

        Raises:
            APIError: the file does not exist, there is no memory for it now, or the caller has
                read too much.
        """
        file = await self._find(request)
        await make_room(request.scope, file.size)
        content = await self._files.require_table().read(file.id, file.tenant)
        if content is None:
            raise not_found(f"The file '{file.id}'")
        headers = {
            "content-disposition": f"attachment; filename*=UTF-8''{quote(file.name, safe='')}",
            "x-content-type-options": "nosniff",
        }
        return Response(content, media_type="application/octet-stream", headers=headers)

    async def delete_file(self, request: Request) -> Response:
        """Delete a file with its text and the vectors of its passages.

        Raises:
            APIError: the file does not exist.
        """
        file_id: str = request.path_params["id"]
        if not await self._files.require_table().delete(file_id, _owner_of(request)):
            raise not_found(f"The file '{file_id}'")
        if _is_anthropic(request):
            return json_response({"id": file_id, "type": "file_deleted"})
        return json_response({"id": file_id, "object": "file", "deleted": True})

    async def _find(self, request: Request) -> StoredFile:
        """Return the caller's file with the id in the path.

        Raises:
            APIError: the file does not exist.
        """
        file_id: str = request.path_params["id"]
        found = await self._files.require_table().find(file_id, _owner_of(request))
        if found is None:
            raise not_found(f"The file '{file_id}'")
        return found


def _owner_of(request: Request) -> str:
    """Return the tenant whose files the caller may use.

    Raises:
        APIError: the caller is the admin, who has no files.
    """
    caller = caller_of(request.scope)
    if caller.role is CallerRole.ADMIN:
        raise APIError(403, "permission_denied", "Administrators have no files: use a key.")
    return caller.tenant


async def _read_form(request: Request) -> FormData:
    """Return the multipart form; Starlette refuses a malformed one with its `HTTPException`.

    Raises:
        ClientGone: the client has disconnected.
        APIError: the body is not a form in UTF-8, is too large or arrives too slowly, or this
            server lacks the form parser.
    """
    kind = request.headers.get("content-type", "")
    if not kind.lower().startswith("multipart/form-data"):
        message = "Send the file as 'multipart/form-data'."
        raise APIError(415, "unsupported_media_type", message)
    if find_spec("python_multipart") is None:
        message = f"This server cannot read forms: {install_hint('tools')}."
        raise APIError(501, "not_implemented", message)
    from python_multipart.multipart import parse_options_header  # noqa: PLC0415 - in an extra

    charset = parse_options_header(kind)[1].get(b"charset", b"utf-8")
    if charset.lower() not in {b"utf-8", b"utf8"}:  # Python decodes some charsets in O(n²)
        message = "Send the form in UTF-8."
        raise APIError(415, "unsupported_media_type", message)
    receive = replay_body(await read_body(request.receive), request.receive)
    return await Request(request.scope, receive).form(max_files=1, max_fields=20)


def _media_type(name: str, given: str | None) -> str:
    guessed = mimetypes.guess_type(name)[0] or given or ""
    plain = guessed.partition(";")[0].strip().lower()
    return plain if _MEDIA_TYPE.fullmatch(plain) else UNKNOWN_TYPE


def _parse_purpose(form: Mapping[str, Any]) -> str:
    purpose = form.get("purpose") or "user_data"
    if not isinstance(purpose, str) or not _PURPOSE.fullmatch(purpose):
        raise invalid_value("purpose", "it must be a lower-case word such as 'user_data'.")
    return purpose


def _parse_expiry(form: Mapping[str, Any], now: float, most: float | None) -> float | None:
    """Return when the file expires, in seconds since the epoch; None: never.

    This is the earlier of the client's time and the settings' time (`now` plus `most` seconds).
    """
    given = form.get("expires_after[seconds]")
    last = None if most is None else now + most
    if given is None:
        return last
    text = given if isinstance(given, str) else ""
    requested = now + query_number(text, "expires_after[seconds]", _MIN_LIFE, _MAX_LIFE)
    return requested if last is None else min(requested, last)


def _is_anthropic(request: Request) -> bool:
    return "anthropic-version" in request.headers


def _file_object(file: StoredFile, request: Request) -> Json:
    if _is_anthropic(request):
        return {
            "id": file.id,
            "type": "file",
            "filename": file.name,
            "mime_type": file.media_type,
            "size_bytes": file.size,
            "created_at": datetime.fromtimestamp(file.created, UTC).isoformat(),
            "downloadable": True,
        }
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.size,
        "created_at": int(file.created),
        "expires_at": None if file.expires is None else int(file.expires),
        "filename": file.name,
        "purpose": file.purpose,
        "status": "processed",
    }
