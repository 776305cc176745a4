"""The cascade: it looks at answers before it pays for more, and pays for no more than it needs."""

from random import Random

import numpy as np
import pytest

from batuta.baselines import Players
from batuta.baselines.cascade import (
    Cascade,
    answers_of,
    fit_cascade,
    stated_answer,
    with_answers_of,
)
from batuta.clients import Scripted
from batuta.core import Outcome, Pool, Question, Reply, Task, TaskId, Worker, WorkerId
from batuta.errors import ConfigError, Overloaded, SourceError
from batuta.solvers.features import HashedNgrams
from batuta.solvers.history import of_record
from batuta.solvers.selector import Recipe
from batuta.tasks.recorded import GRADER, Deck, Recorded

pytestmark = pytest.mark.anyio

PLAIN = Recipe(features=HashedNgrams(buckets=512, dimensions=8), evolve=False)
SKILL = {"add": (0.65, 0.6, 0.55), "spell": (0.55, 0.65, 0.6), "date": (0.6, 0.6, 0.6)}
MODELS = ("ann", "bob", "cyd")
WRONG = 9
"""Wrong answers to choose among, so that two that agree are mostly right."""


def world(number=100, seed=0, samples=2, answers=True):
    """Three models of about equal skill whose errors differ."""
    rng = Random(seed)
    kinds = [kind for kind in SKILL for _ in range(number)]
    shape = (len(kinds), len(MODELS), samples)
    right = np.asarray(
        [[[rng.random() < p for _ in range(samples)] for p in SKILL[kind]] for kind in kinds]
    )
    wrong = np.asarray([rng.randrange(1, WRONG + 1) for _ in range(right.size)]).reshape(shape)
    tasks = (
        Task(TaskId(f"{kind}-{n}"), f"Please {kind} number {n} of {seed}.", "0", GRADER)
        for n, kind in enumerate(kinds)
    )
    return Recorded(
        "made/up",
        tuple(tasks),
        tuple(kinds),
        MODELS,
        right.astype(np.float32),
        None,
        np.where(right, 0, wrong).astype(np.int32) if answers else None,
        tuple(str(n) for n in range(WRONG + 1)),
    )


@pytest.fixture(scope="module")
def cascade() -> Cascade:
    return fit_cascade(of_record(world()), PLAIN, price=0.01, calls=5)


def players(record):
    return Players(record.pool(), Deck(record).deal())


def test_agreement_earns_more_than_the_best_single_worker_with_few_calls(cascade):
    test = of_record(world(seed=1))
    earned, calls = cascade.on_record(test)
    assert earned.mean() > test.mean_m().max() + 0.08
    assert 1 <= calls.min() < calls.mean() < 5
    assert calls.max() <= 5


def test_the_dearer_a_call_the_fewer_there_are():
    known, test = of_record(world()), of_record(world(seed=1))
    calls = [
        fit_cascade(known, PLAIN, price=price, calls=5).on_record(test)[1].mean()
        for price in (0.001, 0.02, 1.0)
    ]
    assert calls[0] > calls[1] > calls[2] == 1


async def test_on_the_engine_it_decides_as_on_the_record(cascade):
    record = world(6, seed=2)
    earned, calls = cascade.on_record(of_record(record))
    played = with_answers_of(cascade, record)
    for place, task in enumerate(record.tasks):
        run = await played.answer(Question.of(task.question), players(record), 0)
        # the seed names the sample, so that a worker's first one may be its second on record:
        # what is compared is what does not depend on it, unless nothing was drawn twice
        workers = [step.worker for step in run.steps]
        assert run.usage.calls == len(workers) <= cascade.calls
        assert run.outcome is Outcome.ANSWERED
        grade = record.grade(task, run.answer)
        assert grade.score in {0.0, 1.0}
        same = all(_sample(step, record, place) == 0 for step in run.steps)
        if same:
            assert (len(workers), grade.score) == (calls[place], earned[place])


