"""Disks that are full, files that are no database, other programs: one clear sentence each."""

import sqlite3
import subprocess
import sys
import threading
from decimal import Decimal

import anyio
import pytest
from sqlalchemy import text
from tests.store.strategies import make_run

from batuta.errors import StoreError
from batuta.jobs import open_jobs
from batuta.store import Store
from batuta.store.database import database_name, parse_url

pytestmark = pytest.mark.anyio


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs.db"


async def opening(target, sentence):
    with pytest.raises(StoreError, match=sentence) as caught:
        async with Store(target):
            pytest.fail("it opened")
    assert "\n" not in str(caught.value)


async def test_a_file_that_is_no_database(path):
    path.write_bytes(b"hello, world. " * 1000)
    await opening(path, "is not a database: move it away")
    assert path.read_bytes() == b"hello, world. " * 1000


async def test_an_emptied_file_is_told_before_it_is_taken_for_new(path, caplog):
    for told in (0, 0, 1):  # made, opened again, emptied
        if told:
            path.write_bytes(b"")
        async with Store(path) as store:
            assert await store.list() == []
        assert len(caplog.messages) == told
    assert f"{path} is empty and is used as a new database" in caplog.text


async def test_a_folder_in_place_of_the_file(tmp_path):
    await opening(tmp_path, "cannot be opened: check that it is a file")


async def test_a_file_in_place_of_the_folder(path):
    path.write_text("")
    await opening(path / "runs.db", r"runs\.db/runs\.db cannot be opened or created: ")


@pytest.mark.parametrize(
    "target",
    [
        "postgresql://me:S3CRET x@127.0.0.1:1/runs",
        "postgresql://127.0.0.1:1/runs?user=me&password=S3CRET",
        "postgresql://me:x@127.0.0.1:S3CRET/runs",
        "postgresql://me:S3CRET/x@127.0.0.1/runs",
        "postgresql://me:S3CRET@127.0.0.1/runs?unknown=S3CRET",
        "postgresql//me:S3CRET@127.0.0.1/x",
        "postgres:/me:S3CRET@127.0.0.1/x",
        "mysql://me:S3CRET@127.0.0.1/x",
        "sqlite://me:S3CRET@x",
        "me:S3CRET://x",
    ],
)
async def test_a_password_in_a_wrong_url_is_not_told(target, tmp_path, monkeypatch):
    pytest.importorskip("asyncpg")
    monkeypatch.chdir(tmp_path)
    for opened in (Store, open_jobs):
        with pytest.raises(StoreError) as caught:
            async with opened(target):
                pytest.fail("it opened")
        assert "S3CRET" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_libpqs_name_for_encryption_is_known_to_both_drivers(postgres):
    for option in ("sslmode=disable", "ssl=disable"):
        with anyio.from_thread.start_blocking_portal() as portal:

            async def opens(url=f"{postgres}?{option}"):
                async with Store(url), open_jobs(url):
                    return True

            assert portal.call(opens)


async def test_a_database_that_cannot_be_reached():
    pytest.importorskip("asyncpg")
    await opening("postgresql://me:secret@127.0.0.1:1/runs", "cannot be used")


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        (":memory:", "names no file"),
        ("", "names no file"),
        ("sqlite://", "names no file"),
        ("sqlite:///file:runs?mode=memory&uri=true", "names no file"),
        ("mysql://localhost/runs", "not supported: use sqlite or postgresql"),
        ("://", "not the URL of a database"),
    ],
)
async def test_targets_that_name_no_database(target, sentence):
    with pytest.raises(StoreError, match=sentence):
        Store(target)


def test_urls_get_their_driver_and_hide_their_password(path):
    assert parse_url("postgres://me:secret@host/runs").drivername == "postgresql+asyncpg"
    assert "secret" not in database_name(parse_url("postgres://me:secret@host/runs"))
    assert database_name(parse_url(path)) == str(path)
    assert parse_url("sqlite:///a.db").drivername == "sqlite+pysqlite"


async def test_a_locked_database_is_waited_for(path):
    async with Store(path) as store:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        await store.append(make_run())
        await anyio.sleep(0.6)
        assert store.pending_count == 1
        assert store.failure is None
        other.execute("COMMIT")
        other.close()
        await store.flush()
        assert await store.is_ready()


