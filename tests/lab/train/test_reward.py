"""What a workflow earns."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.core import (
    Attempt,
    Cost,
    Draft,
    Failure,
    Grade,
    Limits,
    MalformedPlan,
    Outcome,
    Plan,
    Question,
    Reply,
    Round,
    Run,
    RunHeader,
    RunId,
    Step,
    StepRun,
    TimeSpan,
    Usage,
    Workflow,
)
from batuta.lab.evals.outage import SYSTEM_FAULT_CODES, outage_reason
from batuta.lab.tasks.graders import JudgeGrade
from batuta.lab.train.reward import round_cost, run_reward, scheduled_cost_weight
from batuta.lab.train.settings import RewardSettings
from lab.train.stage import POOL

FLOW = Workflow((Step(subtask="Solve it.", worker=POOL.workers[0].id),))
RIGHT, WRONG, UNDECIDED = Grade(1.0), Grade(0.0), Grade(None)
PAPER = RewardSettings()
PRICED = RewardSettings(cost="tokens", coefficient=0.1, unit=1000, ceiling=0.4)


def run(
    *results, answer="42", decision=None, outcome=Outcome.ANSWERED, run_by=None, attempts=(),
    error_code=None,
):  # fmt: skip
    """A run of one round whose steps ended so."""
    worker = POOL.workers[0].id
    steps = tuple(
        StepRun(
            index=i,
            planned=worker,
            worker=run_by or worker,
            request=None,
            result=result,
            span=TimeSpan(0, 1),
            attempts=attempts,
        )
        for i, result in enumerate(results)
    )
    header = RunHeader(
        id=RunId("r"),
        question=Question.of("q"),
        pool=POOL,
        seed=0,
        limits=Limits(),
        conductor="policy",
    )
    executed_run = Round(
        decision=decision or Plan(FLOW), workflow=FLOW if steps else None, steps=steps
    )
    return Run(
        header=header, rounds=(executed_run,), outcome=outcome, answer=answer,
        error=error_code, error_code=error_code,
    )  # fmt: skip


def reply(tokens=0, usd="0"):
    usage = Usage(calls=1, input=tokens)
    return Reply(text="42", usage=usage, cost=Cost(Decimal(usd)))


@pytest.mark.parametrize(
    ("executed_run", "grade", "earned"),
    [
        (run(decision=MalformedPlan(draft=Draft(text="?"), reason="no list"), answer=None), None, 0.0),  # pyright: ignore[reportArgumentType]
        (run(decision=MalformedPlan(draft=Draft(), reason="no model", outage=True), answer=None), None, None),  # pyright: ignore[reportArgumentType]
        (run(reply()), WRONG, 0.5),
        (run(reply()), RIGHT, 1.0),
        (run(reply()), Grade(0.5), 0.75),
        (run(reply()), UNDECIDED, 0.5),
        (run(reply()), JudgeGrade(score=None, extracted=None, failure="overloaded"), None),
        (run(reply()), JudgeGrade(score=None, extracted=None, failure="context_too_long"), 0.5),
        (run(Failure(code="overloaded", message="busy"), answer=None, outcome=Outcome.FAILED), None, None),  # pyright: ignore[reportArgumentType]
        (run(Failure(code="overloaded", message="busy"), reply()), RIGHT, None),
        (run(Failure(code="empty_reply", message="nothing"), answer=None, outcome=Outcome.FAILED), None, 0.5),  # pyright: ignore[reportArgumentType]
        (run(Failure(code="context_too_long", message="long"), reply()), WRONG, 0.5),
        (run(reply(), outcome=Outcome.CANCELLED), RIGHT, None),
        (run(Failure(code="limit", message="too much"), answer=None, outcome=Outcome.LIMITED), None, 0.5),  # pyright: ignore[reportArgumentType]
        (run(Failure(code="limit", message="too much"), reply(), outcome=Outcome.LIMITED), WRONG, 0.5),
    ],
)  # fmt: skip
def test_the_reward_of_the_paper(executed_run, grade, earned):
    assert run_reward(executed_run, grade, PAPER, 0.0) == earned


@pytest.mark.parametrize(
    ("tokens", "grade", "charge", "earned"),
    [
        (2000, RIGHT, 1.0, 0.8),
        (2000, RIGHT, 0.5, 0.9),
        (2000, RIGHT, 0.0, 1.0),
        (9000, RIGHT, 1.0, 0.6),
        (2000, WRONG, 1.0, 0.5),
        (2000, Grade(0.5), 1.0, 0.75),
    ],
)
def test_a_cost_is_charged_only_when_the_answer_is_right(tokens, grade, charge, earned):
    assert run_reward(run(reply(tokens)), grade, PRICED, charge) == pytest.approx(earned)


def test_the_conductors_own_tokens_cost_too_and_dollars_are_dollars():
    draft = Draft(text="…", usage=Usage(calls=1, output=500), cost=Cost(Decimal("0.02")))
    executed_run = run(reply(1500, "0.03"), decision=Plan(FLOW, draft))
    assert round_cost(executed_run, PRICED) == pytest.approx(2.0)
    dollars = RewardSettings(cost="usd", coefficient=1.0, unit=0.1)
    assert round_cost(executed_run, dollars) == pytest.approx(0.5)
    assert (
        round_cost(executed_run, RewardSettings(cost="calls", coefficient=1.0, unit=2))
        == len(executed_run.steps) / 2
    )
    assert round_cost(executed_run, PAPER) == 0.0


@given(step=st.integers(0, 400), begins=st.integers(0, 200), ramp=st.integers(1, 200))
def test_the_charge_grows_from_nothing_to_the_whole(step, begins, ramp):
    told = RewardSettings(cost="tokens", from_step=begins, ramp=ramp)
    now, later = scheduled_cost_weight(step, told), scheduled_cost_weight(step + 1, told)
    assert 0.0 <= now <= later <= 1.0
    assert now == 0.0 if step < begins else now > 0.0
    assert now == 1.0 or step < begins + ramp


@given(
    score=st.one_of(st.none(), st.floats(0, 1)),
    tokens=st.integers(0, 100_000),
    charge=st.floats(0, 1),
)
def test_a_valid_workflow_never_earns_less_than_a_wrong_one(score, tokens, charge):
    earned = run_reward(run(reply(tokens)), Grade(score), PRICED, charge)
    assert earned == 0.5 if score is None else 0.5 <= earned <= 1.0


@pytest.mark.parametrize(
    ("code", "earned"), [("overloaded", None), ("timeout", None), ("empty_reply", 1.0)]
)
def test_a_substitute_is_an_outage_only_where_a_model_failed(code, earned):
    """What was paid and came out empty is the worker's own fault; an API that fails is nobody's."""
    failed = Attempt(POOL.workers[0].id, Failure(code=code, message="…"), 0.5)
    stood_in = run(reply(), run_by=POOL.workers[1].id, attempts=(failed,))
    assert run_reward(stood_in, RIGHT, PAPER, 0.0) == earned


def test_a_retry_that_ended_well_is_no_outage():
    failed = Attempt(POOL.workers[0].id, Failure(code="overloaded", message="busy"), 0.5)
    assert run_reward(run(reply(), attempts=(failed,)), RIGHT, PAPER, 0.0) == 1.0


@pytest.mark.parametrize("code", sorted(SYSTEM_FAULT_CODES - {"malformed_plan"}))
def test_training_and_evaluation_have_one_list(code):
    """What evaluation counts as wrong, training pays as wrong; what it leaves out, training too."""
    for each, system in ((code, True), (f"no {code}", False)):
        failed = Failure(code=each, message="…")
        executed_run = run(failed, answer=None, outcome=Outcome.FAILED, error_code=each)  # pyright: ignore[reportArgumentType]
        assert (outage_reason(executed_run) is None) == system
        assert (run_reward(executed_run, None, PAPER, 0.0) == 0.5) == system
