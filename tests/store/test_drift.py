"""What is watched of workers: counted once, by whoever writes, and read by all replicas."""

from dataclasses import replace

import anyio
import pytest
from tests.store.strategies import make_run

from batuta.core import Pool, Skill, Worker, WorkerId
from batuta.store import Store
from batuta.store.drift import DriftKind, DriftSide

pytestmark = pytest.mark.anyio
CARD = Worker(
    id=WorkerId("a"), model="model-a", skills=(Skill(family="x", share=0.9, questions=200),)
)


def run(number, worker=CARD, seconds=None):
    made = make_run(number, pool=Pool((worker,)))
    if seconds is None:
        return made
    (round_,) = made.rounds
    (step,) = round_.steps
    step = replace(step, span=replace(step.span, start=0.0, end=seconds))
    return replace(made, rounds=(replace(round_, steps=(step,)),))


async def test_judgements_of_two_replicas_count_together_and_each_run_once(target):
    async with Store(target) as store, Store(target) as other:
        for number in range(40):
            await store.append(run(number))
        await store.flush()

        async def judge(replica, first):
            for number in range(first, 40, 2):
                assert await replica.score(f"run_{number:06}", 0.0)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(judge, store, 0)
            tasks.start_soon(judge, other, 1)
        await store.score("run_000003", None)
        await store.score("run_000003", 1.0)  # a changed mind is no new evidence
        for replica in (store, other):
            state = (await replica.drift.read(Pool((CARD,))))["a"][DriftKind.RIGHT]
            assert state.count == 40 and state.side is DriftSide.BELOW and state.recent == 0


async def test_the_time_of_calls_is_counted_where_runs_are_written(target):
    async with Store(target) as store, Store(target) as other:
        for number in range(150):
            one = store if number % 2 else other
            await one.append(run(number, seconds=1 + number % 7 / 10))
        await store.append(run(1, seconds=99.0))  # it is stored already, and not counted again
        await store.flush()
        await other.flush()
        seen = (await store.drift.read(Pool((CARD,))))["a"][DriftKind.SECONDS]
        assert seen.interval and (seen.interval.low, seen.interval.high) == (1.0, 1.6)
        assert seen.count == 50 and seen.side is DriftSide.WITHIN
        for number in range(200, 260):
            await other.append(run(number, seconds=9.0))
        await other.flush()
        seen = (await store.drift.read(Pool((CARD,))))["a"][DriftKind.SECONDS]
        assert seen.side is DriftSide.ABOVE


async def test_another_model_or_another_measurement_begins_anew(tmp_path):
    newer = replace(CARD, model="model-b")
    measured = replace(CARD, skills=(Skill(family="x", share=0.2, questions=200),))
    async with Store(tmp_path / "runs.db") as store:
        await store.append(run(0))
        await store.score("run_000000", 0.0)
        assert DriftKind.RIGHT in (await store.drift.read(Pool((CARD,))))["a"]
        for other in (newer, measured):
            known = (await store.drift.read(Pool((other,)))).get("a", {})
            assert DriftKind.RIGHT not in known


async def test_an_answer_of_several_or_without_content_says_nothing_of_a_worker(tmp_path):
    two = run(0)
    (round_,) = two.rounds
    two = replace(two, rounds=(replace(round_, steps=round_.steps * 2),))
    async with Store(tmp_path / "runs.db") as store:
        await store.append(two)
        await store.append(run(1), content=False)
        for name in ("run_000000", "run_000001"):
            assert await store.score(name, 0.0)
        assert not await store.score("run_of_nobody", 0.0)
        assert DriftKind.RIGHT not in (await store.drift.read(Pool((CARD,))))["a"]