def _sample(step, record, place):
    model = record.models.index(step.worker)
    said = [record.reply((place, model, s)) for s in range(record.scores_qms.shape[2])]
    return said.index(step.result.text)


async def test_on_the_engine_it_decides_exactly_as_on_a_record_of_one_sample():
    known, record = of_record(world(samples=1)), world(8, seed=2, samples=1)
    cascade = with_answers_of(fit_cascade(known, PLAIN, price=0.03), record)
    earned, calls = cascade.on_record(of_record(record))
    assert len(set(calls.tolist())) > 1
    for place, task in enumerate(record.tasks):
        run = await cascade.answer(Question.of(task.question), players(record), place)
        assert (len(run.steps), record.grade(task, run.answer).score) == (
            calls[place],
            earned[place],
        )


async def test_no_sample_is_drawn_twice(cascade):
    record = world(4, seed=3)
    for task in record.tasks:
        run = await cascade.answer(Question.of(task.question), players(record), 5)
        asked = [step.worker for step in run.steps]
        assert all(asked.count(worker) <= 2 for worker in MODELS)
        seeds = [step.request.sampling.seed for step in run.steps]
        assert len(set(seeds)) == len(seeds)
        assert all(step.result.usage.calls == 1 for step in run.steps)


def scripted(say):
    pool = Pool(tuple(Worker(WorkerId(name), name) for name in MODELS))
    return Players(pool, {w.id: Scripted(lambda r, w=w.id: say(w, r)) for w in pool})


async def test_two_that_agree_outvote_the_first(cascade):
    said = iter(["Answer: 7", "Answer: 0", "Answer: 0", "Answer: 0", "Answer: 0"])
    run = await cascade.answer(Question.of("Please add"), scripted(lambda w, r: next(said)), 1)
    assert run.answer == "Answer: 0"
    assert 3 <= len(run.steps) <= 5


async def test_an_outage_is_data_and_another_worker_is_asked(cascade):
    def say(worker, request):
        return Overloaded("the house is full") if worker == first else "Answer: 4"

    first = None
    run = await cascade.answer(Question.of("Please add"), scripted(say), 1)
    first = run.steps[0].worker
    run = await cascade.answer(Question.of("Please add"), scripted(say), 1)
    assert run.outcome is Outcome.ANSWERED and run.answer == "Answer: 4"
    run = await cascade.answer(
        Question.of("Please add"), scripted(lambda w, r: Overloaded("the house is full")), 1
    )
    assert run.outcome is Outcome.FAILED and run.answer is None
    assert run.error_code == "overloaded"


async def test_it_asks_only_workers_of_the_pool(cascade):
    record = world(2, seed=4)
    two = players(record).only("bob", "cyd")
    run = await cascade.answer(Question.of(record.tasks[0].question), two, 0)
    assert {step.worker for step in run.steps} <= {"bob", "cyd"}
    alone = Players(Pool((Worker(WorkerId("dan"), "dan"),)), {})
    with pytest.raises(ConfigError, match="no worker of this pool"):
        await cascade.answer(Question.of("Please add"), alone, 0)


def test_without_answers_there_is_nothing_to_look_at():
    with pytest.raises(SourceError, match="write answers and scores"):
        fit_cascade(of_record(world(answers=False)), PLAIN)


def test_the_name_says_the_price_and_the_version(cascade):
    assert cascade.name == f"cascade/0.01@{cascade.selector.digest[:8]}"


@pytest.mark.parametrize(
    ("text", "answer"),
    [("So <answer> 7 </answer>", "7"), ("The answer is (C).", "c"), ("Answer: c", "c"), ("", None)],
)
def test_answers_that_mean_the_same_are_the_same(text, answer):
    assert stated_answer(Question.of("?"), Reply(text)) == answer


def test_a_record_knows_the_answers_in_its_own_replies():
    record = world(2)
    extract = answers_of(record)
    question = Question.of(record.tasks[0].question)
    assert extract(question, Reply(record.reply((0, 1, 0)))) == record.answer((0, 1, 0))
    assert extract(question, Reply("Answer: 77")) == "77"
