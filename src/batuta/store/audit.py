"""The audit trail: a hash chain of records of actions, such as a new key or a deleted run.

A record's hash covers the hash of the record before it, so no record can be changed, removed or
inserted without changing all later hashes. Records contain no text of questions or answers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass, field
from math import isfinite
from time import time
from typing import Any, cast, final

from sqlalchemy import Connection, delete, func, insert, select

from batuta.store.codec import sql_text
from batuta.store.database import AdvisoryLock, Database
from batuta.store.hours import DAY_SECONDS
from batuta.store.models import AUDIT
from batuta.store.steady_clock import STEADY_CLOCK, unvouched_seconds

GENESIS = "0" * 64
"""The first record's `previous` hash."""
CUT = "audit.cut"
"""The action of a record that says which older records were purged."""
PAGE_ROWS = 1000
"""Records that `AuditTrail.read` reads in one query."""
MAX_DETAILS = 2000
"""Maximum characters of a record's details; longer details are replaced by their digest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """An action to be recorded."""

    actor: str
    """`admin`, `key:ID`, `user:ID`, `cli:NAME`, `cli`, `server`, `system`, `local`, `webhook`, or
    an address."""
    action: str
    """A name such as `key.created`."""
    subject: str = ""
    """The id or name of the object of the action; empty: none."""
    tenant: str = ""
    """The tenant that the action concerned; empty: none."""
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Small JSON without text of questions or answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """A record of the trail."""

    seq: int
    """Position in the trail; defines the order, independent of clocks."""
    at: float
    """Seconds since the epoch, by the clock of the process that wrote it."""
    actor: str
    tenant: str
    action: str
    subject: str
    details: str
    """JSON."""
    previous: str
    """The hash of the previous record."""
    hash: str

    def expected_hash(self) -> str:
        """Return the hexadecimal SHA-256 of the other fields, which `hash` must equal."""
        sealed = [
            self.seq, self.at, self.actor, self.tenant, self.action, self.subject, self.details,
            self.previous,
        ]  # fmt: skip
        # Tampering may put bytes into an SQLite column of text.
        text = json.dumps(sealed, ensure_ascii=False, separators=(",", ":"), default=repr)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def parsed_details(self) -> Any:
        """The details as JSON values; as a string if tampering has made them invalid JSON."""
        try:
            return json.loads(self.details)
        except (ValueError, RecursionError):
            return str(self.details)

    def as_json(self) -> dict[str, Any]:
        """Return the record as JSON values."""
        return {**asdict(self), "details": self.parsed_details}


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditVerdict:
    """The result of a verification of the trail, which ends at the first fault."""

    records: int
    """Number of records that were read."""
    head: AuditRecord | None
    """The last record that was read, the newest if the chain is intact; None: there is none."""
    broken_at: int | None = None
    """The sequence number at which the chain breaks; None: it is intact."""
    reason: str = ""
    """Why the chain breaks, as a clause; empty: it is intact."""


def append_entry(connection: Connection, entry: AuditEntry, at: float | None = None) -> AuditRecord:
    """Append the entry in the connection's transaction.

    Call this last in the transaction: other processes cannot append until the transaction ends.

    Args:
        connection: the transaction; a recorded change of the database is part of it too.
        entry: the entry.
        at: seconds since the epoch; None: now.
    """
    _lock_trail(connection)
    newest = select(AUDIT.c.seq, AUDIT.c.hash).order_by(AUDIT.c.seq.desc()).limit(1)
    last = connection.execute(newest).first()
    record = AuditRecord(
        seq=last.seq + 1 if last else 1,
        at=round(time() if at is None else at, 3),
        actor=sql_text(entry.actor),
        tenant=sql_text(entry.tenant),
        action=entry.action,
        subject=sql_text(entry.subject),
        details=_encode_details(entry.details),
        previous=last.hash if last else GENESIS,
        hash="",
    )
    values = {name: getattr(record, name) for name in AUDIT.c.keys()}  # noqa: SIM118
    values["hash"] = record.expected_hash()
    connection.execute(insert(AUDIT).values(values))
    return AuditRecord(**values)


def _lock_trail(connection: Connection) -> None:
    """Prevent other processes from appending until the transaction ends."""
    if connection.dialect.name == "postgresql":
        AdvisoryLock.AUDIT.take(connection)
    else:  # SQLite takes its lock with the first statement that may write
        connection.execute(delete(AUDIT).where(AUDIT.c.seq < 0))


def _encode_details(details: Mapping[str, Any]) -> str:
    text = json.dumps(details, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    text = sql_text(text)
    if len(text) <= MAX_DETAILS:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()
    return json.dumps({"sha256": digest, "characters": len(text)}, separators=(",", ":"))


@final
class AuditTrail:
    """The audit trail of all replicas, in the database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def append(self, entry: AuditEntry, *, at: float | None = None) -> AuditRecord:
        """Append an entry in its own transaction, before an action outside of it is carried out.

        `at` is the time in seconds since the epoch; None: now.

        Raises:
            StoreError: the database fails; the action must then not be carried out.
        """
        return await self._database.run_write(
            lambda connection: append_entry(connection, entry, at)
        )

    async def list(
        self, limit: int, *, before: int | None = None, action: str = ""
    ) -> list[AuditRecord]:
        """Return at most `limit` records, newest first.

        Args:
            limit: maximum number of records.
            before: only records with smaller sequence numbers; None: all.
            action: only records of that action, or of all actions with that prefix if it ends with
                a full stop; empty: all.
        """
        query = select(AUDIT).order_by(AUDIT.c.seq.desc()).limit(limit)
        if before is not None:
            query = query.where(AUDIT.c.seq < before)
        if action.endswith("."):
            query = query.where(AUDIT.c.action.startswith(action, autoescape=True))
        elif action:
            query = query.where(AUDIT.c.action == action)
        return [AuditRecord(**row) for row in await self._database.fetch_rows(query)]

    async def read(self, after: int = 0) -> AsyncIterator[AuditRecord]:
        """Yield every record after that sequence number, oldest first, reading page by page."""
        while True:
            query = select(AUDIT).where(AUDIT.c.seq > after).order_by(AUDIT.c.seq).limit(PAGE_ROWS)
            rows = await self._database.fetch_rows(query)
            for row in rows:
                yield AuditRecord(**row)
            if len(rows) < PAGE_ROWS:
                return
            after = rows[-1]["seq"]

    async def verify(self, known: tuple[int, str] | None = None) -> AuditVerdict:
        """Check that every record is unchanged and none is missing, except those purged by `cut`.

        Args:
            known: the sequence number and hash of a record that were noted elsewhere; None: a
                removal of the newest records, or a rewrite of all records, is not detected.
        """
        while True:
            checker = _ChainChecker(known)
            async for record in self.read():
                if checker.find_fault(record):
                    break
            verdict = checker.verdict()
            if verdict.broken_at is None or not await self._is_cut_since(checker.first_seq):
                return verdict

    async def _is_cut_since(self, first: int) -> bool:
        """Return True if the record `first` was purged while the trail was read."""
        query = select(func.min(AUDIT.c.seq).label("first"))
        [row] = await self._database.fetch_rows(query)
        return row["first"] is not None and row["first"] > first

    async def unvouched_seconds(self, started: float | None = None) -> float:
        """Return the seconds to wait before a purge; see `steady_clock.unvouched_seconds`."""
        return await unvouched_seconds(self._database, AUDIT.c.at, started)

    async def cut(self, days: float, *, now: float | None = None) -> int:
        """Purge all records before the first one that is at most `days` days old; if none is, all.

        A record of the purge keeps the last removed hash, so that the rest can be verified. If only
        such a record is old, nothing is purged.

        Args:
            days: how long records are kept.
            now: seconds since the epoch; None: the time of `STEADY_CLOCK`.

        Returns:
            The number of purged records.
        """
        limit = (STEADY_CLOCK() if now is None else now) - days * DAY_SECONDS

        def cut(connection: Connection) -> int:
            _lock_trail(connection)
            kept = select(func.min(AUDIT.c.seq)).where(AUDIT.c.at >= limit)
            first = connection.execute(kept).scalar()
            old = select(AUDIT).order_by(AUDIT.c.seq.desc()).limit(1)
            if first is not None:
                old = old.where(AUDIT.c.seq < first)
            last = connection.execute(old).mappings().first()
            if last is None:
                return 0
            old_rows = select(func.count()).where(AUDIT.c.seq <= last["seq"])
            count = connection.execute(old_rows).scalar_one()
            if count == 1 and last["action"] == CUT:
                return 0  # else each purge would leave a record for the next one
            mark = {"through": last["seq"], "hash": last["hash"], "records": count}
            append_entry(connection, AuditEntry(actor="server", action=CUT, details=mark), now)
            connection.execute(delete(AUDIT).where(AUDIT.c.seq <= last["seq"]))
            return count

        return await self._database.run_write(cut)


