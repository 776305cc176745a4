"""Append, read, list, judge, forget: on a real file."""

import signal
import subprocess
import sys
from dataclasses import replace
from decimal import Decimal

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from sqlalchemy import Engine, event, text
from tests.store.strategies import make_run, runs

from batuta.core import Cost, Outcome
from batuta.errors import StoreError
from batuta.store import Store
from batuta.store.ledger import Reservation, RunCharge
from batuta.store.run_filter import RunFilter

pytestmark = pytest.mark.anyio


@pytest.fixture
def path(target):
    """Each test runs on both databases."""
    return target


async def count(store, table="runs"):
    [row] = await store.database.fetch_rows(text(f"SELECT count(*) AS many FROM {table}"))  # noqa: S608 - ours
    return row["many"]


async def test_batches_of_any_size_take_few_statements(path):
    told, sizes = set(), range(1, 61)

    def note(_connection, _cursor, statement, *_rest):
        told.add(statement)

    async with Store(path) as store:
        event.listen(Engine, "before_cursor_execute", note)
        try:
            for size in sizes:
                for number in range(size):
                    held = Reservation(f"{size}-{number}", 1, ())
                    charge = RunCharge(reservation=held)
                    await store.append(make_run(100 * size + number), charge=charge)
                await store.flush()
        finally:
            event.remove(Engine, "before_cursor_execute", note)
        assert await count(store) == sum(sizes)
    assert len(told) < 2 / 3 * len(sizes)  # each is prepared and kept


async def test_a_run_is_readable_right_after_append_and_after_flush(path):
    run = make_run()
    async with Store(path) as store:
        await store.append(run)
        assert store.pending_count == 1
        assert await store.get(run.id) == run
        assert [summary.id for summary in await store.list()] == [run.id]
        assert store.pending_count == 0
        assert await store.get(run.id) == run
        assert await store.get("another") is None
        assert await store.summary("another") is None


async def test_closing_writes_what_is_queued_and_opening_again_finds_it(path):
    async with Store.open(str(path)) as store:
        await store.append(make_run())
    async with Store(path if "://" in str(path) else f"sqlite:///{path}") as store:
        assert await store.get("run_000000") == make_run()


async def test_a_run_is_written_without_flush(path):
    async with Store(path) as store:
        await store.append(make_run())
        with anyio.fail_after(60):
            while store.pending_count:
                await anyio.sleep(0.02)
        assert await count(store) == 1


async def test_a_summary_holds_the_numbers(path):
    run = make_run(question="é" * 300, answer="a" * 300, parent="run_parent")
    run = replace(run, error_code="limit", outcome=Outcome.LIMITED)
    async with Store(path) as store:
        await store.append(run, "acme")
        summary = await store.summary(run.id)
    assert summary.question_preview == "é" * 200
    assert summary.answer_preview == "a" * 200
    assert (summary.tenant, summary.parent, summary.created) == ("acme", "run_parent", 1e9)
    assert (summary.model, summary.conductor, summary.seconds) == ("batuta", "fixed", 1.25)
    assert (summary.outcome, summary.error_code) == (Outcome.LIMITED, "limit")
    assert (summary.steps, summary.rounds, summary.calls) == (1, 1, 2)
    assert (summary.input_tokens, summary.cached_tokens) == (600, 100)
    assert (summary.output_tokens, summary.reasoning_tokens) == (100, 30)
    assert summary.cost == run.cost == Cost(Decimal("0.000123"), 1)
    assert (summary.score, summary.score_comment) == (None, None)


@pytest.mark.parametrize(
    "usd", ["0.1234567890123456789012345678", "1E-30", "0", "12345678901234567890.5"]
)
async def test_money_is_exact(path, usd):
    run = make_run()
    step = run.rounds[0].steps[0]
    step = replace(step, result=replace(step.result, cost=Cost(Decimal(usd))))
    run = replace(run, rounds=(replace(run.rounds[0], steps=(step,)),))
    async with Store(path) as store:
        await store.append(run)
        assert (await store.summary(run.id)).cost.usd == run.cost.usd


