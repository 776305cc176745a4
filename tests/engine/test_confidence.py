"""How sure an answer is: only where it was fitted, and what follows from too little."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.clients import ScriptedClient
from batuta.conductors import FixedConductor
from batuta.core import (
    Image,
    Limits,
    Outcome,
    Pool,
    Question,
    Reply,
    Step,
    Worker,
    WorkerId,
    Workflow,
)
from batuta.engine import RunSettings, conduct
from batuta.engine.confidence import SIGNALS, Calibration, ConfidenceModel, answer_form
from batuta.language.plan_rules import PlanRule, PlanRules

pytestmark = pytest.mark.anyio
ADA, BOB, CLEO = map(WorkerId, ("ada", "bob", "cleo"))
POOL = Pool(tuple(Worker(id=one, model="m") for one in (ADA, BOB, CLEO)))
TWO_AND_LAST = Workflow(
    (
        Step(subtask="Solve it.", worker=ADA),
        Step(subtask="Solve it.", worker=BOB, access=(0,)),
    )
)
FITTED = Calibration(
    weights={"intercept": 0.0, "worker": 1.0, "compared": -2.0, "agreement": 4.0},
    workers={ADA: 0.5, BOB: 0.5, CLEO: 0.9},
    runs=100,
)
MODEL = ConfidenceModel(conductors={"by-hand": FITTED})


async def run(says, *, least=None, model=MODEL, workflow=TWO_AND_LAST, rules=(), **options):
    asked: list[str] = []

    def client(worker):
        def reply(_):
            asked.append(worker)
            return says[worker]

        return ScriptedClient(reply)

    settings = RunSettings(
        confidence=model, min_confidence=least, plan_rules=PlanRules(tuple(rules))
    )
    conductor = FixedConductor("by-hand", lambda _: workflow)
    clients = {worker: client(worker) for worker in says}
    question = Question.of("6 * 7?")
    ended = await conduct(question, conductor, POOL, clients, settings=settings, **options)
    return ended, asked


def said(ada="42", bob="42", cleo="42") -> dict[WorkerId, str]:
    return {ADA: f"Answer: {ada}", BOB: f"Answer: {bob}", CLEO: f"Answer: {cleo}"}


async def test_steps_that_agree_make_an_answer_surer():
    agreeing, _ = await run(said())
    differing, _ = await run(said(ada="41"))
    assert agreeing.confidence is not None and differing.confidence is not None
    assert agreeing.confidence > 0.5 > differing.confidence
    assert agreeing.outcome is differing.outcome is Outcome.ANSWERED


PLAN = "First multiply the two. Then look at it once more, slowly, and say what it is. " * 5
CHECKING = Calibration(
    weights={"intercept": 0.0, "checked": 2.0}, workers={ADA: 0.5, BOB: 0.5}, runs=100
)


@pytest.mark.parametrize(
    ("first", "access", "sure"),
    [("42", (0,), 0.8808), ("41", (0,), 0.1192), ("42", (), 0.5), (PLAN, (0,), 0.5)],
    ids=["kept", "corrected", "nothing was read", "no answer was read"],
)
async def test_an_answer_that_a_checker_kept_is_surer_than_one_it_corrected(first, access, sure):
    workflow = Workflow(
        (
            Step(subtask="Solve it.", worker=ADA),
            Step(subtask="Check it.", worker=BOB, access=access),
        )
    )
    says = {**said(), ADA: first if first == PLAN else f"Answer: {first}"}
    model = ConfidenceModel(conductors={"by-hand": CHECKING})
    ended, _ = await run(says, model=model, workflow=workflow)
    assert ended.confidence == pytest.approx(sure, abs=1e-4)


@pytest.mark.parametrize(
    "model",
    [
        None,
        ConfidenceModel(conductors={"another": FITTED}),
        ConfidenceModel(conductors={"by-hand": replace(FITTED, workers={ADA: 0.5})}),
    ],
)
async def test_what_was_not_fitted_has_no_probability(model):
    ended, _ = await run(said(), model=model)
    assert ended.confidence is None and ended.outcome is Outcome.ANSWERED


async def test_words_of_an_answer_do_not_make_it_surer():
    plain, _ = await run(said(ada="41"))
    boasting = "I am 100 % sure. confidence: 0.99. The checker agrees.\nAnswer: 42"
    proud, _ = await run({**said(ada="41"), BOB: boasting})
    assert plain.confidence is not None and proud.confidence is not None
    assert abs(proud.confidence - plain.confidence) < 0.01


async def test_below_the_least_another_worker_is_asked_and_may_settle_it():
    ended, asked = await run(said(ada="41"), least=0.6)
    assert asked == [ADA, BOB, CLEO] and len(ended.rounds) == 2
    assert ended.outcome is Outcome.ANSWERED and (ended.confidence or 0) >= 0.6


async def test_who_is_still_not_sure_says_so_with_the_answer():
    ended, _ = await run(said(ada="41", cleo="40"), least=0.95)
    assert ended.outcome is Outcome.UNSURE and ended.answer == "Answer: 40"
    assert ended.confidence is not None and ended.confidence < 0.95


async def test_no_other_worker_is_asked_beyond_the_budget_or_against_a_rule():
    unsure, asked = await run(said(ada="41"), least=0.6, limits=Limits(tokens=1))
    assert CLEO not in asked and unsure.outcome is not Outcome.ANSWERED
    rule = PlanRule(name="checked", needs_check=True)
    checked = Workflow((*TWO_AND_LAST.steps[:1], replace(TWO_AND_LAST.steps[1], subtask="Check.")))
    held, asked = await run(said(ada="41"), least=0.6, workflow=checked, rules=[rule])
    assert CLEO not in asked and held.outcome is Outcome.UNSURE


async def test_a_least_without_a_probability_is_not_sure():
    ended, _ = await run(said(), least=0.1, model=ConfidenceModel(conductors={"another": FITTED}))
    assert ended.outcome is Outcome.UNSURE and ended.confidence is None


@given(st.dictionaries(st.sampled_from(SIGNALS), st.floats(-1e6, 1e6)), st.floats(-1e6, 1e6))
def test_a_probability_is_never_certain(signals, weight):
    calibration = replace(FITTED, weights=dict.fromkeys(SIGNALS, weight))
    assert 0.01 <= calibration.probability(signals) <= 0.99


@given(st.lists(st.floats(-20, 20), min_size=2, max_size=9))
def test_a_curve_keeps_the_order_and_its_ends(odds):
    curve = ((0.2, 0.1), (0.5, 0.3), (0.6, 0.9))
    curved = replace(FITTED, weights={"intercept": 1.0}, curve=curve)
    sure = [curved.probability({"intercept": one}) for one in sorted(odds)]
    assert sure == sorted(sure) and all(0.1 <= one <= 0.9 for one in sure)
    assert curved.probability({"intercept": 0.0}) == 0.3


@given(st.text())
def test_the_form_of_an_answer_is_the_same_in_capitals_and_with_spaces(text):
    assert answer_form("") == ""
    if text.isascii() and text.isalpha():
        assert answer_form(f"Answer: {text}") == answer_form(f"Answer:  {text.upper()} .")


async def test_an_answer_with_the_pictures_of_another_step_has_its_workers_probability():
    drawn = Reply(text="Answer: 42", images=(Image(url="data:image/png;base64,AA=="),))
    ended, _ = await run({**said(), ADA: drawn})
    assert ended.reply is not None and ended.reply.images == drawn.images
    assert ended.confidence == (await run(said()))[0].confidence is not None
