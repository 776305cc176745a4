"""No finished call is paid for twice."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from decimal import Decimal
from itertools import count

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as rules

from batuta.clients import CallCache, CallCacheClient, ScriptedClient
from batuta.clients.cache import warn_if_emptied
from batuta.core import Cost, Price, Reply, Request, Sampling, ToolCall, Usage, user_message
from batuta.errors import ProviderOverloadedError, StoreError
from clients.cases import RecordingListener
from store.strategies import replies

NUMBERS = count()
PRICE = Price(input=Decimal(1), output=Decimal(10))


def asked(text="Why?", seed=1):
    return Request(messages=(user_message(text),), sampling=Sampling(seed=seed))


@pytest.fixture
def journal(tmp_path):
    with CallCache(tmp_path / "calls.db") as opened:
        yield opened


async def test_a_call_is_paid_once_and_its_reply_is_the_same(journal):
    worker = ScriptedClient(["Because.", "Otherwise."], price=PRICE)
    client = CallCacheClient(worker, journal, "w")
    first, again = await client.complete(asked()), await client.complete(asked())
    assert first == again and first.text == "Because."
    assert again.usage.total > 0 and again.cost.usd > 0, "with the cost of the time it was paid"
    assert len(worker.requests) == 1
    assert (journal.misses, journal.hits) == (1, 1)


def test_processes_that_open_a_new_journal_together_wait_for_each_other(tmp_path):
    path = tmp_path / "calls.db"
    with closing(sqlite3.connect(path, check_same_thread=False, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute("CREATE TABLE reached (worker TEXT PRIMARY KEY, identity TEXT)")
        later = threading.Timer(0.2, other.execute, ["COMMIT"])
        later.start()
        with CallCache(path) as journal:
            assert journal.read("w", asked()) is None
        later.join()


@pytest.mark.parametrize(
    ("worker", "request_"),
    [("w", asked(seed=2)), ("w", asked("How?")), ("v", asked())],
    ids=["another seed", "another question", "another worker"],
)
async def test_another_call_is_another_call(journal, worker, request_):
    script = ScriptedClient(lambda _: "Because.")
    await CallCacheClient(script, journal, "w").complete(asked())
    await CallCacheClient(script, journal, worker).complete(request_)
    assert len(script.requests) == 2


async def test_a_damaged_reply_is_an_error_of_the_journal(journal, tmp_path):
    await CallCacheClient(ScriptedClient(["Because."]), journal, "w").complete(asked())
    with sqlite3.connect(tmp_path / "calls.db") as file:
        file.execute("UPDATE calls SET reply = '{\"text\": 7}'")
    with pytest.raises(StoreError, match="a reply that cannot be read"):
        await CallCacheClient(ScriptedClient([]), journal, "w").complete(asked())


async def test_without_a_seed_the_worker_is_asked_anew(journal):
    script = ScriptedClient(["one", "two"])
    client = CallCacheClient(script, journal, "w")
    said = [(await client.complete(asked(seed=None))).text for _ in range(2)]  # pyright: ignore[reportArgumentType]
    assert said == ["one", "two"] and journal.misses == 0


async def test_failures_are_not_kept(journal):
    client = CallCacheClient(
        ScriptedClient([ProviderOverloadedError("busy"), "Because."]), journal, "w"
    )
    with pytest.raises(ProviderOverloadedError):
        await client.complete(asked())
    assert (await client.complete(asked())).text == "Because."


async def test_a_listener_hears_a_replayed_reply(journal):
    client = CallCacheClient(ScriptedClient(["Because it is so."]), journal, "w")
    await client.complete(asked())
    listener = RecordingListener()
    reply = await client.complete(asked(), listener)
    assert listener.text == reply.text == "Because it is so."


async def test_an_emptied_file_is_told_and_used(tmp_path, caplog):
    emptied, new, used = (tmp_path / name for name in ("emptied.db", "new.db", "used.db"))
    emptied.touch()
    CallCache(used).__exit__()
    warn_if_emptied(new, str(used), emptied, "postgresql://me@host/base")
    assert [record.getMessage() for record in caplog.records] == [
        f"{emptied} is empty: calls that it once held are paid for again"
    ]
    with CallCache(emptied) as journal:
        await CallCacheClient(ScriptedClient(["Because."]), journal, "w").complete(asked())
        assert journal.misses == 1
    caplog.clear()
    warn_if_emptied(emptied)
    assert not caplog.records


async def test_the_file_outlives_its_process(tmp_path):
    path = tmp_path / "deep" / "calls.db"
    with CallCache(path) as journal:
        await CallCacheClient(ScriptedClient(["Because."]), journal, "w").complete(asked())
    with CallCache(path) as journal:
        reply = await CallCacheClient(ScriptedClient([]), journal, "w").complete(asked())
    assert reply.text == "Because."


def test_two_may_write_to_one_file_and_the_first_reply_stays(tmp_path):
    with CallCache(tmp_path / "calls.db") as one, CallCache(tmp_path / "calls.db") as two:
        one.write("w", asked(), Reply(text="first"))
        two.write("w", asked(), Reply(text="second"))
        two.write("w", asked("How?"), Reply(text="so"))
        assert [j.read("w", asked()).text for j in (one, two)] == ["first", "first"]
        assert one.read("w", asked("How?")).text == "so"


WRITER = """
import sys, time
from batuta.clients import CallCache
from batuta.core import Reply, Request, Sampling, user_message
journal = CallCache(__import__("pathlib").Path(sys.argv[1]))
for n in range(200):
    journal.write("w", Request(messages=(user_message("q"),), sampling=Sampling(seed=n)), Reply(text=f"reply {n}"))
print("written", flush=True)
time.sleep(60)
"""


def test_what_was_written_before_a_kill_is_there(tmp_path):
    path = tmp_path / "calls.db"
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout.readline() == b"written\n"
        os.kill(writer.pid, signal.SIGKILL)
    with CallCache(path) as journal:
        read = [
            journal.read("w", Request(messages=(user_message("q"),), sampling=Sampling(seed=n)))
            for n in range(200)
        ]
    assert [reply.text for reply in read] == [f"reply {n}" for n in range(200)]


@rules(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(reply=replies)
def test_any_reply_comes_back_as_it_was(journal, reply):
    request = asked(f"question {next(NUMBERS)}")
    journal.write("w", request, reply)
    assert journal.read("w", request) == reply


def test_tool_calls_and_exact_dollars_come_back(journal):
    reply = Reply(text="", reasoning="thought", tool_calls=(ToolCall(id="c", name="f", arguments='{"a": 1}'),), usage=Usage(calls=1, input=3),
                  cost=Cost(Decimal("0.000001"), 2))  # fmt: skip
    journal.write("w", asked(), reply)
    assert journal.read("w", asked()) == reply


def test_a_file_that_is_no_journal_is_one_sentence(tmp_path):
    path = tmp_path / "calls.db"
    path.write_text("this is no database, and it is long enough to be taken for none " * 20)
    with pytest.raises(StoreError) as caught:
        CallCache(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    assert "restore it from a backup, or move it away" in str(caught.value)
