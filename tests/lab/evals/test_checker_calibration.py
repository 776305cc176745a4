"""A checker's rates are measured on answers whose grades are known, not assumed."""

import numpy as np
import pytest

from batuta.clients import ScriptedClient
from batuta.core import Grade, Pool, Task, TaskId, Worker, WorkerId
from batuta.errors import ProviderOverloadedError
from batuta.lab.baselines import SolverContext
from batuta.lab.baselines.checker import EXECUTED_TESTS, Checker, fit_checker
from batuta.lab.evals.checker_calibration import CHECKS, calibrate_checker, calibrate_tests
from batuta.lab.learners.history import History

pytestmark = pytest.mark.anyio

TASKS = tuple(
    Task(id=TaskId(str(n)), question=f"What is {n} + 1?", target=str(n + 1), grader="exact")
    for n in range(60)
)


async def grade(task, answer):
    return Grade(float(answer == f"Answer: {task.target}"), answer)


def solver_context(verdict):
    """Ann is always right, bob never; gus says what `verdict` makes of the prompt."""

    def say(worker, request):
        asked = request.messages[-1].text
        if worker == "gus":
            return verdict(asked)
        number = int(asked.split()[2])
        return f"Answer: {number + 1 if worker == 'ann' else number - 1}"

    pool = Pool(tuple(Worker(id=WorkerId(name), model=name) for name in ("ann", "bob", "gus")))
    clients = {w.id: ScriptedClient(lambda r, w=w.id: say(w, r)) for w in pool}
    return SolverContext(pool=pool, clients=clients)


def is_right(asked):
    number = int(asked.split("What is ")[1].split()[0])
    return f"Answer: {number + 1}" in asked


GUS = Checker(WorkerId("gus"))


async def test_a_checker_that_knows_is_believed_more():
    context = solver_context(
        lambda asked: "Right." if is_right(asked) else "It is wrong in step 1."
    )
    found, checks = await calibrate_checker(GUS, TASKS, context, grade)
    assert checks == CHECKS
    assert found.worker == "gus"
    assert found.pass_rate > 0.97 and found.catch_rate > 0.94


async def test_a_checker_that_passes_everything_says_nothing():
    found, checks = await calibrate_checker(GUS, TASKS, solver_context(lambda _: "Right."), grade)
    assert (found, checks) == (None, CHECKS)


async def test_checks_that_fail_leave_what_is_believed():
    down = solver_context(lambda _: ProviderOverloadedError("the house is full"))
    found, checks = await calibrate_checker(GUS, TASKS[:4], down, grade)
    assert checks in {0, 4}  # another worker may stand in for the one that failed
    if not checks:
        assert found == GUS


async def test_a_checker_that_is_not_there_checks_nothing():
    context = solver_context(lambda _: "Right.").restrict_to(WorkerId("ann"), WorkerId("bob"))
    assert await calibrate_checker(GUS, TASKS, context, grade) == (None, 0)


def test_few_verdicts_move_the_rates_little():
    found = fit_checker(Checker(None, 0.9, 0.7), [(True, False)])
    assert found == Checker(None, 4 * 0.9 / 5, 0.7)
    many = fit_checker(Checker(None, 0.9, 0.7), [(True, True)] * 96 + [(False, False)] * 46)
    assert many.pass_rate == pytest.approx(0.996) and many.catch_rate == pytest.approx(0.976)
    assert fit_checker(Checker(), [(True, False)] * 50) is None


def programs(scores):
    """A worker's programs, right or wrong, on questions that show a test."""
    score_qm = np.array(scores, np.float32)[:, None]
    return History(
        questions=tuple(f"{n}\nassert f({n}) == 1" for n in range(len(scores))),
        workers=(WorkerId("ann"),),
        scores_qm=score_qm,
        usd_qm=np.full(score_qm.shape, np.nan),
        runs_qm=np.ones(score_qm.shape, np.int32),
        families=("all",) * len(scores),
        answers=tuple((f"right {n}" if score else "wrong",) for n, score in enumerate(scores)),
    )


async def test_what_tests_are_worth_is_read_off_graded_programs():
    async def notices_half(question, answer):
        return "right" in answer or int(question.split()[0]) % 4 == 1

    found = await calibrate_tests(EXECUTED_TESTS, programs([1, 0] * 20), notices_half)
    assert found.pass_rate > 0.97
    assert 0.45 < found.catch_rate < 0.6

    async def passes_all(question, answer):
        return True

    assert await calibrate_tests(EXECUTED_TESTS, programs([1, 0] * 20), passes_all) is None

    async def cannot_run(question, answer):
        return None

    assert await calibrate_tests(EXECUTED_TESTS, programs([1, 0]), cannot_run) == EXECUTED_TESTS
