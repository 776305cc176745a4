"""Idempotency-Key: a request that was answered is not run again; its stored answer is sent."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections import deque
from typing import Any, cast, final

import anyio
import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from batuta.errors import StoreError
from batuta.gateway.access.caller import caller_of
from batuta.gateway.errors import APIError, log_exception
from batuta.gateway.http.body import header_value, raw_headers, read_checked_body, replay_body
from batuta.store import Store
from batuta.store.idempotency import (
    CLAIM_SECONDS,
    EarlierRequest,
    IdempotencyStore,
    StoredAnswer,
)
from batuta.store.key_permissions import KeyPermissions

IDEMPOTENT_PATHS = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"}
)
MAX_KEPT_BYTES = 4 * 1024 * 1024
"""Maximum number of bytes of a stored answer; a retry after a longer answer runs again."""
_KEY_PATTERN = re.compile(rb"[!-~]{1,255}")
_DIGEST_BYTES = hashlib.sha256().digest_size
_SUCCESS_STATUSES = range(200, 300)
_STREAM_ENDS = (
    b"\ndata: [DONE]\n",
    b"\nevent: response.completed\n",
    b"\nevent: response.incomplete\n",
    b"\nevent: message_stop\n",
)
"""Lines that only a complete stream has; in an answer's text, line breaks are escaped."""
_JOB_START, _JOB_FAILURE = b"event: response.created\n", b"\nevent: response.failed\n"
"""Lines of the stream of a background response: the first, and that of a failed response."""
_LOST_CLAIMS = 1_000
_LOST = (
    "The result of an earlier request with this Idempotency-Key could not be stored; "
    "to run the request again, use a new key."
)


@final
class IdempotencyMiddleware:
    """Stores complete, successful answers of up to 4 MiB for a day; else frees the request's key.

    For a request with `store: false`, only the fact that it was answered is stored. An incomplete
    stream of a background response is stored too: its job continues and must not start twice.
    """

    def __init__(self, app: ASGIApp, store: Store, *, claim_seconds: float = CLAIM_SECONDS) -> None:
        self.app = app
        self.store = store
        self.claim_seconds = claim_seconds
        self._lost: deque[str] = deque(maxlen=_LOST_CLAIMS)
        """The latest claims whose result the database did not store."""
        self._unreleased: deque[str] = deque(maxlen=_LOST_CLAIMS)
        """The latest claims without a result that the database may not have released."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the request, or send the stored answer.

        Raises:
            APIError: the key is malformed or belongs to another or a running request, the earlier
                answer was not stored, the database fails, or the body or request is refused.
            ClientGone: the client has disconnected.
        """
        key = header_value(scope, b"idempotency-key")
        if key is None or scope["path"] not in IDEMPOTENT_PATHS or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        if not _KEY_PATTERN.fullmatch(key):
            message = "An Idempotency-Key must have 1 to 255 visible ASCII characters."
            raise APIError(400, "invalid_value", message, param="Idempotency-Key")
        body = await read_checked_body(receive)
        caller = caller_of(scope)
        request = _Fingerprint(scope["path"], caller.permissions, body)
        claims = IdempotencyStore(self.store.database, claim_seconds=self.claim_seconds)
        claim = secrets.token_hex(8)
        found = await self._claim(claims, caller.tenant, key.decode(), request.digest, claim=claim)
        if found is not None:
            request.check(found.digest)
            if found.claim in self._lost:
                raise APIError(409, "conflict", _LOST, headers={"x-should-retry": "false"})
            await _send_earlier_answer(found, send)
            return
        fields = _read_object(body)
        record = _ResponseRecorder(send, in_background=fields.get("background") is True)
        await self._answer_first(
            scope,
            replay_body(body, receive),
            record,
            claims=claims,
            claim=claim,
            may_keep=fields.get("store") is not False,
        )

    async def _claim(
        self, claims: IdempotencyStore, tenant: str, key: str, digest: bytes, *, claim: str
    ) -> EarlierRequest | None:
        """Claim the key and return None, or return the earlier request with the key.

        A claim that could not be released in an outage of the database is released first.

        Raises:
            APIError: the database fails.
        """
        try:
            found = await claims.claim(tenant, key, digest, claim)
            if found is not None and found.claim in self._unreleased:
                await claims.forget(found.claim)
                found = await claims.claim(tenant, key, digest, claim)
        except StoreError as error:
            log_exception(error)
            self._unreleased.append(claim)  # the database may have stored it all the same
            message = "Earlier answers cannot be looked up now; try again."
            raise APIError(503, "overloaded", message, headers={"retry-after": "1"}) from None
        return found

    async def _answer_first(
        self,
        scope: Scope,
        receive: Receive,
        record: _ResponseRecorder,
        claims: IdempotencyStore,
        *,
        claim: str,
        may_keep: bool,
    ) -> None:
        """Run the request, and store its answer or free its key."""
        answer: StoredAnswer | None = None
        failure: Exception | None = None
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_renew_claim, claims, claim)
                try:
                    await self.app(scope, receive, record.send)
                except Exception as error:  # noqa: BLE001 - the task group would wrap it
                    failure = error
                tasks.cancel_scope.cancel()
            if failure is not None:
                raise failure
            answer = record.answer(content=may_keep)
        finally:
            with anyio.CancelScope(shield=True):
                try:
                    await (claims.forget(claim) if answer is None else claims.keep(claim, answer))
                except StoreError as error:
                    log_exception(error)
                    (self._unreleased if answer is None else self._lost).append(claim)


