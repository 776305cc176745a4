"""The commands of docs/storage.md, tried: a backup is taken while the store is in use, and restored."""

import re
import shutil
import subprocess
from pathlib import Path

import anyio
import pytest
from tests.store.strategies import make_run

from batuta.store import Store
from batuta.store.spend_report import report_spending
from store.conftest import SERVER, tell

pytestmark = pytest.mark.anyio
PAGE = Path(__file__).parents[2] / "docs" / "storage.md"


def documented(heading):
    """The shell commands under a heading of the page."""
    section = PAGE.read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"```sh\n(.*?)```", section, re.DOTALL)


def shell(commands, **names):
    for name, value in names.items():
        commands = commands.replace(name, str(value))
    done = subprocess.run(
        ["bash", "-euc", commands], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def fill(target, first, last):
    async with Store(target) as store:
        for number in range(first, last):
            await store.append(make_run(number), f"tenant {number % 2}")


async def everything(target):
    async with Store(target) as store:
        listed = await store.list(limit=1_000)
        runs = [await store.get(one.id) for one in listed]
        return listed, runs, await report_spending(store.database, ("tenant", "model"))


async def test_a_file_is_backed_up_in_use_and_restored(tmp_path):
    live, backup = tmp_path / "runs.db", tmp_path / "backup.db"
    await fill(live, 0, 20)
    before = await everything(live)
    backing_up, restoring = documented("Backup and restore, SQLite")
    async with Store(live) as store:
        for _ in range(2):  # the second takes the place of the first
            await anyio.to_thread.run_sync(
                lambda: shell(backing_up, **{"/data/runs.db": live, "/backup/runs.db": backup})
            )
        assert backup.stat().st_mode & 0o777 == 0o600, "it says what people asked"
        await store.append(make_run(100))
    assert len((await everything(live))[0]) == 21
    shell(restoring, **{"/data/runs.db": live, "/backup/runs.db": backup})
    assert await everything(live) == before


@pytest.fixture
def server(postgres):
    tell(postgres, "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    return postgres


async def test_postgres_is_backed_up_in_use_and_restored(server, tmp_path):
    postgres = server
    if shutil.which("pg_dump") is None:
        pytest.skip("pg_dump is not installed (Debian: postgresql-client)")
    restored = f"{postgres}_restored"
    await fill(postgres, 0, 20)
    before = await everything(postgres)
    backing_up, restoring = documented("Backup and restore, PostgreSQL")
    names = {
        "postgresql://batuta@db/batuta_restored": restored,
        "postgresql://batuta@db/batuta": postgres,
        "postgresql://batuta@db/postgres": SERVER,
        "batuta_restored": restored.rpartition("/")[2],
        "/backup/batuta.dump": tmp_path / "batuta.dump",
    }
    async with Store(postgres) as store:
        await anyio.to_thread.run_sync(lambda: shell(backing_up, **names))
        await store.append(make_run(100))
    try:
        shell(restoring, **names)
        assert await everything(restored) == before
        await fill(restored, 200, 205)
        assert len((await everything(restored))[0]) == 25
    finally:
        drop = f"DROP DATABASE IF EXISTS {restored.rpartition('/')[2]} WITH (FORCE)"
        await anyio.to_thread.run_sync(tell, SERVER, drop)
