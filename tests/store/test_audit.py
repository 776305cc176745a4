"""The audit trail: its order, what breaks it, how it is cut, and who appends at the same time."""

from __future__ import annotations

import json
from dataclasses import replace

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, insert, literal_column, update

from batuta.core.formatting import format_zoned_time
from batuta.errors import StoreError
from batuta.gateway.ui.audit import describe_details
from batuta.store import Store
from batuta.store.audit import (
    CUT,
    GENESIS,
    MAX_DETAILS,
    PAGE_ROWS,
    AuditEntry,
    AuditRecord,
    AuditTrail,
    append_entry,
    cef_line,
)
from batuta.store.key_hasher import KeyHasher
from batuta.store.key_permissions import KeyPermissions
from batuta.store.models import AUDIT, KEYS

pytestmark = pytest.mark.anyio
DAY = 86_400.0


@pytest.fixture
async def store(tmp_path):
    """A store in a file."""
    async with Store.open(tmp_path / "runs.db") as opened:
        yield opened


@pytest.fixture
async def either(target):
    """A store in a file, and one in PostgreSQL."""
    async with Store.open(target) as opened:
        yield opened


def entry(number: int = 0, **details) -> AuditEntry:
    return AuditEntry(actor="admin", action="test.done", subject=f"s{number}", details=details)


async def fill(store: Store, count: int = 5, *, at: float | None = None) -> list[AuditRecord]:
    return [await store.audit.append(entry(n), at=at) for n in range(count)]


async def test_each_record_seals_the_one_before(either):
    made = await fill(either)
    assert [record.seq for record in made] == [1, 2, 3, 4, 5]
    assert made[0].previous == GENESIS
    assert [record.previous for record in made[1:]] == [record.hash for record in made[:-1]]
    assert [record async for record in either.audit.read()] == made
    assert await either.audit.list(2) == made[:-3:-1]
    assert await either.audit.list(9, before=3) == made[1::-1]
    found = await either.audit.verify()
    assert found.broken_at is None and found.records == 5 and found.head == made[-1]


async def test_the_order_is_by_number_when_a_clock_goes_back(store):
    late = await store.audit.append(entry(1), at=2000.0)
    early = await store.audit.append(entry(2), at=1000.0)
    assert (late.seq, early.seq) == (1, 2) and early.at < late.at
    assert (await store.audit.verify()).broken_at is None
    assert [record.seq for record in await store.audit.list(9)] == [2, 1]


CHANGES = {
    "actor": "somebody",
    "tenant": "other",
    "action": "key.read",
    "subject": "s9",
    "details": "{}x",
    "at": 1.0,
    "previous": "f" * 64,
    "hash": "f" * 64,
}


@pytest.mark.parametrize("name", CHANGES)
async def test_a_changed_record_is_found(store, name):
    await fill(store)
    change = update(AUDIT).where(AUDIT.c.seq == 3).values({name: CHANGES[name]})
    await store.database.execute(change)
    assert (await store.audit.verify()).broken_at == 3


async def test_bytes_in_place_of_a_text_are_found(store):
    await fill(store)
    tampered = update(AUDIT).where(AUDIT.c.seq == 3).values(details=literal_column("x'00'"))
    await store.database.execute(tampered)
    assert (await store.audit.verify()).broken_at == 3
    [record] = [each for each in await store.audit.list(9) if each.seq == 3]
    assert isinstance(record.as_json()["details"], str)


async def test_a_record_written_anew_with_a_right_hash_is_found_by_the_next(store):
    third = (await fill(store))[2]
    forged = replace(third, actor="nobody")
    forged = replace(forged, hash=forged.expected_hash())
    values = {"actor": forged.actor, "hash": forged.hash}
    await store.database.execute(update(AUDIT).where(AUDIT.c.seq == 3).values(values))
    found = await store.audit.verify()
    assert (found.broken_at, found.reason) == (4, "it does not follow from the record before it")


@pytest.mark.parametrize(("gone", "at"), [((3,), 3), ((1,), 2), ((1, 2), 3), ((2, 3), 2)])
async def test_removed_records_are_found(store, gone, at):
    await fill(store)
    await store.database.execute(delete(AUDIT).where(AUDIT.c.seq.in_(gone)))
    assert (await store.audit.verify()).broken_at == at


