"""Who stands for the best single worker: said before anything is asked, and of equals the cheapest."""

import json
import re
from dataclasses import replace
from decimal import Decimal

import anyio
import numpy as np
import pytest

from batuta.core import Pool, Price, Skill, Worker, WorkerId
from batuta.lab.evals import EvalOptions, ResultLog, forecast_parts
from batuta.lab.evals.evaluation import EvalPart, explain_best
from batuta.lab.evals.markdown_report import render_markdown, report_headline
from batuta.lab.evals.report import build_report
from batuta.lab.learners.history import History
from lab.evals.evaluated import evaluate_task_set, subject, task_set

pytestmark = pytest.mark.anyio


def worker(name, output=None, **more):
    price = None if output is None else Price(input=Decimal(1), output=Decimal(output))
    return Worker(id=WorkerId(name), model="m", price=price, **more)


@pytest.mark.parametrize(
    ("workers", "best", "why"),
    [
        ([worker("a", 3, strength=0.5), worker("b", 1, strength=0.5)], "b", "it is the cheapest of"),
        ([worker("a", strength=0.5), worker("b", 9, strength=0.5)], "b", "it is the cheapest of"),
        (
            [worker("a", strength=0.5), worker("b", parameters=7.0, strength=0.5)],
            "b", "it is the largest of",
        ),
        ([worker("a", 1, strength=0.5), worker("b", 1, strength=0.5)], "a", "it is the first of"),
        ([worker("a", 1, strength=0.5), worker("b", 9, strength=0.6)], "b", "its strength in the pool is the greatest"),
        ([worker("a", 1), worker("b", 9)], "b", "it is the most expensive"),
        ([worker("a"), worker("b", parameters=7.0)], "b", "it is the largest"),
        ([worker("a"), worker("b")], "a", "it is the first of the pool"),
        (
            [worker("a", 9, skills=(Skill(family="f", share=0.1),)),
             worker("b", 1, skills=(Skill(family="f", share=0.9),))],
            "b", "its measured skills are the best",
        ),
        (  # the second was not measured, so that skills decide nothing
            [worker("a", 9, skills=(Skill(family="f", share=0.1),)), worker("b", 1)],
            "a", "it is the most expensive",
        ),
        ([worker("a")], "a", "there is no other"),
    ],
)  # fmt: skip
def test_who_is_the_best_and_why(workers, best, why):
    pool = Pool(tuple(workers))
    assert pool.ranked()[0].id == best and why in explain_best(pool)


async def test_of_workers_that_are_equally_right_the_cheapest_is_the_best_single(tmp_path):
    tested = subject(lambda w, r: f"Answer: {re.findall(r'number ([0-9]+)', str(r.messages))[-1]}")
    prices = {"good": 9, "fair": 2, "bad": 4}
    pool = Pool(tuple(replace(w, price=worker("x", prices[w.id]).price) for w in tested.pool))
    with ResultLog(tmp_path) as log:
        found = await evaluate_task_set(
            replace(tested, pool=pool), task_set(3, 4), ("best-single",), EvalOptions(), log
        )
    assert {run.steps[0].worker for run in found.results["best-single"]} == {"fair"}
    assert "Best single worker on 4 other questions: fair" in render_markdown(build_report(found))


def test_a_history_breaks_ties_by_what_was_paid():
    scores = np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]], np.float32)
    usd = np.array([[0.3, 0.1, 0.0], [0.3, np.nan, 0.0]])
    workers = tuple(map(WorkerId, "abc"))
    made = History(
        questions=("p", "q"), workers=workers, scores_qm=scores, usd_qm=usd,
        runs_qm=np.ones((2, 3), np.int32), families=("f", "f"),
    )  # fmt: skip
    assert made.best_worker() == "b"
    assert replace(made, usd_qm=np.full((2, 3), np.nan)).best_worker() == "a"


async def test_that_nothing_measures_the_workers_is_said_before_anybody_is_asked(tmp_path):
    async def notes(calibration, *names):
        part = EvalPart(subject=subject(), tasks=task_set(3, calibration))
        with ResultLog(tmp_path) as log:
            return (await forecast_parts((part,), names, EvalOptions(), log)).notes

    (said,) = await notes(0, "best-single", "good")
    assert (
        "good is taken as the best single worker, because it is the first of the pool" in said
        and "--limit" in said
    )
    assert await notes(4, "best-single") == await notes(0, "good", "ultra") == ()


async def test_the_command_says_it(tmp_path, command_line):
    (tmp_path / "own.jsonl").write_text(
        "\n".join(json.dumps({"question": f"Add 1 and {n}.", "answer": n + 1}) for n in range(3))
    )
    done = await anyio.to_thread.run_sync(
        lambda: command_line.run(
            "eval", "--pool", "rehearsal", "--tasks", "own.jsonl", "--systems", "best-single",
            "--out", "out", cwd=tmp_path, env={"BATUTA_HOME": str(tmp_path)},
        )
    )  # fmt: skip
    assert "batuta: there are no other questions to measure the workers on" in done.stderr


def headline(accuracies, **usd):
    systems = {
        name: {
            "accuracy": right, "n": 10, "ci95": [0.0, 0.5], "usd": usd.get(name), "tokens": None,
            "simulated_runs": 0,
        }
        for name, right in accuracies.items()
    }  # fmt: skip
    calibration = {"unmeasured": [], "strengths": {}}
    return report_headline(
        {
            "systems": systems,
            "references": ["oracle"],
            "calibration": calibration,
            "differences": {},
        }
    )


def test_a_headline_at_a_tie_names_all_and_at_zero_nobody_is_right():
    assert headline({"a": 0.5, "b": 0.4}) == "Right most often: a, 50.0 % (0.0–50.0)."
    tie = {"a": 0.5, "b": 0.5, "c": 0.4, "oracle": 0.9}
    assert headline(tie) == "Right most often: a and b alike; 50.0 %."
    told = headline(tie, a=0.3, b=0.1, c=0.1)
    assert told == "Right most often: b and a alike, the cheapest first; 50.0 %."
    free = headline(tie, a=0.3, b=0.0, c=0.1)
    assert free == "Right most often: b and a alike, the cheapest first; 50.0 %."
    assert headline({"a": 0.0, "b": 0.0}) == "No system was right: 0.0 %, a and b alike."
    assert headline({"a": 0.0}) == "No system was right: 0.0 %, a."
