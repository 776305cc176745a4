"""A tuning from its questions to its recommendation, on worlds whose best is known."""

import re
from dataclasses import replace
from decimal import Decimal

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.clients import ScriptedClient
from batuta.core import Finish, Pool, Price, Reply, Worker, WorkerId
from batuta.core.worker import PROGRAM
from batuta.errors import ConfigError, ModelNotFoundError, ProviderOverloadedError, SourceError
from batuta.lab.evals.task_sets import task_family
from batuta.lab.tasks.question_keys import text_key
from batuta.lab.tune.candidate_runner import CallMeter, CandidateRunner
from batuta.lab.tune.context import TuneContext, TuneSettings
from batuta.lab.tune.decision import recommend_systems
from batuta.lab.tune.grouping import group_questions
from batuta.lab.tune.judge import Verdict
from batuta.lab.tune.library import Candidate, CandidateStep, StepRole
from batuta.lab.tune.opening import GENERAL, open_questions
from batuta.lab.tune.parts import split_questions
from batuta.lab.tune.report import describe_tuning
from batuta.lab.tune.spending import Allowance
from batuta.lab.tune.stages import TuneStage
from batuta.lab.tune.tuning import run_tuning
from batuta.usage import ASSUMED_PRICE
from lab.tune.worlds import EXPERTS, PRICE, VOTES, World, grade, truth

EQUAL = World("equal", {"ada": 0.75, "ben": 0.3})
"""Nobody adds anything to the best worker alone: no checks, no plans, no kinds."""


async def tune(world, calls, *, clients=None, pool=None, tasks=None, **options):
    """The result, and the meter of what it took."""
    meter = CallMeter(ASSUMED_PRICE)
    runner = CandidateRunner(
        pool or world.pool, clients or world.clients(), grade, meter, unknown=ASSUMED_PRICE
    )
    parts = split_questions(tasks or world.tasks(600), task_family)
    settings = TuneSettings(allowance=Allowance(calls=calls), **options)
    result = await run_tuning(
        TuneContext(
            parts=parts,
            family=task_family,
            runner=runner,
            settings=settings,
            used_minutes=lambda: 0.0,
        )
    )
    return result, meter, parts, settings


_TUNED = {}


async def tune_once(world, calls, **options):
    """As `tune`, of which those who only look at it share one."""
    key = world.name, calls, *sorted(options.items())
    if key not in _TUNED:
        _TUNED[key] = await tune(world, calls, **options)
    return _TUNED[key]


@pytest.mark.slow
async def test_experts_are_found_and_the_judgement_says_so():
    result, meter, parts, settings = await tune(EXPERTS, 2000)
    assert meter.calls <= 2000
    ultra, mini = result.comparisons[:2]
    assert ultra.verdict is Verdict.BETTER and mini.verdict is Verdict.BETTER
    assert ultra.p_corrected >= ultra.p and ultra.detectable > 0
    system, fresh = result.nominees["mini"], EXPERTS.tasks(200, seed=5)
    expert = {"bills": "ada", "roads": "ben", "verbs": "cleo"}
    assignment = system.assign(fresh)
    right = [assignment[task.id].steps[0].worker == expert[task.tags[0]] for task in fresh]
    assert sum(right) / len(right) > 0.9
    found = describe_tuning(result, parts, settings, meter)
    assert found["recommendation"]["ultra"] in {"selector", "selector-mini"}


async def test_where_nothing_beats_the_best_single_worker_it_is_what_is_recommended():
    result, *_ = await tune(EQUAL, 1500)
    advice = recommend_systems(result)
    assert advice["ultra"] is None and advice["mini"] is None and advice["best"] == "ada"
    served = [reason for reason in advice["why"] if not reason.startswith("Proof")]
    assert len(served) == 2 and all("the best single worker, ada" in one for one in served)


async def test_no_workflow_is_longer_than_is_allowed_not_even_in_the_screening():
    result, meter, *_ = await tune(VOTES, 600, max_steps=1)
    assert {len(one) for one in result.systems[-1].library} == {1}
    assert result.tried == len(VOTES.workers)
    assert meter.usage.calls == meter.calls