async def test_a_removed_end_is_found_by_who_noted_it(store):
    made = await fill(store)
    noted = (made[4].seq, made[4].hash)
    assert (await store.audit.verify(noted)).broken_at is None
    assert (await store.audit.verify((made[1].seq, made[1].hash))).broken_at is None
    await store.database.execute(delete(AUDIT).where(AUDIT.c.seq > 3))
    assert (await store.audit.verify()).broken_at is None
    found = await store.audit.verify(noted)
    assert (found.broken_at, found.reason) == (5, "it is not the noted record")


async def test_a_cut_leaves_a_trail_that_can_be_verified(either):
    await fill(either, 3, at=1 * DAY)
    kept = await fill(either, 2, at=9 * DAY)
    assert await either.audit.cut(5, now=10 * DAY) == 3
    assert await either.audit.cut(5, now=10 * DAY) == 0
    left = [record async for record in either.audit.read()]
    assert left[:2] == kept and left[2].action == CUT and len(left) == 3
    assert (await either.audit.verify()).broken_at is None
    assert (await either.audit.verify((2, "f" * 64))).reason == "the record was cut"
    assert await either.audit.cut(5, now=30 * DAY) == 3
    assert await either.audit.cut(5, now=90 * DAY) == 0  # not the record of a cut for ever again
    assert (await either.audit.verify()).broken_at is None


class CuttingDatabase:
    """The database of a trail that is cut after a reader's first page."""

    def __init__(self, store: Store, now: float) -> None:
        self.store, self.now = store, now
        self.cut: list[int] = []

    async def fetch_rows(self, query):
        rows = await self.store.database.fetch_rows(query)
        if not self.cut:
            self.cut.append(await self.store.audit.cut(5, now=self.now))
        return rows


async def test_a_cut_while_somebody_verifies_is_no_broken_chain(store):
    def fill_pages(connection):
        for number in range(PAGE_ROWS + 20):
            append_entry(connection, entry(number), 1 * DAY)

    await store.database.run_write(fill_pages)
    await fill(store, 3, at=9 * DAY)
    database = CuttingDatabase(store, 10 * DAY)
    found = await AuditTrail(database).verify()  # pyright: ignore[reportArgumentType]
    assert database.cut == [PAGE_ROWS + 20]
    assert (found.broken_at, found.records) == (None, 4)


@pytest.mark.parametrize("values", [{"details": "{}x"}, {"details": "[1]"}, {"details": '"t"'}, {"at": 1e300}])  # fmt: skip
@pytest.mark.parametrize("seq", [1, 3])
async def test_a_changed_record_is_still_shown_and_exported(store, values, seq):
    await fill(store, 3)
    await store.database.execute(update(AUDIT).where(AUDIT.c.seq == seq).values(values))
    assert (await store.audit.verify()).broken_at == seq
    for record in await store.audit.list(9):
        assert json.dumps(record.as_json()) and cef_line(record, "1.0")
        assert format_zoned_time(record.at) and describe_details(record) is not None


async def test_details_of_every_script_are_shown_as_they_were_written(store):
    details = {"name": "Büro 東京", "other": "a\u202eb"}
    await store.audit.append(
        AuditEntry(actor="admin", action="key.created", subject="k", tenant="t", details=details)
    )
    (record,) = await store.audit.list(1)
    assert describe_details(record) == 'name: "Büro 東京", other: "a\\u202eb"'


async def test_what_is_removed_without_a_cut_is_found_after_one(store):
    await fill(store, 3, at=1 * DAY)
    await fill(store, 3, at=9 * DAY)
    await store.audit.cut(5, now=10 * DAY)
    await store.database.execute(delete(AUDIT).where(AUDIT.c.seq == 4))
    assert (await store.audit.verify()).broken_at == 5


async def test_an_old_record_behind_a_newer_one_is_not_cut(store):
    await store.audit.append(entry(1), at=9 * DAY)
    await store.audit.append(entry(2), at=1 * DAY)
    assert await store.audit.cut(5, now=10 * DAY) == 0


