"""One protocol, two journals, the same laws; on PostgreSQL also across processes."""

import os
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from itertools import count

import anyio
import pytest

from batuta.clients import CallCache, CallCacheClient, ScriptedClient
from batuta.clients.cache_shared import LEASE_S, open_shared_journal
from batuta.core import Request, Sampling, user_message
from batuta.errors import ConfigError, ProviderOverloadedError, StoreError
from store.conftest import tell

pytestmark = pytest.mark.anyio
SCOPES = count()


def asked(text="Why?", seed=1):
    return Request(messages=(user_message(text),), sampling=Sampling(seed=seed))


class Slow:
    """A worker that takes its time and counts its calls."""

    def __init__(self, seconds=0.2, fail=0):
        self.calls = 0
        self.seconds = seconds
        self.fail = fail

    async def complete(self, request, listener=None):
        self.calls += 1
        number = self.calls
        await anyio.sleep(self.seconds)
        if number <= self.fail:
            raise ProviderOverloadedError("busy")
        return await ScriptedClient([f"reply {number}"]).complete(request)


@pytest.fixture(params=["sqlite", "postgresql"])
def open_journal(request, tmp_path):
    """Opens the same journal again and again, as several processes would."""
    if request.param == "sqlite":
        with CallCache(tmp_path / "calls.db") as journal:

            @asynccontextmanager
            async def again():
                yield journal

            yield again
        return
    url, scope = request.getfixturevalue("postgres"), f"scope {next(SCOPES)}"
    yield lambda: open_shared_journal(url, scope)


async def test_many_who_ask_the_same_make_one_call(open_journal):
    worker, said = Slow(), []
    async with open_journal() as one, open_journal() as two:

        async def ask(journal):
            said.append((await CallCacheClient(worker, journal, "w").complete(asked())).text)

        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(ask, one)
                group.start_soon(ask, two)
    assert worker.calls == 1
    assert said == ["reply 1"] * 20
    assert one.misses + (two.misses if two is not one else 0) == 1


async def test_a_failure_lets_the_next_one_call(open_journal):
    worker, said, failed = Slow(0.1, fail=2), [], []
    async with open_journal() as one, open_journal() as two:

        async def ask(journal):
            try:
                said.append((await CallCacheClient(worker, journal, "w").complete(asked())).text)
            except ProviderOverloadedError:
                failed.append(1)

        async with anyio.create_task_group() as group:
            for journal in (one, two, one, two):
                group.start_soon(ask, journal)
    assert (len(failed), worker.calls) == (2, 3)
    assert said == ["reply 3"] * 2


async def test_a_cancelled_call_lets_the_next_one_call(open_journal):
    worker = Slow(30)
    async with open_journal() as one, open_journal() as two:
        with anyio.move_on_after(0.3):
            await CallCacheClient(worker, one, "w").complete(asked())
        quick = Slow(0)
        began = time.monotonic()
        await CallCacheClient(quick, two, "w").complete(asked())
    assert (worker.calls, quick.calls) == (1, 1)
    assert time.monotonic() - began < LEASE_S / 3


async def test_it_is_there_for_the_next_one_who_opens_it(open_journal):
    async with open_journal() as journal:
        await CallCacheClient(Slow(0), journal, "w").complete(asked())
    async with open_journal() as journal:
        reply = await CallCacheClient(ScriptedClient([]), journal, "w").complete(asked())
    assert reply.text == "reply 1"
    assert reply.usage.total > 0


async def test_another_scope_is_another_journal(postgres):
    worker = Slow(0)
    for scope in ("first", "second", "first"):
        async with open_shared_journal(postgres, scope) as journal:
            await CallCacheClient(worker, journal, "w").complete(asked())
    assert worker.calls == 2


HOLDER = """
import anyio, sys
from batuta.clients.cache_shared import open_shared_journal
from batuta.core import Request, Sampling, user_message

async def main():
    async with open_shared_journal(sys.argv[1], sys.argv[2]) as journal:
        async with journal.claim("w", Request(messages=(user_message("Why?"),), sampling=Sampling(seed=1))):
            print("claimed", flush=True)
            await anyio.sleep(120)

anyio.run(main)
"""


async def test_the_claim_of_a_killed_process_is_taken_over(postgres):
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, postgres, "killed"], stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout.readline() == b"claimed\n"
        async with open_shared_journal(postgres, "killed") as journal:
            worker = Slow(0)
            with anyio.move_on_after(2):
                await CallCacheClient(worker, journal, "w").complete(asked())
            assert worker.calls == 0, "the claim holds while its process lives"
            os.kill(holder.pid, signal.SIGKILL)
            began = time.monotonic()
            with anyio.fail_after(2 * LEASE_S):
                reply = await CallCacheClient(worker, journal, "w").complete(asked())
    assert reply.text == "reply 1"
    assert time.monotonic() - began < LEASE_S + 2


async def test_a_call_longer_than_a_lease_keeps_its_claim(postgres):
    async with (
        open_shared_journal(postgres, "long") as one,
        open_shared_journal(postgres, "long") as two,
    ):
        worker = Slow(LEASE_S + 3)
        async with anyio.create_task_group() as group:
            group.start_soon(CallCacheClient(worker, one, "w").complete, asked())
            await anyio.sleep(0.1)
            group.start_soon(CallCacheClient(worker, two, "w").complete, asked())
    assert worker.calls == 1


async def test_a_lost_connection_loses_no_reply(postgres):
    async with open_shared_journal(postgres, "cut") as journal:
        worker = Slow(0.3)

        async def cut():
            await anyio.sleep(0.1)
            await anyio.to_thread.run_sync(
                tell,
                postgres,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE pid <> pg_backend_pid() AND datname = current_database()",
            )

        async with anyio.create_task_group() as group:
            group.start_soon(cut)
            reply = await CallCacheClient(worker, journal, "w").complete(asked())
        assert reply.text == "reply 1"
        again = await CallCacheClient(worker, journal, "w").complete(asked())
    assert again == reply
    assert worker.calls == 1


async def test_a_database_that_is_not_there_is_one_sentence():
    with pytest.raises(StoreError, match="call journal") as raised:
        async with open_shared_journal("postgresql://nobody@127.0.0.1:1/none", "x"):
            pass
    assert "\n" not in str(raised.value)


async def test_a_database_without_room_for_tables_keeps_no_connection(postgres):
    import asyncpg

    url = f"{postgres}?application_name=refused&search_path=nowhere"
    with pytest.raises(StoreError, match="call journal"):
        async with open_shared_journal(url, "x"):
            pass
    watching = await asyncpg.connect(postgres)
    count_open = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'refused'"
    try:
        with anyio.fail_after(20):
            while await watching.fetchval(count_open):
                await anyio.sleep(0.05)
    finally:
        await watching.close()


async def test_an_error_of_the_block_stays_what_it_is(postgres):
    with pytest.raises(ConfigError, match="mine"):
        async with open_shared_journal(postgres, "error"):
            raise ConfigError("mine")
