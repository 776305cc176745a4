"""A store moves to another database, in as many passes as it takes, and nothing is missing."""

import json
import os
from decimal import Decimal

import anyio
import pytest
from sqlalchemy import insert

from batuta.errors import StoreError
from batuta.store import Store
from batuta.store.files import StoredFile
from batuta.store.ledger import Bucket, Reservation
from batuta.store.models import METADATA
from batuta.store.savings import ShadowVerdict, note_shadow
from batuta.store.transfer import transfer_store
from store.conftest import tell
from store.strategies import make_run

pytestmark = pytest.mark.anyio


def a_run(number):
    return make_run(number)


async def filled(path, numbers, content=True):
    async with Store.open(path) as store:
        for number in numbers:
            await store.append(a_run(number), f"tenant {number % 3}", content=content)
        await store.flush()


@pytest.fixture
def target(request, postgres):
    tell(postgres, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    return postgres


def by_table(found):
    return {one.table: one for one in found}


async def everything(place):
    async with Store.open(place) as store:
        listed = await store.list(limit=10_000)
        return listed, [await store.get(one.id) for one in listed]


async def test_all_of_it_is_there_afterwards(tmp_path, target):
    source = tmp_path / "runs.db"
    await filled(source, range(30))
    await filled(source, range(30, 40), content=False)
    found = by_table(await transfer_store(source, target))
    assert all(one.equal for one in found.values())
    assert found["runs"].source == found["runs"].target == 40
    assert found["run_contents"].target == 30
    assert found["ledger"].target_usd == found["ledger"].source_usd > Decimal(0)
    assert await everything(source) == await everything(target)


VALUES = {"Text": "1.5", "Money": Decimal("0.25"), "Float": 1.5, "LargeBinary": b"1"}
"""A value for each type of column; 1 for the others, which are integers."""


async def test_a_row_of_any_table_is_moved(tmp_path, target):
    source = tmp_path / "runs.db"
    async with Store.open(source) as store:
        for table in METADATA.sorted_tables:
            row = {one.name: VALUES.get(type(one.type).__name__, 1) for one in table.columns}
            await store.database.execute(insert(table).values(row))
    found = await transfer_store(source, target)
    assert {one.table: (one.source, one.target, one.equal) for one in found} == {
        table.name: (1, 1, True) for table in METADATA.sorted_tables
    }


async def test_a_second_pass_writes_what_came_and_changed_and_forgets_what_went(tmp_path, target):
    source = tmp_path / "runs.db"
    await filled(source, range(20))
    await transfer_store(source, target)
    await filled(source, range(20, 25))
    async with Store.open(source) as store:
        ids = [one.id for one in await store.list(limit=100)]
        await store.score(ids[10], 0.5, "good")
        await store.delete(ids[12])
    found = by_table(await transfer_store(source, target))
    assert all(one.equal for one in found.values())
    assert found["runs"].written == 5 + 1, "new, scored"
    assert found["runs"].forgotten == 1
    assert found["run_contents"].forgotten == 1
    assert await everything(source) == await everything(target)
    again = by_table(await transfer_store(source, target))
    assert not any(one.written or one.forgotten for one in again.values())


FILE = StoredFile(
    id="file-1", tenant="acme", name="a.txt", media_type="text/plain", purpose="user_data",
    created=1e9, expires=None, size=5,
)  # fmt: skip


async def test_a_second_pass_forgets_deleted_files_and_ended_reservations(tmp_path, target):
    source = tmp_path / "runs.db"
    bucket = Bucket("tenant:acme", "2026-11-21", 1_000)
    async with Store.open(source) as store:
        await store.files.put(FILE, b"hello", text=None, fault="", most_files=9, most_bytes=99)
        held = await store.budgets.reserve(make_run(1).id, 100, (bucket,), for_job=True)
        assert isinstance(held, Reservation)
        await transfer_store(source, target)
        await store.files.delete(FILE.id, FILE.tenant)
        await store.budgets.release(held)
    found = by_table(await transfer_store(source, target))
    assert all(one.equal for one in found.values())
    assert found["files"].forgotten == found["reservations"].forgotten == 1


async def test_a_second_pass_copies_the_verdict_of_a_comparison(tmp_path, target):
    source = tmp_path / "runs.db"
    await filled(source, range(1))
    await transfer_store(source, target)
    async with Store.open(source) as store:
        await note_shadow(store.database, a_run(0).id, ShadowVerdict.SAME, Decimal("0.01"))
    await transfer_store(source, target)
    assert (await everything(target))[0][0].shadow == "same"


async def test_a_pass_that_was_killed_goes_on(tmp_path, target):
    source = tmp_path / "runs.db"
    await filled(source, range(60))

    class Killed(Exception):
        pass

    def stop(table, rows):
        if table == "run_contents":
            raise Killed

    with pytest.raises(Killed):
        await transfer_store(source, target, stop)
    found = by_table(await transfer_store(source, target))
    assert found["runs"].written == 0
    assert all(one.equal for one in found.values())


async def test_a_source_in_use_is_copied_and_the_next_pass_has_the_rest(tmp_path, target):
    source = tmp_path / "runs.db"
    await filled(source, range(20))
    async with Store.open(source) as store, anyio.create_task_group() as group:

        async def serve():
            for number in range(100, 160):
                await store.append(a_run(number))
                await anyio.sleep(0.005)

        group.start_soon(serve)
        await transfer_store(source, target)
    found = await transfer_store(source, target)
    assert all(one.equal for one in found)
    assert await everything(source) == await everything(target)


async def test_back_to_a_file_again(tmp_path, target):
    source, back = tmp_path / "runs.db", tmp_path / "back.db"
    await filled(source, range(10))
    await transfer_store(source, target)
    await transfer_store(target, back)
    assert await everything(source) == await everything(back)


@pytest.mark.parametrize("place", ["same", "none"])
async def test_what_cannot_be_moved_is_said(tmp_path, place):
    source = tmp_path / "runs.db"
    if place == "same":
        await filled(source, range(2))
        with pytest.raises(StoreError, match="itself"):
            await transfer_store(source, source)
    else:
        with pytest.raises(StoreError, match="no store"):
            await transfer_store(source, tmp_path / "other.db")


def test_the_command_tells_counts_and_ends_with_0(tmp_path, command_line):
    source, target = tmp_path / "runs.db", tmp_path / "other.db"
    anyio.run(filled, source, range(5))
    done = command_line.run(
        "store", "migrate", str(target), "--source", str(source), "--json",
        cwd=tmp_path, env={**os.environ, "BATUTA_HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert {row["table"]: row["target"] for row in json.loads(done.stdout)}["runs"] == 5


def test_a_target_with_spending_of_its_own_is_told_from_a_source_in_use(tmp_path, command_line):
    source, target = tmp_path / "runs.db", tmp_path / "other.db"
    anyio.run(filled, source, range(2))
    anyio.run(filled, target, range(50, 52))
    for _ in range(2):
        done = command_line.run(
            "store", "migrate", str(target), "--source", str(source),
            cwd=tmp_path, env={**os.environ, "BATUTA_HOME": str(tmp_path)},
        )  # fmt: skip
        assert done.returncode == 1
        assert "differs" in done.stdout and "copy to an empty database" in done.stderr