async def test_two_that_append_at_once_make_one_chain(target):
    """Each over connections of its own, as two replicas have them."""
    async with Store.open(target) as one, Store.open(target) as other:
        async with anyio.create_task_group() as tasks:
            for place in (one, other):
                tasks.start_soon(fill, place, 15)
        found = await other.audit.verify()
        assert found.broken_at is None and found.records == 30


async def test_a_key_is_changed_and_recorded_or_neither(either):
    keys, hasher = either.keys, KeyHasher(b"x" * 32)
    key, issued = await keys.create(hasher, "acme", "k", KeyPermissions(rpm=5), by="cli:root")
    await keys.change(key.id, KeyPermissions(rpm=9), name="new", by="admin")
    await keys.rotate(hasher, key.id, 60.0, by="admin")
    await keys.revoke(key.id, by="admin")
    assert await keys.revoke(key.id, by="admin") is not None  # again: nothing is changed
    assert await keys.change("nobody", KeyPermissions(), by="admin") is None
    await keys.set_tenant_budget("acme", None, None, by="admin")
    made = [record async for record in either.audit.read()]
    assert [(one.action, one.actor, one.tenant) for one in made] == [
        ("key.created", "cli:root", "acme"),
        ("key.changed", "admin", "acme"),
        ("key.rotated", "admin", "acme"),
        ("key.revoked", "admin", "acme"),
        ("tenant.budget", "admin", "acme"),
    ]
    assert {one.subject for one in made[:-1]} == {key.id}
    assert json.loads(made[1].details)["limits"]["rpm"] == 9
    assert not any(issued.text in one.details for one in made)


async def test_where_the_trail_cannot_be_written_nothing_is_changed(either):
    keys, hasher = either.keys, KeyHasher(b"x" * 32)
    key, _ = await keys.create(hasher, "acme", "k")
    await either.database.run_write(AUDIT.drop)
    with pytest.raises(StoreError):
        await keys.revoke(key.id)
    with pytest.raises(StoreError):
        await keys.create(hasher, "acme", "another")
    found = await either.database.fetch_rows(KEYS.select())
    assert len(found) == 1 and found[0]["revoked"] is None


async def test_long_details_are_told_by_their_digest(store):
    record = await store.audit.append(entry(text="x" * (MAX_DETAILS + 1)))
    assert set(json.loads(record.details)) == {"sha256", "characters"}


async def test_hostile_texts_are_kept_and_verified(either):
    for text in ("a\0b", "\ud800", "|=\\\n", "é" * 100, "\u202e"):
        wicked = AuditEntry(actor=text, action="a", subject=text, tenant=text, details={"t": text})
        await either.audit.append(wicked)
    assert (await either.audit.verify()).broken_at is None


TEXTS = st.text(max_size=30)


@settings(max_examples=settings().max_examples * 50 // 100)
@given(TEXTS, TEXTS, st.floats(0, 4e9))
def test_every_field_is_sealed(one, other, at):
    record = AuditRecord(
        seq=1, at=at, actor=one, tenant=other, action="a", subject="s", details="{}",
        previous=GENESIS, hash="",
    )  # fmt: skip
    swapped = replace(record, actor=other, tenant=one)
    assert (record.expected_hash() == swapped.expected_hash()) is (one == other)


@given(TEXTS)
def test_a_line_of_cef_is_one_line_with_its_marks_escaped(text):
    record = AuditRecord(
        seq=1, at=1.5, actor=text, tenant="", action="key.created", subject="s",
        details="{}", previous=GENESIS, hash="h",
    )  # fmt: skip
    line = cef_line(record, "1.0")
    assert "\n" not in line and "\r" not in line
    assert line.startswith("CEF:0|Batuta|batuta|1.0|key.created|key.created|3|rt=1500 ")
    assert "suser=" + text.replace("\\", "\\\\").replace("=", "\\=").replace("\r", "\\r").replace("\n", "\\n") in line or not text  # fmt: skip


async def test_a_transaction_that_fails_leaves_no_record(store):
    def work(connection):
        append_entry(connection, entry())
        connection.execute(insert(KEYS).values(id="k"))  # lacks what it must have

    with pytest.raises(StoreError):
        await store.database.run_write(work)
    assert (await store.audit.verify()).records == 0