async def test_workers_whose_mistakes_are_the_same_are_not_asked_to_vote():
    nested = World("nested", {"nina": 0.72, "otto": 0.55, "pia": 0.5}, shared=1.0)
    result, *_ = await tune(nested, 900)
    advice = recommend_systems(result)
    assert (advice["ultra"], advice["mini"], advice["best"]) == (None, None, "nina")


async def test_a_worker_that_always_fails_is_left_out_and_costs_no_answer():
    def fail(_):
        raise ModelNotFoundError("no such model")

    pool = Pool((*VOTES.pool, Worker(id=WorkerId("gone"), model="gone", price=PRICE)))
    clients = {**VOTES.clients(), WorkerId("gone"): ScriptedClient(fail)}
    result, *_ = await tune(VOTES, 1200, pool=pool, clients=clients)
    assert result.left_out == ("gone",)
    assert all(step.worker != "gone" for one in result.systems[-1].library for step in one.steps)
    assert result.cards[-1].overall.share is None and result.cards[-1].failed > 0


async def test_two_identical_workers_and_one_without_a_price():
    pool = Pool(tuple(Worker(id=WorkerId(name), model="same") for name in ("one", "two")))
    clients = {
        w.id: ScriptedClient(lambda r: EQUAL.answer("ada", r.messages[-1].text)) for w in pool
    }
    result, meter, *_ = await tune(EQUAL, 800, pool=pool, clients=clients)
    assert {one.verdict for one in result.comparisons} <= {
        Verdict.SAME,
        Verdict.UNDECIDED,
        Verdict.UNJUDGED,
    }
    assert meter.usd > 0 and all(card.usd is None for card in result.cards)


async def test_a_worker_without_a_price_is_not_taken_for_a_free_one():
    """Its calls count at the assumed price where an answer is worth dollars, as in the budget."""
    names = ("unpriced", "priced")
    pool = Pool(tuple(
        Worker(id=WorkerId(name), model="same", price=PRICE if name == "priced" else None)
        for name in names
    ))  # fmt: skip
    clients = {
        w.id: ScriptedClient(lambda r: EQUAL.answer("ada", r.messages[-1].text), price=w.price)
        for w in pool
    }
    result, *_ = await tune(EQUAL, 300, pool=pool, clients=clients, worth=0.001)
    for system in result.systems:
        used = {step.worker for one in system.workflows_in_use for step in one.steps}
        assert used == {"priced"}, system.name


async def test_one_that_answers_late_changes_nothing():
    quick, *_ = await tune(EQUAL, 600)

    class Late:
        def __init__(self, client):
            self.client = client

        async def complete(self, request, listener):
            await anyio.sleep(0.002)
            return await self.client.complete(request, listener)

    slow, *_ = await tune(EQUAL, 600, clients={w: Late(c) for w, c in EQUAL.clients().items()})
    assert slow.judged and [one.share for one in slow.judged] == [one.share for one in quick.judged]


async def test_families_of_one_question_count_with_the_rest():
    many = EXPERTS.tasks(300)
    rare = [replace(t, tags=(f"rare {n}",)) for n, t in enumerate(EXPERTS.tasks(3, seed=8))]
    result, *_ = await tune(EXPERTS, 900, tasks=(*many, *rare))
    assert len(result.grouping.names) == 4 and result.judged
    assert not any(name.startswith("rare") for name in result.grouping.names)


async def test_questions_that_come_three_times_are_asked_once():
    once = EXPERTS.tasks(150)
    again = tuple(replace(t, id=f"{t.id} {n}") for n in range(3) for t in once)
    result, _, parts, _ = await tune(EXPERTS, 900, tasks=again)
    every = (*parts.search, *parts.selection, *parts.finalists, *parts.judgement)
    assert len({task.question for task in every}) == len(every) == 150 and parts.doubles == 300
    assert result.judged


