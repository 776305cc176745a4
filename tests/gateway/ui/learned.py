"""A training run and reports, as files."""

import json

from batuta.conductors import LLMConductor
from batuta.core import Limits
from batuta.lab import worlds
from batuta.lab.evals import EvalOptions, ResultLog, Subject, open_tasks
from batuta.lab.evals.plots import draw_figures
from batuta.lab.evals.report import build_report
from batuta.lab.evals.report_files import publish_report
from batuta.lab.worlds import HandWrittenClient
from lab.evals.evaluated import evaluate_task_set


async def measure_report(folder):
    """A report with all that it can have: figures, differences, seeds, families."""
    conductor = LLMConductor(name="rehearsal/hand-written", client=HandWrittenClient(0))
    tested = Subject(
        pool=worlds.rehearsal_pool(),
        clients=worlds.rehearsal_clients(time_scale=0),
        conductor=conductor,
        limits=Limits(),
        simulated=True,
    )
    with ResultLog(folder / "results") as ledger:
        names, terms = ("ultra", "best-single"), EvalOptions(seeds=(0, 1))
        found = await evaluate_task_set(
            tested, open_tasks("rehearsal", 15, 15), names=names, options=terms, result_log=ledger
        )
    place = folder / "learning" / "whole"
    publish_report(
        place, build_report(found, "batuta eval --tasks rehearsal"), draw_figures(found, place)
    )
    return place


def write_learning(folder):
    """What training and evaluation leave behind, in small."""
    run = folder / "learning" / "mine"
    run.mkdir(parents=True)
    lines = [
        {"step": n, "reward": n / 40, "right": n / 50, "valid": 0.9, "steps": 2.0, "steps_easy": 1.5, "steps_hard": None,
         "worker_tokens": 900 + n, "entropy": 1 / n, "no_spread": 0.1, "outages": 0.0, "step_time": 1.0}
        for n in range(1, 21)
    ]  # fmt: skip
    run.joinpath("metrics.jsonl").write_text(
        "\n".join(map(json.dumps, lines)) + '\n{"step": 21, "rew'
    )
    draft = 'model_id = ["a", "b"]\nsubtasks = ["<b>Plan</b>.", "Solve."]\naccess_list = [[], [0]]'
    sample = {"step": 20, "task": "t", "tags": ["<i>"], "difficulty": 2.0, "question": "Q?", "pool": ["a", "b"], "draft": draft,
              "answer": "<script>window.broken=1</script>", "target": "4", "score": 1.0, "reward": 1.0}  # fmt: skip
    turned = {**sample, "pool": ["b", "a"], "draft": draft.replace('"a", "b"', '"b", "a"')}
    run.joinpath("samples.jsonl").write_text(
        "\n".join(
            map(
                json.dumps,
                [sample, turned, {**sample, "draft": "nothing", "score": None, "reward": 0.0}],
            )
        )
    )
    run.joinpath("settings.json").write_text(json.dumps({"optimiser": {"steps": 40}}))
    report = folder / "learning" / "measured"
    report.mkdir()
    figures = {
        "n": 60,
        "accuracy": 0.8,
        "ci95": [0.7, 0.9],
        "calls": 2.0,
        "steps": 2.0,
        "tokens": 500.0,
        "usd": None,
        "seconds": 1.5,
        "simulated_runs": 0,
    }
    found = {"systems": {"ultra": figures, "<b>vote": {**figures, "accuracy": None, "ci95": None}}, "tasks": "rehearsal", "questions": 60,
             "references": [], "split": None, "seeds": [0], "simulated": True, "recorded": False,
             "command": "batuta eval --conductor learning/mine/policy"}  # fmt: skip
    report.joinpath("report.json").write_text(json.dumps(found))
    report.joinpath("report.html").write_text(
        "<!doctype html><title>r</title><style>p{color:red}</style><p>The report</p><script>window.broken=1</script>"
    )
    return run, report