async def test_a_table_that_is_gone_breaks_the_store_until_it_is_back(path):
    async with Store(path) as store:
        await store.database.execute(text("ALTER TABLE runs RENAME TO gone"))
        await store.append(make_run())
        with pytest.raises(StoreError, match="no such table"):
            await store.flush()
        assert store.failure is not None
        assert not await store.is_ready()
        assert await store.get("run_000000") == make_run()
        with pytest.raises(StoreError, match="no such table"):
            await store.list()
        await store.database.execute(text("ALTER TABLE gone RENAME TO runs"))
        await store.append(make_run(1))
        await store.flush()
        assert store.failure is None
        assert await store.is_ready()
        assert len(await store.list()) == 2


async def test_a_full_queue_of_a_broken_store_refuses(path):
    store = await Store(path, capacity=3).__aenter__()
    await store.database.execute(text("DROP TABLE runs"))
    for number in range(3):
        await store.append(make_run(number))
    with pytest.raises(StoreError, match="3 runs wait to be written"):
        await store.append(make_run(3))
    with pytest.raises(StoreError, match="3 runs could not be written: "):
        await store.__aexit__(None, None, None)


async def test_one_run_that_is_lost_is_no_plural(path):
    store = await Store(path).__aenter__()
    await store.database.execute(text("DROP TABLE runs"))
    await store.append(make_run(1))
    with pytest.raises(StoreError, match=r"^1 run could not be written: "):
        await store.__aexit__(None, None, None)


async def test_a_row_that_the_database_refuses_holds_up_no_other(path, caplog):
    async with Store(path) as store:
        await store.database.execute(
            text(
                "CREATE TRIGGER refuse BEFORE INSERT ON runs WHEN NEW.id = 'run_000003' "
                "BEGIN SELECT RAISE(ABORT, 'refused'); END"
            ),
            text(
                "CREATE TRIGGER heavy BEFORE INSERT ON run_contents "
                "WHEN NEW.run_id = 'run_000004' BEGIN SELECT RAISE(ABORT, 'heavy'); END"
            ),
        )
        for number in range(8):
            await store.append(make_run(number))
        await store.flush()
        assert store.lost_count == 1
        assert store.failure is None
        assert len(await store.list()) == 7
        assert await store.get("run_000004") is None
        assert (await store.summary("run_000004")).cost.usd == Decimal("0.000123")
    assert "run_000003" in caplog.text


FULL = """
import resource, signal, sys, anyio
from batuta.errors import StoreError
from batuta.store import Store
from tests.store.strategies import make_run
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
async def main():
    async with Store(sys.argv[1]) as store:
        await store.append(make_run(0))
        await store.flush()
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, hard))
        for number in range(1, 100):
            await store.append(make_run(number, question="long " * 1000))
        try:
            await store.flush()
        except StoreError as error:
            print(error)
        print(await store.is_ready(), store.pending_count, (await store.get("run_000050")).id)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        await store.flush()
        print(await store.is_ready(), store.pending_count, len(await store.list(1000)))
anyio.run(main)
"""


def test_runs_survive_a_full_disk(path):
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, check=True
    )
    sentence, full, freed = done.stdout.splitlines()
    assert "cannot be written" in sentence or "free some space" in sentence
    assert full == "False 99 run_000050"
    assert freed == "True 0 100"


async def everywhere(store, pragma):
    """Says it on each connection of the pool: four that read and the one that writes."""
    together = threading.Barrier(5)

    def say(connection):
        together.wait(timeout=20)
        connection.execute(text(pragma))

    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(store.database.run_read, say)
        group.start_soon(store.database.run_write, say)


async def test_a_run_that_cannot_be_written_yet_is_shown(path):
    run = make_run()
    async with Store(path) as store:
        await everywhere(store, "PRAGMA query_only=ON")
        await store.append(run, "acme", session="s1")
        with pytest.raises(StoreError):
            await store.flush()
        waiting = await store.summary(run.id, "acme")
        assert waiting is not None and waiting.session == "s1"
        assert await store.summary(run.id, "another") is None
        await everywhere(store, "PRAGMA query_only=OFF")
        await store.flush()
        assert await store.summary(run.id, "acme") == waiting


async def test_a_read_only_database(path):
    async with Store(path) as store:
        await everywhere(store, "PRAGMA query_only=ON")
        await store.append(make_run())
        with pytest.raises(StoreError, match="is read-only: let this user write"):
            await store.flush()
        await everywhere(store, "PRAGMA query_only=OFF")