async def test_the_stages_end_where_they_are_told_to():
    result, meter, *_ = await tune(EQUAL, 1000, last=TuneStage.CALIBRATE)
    assert result.cards and not result.systems and 150 < meter.calls <= 1000
    result, *_ = await tune(EQUAL, 1000, last=TuneStage.SEARCH)
    assert result.systems and not result.judged


async def test_without_labels_groups_are_found_by_words():
    result, *_ = await tune(EXPERTS, 1200, labelled=False, groups=3)
    fresh = EXPERTS.tasks(90, seed=6)
    group_n, _, known_n = result.grouping.reader([task.question for task in fresh])
    pairs = {(task.tags[0], int(group)) for task, group in zip(fresh, group_n, strict=True)}
    assert len(pairs) == 3 and known_n.mean() > 0.9


async def test_a_budget_that_is_too_small_is_refused_in_a_sentence():
    def fail(_):
        raise ModelNotFoundError("no such model")

    with pytest.raises(ConfigError, match="no worker gave answers"):
        await tune(EQUAL, 500, clients={w: ScriptedClient(fail) for w in EQUAL.workers})
    asked = {w: ScriptedClient(["unasked"]) for w in EXPERTS.workers}
    with pytest.raises(ConfigError, match=r"does not suffice .* 12 calls"):
        await tune(EXPERTS, 11, clients=asked, tasks=EXPERTS.tasks(60))
    assert not any(client.requests for client in asked.values()), "nothing is paid in vain"


async def test_models_that_all_fail_are_told_although_a_program_answers():
    def fail(_):
        raise ModelNotFoundError("no such model")

    pool = Pool((*EQUAL.pool, Worker(id=WorkerId("python"), model="python", tags=(PROGRAM,))))
    clients = {w: ScriptedClient(fail) for w in EQUAL.workers}
    clients[WorkerId("python")] = ScriptedClient(lambda _: "There is no program.")
    with pytest.raises(ConfigError, match="no model gave answers"):
        await tune(EQUAL, 300, clients=clients, pool=pool, tasks=EQUAL.tasks(60))


async def test_a_worker_that_never_answered_is_not_the_best_of_those_that_are_never_right():
    def fail(_):
        raise ModelNotFoundError("no such model")

    cheap = Price(input=Decimal(0), output=Decimal(0))
    pool = Pool((*EQUAL.pool, Worker(id=WorkerId("gone"), model="gone", price=cheap)))
    clients = {w: ScriptedClient(lambda _: "Answer: 1") for w in EQUAL.workers}
    clients[WorkerId("gone")] = ScriptedClient(fail)
    result, *_ = await tune(EQUAL, 150, clients=clients, pool=pool, tasks=EQUAL.tasks(40))
    assert result.left_out == ("gone",)
    assert recommend_systems(result)["best"] in EQUAL.workers


def test_few_and_double_questions():
    tasks = EXPERTS.tasks(3)
    with pytest.raises(SourceError, match="3 different questions are too few"):
        split_questions(tasks, task_family)
    with pytest.raises(SourceError, match="too few"):
        split_questions(tasks * 30, task_family)
    many = EXPERTS.tasks(200)
    parts = split_questions((*many, *many[:50]), task_family)
    sizes = [len(p) for p in (parts.search, parts.selection, parts.finalists, parts.judgement)]
    assert parts.doubles == 50 and sum(sizes) == 200 and min(sizes) > 0


@given(st.integers(24, 150), st.integers(1, 40))
def test_families_of_any_size_make_four_parts(count, families):
    """Each family was split alone, so that many small ones left parts without a question."""
    tasks = EXPERTS.tasks(count)
    number = {task.id: n % families for n, task in enumerate(tasks)}
    parts = split_questions(tasks, lambda task: str(number[task.id]))
    sizes = [len(p) for p in (parts.search, parts.selection, parts.finalists, parts.judgement)]
    assert sum(sizes) == count and min(sizes) >= 2
    assert sizes[0] >= 0.4 * count and sizes[3] >= 0.1 * count


