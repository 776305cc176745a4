"""An outage is left out of every figure and asked again; it never counts as a wrong reply."""

import ast
import inspect
import re
from dataclasses import replace

import orjson
import pytest

from batuta.conductors.fixed_workflows import worker_chain
from batuta.core import Finish, Grade, Reply, WorkerId
from batuta.engine import call, execute
from batuta.engine.execute import FORMAT_UNCHECKED
from batuta.errors import ProviderOverloadedError
from batuta.lab.evals import EvalOptions, ResultLog
from batuta.lab.evals.cost_quality import build_recovered
from batuta.lab.evals.fitted_methods import FittedMethod, WorkerPair
from batuta.lab.evals.markdown_report import render_markdown, table_rows
from batuta.lab.evals.outage import SYSTEM_FAULT_CODES
from batuta.lab.evals.report import build_report
from lab.evals.evaluated import evaluate_task_set, subject, task_set

pytestmark = pytest.mark.anyio
LOST = 0
"""The question on which a worker's provider is down."""
COMPARED = (
    "good", "best-single", "vote", "oracle", "pass@3", "skill-oracle@3", "self-consistency@3",
    "best-of-3", "self-reflection", "moa", "pipeline", "random-routing", "knn", "smoothie",
    "cascade", "mini",
)  # fmt: skip


def teller(down):
    """`good` and `fair` are right, `bad` never; whoever is down says nothing of one question."""

    def say(worker, request):
        number = int(re.findall(r"number (\d+)", str(request.messages))[-1])
        if number == LOST and worker in down:
            return ProviderOverloadedError("the house is full")
        return f"Answer: {-1 if worker == 'bad' else number}"

    return say


async def measured(folder, down, *names, tasks=None):
    tested = subject(teller(down))
    with ResultLog(folder) as log:
        return await evaluate_task_set(tested, tasks or task_set(6, 40), names, EvalOptions(), log)


@pytest.mark.parametrize("down", [("good",), ("good", "fair"), ("good", "fair", "bad")])
async def test_what_was_right_without_an_outage_is_never_wrong_with_one(tmp_path, down):
    plain = await measured(tmp_path / "plain", (), *COMPARED)
    shown = await measured(tmp_path / "down", down, *COMPARED)
    assert not plain.left_out
    figures = build_report(shown)["systems"]
    for name in COMPARED:
        was = {run.task: run.score for run in plain.results[name]}
        for run in shown.results[name]:
            assert run.unscored == "outage" or run.score == was[run.task], (name, run)
        lost = sum(run.unscored == "outage" for run in shown.results[name])
        assert figures[name]["n"] + lost == 6 and lost <= 1
    for name in ("good", "vote", "oracle", "pass@3", "skill-oracle@3"):
        assert figures[name]["unscored_because"] == {"outage": 1}
    for name in ("good", "fair", "bad"):  # no worker is better than the best of all
        alone = (await measured(tmp_path / "down", down, name)).results[name]
        right = [run.score for run in alone if run.score is not None]
        assert figures["oracle"]["accuracy"] >= sum(right) / len(right)


async def test_what_was_left_out_is_asked_again(tmp_path):
    await measured(tmp_path, ("good",), "oracle", "vote", "pass@3")
    again = await measured(tmp_path, (), "oracle", "vote", "pass@3")
    assert {run.score for runs in again.results.values() for run in runs} == {1.0}


async def test_a_result_of_an_earlier_version_that_lost_a_reply_is_measured_anew(tmp_path):
    await measured(tmp_path, ("good", "fair"), "oracle")
    path = tmp_path / "results.jsonl"
    lines = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    for line in lines:
        del line["outages"]
        if line["unscored"]:
            line |= {"unscored": None, "score": 0.0}
    path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    found = (await measured(tmp_path, ("good", "fair"), "oracle")).results["oracle"]
    assert [run.unscored for run in found].count("outage") == 1
    assert len(path.read_bytes().splitlines()) == 6 + 1, "the others are not run again"


async def test_a_line_with_an_undecided_reply_is_undecided_unless_every_reply_was_graded(tmp_path):
    whole = task_set(2)

    async def shrug(task, answer):
        right = answer.endswith(f" {task.target}")
        return Grade(None, None, "cannot tell") if right else Grade(0.0, "-1", "wrong")

    found = await measured(tmp_path, (), "oracle", tasks=replace(whole, grade=shrug))
    assert {run.unscored for run in found.results["oracle"]} == {"undecided"}


