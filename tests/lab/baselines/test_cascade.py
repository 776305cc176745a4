"""The cascade: it looks at answers before it pays for more, and pays for no more than it needs."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from batuta.clients import ScriptedClient
from batuta.conductors.hashed_ngrams import HashedNgrams
from batuta.conductors.selector import save_selector
from batuta.core import Outcome, Pool, Question, Reply, Task, TaskId, Worker, WorkerId
from batuta.errors import ConfigError, ProviderOverloadedError, SourceError
from batuta.lab.baselines import SolverContext
from batuta.lab.baselines.cascade import (
    Cascade,
    extract_normalized_answer,
    recorded_extractor,
)
from batuta.lab.baselines.cascade_folder import TENSOR_FILE, open_cascade, save_cascade
from batuta.lab.baselines.cascade_training import PRICES, fit_cascade
from batuta.lab.baselines.checker import Checker
from batuta.lab.learners.agreement import (
    AGREEMENT_INPUTS,
    AgreementPrior,
    load_shipped_prior,
)
from batuta.lab.learners.answer_posterior import AnswerDraws, find_leading_answer
from batuta.lab.learners.history import history_from_record
from batuta.lab.learners.selector_training import SelectorRecipe, fit_selector
from batuta.lab.tasks.recorded import GRADER, RecordedOutcomes, ReplayPool

pytestmark = pytest.mark.anyio

PLAIN = SelectorRecipe(features=HashedNgrams(buckets=512, dimensions=8))
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
        Task(
            id=TaskId(f"{kind}-{n}"),
            question=f"Please {kind} number {n} of {seed}.",
            target="0",
            grader=GRADER,
        )
        for n, kind in enumerate(kinds)
    )
    return RecordedOutcomes(
        name="made/up",
        tasks=tuple(tasks),
        families=tuple(kinds),
        models=MODELS,
        scores_qms=right.astype(np.float32),
        solved_from=None,
        answers_qms=np.where(right, 0, wrong).astype(np.int32) if answers else None,
        answers=tuple(str(n) for n in range(WRONG + 1)),
    )


@pytest.fixture(scope="module")
def cascade() -> Cascade:
    return fit_cascade(history_from_record(world()), PLAIN, price=0.01, calls=5)


def context(record):
    return SolverContext(pool=record.pool(), clients=ReplayPool(record).clients())


def test_agreement_earns_more_than_the_best_single_worker_with_few_calls(cascade):
    test = history_from_record(world(seed=1))
    earned, calls = cascade.replay_history(test)
    assert earned.mean() > test.mean_m().max() + 0.08
    assert 1 <= calls.min() < calls.mean() < 5
    assert calls.max() <= 5


def test_the_dearer_a_call_the_fewer_there_are():
    known, test = history_from_record(world()), history_from_record(world(seed=1))
    calls = [
        fit_cascade(known, PLAIN, price=price, calls=5).replay_history(test)[1].mean()
        for price in (0.001, 0.1, 1.0)
    ]
    assert calls[0] > calls[1] > calls[2] == 1


async def test_on_the_engine_it_decides_as_on_the_record(cascade):
    record = world(6, seed=2)
    earned, calls = cascade.replay_history(history_from_record(record))
    round_ = replace(cascade, extract=recorded_extractor(record))
    for place, task in enumerate(record.tasks):
        run = await round_.answer(Question.of(task.question), context(record), 0)
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
    known, record = history_from_record(world(samples=1)), world(8, seed=2, samples=1)
    cascade = replace(fit_cascade(known, PLAIN, price=0.05), extract=recorded_extractor(record))
    earned, calls = cascade.replay_history(history_from_record(record))
    assert len(set(calls.tolist())) > 1
    for place, task in enumerate(record.tasks):
        run = await cascade.answer(Question.of(task.question), context(record), place)
        assert (len(run.steps), record.grade(task, run.answer).score) == (  # pyright: ignore[reportArgumentType]
            calls[place],
            earned[place],
        )


async def test_no_sample_is_drawn_twice(cascade):
    record = world(4, seed=3)
    for task in record.tasks:
        run = await cascade.answer(Question.of(task.question), context(record), 5)
        asked = [step.worker for step in run.steps]
        assert all(asked.count(worker) <= 2 for worker in MODELS)
        seeds = [step.request.sampling.seed for step in run.steps]
        assert len(set(seeds)) == len(seeds)
        assert all(step.result.usage.calls == 1 for step in run.steps)


def scripted(say):
    pool = Pool(tuple(Worker(id=WorkerId(name), model=name) for name in MODELS))
    return SolverContext(
        pool=pool, clients={w.id: ScriptedClient(lambda r, w=w.id: say(w, r)) for w in pool}
    )


async def test_two_that_agree_outvote_the_first(cascade):
    said = iter(["Answer: 7", "Answer: 0", "Answer: 0", "Answer: 0", "Answer: 0"])
    run = await cascade.answer(Question.of("Please add"), scripted(lambda w, r: next(said)), 1)
    assert run.answer == "Answer: 0"
    assert 3 <= len(run.steps) <= 5


async def test_an_outage_is_data_and_another_worker_is_asked(cascade):
    def say(worker, request):
        return ProviderOverloadedError("the house is full") if worker == first else "Answer: 4"

    first = None
    run = await cascade.answer(Question.of("Please add"), scripted(say), 1)
    first = run.steps[0].worker
    run = await cascade.answer(Question.of("Please add"), scripted(say), 1)
    assert run.outcome is Outcome.ANSWERED and run.answer == "Answer: 4"
    run = await cascade.answer(
        Question.of("Please add"),
        scripted(lambda w, r: ProviderOverloadedError("the house is full")),
        1,
    )
    assert run.outcome is Outcome.FAILED and run.answer is None
    assert run.error_code == "overloaded"


async def test_it_asks_only_workers_of_the_pool(cascade):
    record = world(2, seed=4)
    two = context(record).restrict_to("bob", "cyd")  # pyright: ignore[reportArgumentType]
    run = await cascade.answer(Question.of(record.tasks[0].question), two, 0)
    assert {step.worker for step in run.steps} <= {"bob", "cyd"}
    alone = SolverContext(pool=Pool((Worker(id=WorkerId("dan"), model="dan"),)), clients={})
    with pytest.raises(ConfigError, match="no worker of this pool"):
        await cascade.answer(Question.of("Please add"), alone, 0)


def checked(cascade, verdict, answers=("7", "8", "9", "6", "5")):
    """The cascade with a checker, gus, over a pool whose workers say those answers in turn."""
    left = iter(answers)

    def say(worker, request):
        return verdict(request) if worker == "gus" else f"Answer: {next(left)}"

    pool = Pool(tuple(Worker(id=WorkerId(name), model=name) for name in (*MODELS, "gus")))
    clients = {w.id: ScriptedClient(lambda r, w=w.id: say(w, r)) for w in pool}
    return replace(cascade, checker=Checker(WorkerId("gus"))), SolverContext(
        pool=pool, clients=clients
    )


async def test_a_checker_is_asked_before_another_answer_is_paid_for(cascade):
    plain = await cascade.answer(Question.of("Please add"), checked(cascade, None)[1], 1)
    careful, context = checked(cascade, lambda r: "The solution is right.")
    run = await careful.answer(Question.of("Please add"), context, 1)
    assert [step.worker == "gus" for step in run.steps[:2]] == [False, True]
    assert "Answer: 7" in run.steps[1].request.messages[-1].text
    assert run.answer == "Answer: 7"
    assert sum(step.worker != "gus" for step in run.steps) < len(plain.steps)
    assert run.usage.calls == len(run.steps) <= cascade.calls


async def test_an_answer_that_the_checker_finds_wrong_gives_way_to_another(cascade):
    def verdict(request):
        wrong = "Answer: 7" in request.messages[-1].text
        return "It is wrong in step 1." if wrong else "Right."

    careful, context = checked(cascade, verdict)
    run = await careful.answer(Question.of("Please add"), context, 1)
    assert run.answer == "Answer: 8"
    assert [step.worker == "gus" for step in run.steps[:4]] == [False, True, False, True]


async def test_nothing_is_checked_twice_and_a_checker_that_fails_changes_nothing(cascade):
    down = ProviderOverloadedError("the house is full")
    careful, context = checked(cascade, lambda r: down, ["7", "7", "8", "8", "7"])
    run = await careful.answer(Question.of("Please add"), context.restrict_to(*MODELS, "gus"), 1)  # pyright: ignore[reportArgumentType]
    assert run.outcome is Outcome.ANSWERED and run.answer in {"Answer: 7", "Answer: 8"}
    asked = [step.request.messages[-1].text for step in run.steps if step.planned == "gus"]
    assert asked and len(asked) == len(set(asked))
    assert len(run.steps) <= cascade.calls


async def test_tests_that_the_question_shows_are_run_and_nobody_is_asked_to_check(cascade):
    tried = []

    async def run_tests(question, answer):
        tried.append(answer)
        return answer == "Answer: 8"

    asked = Question.of("Please add\nassert add(3, 5) == 8")
    careful, context = checked(cascade, lambda r: "The solution is right.")
    sure = replace(careful, executed=Checker(pass_rate=0.99, catch_rate=0.99))
    run = await sure.answer(asked, replace(context, run_tests=run_tests), 1)
    assert run.answer == "Answer: 8"
    assert tried[:2] == ["Answer: 7", "Answer: 8"]
    assert len(tried) == len(set(tried)) == len(run.steps)
    assert all(step.worker != "gus" for step in run.steps)
    idle = replace(careful, executed=None)
    tried.clear()
    run = await idle.answer(asked, replace(checked(cascade, None)[1], run_tests=run_tests), 1)
    assert not tried


async def test_nobody_checks_what_it_said_itself_and_an_absent_checker_is_not_missed(cascade):
    record = world(3, seed=4)
    for worker in ("ann", "dan"):
        careful = replace(
            cascade, extract=recorded_extractor(record), checker=Checker(WorkerId(worker))
        )
        for task in record.tasks:
            run = await careful.answer(
                Question.of(task.question),
                context(record).restrict_to("ann"),  # pyright: ignore[reportArgumentType]
                0,
            )
            assert {step.request.messages[-1].text for step in run.steps} == {task.question}


@pytest.mark.parametrize(("passes", "notices"), [(0.5, 0.5), (1.0, 0.5), (0.9, 1.0), (0.3, 0.6)])
def test_a_checker_that_says_nothing_is_none(passes, notices):
    with pytest.raises(ValueError, match="is uninformative"):
        Checker(None, passes, notices)


def test_without_answers_there_is_nothing_to_look_at():
    with pytest.raises(SourceError, match="write answers and scores"):
        fit_cascade(history_from_record(world(answers=False)), PLAIN)


def test_a_saved_cascade_decides_as_before(cascade, tmp_path):
    save_cascade(cascade, tmp_path)
    opened, test = open_cascade(tmp_path), history_from_record(world(seed=1))
    for mine, its in zip(cascade.replay_history(test), opened.replay_history(test), strict=True):
        assert mine.tolist() == its.tolist()
    assert opened.name == cascade.name
    assert (opened.most_m, opened.calls) == (cascade.most_m, cascade.calls)


def test_a_cascade_whose_selector_was_trained_again_is_refused(cascade, tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        open_cascade(tmp_path)
    save_cascade(cascade, tmp_path)
    save_selector(fit_selector(history_from_record(world(seed=5)), PLAIN), tmp_path)
    with pytest.raises(ConfigError, match=r"belongs to another selector than .*; train it again"):
        open_cascade(tmp_path)
    save_cascade(cascade, tmp_path)
    (tmp_path / TENSOR_FILE).write_bytes(b"torn")
    with pytest.raises(ConfigError, match="cannot be read"):
        open_cascade(tmp_path)


def test_the_name_says_the_price_and_the_version(cascade):
    assert cascade.name == f"cascade/0.01@{cascade.selector.digest[:8]}"


@pytest.mark.parametrize(
    ("text", "answer"),
    [("So <answer> 7 </answer>", "7"), ("The answer is (C).", "c"), ("Answer: c", "c"), ("", None)],
)
def test_answers_that_mean_the_same_are_the_same(text, answer):
    assert extract_normalized_answer(Question.of("?"), Reply(text=text)) == answer


def test_a_record_knows_the_answers_in_its_own_replies():
    record = world(2)
    extract = recorded_extractor(record)
    question = Question.of(record.tasks[0].question)
    assert extract(question, Reply(text=record.reply((0, 1, 0)))) == record.answer((0, 1, 0))
    assert extract(question, Reply(text="Answer: 77")) == "77"


def test_a_recorded_reply_of_which_no_answer_was_extracted_has_none():
    record = world(2)
    codes = record.answers_qms.copy()
    codes[0, 1, 0] = -1
    bare = replace(record, answers_qms=codes)
    reply = Reply(text=bare.reply((0, 1, 0)))
    assert recorded_extractor(bare)(Question.of(record.tasks[0].question), reply) is None
    assert extract_normalized_answer(Question.of("?"), reply) is not None


def with_usd(history, *usd):
    return replace(history, usd_qm=np.broadcast_to(usd, history.scores_qm.shape).astype(float))


def test_some_dozens_of_labels_are_enough_to_begin_with():
    known, test = history_from_record(world(14)), history_from_record(world(seed=1))
    assert len(known.questions) == 42
    cascade = fit_cascade(known, PLAIN)
    assert cascade.price == 0.002
    earned, calls = cascade.replay_history(test)
    assert earned.mean() > test.mean_m().max() + 0.03
    assert calls.mean() > 1


def test_the_labels_choose_the_price_and_it_is_one_of_those_tried():
    cascade = fit_cascade(history_from_record(world()), PLAIN)
    assert cascade.price in PRICES
    assert cascade.name.startswith(f"cascade/{cascade.price:g}@")


def test_a_cheap_pair_is_asked_before_the_dear_worker_where_money_counts():
    known = history_from_record(world())
    test = history_from_record(world(seed=1))
    dear = fit_cascade(with_usd(known, 0.1, 0.001, 0.001), PLAIN, price=0.1)
    plain = fit_cascade(known, PLAIN, price=0.02)
    assert dear.calls_worth_m[0] > 2
    assert dear.calls_worth_m[1] < 1
    assert plain.calls_worth_m == (1.0, 1.0, 1.0)
    spent = [mean_usd(one, test, (0.1, 0.001, 0.001)) for one in (dear, plain)]
    assert spent[0] < spent[1] / 2
    assert dear.replay_history(test)[0].mean() > test.mean_m().max()


def mean_usd(cascade, test, usd):
    """What its draws cost a question, by the workers that it would ask."""
    expected, close = cascade.selector.expected_credit(test.questions)
    total = 0.0
    calls = cascade.replay_history(test)[1]
    for row, count in enumerate(calls):
        familiar = close[row] >= cascade.selector.guard.closeness
        order = (cascade.familiar if familiar else cascade.strange).order
        drawn = np.zeros((1, 3), int)
        for _ in range(count):
            worker = int(order.next_worker(expected[[row]], drawn, np.asarray([cascade.most_m]),
                                           np.asarray(cascade.calls_worth_m))[0])  # fmt: skip
            total += usd[worker]
            drawn[0, worker] += 1
    return total / len(calls)


def test_a_price_of_a_dollar_is_the_selectors_and_the_cascades():
    recipe = replace(PLAIN, dollar=20.0)
    cascade = fit_cascade(with_usd(history_from_record(world()), 0.01, 0.001, 0.001), recipe)
    assert (cascade.price, cascade.dollar) == (0.0, 20.0)
    assert cascade.cost_m == pytest.approx((0.2, 0.02, 0.02))
    assert cascade.name.startswith("cascade/0+20/$@")
    with pytest.raises(SourceError, match="calls is unknown"):
        fit_cascade(history_from_record(world()), recipe)


def test_a_wide_margin_keeps_the_best_workers_answer():
    draws = AnswerDraws(
        worker_nk=np.asarray([[0, 1, 2]]),
        answer_nk=np.asarray([[7, 8, 8]]),
        odds_nm=np.asarray([[2.0, 1.0, 0.5]]),
        cost_m=np.zeros(3),
        collisions=0.1,
    )
    sure = np.asarray([[0.4, 0.5, 0.5]])
    assert find_leading_answer(draws, sure, 0.0).draw_n.tolist() == [1]
    assert find_leading_answer(draws, sure, 0.2).draw_n.tolist() == [0]
    assert find_leading_answer(draws, sure, 0.2).rival_n.tolist() == [0.5]


def test_the_shipped_prior_fits_its_inputs_and_says_what_agreement_is_worth():
    prior = load_shipped_prior()
    again = AgreementPrior.from_json(prior.to_json())
    assert again.weights_kf.tolist() == prior.weights_kf.tolist()
    assert prior.weights(99).tolist() == prior.weights_kf[-1].tolist()
    support, rival = AGREEMENT_INPUTS.index("support"), AGREEMENT_INPUTS.index("rival support")
    for count in range(2, len(prior.weights_kf) + 1):
        assert prior.weights(count)[support] > 0 > prior.weights(count)[rival]
    with pytest.raises(ValueError, match="does not fit"):
        AgreementPrior(prior.weights_kf[:, 1:], prior.onward_kg)


def test_answers_that_differ_in_dress_alone_agree():
    dressed = world(2)
    forms = tuple(f"**{n}.0**" if n % 2 else f"{n}" for n in range(WRONG + 1))
    same = history_from_record(replace(dressed, answers=forms)).samples
    plain = history_from_record(dressed).samples
    assert same.answers == plain.answers
    assert same.answers_qms.tolist() == plain.answers_qms.tolist()
    table = history_from_record(replace(dressed, answers=("nan", *forms[1:]))).samples
    assert (table.answers_qms[dressed.answers_qms == 0] == -1).all()


def lopsided(parts):
    """Six families, each of so many names; in the first the best worker says nothing."""
    rng = Random(0)
    size, shape = 50, (300, 3, 1)
    first = np.arange(300) < size
    right = np.zeros(shape, bool)
    right[:, 0, 0] = [rng.random() < 0.6 for _ in range(300)]
    right[first] = [[False], [True], [True]]
    answers = np.where(right, 0, np.asarray([1, 2, 3])[None, :, None])
    answers[first, 0] = -1
    families = tuple(f"kind{n // size}{'ab'[n % parts]}" for n in range(300))
    tasks = (
        Task(id=TaskId(str(n)), question=f"{family} number {n}", target="0", grader=GRADER)
        for n, family in enumerate(families)
    )
    return RecordedOutcomes(
        name="made/up",
        tasks=tuple(tasks),
        families=families,
        models=MODELS,
        scores_qms=right.astype(np.float32),
        solved_from=None,
        answers_qms=answers.astype(np.int32),
        answers=("0", "1", "2", "3"),
    )


@pytest.mark.parametrize(("parts", "goes_on"), [(1, False), (2, True)])
def test_one_family_of_few_does_not_make_the_cascade_ask_on(parts, goes_on):
    history = history_from_record(lopsided(parts))
    fitted = fit_cascade(history, PLAIN, price=0.001)
    assert len(set(history.families)) == 6 * parts
    assert bool(fitted.strange.onward_kg.any()) is goes_on