class _ChainChecker:
    """Verifies records in order until one does not fit."""

    def __init__(self, known: tuple[int, str] | None) -> None:
        self._known = known
        self._seen_known = known is None
        self._first: AuditRecord | None = None
        self._last: AuditRecord | None = None
        self._records = 0
        self._cut: str | None = None
        """The hash before the first record, according to the record of a purge."""
        self._fault: tuple[int, str] | None = None

    def find_fault(self, record: AuditRecord) -> bool:
        """Return True if the record was changed or does not fit the record before it."""
        self._records += 1
        last = self._last
        self._first = self._first or record
        if record.hash != record.expected_hash():
            self._fault = (record.seq, "the record is not as it was written")
        elif last is not None and record.seq != last.seq + 1:
            self._fault = (last.seq + 1, "the record is missing")
        elif last is not None and record.previous != last.hash:
            self._fault = (record.seq, "it does not follow from the record before it")
        if self._known and record.seq == self._known[0]:
            self._seen_known = record.hash == self._known[1]
        if record.action == CUT:
            details = record.parsed_details if self._fault is None else None
            cut = cast("dict[str, Any]", details if isinstance(details, dict) else {})
            if cut.get("through") == self._first.seq - 1:
                self._cut = cut.get("hash")
        self._last = record
        return self._fault is not None

    @property
    def first_seq(self) -> int:
        """The sequence number of the first record that was read; 0: no record was read."""
        return self._first.seq if self._first else 0

    def verdict(self) -> AuditVerdict:
        """Return the result for the records that were read."""
        fault, first, known = self._fault, self._first, self._known
        if fault is None and first is not None:
            before = GENESIS if first.seq == 1 else self._cut
            if first.previous != before:
                fault = (
                    first.seq,
                    "records before it are missing, and no record says that they were cut",
                )
        if fault is None and known is not None and not self._seen_known:
            is_cut = first is not None and known[0] < first.seq
            fault = (known[0], "the record was cut" if is_cut else "it is not the noted record")
        number, reason = fault or (None, "")
        return AuditVerdict(records=self._records, head=self._last, broken_at=number, reason=reason)


def cef_line(record: AuditRecord, version: str) -> str:
    """Return the record as a line of the Common Event Format; `version` is that of Batuta."""
    header = ("Batuta", "batuta", version, record.action, record.action)
    severity = 6 if record.action.endswith((".failed", ".deleted", ".cut")) else 3
    fields = {
        "rt": str(int(record.at * 1000)) if isfinite(record.at) else "",
        "externalId": str(record.seq),
        "suser": record.actor,
        "cs1Label": "tenant",
        "cs1": record.tenant,
        "cs2Label": "subject",
        "cs2": record.subject,
        "cs3Label": "hash",
        "cs3": record.hash,
        "msg": record.details,
    }
    start = "|".join(_escape_cef(part, "|") for part in ("CEF:0", *header, str(severity)))
    extension = " ".join(
        f"{name}={_escape_cef(value, '=')}" for name, value in fields.items() if value
    )
    return f"{start}|{extension}"


def _escape_cef(value: str, mark: str) -> str:
    value = value.replace("\\", "\\\\").replace(mark, f"\\{mark}")
    return value.replace("\r", "\\r").replace("\n", "\\n")
