"""Who learned from one pool and serves another: workers leave, others are known by a few outcomes."""

import json
import os

import anyio
import numpy as np
import pytest
from record import made_up

from batuta.errors import ConfigError
from batuta.lab.evals import EvalOptions, ResultLog, evaluate_parts
from batuta.lab.evals.recorded_sets import PoolChange, make_record_parts
from batuta.lab.evals.report import build_report

pytestmark = pytest.mark.anyio
SYSTEMS = ("best-single", "mini", "knn", "avengers-pro", "cascade", "vote", "oracle")


async def measured(folder, change, seeds=(0, 1)):
    parts = make_record_parts(made_up(400), "random", seeds, change=change)
    with ResultLog(folder) as ledger:
        found = await evaluate_parts(parts, SYSTEMS, EvalOptions(), ledger)
    share = {
        name: sum(run.score or 0 for run in runs) / len(runs)
        for name, runs in found.results.items()
    }
    return parts, found, share


@pytest.mark.slow
async def test_who_left_is_never_asked_and_the_rest_goes_on(tmp_path):
    parts, found, share = await measured(tmp_path, PoolChange.parse("nimble", None))
    assert all("nimble" in part.history.workers for part in parts)
    for runs in found.results.values():
        assert "nimble" not in {step.worker for run in runs for step in run.steps}
    assert share["mini"] >= share["best-single"] == pytest.approx(share["oracle"], abs=0.15)
    assert min(share.values()) > 0.4


async def test_the_gap_between_a_weak_and_a_strong_worker_is_that_of_workers_who_are_there(
    tmp_path,
):
    parts = make_record_parts(made_up(), "random", (0,), change=PoolChange(leaves=("strong",)))
    with ResultLog(tmp_path) as log:
        found = await evaluate_parts(parts, ("mini", "knn"), EvalOptions(), log)
    gaps = build_report(found)["recovered_gap"]["systems"]
    assert {name: (one["weak"], one["strong"]) for name, one in gaps.items()} == dict.fromkeys(
        ("mini", "knn"), (["weak"], ["nimble"])
    )


async def test_who_joins_is_known_by_a_few_outcomes_and_is_used(tmp_path):
    change = PoolChange.parse(None, "nimble:60")
    parts, _, share = await measured(tmp_path, change)
    for part in parts:
        place = part.history.workers.index("nimble")
        assert (~np.isnan(part.history.scores_qm[:, place])).sum() == 60
        assert (~np.isnan(part.history.scores_qm)).all(axis=0).tolist() == [True, False, True]
        assert part.tasks.name.endswith("made/up, nimble joined with 60")
        strength = part.subject.pool["nimble"].strength
        assert strength == pytest.approx(np.nanmean(part.history.scores_qm[:, place]))
    assert share["mini"] > share["best-single"] + 0.1
    assert share["mini"] <= share["oracle"]


async def test_what_is_not_known_of_who_joins_changes_nothing(tmp_path):
    """The outcomes that are kept back are not looked at: nobody learns from them."""
    change = PoolChange.parse(None, "nimble:50")
    record = made_up(400)
    (one,) = make_record_parts(record, "random", (3,), change=change)
    hidden = np.isnan(one.history.scores_qm[:, 1])
    other = made_up(400)
    questions = {task.question: place for place, task in enumerate(other.tasks)}
    for text in np.asarray(one.history.questions, object)[hidden]:
        other.scores_qms[questions[text], 1] = 1 - other.scores_qms[questions[text], 1]
    (two,) = make_record_parts(other, "random", (3,), change=change)
    assert np.array_equal(one.history.scores_qm, two.history.scores_qm, equal_nan=True)
    assert repr(one.subject.pool) == repr(two.subject.pool)


@pytest.mark.parametrize(
    ("leaves", "joins", "said"),
    [
        ("nimble", "nimble", "cannot both leave and join"),
        ("tuba", None, "there is no worker 'tuba'"),
        ("strong,nimble", "weak", "keep at least one of the old workers"),
        ("strong,nimble,weak", None, "keep at least one of the old workers"),
    ],
)
def test_a_change_that_cannot_be_is_said(leaves, joins, said):
    with pytest.raises(ConfigError, match=said):
        make_record_parts(made_up(), "random", (0,), change=PoolChange.parse(leaves, joins))


async def test_the_command_line_says_it_too(tmp_path, command_line):
    rows = [
        {
            "question": f"{kind} {n}?",
            "family": kind,
            "workers": {
                "a": {"scores": [float(kind == "sums")], "answers": ["x"]},
                "b": {"scores": [float(kind == "words")], "answers": ["y"]},
                "c": {"scores": [0.0], "answers": ["z"]},
            },
        }
        for n in range(60)
        for kind in ("sums", "words")
    ]
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, rows)))
    here = {"cwd": tmp_path, "env": {**os.environ, "BATUTA_HOME": str(tmp_path)}}

    async def run(*options):
        command = ["eval", "--out", "out", "--json", *options]
        return await anyio.to_thread.run_sync(lambda: command_line.run(*command, **here))

    done = await run(
        "--tasks", "recorded:own.jsonl", "--leaves", "a", "--systems", "best-single,b,mini"
    )
    systems = json.loads(done.stdout)["systems"]
    assert systems["best-single"]["accuracy"] == systems["b"]["accuracy"] > 0
    for option in (["--leaves", "a"], ["--simulate"], ["--split", "unseen"]):
        refused = await run("--tasks", "rehearsal", *option)
        assert refused.returncode == 2 and "are for a record" in refused.stderr
