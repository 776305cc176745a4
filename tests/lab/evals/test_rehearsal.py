"""The methods on the rehearsal orchestra: understood, and in the order that they should have."""

import pytest

from batuta.conductors import LLMConductor
from batuta.core import Limits
from batuta.lab import worlds
from batuta.lab.evals import EvalOptions, ResultLog, Subject, open_tasks
from batuta.lab.evals.report import summarize_runs
from batuta.lab.worlds import HandWrittenClient
from lab.evals.evaluated import evaluate_task_set

pytestmark = pytest.mark.anyio
NAMES = ("ultra", "random", "best-single", "self-consistency@3", "self-reflection", "moa", "pipeline", "oracle", "pass@3", "ultra-solve-only")  # fmt: skip


@pytest.mark.slow
async def test_methods_that_act_on_answers_gain_and_bounds_bound(tmp_path):
    conductor = LLMConductor(name="rehearsal/hand-written", client=HandWrittenClient(0))
    tested = Subject(
        pool=worlds.rehearsal_pool(),
        clients=worlds.rehearsal_clients(time_scale=0),
        conductor=conductor,
        limits=Limits(),
        simulated=True,
    )
    tasks = open_tasks("rehearsal", 150, 150)
    with ResultLog(tmp_path) as ledger:
        found = await evaluate_task_set(
            tested, tasks, names=NAMES, options=EvalOptions(), result_log=ledger
        )
    right = {name: summarize_runs(runs)["accuracy"] for name, runs in found.results.items()}
    assert right["ultra"] > right["moa"] > right["best-single"] + 0.1
    assert right["pipeline"] > right["best-single"] + 0.1
    assert right["ultra"] > right["ultra-solve-only"]
    assert right["ultra"] > right["random"] + 0.1
    assert right["pass@3"] >= right["self-consistency@3"] >= right["best-single"] - 0.05
    assert right["oracle"] >= right["best-single"]
    assert all(run.unscored is None for runs in found.results.values() for run in runs)
    turns = [run.calls for run in found.results["self-reflection"]]
    assert {2, 5} <= set(turns) <= {2, 4, 5}
