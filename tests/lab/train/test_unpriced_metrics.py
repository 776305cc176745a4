"""Dollars that nobody knows are not written down as none."""

from decimal import Decimal
from types import SimpleNamespace
from typing import Any

from batuta.core import Cost, Outcome
from batuta.lab.train.bill import _measured_cost
from batuta.lab.train.reward_function import rollout_metrics


def rollout(usd="0.5", unpriced=0):
    round_ = SimpleNamespace(workflow=object(), decision=object(), steps=[object()])
    cost = Cost(Decimal(usd), unpriced)
    run = SimpleNamespace(
        rounds=[round_], outcome=Outcome.ANSWERED, usage=SimpleNamespace(total=7), cost=cost
    )
    task = SimpleNamespace(difficulty=None)
    grade, draft = SimpleNamespace(score=1.0), SimpleNamespace(root=None)
    found: Any = SimpleNamespace(
        run=run, reward=1.0, grade=grade, draft=draft, episode=SimpleNamespace(task=task)
    )
    return found


def test_the_mean_cost_of_a_step_is_told_where_every_call_has_a_price():
    assert rollout_metrics([rollout(), rollout("1.5")])["usd"] == 1.0
    assert rollout_metrics([rollout("0")])["usd"] == 0.0


def test_and_left_out_where_one_has_none():
    for unpriced in ([rollout("0", 1)], [rollout(), rollout("0", 2)]):
        told = rollout_metrics(unpriced)
        assert "usd" not in told and told["valid"] == 1.0


def test_what_is_expected_of_such_a_run_has_calls_without_a_price():
    line = {"valid": 1.0, "steps": 2.0, "worker_tokens": 10.0}
    known = _measured_cost(10, [line | {"usd": 0.25}] * 2)
    assert (known.usd, known.unpriced_calls) == (Decimal("2.5"), None)
    unknown = _measured_cost(10, [line] * 2)
    assert (unknown.usd, unknown.unpriced_calls) == (Decimal("0.0"), 20)