async def test_a_program_that_prints_nothing_is_graded_by_what_is_served_then(tmp_path):
    """Left out, it would show only the questions at which the program did print something."""

    def say(worker, request):
        number = int(re.findall(r"number (\d+)", str(request.messages))[-1])
        if worker == "python" and number % 2:
            return Reply(text="It printed nothing.", finish=Finish.NO_OUTPUT)
        return f"Answer: {number if number < 3 else -1}"

    chain = worker_chain(("good", "python"))
    tested = subject(say, workers=("good", "python"), conductor=chain)
    with ResultLog(tmp_path) as log:
        found = await evaluate_task_set(tested, task_set(6), ("ultra",), EvalOptions(), log)
    served = {run.task: run for run in found.results["ultra"]}
    assert [served[f"t{n}"].score for n in range(6)] == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    assert [served[f"t{n}"].outcome for n in range(6)] == ["answered", "degraded"] * 3
    assert not any(run.outages for run in served.values())


def test_whatever_the_engine_finds_wrong_in_a_reply_is_the_systems_own_fault():
    found = {FORMAT_UNCHECKED}
    for node in ast.walk(ast.parse("\n".join(map(inspect.getsource, (call, execute))))):
        if isinstance(node, ast.FunctionDef) and node.name == "_find_fault":
            pairs = [one.elts for one in ast.walk(node) if isinstance(one, ast.Tuple)]
            found |= {first.value for first, _ in pairs if isinstance(first, ast.Constant)}
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "Failure":
            given = {keyword.arg: keyword.value for keyword in node.keywords}
            if "usage" in given and ast.unparse(given["usage"]) == "reply.usage":
                found |= {one.value for one in [given["code"]] if isinstance(one, ast.Constant)}
    assert {"empty_reply", "no_output", "no_tool_call", "wrong_form"} <= found
    assert found <= SYSTEM_FAULT_CODES, "a reply came"


def test_the_recovered_gap_is_of_the_questions_that_both_workers_answered():
    pair = WorkerPair(weak=WorkerId("bad"), strong=WorkerId("good"))
    fitted = FittedMethod(
        system="knn", pair=pair, ahead={"t0": 3.0, "t1": 2.0, "t2": 1.0}, about=""
    )
    credit = {"good": [None, 1.0, 1.0], "bad": [0.0, 0.0, 1.0]}
    found = build_recovered({"knn": [fitted]}, lambda part, worker, tasks: credit[worker])
    assert found["missing"] == []
    assert found["systems"]["knn"]["curve"] == [0.0, 1.0, 1.0]
    credit = {"good": [None] * 3, "bad": [0.0] * 3}
    found = build_recovered({"knn": [fitted]}, lambda part, worker, tasks: credit[worker])
    assert found == {"systems": {}, "missing": []}


async def test_who_could_not_be_measured_is_said_in_the_table_and_below_it(tmp_path):
    def say(worker, request):
        number = int(re.findall(r"number (\d+)", str(request.messages))[-1])
        lost = worker == "good" or (worker == "fair" and number % 2)
        if number >= 1000 and lost:
            return ProviderOverloadedError("the house is full")
        return f"Answer: {number}"

    with ResultLog(tmp_path) as log:
        found = await evaluate_task_set(
            subject(say), task_set(3, 6), ("best-single",), EvalOptions(), log
        )
    report = build_report(found)
    assert table_rows(report)[0][0] == "best-single [not measured: good§]"
    said = render_markdown(report)
    assert "§ good could not be measured on the other questions (outages" in said
    assert (
        "Of 6 other questions some workers were measured on fewer" in said and "fair on 3" in said
    )
    assert found.results["best-single"][0].steps[0].worker in {"fair", "bad"}


async def test_where_nobody_could_be_measured_the_reason_is_told(tmp_path):
    def say(worker, request):
        number = int(re.findall(r"number (\d+)", str(request.messages))[-1])
        return ProviderOverloadedError("full") if number >= 1000 else f"Answer: {number}"

    with ResultLog(tmp_path) as log:
        found = await evaluate_task_set(
            subject(say), task_set(3, 6), ("best-single",), EvalOptions(), log
        )
    report = build_report(found)
    assert table_rows(report)[0][0] == "best-single [good‡]"
    assert "‡ No worker could be measured on the other questions (outages" in render_markdown(
        report
    )