@pytest.mark.parametrize(
    "family", [task_family, lambda task: "loud" if task.id.endswith("-1") else task_family(task)]
)
def test_no_question_nor_one_like_it_is_in_two_parts(family):
    tasks = VOTES.tasks(60)
    alike = [
        replace(t, id=f"{t.id}-{n}", question=text)
        for t in tasks
        for n, text in enumerate((t.question, t.question.upper() + " !", f"  {t.question}\n"))
    ]
    parts = split_questions(alike, family)
    every = [parts.search, parts.selection, parts.finalists, parts.judgement]
    keys = [{text_key(task.question) for task in part} for part in every]
    assert sum(map(len, keys)) == 60
    assert all(not a & b for n, a in enumerate(keys) for b in keys[n + 1 :])


def test_a_general_mix_of_few_questions_has_every_family():
    pytest.importorskip("reasoning_gym", reason="the extra reasoning-gym is not installed")
    few = open_questions(None, 2 * len(GENERAL) + 5, 0)
    assert {few.family(task) for task in few.tasks} == set(GENERAL)


def test_a_family_named_like_the_rest_of_the_families_joins_it():
    tasks = EXPERTS.tasks(40)
    labels = dict(zip(tasks, ["maths"] * 20 + ["other"] * 16 + ["code"] * 4, strict=True))
    found = group_questions(tasks, labels.__getitem__, labelled=True, most=8, seed=0)
    assert found.names == ("maths", "other")


async def test_who_writes_programs_is_found_where_another_worker_runs_them():
    """Neither is right alone, so no change of one step in what is known leads to the two."""

    def write(request):
        question = next(t.question for t in tasks if t.question in request.messages[-1].text)
        return f"```python\nprint({truth(question)})\n```"

    def run_program(request):
        found = re.search(r"print\((\d+)\)", request.messages[-1].text)
        return f"Answer: {found[1]}" if found else "There is no program."

    tasks = EQUAL.tasks(300)
    names = {"ada": write, "ben": lambda _: "Answer: 1", "python": run_program}
    clients = {WorkerId(name): ScriptedClient(answer) for name, answer in names.items()}
    pool = Pool(tuple(
        Worker(id=WorkerId(name), model="m", price=PRICE, tags=(PROGRAM,) if name == "python" else ())
        for name in names
    ))  # fmt: skip
    result, *_ = await tune(EQUAL, 700, clients=clients, pool=pool, tasks=tasks)
    assignment = result.nominees["ultra"].assign(EQUAL.tasks(40, seed=5))
    names = {tuple(step.worker for step in one.steps) for one in assignment.values()}
    assert all(each[0] == "ada" and each[-1] == "python" for each in names), names
    assert result.comparisons[0].verdict is Verdict.BETTER


@pytest.mark.parametrize("code", ["no_output", "overloaded"])
async def test_a_program_that_prints_nothing_is_worth_what_is_served_then(code):
    """Whoever is asked then is the best worker of the pool, whether the workflow has it or not."""
    made = {
        "ada": "Answer: 1",
        "best": "Answer: 7",
        "python": Reply(text="-", finish=Finish.NO_OUTPUT),
    }
    if code == "overloaded":
        made["python"] = ProviderOverloadedError("the house is full")
    clients = {
        WorkerId(name): ScriptedClient(lambda _, said=said: said) for name, said in made.items()
    }
    workers = [
        Worker(id=WorkerId(name), model="m", price=PRICE, strength=float(name == "best"))
        for name in made
    ]
    meter = CallMeter(ASSUMED_PRICE)
    task = replace(EQUAL.tasks(1)[0], target="7")
    runner = CandidateRunner(Pool(tuple(workers)), clients, grade, meter, unknown=ASSUMED_PRICE)
    steps = (
        CandidateStep(StepRole.SOLVE, WorkerId("ada")),
        CandidateStep(StepRole.CHECK, WorkerId("python")),
    )
    found = await runner.run_entry(task, Candidate(steps))
    assert (found.score, found.answer) == (
        (1.0, "Answer: 7") if code == "no_output" else (None, None)
    )
    assert meter.calls == (3 if code == "no_output" else 1), "nobody stands in for an outage"
