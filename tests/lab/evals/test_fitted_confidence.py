"""How sure answers are, fitted to graded runs: what is written, measured and refused."""

from dataclasses import replace

import numpy as np
import pytest

from batuta.config.confidence import read_confidence
from batuta.core import (
    Draft,
    Limits,
    Outcome,
    Plan,
    Pool,
    Question,
    Reply,
    Round,
    Run,
    RunHeader,
    RunId,
    Step,
    StepRun,
    TimeSpan,
    Worker,
    WorkerId,
    Workflow,
)
from batuta.errors import ConfigError, StoreError
from batuta.lab.evals.confidence import calibrate_confidence, measure_confidence
from batuta.store import Store
from batuta.store.judgement import Judgement
from batuta.usage import Usage

pytestmark = pytest.mark.anyio
GOOD, BAD = WorkerId("good"), WorkerId("bad")
POOL = Pool((Worker(id=GOOD, model="m"), Worker(id=BAD, model="m")))


def make_run(number: int, worker: WorkerId, question: str, conductor: str) -> Run:
    reply = Reply(text=f"Answer: {number}", usage=Usage(output=5))
    workflow = Workflow((Step(subtask="", worker=worker),))
    step = StepRun(
        index=0, planned=worker, worker=worker, request=None, result=reply, span=TimeSpan(0, 1)
    )
    header = RunHeader(
        id=RunId(f"run_{conductor}{number:05}"),
        question=Question.of(question),
        pool=POOL,
        seed=None,
        limits=Limits(),
        conductor=conductor,
    )
    round_ = Round(decision=Plan(workflow, draft=Draft()), workflow=workflow, steps=(step,))
    return Run(
        header=header,
        rounds=(round_,),
        outcome=Outcome.ANSWERED,
        answer=reply.text,
        reply=reply,
    )


async def fill(path, count: int, conductor: str = "c") -> None:
    """Runs of two workers, of which one is right in nine cases of ten and one in three."""
    drawn = np.random.default_rng(0)
    async with Store.open(path) as store:
        judged = {}
        for number in range(count):
            worker = (GOOD, BAD)[number % 2]
            run = make_run(number, worker, f"question {number}", conductor)
            await store.append(run)
            right = drawn.random() < (0.9 if worker == GOOD else 0.3)
            judged[run.id] = Judgement(float(right), None)
        await store.flush()
        await store.score_runs(judged)


async def test_probabilities_follow_the_workers_shares_and_are_read_again(tmp_path):
    await fill(tmp_path / "runs.db", 300)
    out = tmp_path / "sure.json"
    fitted = await calibrate_confidence(tmp_path / "runs.db", out)
    measured = fitted.stored.conductors["c"].measured
    assert measured.calibration_error < 0.1 and (measured.auroc or 0) > 0.7
    assert measured.right_at_80 > measured.right
    model = read_confidence(out)
    sure = {}
    for worker in (GOOD, BAD):
        run = make_run(0, worker, "new", "c")
        assert run.reply is not None
        sure[worker] = model.of_answer("c", run.rounds, run.reply)
    assert abs(sure[GOOD] - 0.9) < 0.1 and abs(sure[BAD] - 0.3) < 0.1


async def test_what_a_regression_cannot_say_a_curve_corrects(tmp_path):
    await fill(tmp_path / "runs.db", 600)
    fitted = await calibrate_confidence(tmp_path / "runs.db", tmp_path / "sure.json")
    one = fitted.stored.conductors["c"]
    assert one.curve and list(one.curve) == sorted(one.curve)
    assert [right for _, right in one.curve] == sorted(right for _, right in one.curve)
    assert one.measured.calibration_error < 0.06


async def test_too_few_graded_runs_are_refused(tmp_path):
    await fill(tmp_path / "runs.db", 20)
    with pytest.raises(ConfigError, match="20 graded questions, and 40 are needed"):
        await calibrate_confidence(tmp_path / "runs.db", tmp_path / "sure.json")
    assert not (tmp_path / "sure.json").exists()


async def test_a_file_that_cannot_be_written_is_an_error_that_says_so(tmp_path):
    await fill(tmp_path / "runs.db", 60)
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"sure\.json cannot be written"):
        await calibrate_confidence(tmp_path / "runs.db", tmp_path / "file" / "sure.json")


def test_a_file_that_is_not_fitted_is_refused(tmp_path):
    wrong = tmp_path / "sure.json"
    wrong.write_text('{"conductors": {"c": {"weights": {"charm": 1}}}}')
    with pytest.raises(ConfigError, match="batuta eval --calibrate"):
        read_confidence(wrong)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_confidence(tmp_path / "absent.json")


def test_what_is_right_by_halves_is_measured_so():
    sure, right = np.array([0.75] * 4 + [0.25] * 4), np.array([1, 1, 1, 0, 0, 0, 0, 1])
    found = measure_confidence(sure, right.astype(float))
    assert found.calibration_error == pytest.approx(0.0) and found.right == 0.5
    assert replace(POOL) == POOL and found.auroc == pytest.approx(0.75)
