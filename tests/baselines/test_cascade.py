"""The cascade: it looks at answers before it pays for more, and pays for no more than it needs."""

from dataclasses import replace
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
from batuta.baselines.cascade_folder import NUMBERS, open_cascade, save_cascade
from batuta.baselines.checking import Checker
from batuta.clients import Scripted
from batuta.core import Outcome, Pool, Question, Reply, Task, TaskId, Worker, WorkerId
from batuta.errors import ConfigError, Overloaded, SourceError
from batuta.solvers.features import HashedNgrams
from batuta.solvers.history import of_record
from batuta.solvers.selector import Recipe, fit_selector, save_selector
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


def checked(cascade, verdict, answers=("7", "8", "9", "6", "5")):
    """The cascade with a checker, gus, over a pool whose workers say those answers in turn."""
    left = iter(answers)

    def say(worker, request):
        return verdict(request) if worker == "gus" else f"Answer: {next(left)}"

    pool = Pool(tuple(Worker(WorkerId(name), name) for name in (*MODELS, "gus")))
    clients = {w.id: Scripted(lambda r, w=w.id: say(w, r)) for w in pool}
    return replace(cascade, checker=Checker(WorkerId("gus"))), Players(pool, clients)


async def test_a_checker_is_asked_before_another_answer_is_paid_for(cascade):
    plain = await cascade.answer(Question.of("Please add"), checked(cascade, None)[1], 1)
    careful, players = checked(cascade, lambda r: "The solution is right.")
    run = await careful.answer(Question.of("Please add"), players, 1)
    assert [step.worker == "gus" for step in run.steps[:2]] == [False, True]
    assert "Answer: 7" in run.steps[1].request.messages[-1].text
    assert run.answer == "Answer: 7"
    assert sum(step.worker != "gus" for step in run.steps) < len(plain.steps)
    assert run.usage.calls == len(run.steps) <= cascade.calls


async def test_an_answer_that_the_checker_finds_wrong_gives_way_to_another(cascade):
    def verdict(request):
        wrong = "Answer: 7" in request.messages[-1].text
        return "It is wrong in step 1." if wrong else "Right."

    careful, players = checked(cascade, verdict)
    run = await careful.answer(Question.of("Please add"), players, 1)
    assert run.answer == "Answer: 8"
    assert [step.worker == "gus" for step in run.steps[:4]] == [False, True, False, True]


async def test_nothing_is_checked_twice_and_a_checker_that_fails_changes_nothing(cascade):
    down = Overloaded("the house is full")
    careful, players = checked(cascade, lambda r: down, ["7", "7", "8", "8", "7"])
    run = await careful.answer(Question.of("Please add"), players.only(*MODELS, "gus"), 1)
    assert run.outcome is Outcome.ANSWERED and run.answer in {"Answer: 7", "Answer: 8"}
    asked = [step.request.messages[-1].text for step in run.steps if step.planned == "gus"]
    assert asked and len(asked) == len(set(asked))
    assert len(run.steps) <= cascade.calls


async def test_nobody_checks_what_it_said_itself_and_an_absent_checker_is_not_missed(cascade):
    record = world(3, seed=4)
    for worker in ("ann", "dan"):
        careful = replace(with_answers_of(cascade, record), checker=Checker(WorkerId(worker)))
        for task in record.tasks:
            run = await careful.answer(Question.of(task.question), players(record).only("ann"), 0)
            assert {step.request.messages[-1].text for step in run.steps} == {task.question}


@pytest.mark.parametrize(("passes", "notices"), [(0.5, 0.5), (1.0, 0.5), (0.9, 1.0), (0.3, 0.6)])
def test_a_checker_that_says_nothing_is_none(passes, notices):
    with pytest.raises(ValueError, match="says nothing"):
        Checker(None, passes, notices)


def test_without_answers_there_is_nothing_to_look_at():
    with pytest.raises(SourceError, match="write answers and scores"):
        fit_cascade(of_record(world(answers=False)), PLAIN)


def test_a_saved_cascade_decides_as_before(cascade, tmp_path):
    save_cascade(cascade, tmp_path)
    opened, test = open_cascade(tmp_path), of_record(world(seed=1))
    for mine, its in zip(cascade.on_record(test), opened.on_record(test), strict=True):
        assert mine.tolist() == its.tolist()
    assert opened.name == cascade.name
    assert (opened.most_m, opened.calls) == (cascade.most_m, cascade.calls)


def test_a_cascade_whose_selector_was_trained_again_is_refused(cascade, tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        open_cascade(tmp_path)
    save_cascade(cascade, tmp_path)
    save_selector(fit_selector(of_record(world(seed=5)), PLAIN), tmp_path)
    with pytest.raises(ConfigError, match="belongs to another selector; train both"):
        open_cascade(tmp_path)
    save_cascade(cascade, tmp_path)
    (tmp_path / NUMBERS).write_bytes(b"torn")
    with pytest.raises(ConfigError, match="no usable cascade"):
        open_cascade(tmp_path)


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


def test_a_recorded_reply_of_which_no_answer_was_extracted_has_none():
    record = world(2)
    codes = record.answers_qms.copy()
    codes[0, 1, 0] = -1
    bare = replace(record, answers_qms=codes)
    reply = Reply(bare.reply((0, 1, 0)))
    assert answers_of(bare)(Question.of(record.tasks[0].question), reply) is None
    assert stated_answer(Question.of("?"), reply) is not None
