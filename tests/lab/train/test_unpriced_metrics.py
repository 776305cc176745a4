"""Dollars that nobody knows are not written down as none."""

import io
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

from rich.console import Console

from batuta.core import Cost, Outcome
from batuta.lab.commands.automatic_training import _print_report
from batuta.lab.train.bill import _measured_cost
from batuta.lab.train.evaluation import HeldResult
from batuta.lab.train.reward_function import rollout_metrics
from batuta.lab.train.supervision import AutoReport


def rollout(usd="0.5", unpriced=0):
    round_ = SimpleNamespace(workflow=object(), decision=object(), steps=[object()])
    cost = Cost(Decimal(usd), unpriced)
    run = SimpleNamespace(
        rounds=[round_], steps=round_.steps, outcome=Outcome.ANSWERED,
        usage=SimpleNamespace(total=7), cost=cost,
    )  # fmt: skip
    task = SimpleNamespace(difficulty=None)
    grade, draft = SimpleNamespace(score=1.0), SimpleNamespace(root=None)
    found: Any = SimpleNamespace(
        run=run, reward=1.0, grade=grade, draft=draft, episode=SimpleNamespace(task=task),
        refused=False,
    )  # fmt: skip
    return found


def test_the_mean_cost_of_a_step_is_told_where_every_call_has_a_price():
    assert rollout_metrics([rollout(), rollout("1.5")])["usd"] == 1.0
    assert rollout_metrics([rollout("0")])["usd"] == 0.0


def test_and_left_out_where_one_has_none():
    for unpriced in ([rollout("0", 1)], [rollout(), rollout("0", 2)]):
        told = rollout_metrics(unpriced)
        assert "usd" not in told and told["valid"] == 1.0


def test_an_evaluation_and_a_training_within_a_time_have_no_dollars_then(tmp_path):
    known, unknown = HeldResult.of(rollout()), HeldResult.of(rollout("0", 1))
    assert (known.usd, unknown.usd) == (0.5, None)
    report = AutoReport(folder=tmp_path)
    report.add_usd(0.5)
    report.add_usd(0.25)
    assert report.usd == 0.75
    report.add_usd(None)
    report.add_usd(0.25)
    assert report.usd is None
    text = io.StringIO()
    console = Console(file=text, width=100)
    _print_report(console, report, questions=8)
    assert "calls of workers, unpriced" in text.getvalue()


def test_what_is_expected_of_such_a_run_has_calls_without_a_price():
    line = {"valid": 1.0, "steps": 2.0, "worker_tokens": 10.0}
    known = _measured_cost(10, [line | {"usd": 0.25}] * 2)
    assert (known.usd, known.unpriced_calls) == (Decimal("2.5"), 0)
    unknown = _measured_cost(10, [line] * 2)
    assert (unknown.usd, unknown.unpriced_calls) == (Decimal("0.0"), None), "not known how many"