async def test_pages_show_every_run_once_newest_first(path):
    async with Store(path) as store:
        for number in range(1000):  # three share each moment
            await store.append(make_run(number, started=float(number // 3)))
        seen, cursor = [], None
        while page := await store.list(70, before=cursor):
            seen += page
            cursor = page[-1].cursor
    assert [s.id for s in seen] == [f"run_{number:06}" for number in reversed(range(1000))]


async def find(store, **wanted):
    return (await store.find(RunFilter(**wanted))).rows


async def test_runs_are_filtered(path):
    async with Store(path) as store:
        for number in range(40):
            run = make_run(
                number,
                model="odd" if number % 2 else "even",
                outcome=Outcome.FAILED if number % 5 == 0 else Outcome.ANSWERED,
            )
            await store.append(run, "acme" if number < 20 else "other")
        assert len(await store.list(tenant="acme")) == 20
        assert len(await store.list(tenant="")) == 0
        assert len(await find(store, model="odd")) == 20
        assert len(await find(store, outcomes=(Outcome.FAILED,))) == 8
        both = {"model": "odd", "outcomes": (Outcome.FAILED,)}
        assert len(await find(store, tenant="acme", **both)) == 2
        assert await store.list(tenant="odd \ud800") == []
        with pytest.raises(ValueError, match="cursor"):
            await store.list(before="nonsense")


async def test_runs_are_searched(path):
    async with Store(path) as store:
        await store.append(make_run(1, question="How tall is the Eiffel Tower?"))
        await store.append(make_run(2, answer="It is 100 % wool_"))
        await store.append(make_run(3, question="eiffel"), "acme")

        async def found(text, **narrower):
            return [summary.id for summary in await find(store, search=text, **narrower)]

        assert await found("EIFFEL") == ["run_000003", "run_000001"]
        assert await found("eiffel", tenant="acme") == ["run_000003"]
        assert await found("0 % w") == ["run_000002"]
        assert await found("run_000002") == ["run_000002"]
        assert await found("w%l") == await found("_000") == await found("\ud800") == []
        await store.append(make_run(4, question="ÜBUNG 100 %", answer="Straße ЁЛКА"))
        for text in ("übung 1", "Übung 100 %", "STRAßE ёл", "ёлка"):
            assert await found(text) == ["run_000004"]
        assert await found("übung_1") == await found("ubung") == await found("äbung") == []


async def test_words_are_found_by_the_rare_ones_of_them(path):
    """Most runs show the common words; what is found is what shows the whole, wherever it is shown."""
    async with Store(path) as store:
        for number in range(60):
            await store.append(make_run(number, question=f"Common WORDS {number:03}% of them"))
        await store.append(make_run(60, question="007% common", answer="words 007% OF"))
        await store.append(make_run(61, question="words 007x of, common words 007%"))

        async def found(text):
            return [summary.id for summary in await find(store, search=text)]

        assert await found("words 007% of") == ["run_000060", "run_000007"]
        assert await found("common words 007%") == ["run_000061", "run_000007"]
        assert await found("words 00_") == await found("007% common words") == []
        assert len(await found("common words")) == 50
        assert await found("common  words") == await found("words 007 of") == []


async def test_another_tenants_runs_do_not_exist(path):
    async with Store(path) as store:
        await store.append(make_run(), "acme")
        for _ in ("queued", "written"):
            assert await store.get("run_000000", "other") is None
            assert await store.get("run_000000", "acme") == make_run()
            await store.flush()
        assert await store.summary("run_000000", "other") is None
        assert not await store.score("run_000000", 1.0, tenant="other")
        assert not await store.delete("run_000000", "other")
        assert await store.get("run_000000") == make_run()


async def test_a_run_is_judged(path):
    async with Store(path) as store:
        await store.append(make_run())
        assert await store.score("run_000000", 0.5, "half right")
        summary = await store.summary("run_000000")
        assert (summary.score, summary.score_comment) == (0.5, "half right")
        assert await store.score("run_000000", None)
        assert (await store.summary("run_000000")).score is None
        assert not await store.score("another", 1.0)
        with pytest.raises(ValueError, match="finite"):
            await store.score("run_000000", float("nan"))


async def test_a_run_is_deleted_with_its_content(path):
    async with Store(path) as store:
        await store.append(make_run())
        assert await store.delete("run_000000")
        assert not await store.delete("run_000000")
        assert await store.get("run_000000") is None
        assert await count(store, "run_contents") == 0


async def test_content_that_is_not_wanted_is_never_kept(path):
    async with Store(path) as store:
        await store.append(make_run(question="secret"), content=False)
        assert await store.get("run_000000") is None
        await store.flush()
        assert await store.get("run_000000") is None
        assert (await store.summary("run_000000")).question_preview == ""
    if "://" not in str(path):
        assert b"secret" not in path.read_bytes()


async def test_the_first_run_of_an_id_is_kept(path):
    async with Store(path) as store:
        await store.append(make_run(answer="first"))
        await store.append(make_run(answer="second"))
        await store.flush()
        await store.append(make_run(answer="third"))
        await store.flush()
        assert (await store.get("run_000000")).answer == "first"
        assert await count(store) == 1


async def test_appends_at_the_same_time(path):
    async with Store(path, capacity=30) as store:

        async def one(number):
            await store.append(make_run(number))
            assert await store.get(f"run_{number:06}") == make_run(number)
            assert store.pending_count <= 30

        async with anyio.create_task_group() as tasks:
            for number in range(200):
                tasks.start_soon(one, number)
        await store.flush()
        assert await count(store) == await count(store, "run_contents") == 200


async def test_two_stores_on_one_file(path):
    async with Store(path) as one, Store(path) as two:

        async def fill(store, start):
            for number in range(start, start + 300):
                await store.append(make_run(number))
                if number % 50 == 0:
                    await store.flush()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fill, one, 0)
            tasks.start_soon(fill, two, 300)
        await one.flush()
        await two.flush()
        assert await count(one) == 600
        assert await two.get("run_000000") == make_run(0)


@pytest.mark.parametrize("number", range(10))
async def test_stores_create_one_file_at_the_same_time(path, number):
    async def opened():
        async with Store(path) as store:
            with anyio.fail_after(60):  # what does not answer within two seconds is not ready yet
                while not await store.is_ready():
                    await anyio.sleep(0.05)

    async with anyio.create_task_group() as tasks:
        for _ in range(6):
            tasks.start_soon(opened)


async def test_the_blocks_own_error_comes_out_as_it_is(path):
    async def fail():
        async with Store(path) as store:
            await store.append(make_run())
            raise KeyError("mine")

    with pytest.raises(KeyError):
        await fail()
    async with Store(path) as store:
        assert await store.get("run_000000") == make_run()


async def test_a_cancelled_block_still_writes(path):
    with anyio.CancelScope() as scope:
        async with Store(path) as store:
            scope.deadline = anyio.current_time() + 0.05
            await store.append(make_run())
            await anyio.sleep(10)
    assert scope.cancelled_caught
    async with Store(path) as store:
        assert await store.get("run_000000") == make_run()


async def test_a_closed_store_says_so(path):
    store = Store(path)
    with pytest.raises(StoreError, match="closed"):
        await store.append(make_run())
    async with store:
        await store.append(make_run())
        assert await store.is_ready()
    assert not await store.is_ready()
    for call in (
        store.append(make_run(1)),
        store.flush(),
        store.get("run_000000"),
        store.list(),
        store.delete("run_000000"),
    ):
        with pytest.raises(StoreError, match="closed"):
            await call
    async with store:  # and it can be entered again
        assert await store.get("run_000000") == make_run()


async def test_any_run_is_stored(path):
    async with Store(path) as store:
        async with anyio.from_thread.BlockingPortal() as portal:

            @settings(
                deadline=None,
                max_examples=settings().max_examples * 40 // 100,
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
            )
            @given(runs)
            def check(run):
                portal.call(round_trip, store, run)

            await anyio.to_thread.run_sync(check)
        assert store.lost_count == 0


async def round_trip(store, run):
    await store.delete(run.id)
    await store.append(run)
    await store.flush()
    assert await store.get(run.id) == run
    assert (await store.summary(run.id)).cost == run.cost


KILLED = """
import sys, anyio
from batuta.store import Store
from tests.store.strategies import make_run
async def main():
    async with Store(sys.argv[1]) as store:
        for number in range(300):
            await store.append(make_run(number))
        await store.flush()
        await store.append(make_run(999))
        print("flushed", flush=True)
        await anyio.sleep(60)
anyio.run(main)
"""


def test_a_killed_process_keeps_what_was_flushed(path, anyio_backend):
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout.readline() == "flushed\n"
        process.send_signal(signal.SIGKILL)

    async def check():
        async with Store(path) as store:
            assert await count(store) >= 300
            assert await store.get("run_000299") == make_run(299)

    anyio.run(check, backend=anyio_backend)