async def _renew_claim(claims: IdempotencyStore, claim: str) -> None:
    """Renew the claim until cancelled: a run may take longer than a claim lasts."""
    while True:
        await anyio.sleep(claims.claim_seconds / 3)
        try:
            await claims.renew(claim)
        except StoreError as error:  # retried next time; if the claim expires, two may run
            log_exception(error)


@final
class _Fingerprint:
    """A digest of the request, followed by a digest of its key's permissions.

    The form of both must stay the same, so that answers from before an upgrade are still sent.
    """

    def __init__(self, path: str, permissions: KeyPermissions, body: bytes) -> None:
        named = (permissions.models, permissions.workers_allow, permissions.workers_deny)
        if permissions.tags or permissions.tools:
            named = (*named, permissions.tags)
        if permissions.tools:
            named = (*named, permissions.tools)
        sent = hashlib.sha256(b"\0".join((path.encode(), body))).digest()
        self.digest = (
            sent + hashlib.sha256(orjson.dumps([sorted(names) for names in named])).digest()
        )
        # Earlier versions stored one digest of both; such rows exist for a day after an upgrade.
        parts = (path.encode(), repr(named).encode(), body)
        self._combined = hashlib.sha256(b"\0".join(parts)).digest()

    def check(self, earlier: bytes) -> None:
        """Raise APIError if the earlier request had another fingerprint."""
        if earlier in {self.digest, self._combined}:
            return
        if earlier[:_DIGEST_BYTES] == self.digest[:_DIGEST_BYTES]:
            # A key with fewer permissions must not receive the answer to another key.
            message = (
                "This Idempotency-Key was used with other API-key permissions, or before the "
                "permissions of this API key changed; use a new Idempotency-Key."
            )
        else:
            message = "This Idempotency-Key was used for another request; use a new key."
        raise APIError(409, "idempotency_conflict", message)


class _ResponseRecorder:
    """Records a response while it is sent."""

    def __init__(self, send: Send, *, in_background: bool) -> None:
        self._send = send
        self._in_background = in_background
        self._start: Message | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self._is_complete = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = dict(message)
        elif self._size <= MAX_KEPT_BYTES:
            part = message.get("body", b"")
            self._parts.append(part)
            self._size += len(part)
        await self._send(message)
        self._is_complete = message["type"] == "http.response.body" and not message.get("more_body")

    def answer(self, *, content: bool) -> StoredAnswer | None:
        """Return the answer to store; None unless it is successful, usable and not too long.

        Without `content`, the stored answer has no body.
        """
        start = self._start
        if start is None or self._size > MAX_KEPT_BYTES or start["status"] not in _SUCCESS_STATUSES:
            return None
        body = b"".join(self._parts)
        headers: list[tuple[bytes, bytes]] = list(start["headers"])
        if not self._is_usable(body, is_stream=_is_stream(headers)):
            return None
        plain = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers)
        return StoredAnswer(start["status"], plain, body if content else None)

    def _is_usable(self, body: bytes, *, is_stream: bool) -> bool:
        """Return True if a retry can be answered with the body."""
        if is_stream and self._in_background and body.startswith(_JOB_START):
            return _JOB_FAILURE not in body
        ended = not is_stream or any(end in body for end in _STREAM_ENDS)
        return self._is_complete and ended


async def _send_earlier_answer(earlier: EarlierRequest, send: Send) -> None:
    """Send the stored answer.

    Raises:
        APIError: the earlier request is still running, or its answer was not stored.
    """
    answer = earlier.answer
    if answer is None:
        message = (
            "A request with this Idempotency-Key is running; wait for it. If its server has "
            f"stopped, the key is free again {CLAIM_SECONDS / 60:.0f} minutes later."
        )
        raise APIError(409, "conflict", message, headers={"retry-after": "1"})
    if answer.body is None:
        message = (
            "This request was answered with 'store' false, so its answer was not stored; to run it "
            "again, use a new key."
        )
        raise APIError(409, "conflict", message, headers={"x-should-retry": "false"})
    headers = raw_headers((*answer.headers, ("idempotent-replayed", "true")))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


def _is_stream(headers: list[tuple[bytes, bytes]]) -> bool:
    return any(n == b"content-type" and v.startswith(b"text/event-stream") for n, v in headers)


def _read_object(body: bytes) -> dict[str, Any]:
    """Return the body's object; empty if it is none, which is refused later."""
    try:
        found: Any = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}
