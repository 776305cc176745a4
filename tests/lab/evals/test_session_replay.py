"""What stored sessions say of patterns and of the margin of a switch."""

import json
import os
from dataclasses import replace
from decimal import Decimal

import pytest
from tests.store.strategies import make_run

from batuta.conductors.sessions.patterns import Switch
from batuta.core import Worker, WorkerId
from batuta.lab.evals.session_replay import (
    LEAST_SESSIONS,
    PlayedSession,
    Weighed,
    choose_margin,
    choose_pattern,
    describe_patterns,
    find_takeover,
)
from batuta.store import Store

pytestmark = pytest.mark.anyio


def played(model, right, wrong, usd=0.1):
    """Sessions of the model."""
    results = [True] * right + [False] * wrong
    return [PlayedSession(id=f"{model}{n}", model=model, resolved=is_right, usd=usd) for n, is_right in enumerate(results)]  # fmt: skip


@pytest.mark.parametrize("gain", ["0.5", "2500"])
@pytest.mark.parametrize("ids", [("s", "b"), ("ollama/s:8b", "ollama/b: 70b")])
@pytest.mark.parametrize(("cost", "pays"), [("0", True), ("0.0312", True), ("0.0312", False)])
def test_a_takeover_is_read_as_the_pattern_writes_it(cost, pays, ids, gain):
    small, big = (Worker(id=WorkerId(name), model=name, description="") for name in ids)
    switch = Switch(leaves=small, takes=big, cost_usd=Decimal(cost), gain_usd=Decimal(gain), pays=pays)  # fmt: skip
    found = find_takeover(["s goes on: nothing", f"after 2 failures {switch.reason}"], worth=0.9)
    assert found is not None
    assert (found.taken, found.worth) == (pays, 0.9)
    assert found.net_usd == pytest.approx(float(gain) - float(cost), abs=1e-3)
    assert find_takeover(["s acts, the cheapest of 2"], worth=0.9) is None


def test_the_pattern_that_is_worth_most_is_named_only_where_it_is_likely():
    good, bad = played("pattern/gate", 28, 2), played("pattern/escalate", 6, 24)
    rows = describe_patterns([*bad, *good], worth=1.0)
    assert [row["model"] for row in rows] == ["pattern/gate", "pattern/escalate"]
    assert rows[0]["resolved"] == pytest.approx(28 / 30) and rows[0]["usd"] == pytest.approx(0.1)
    chosen = choose_pattern([*bad, *good], worth=1.0)
    assert chosen["pattern"] == "pattern/gate" and chosen["probability"] > 0.99
    # The other one is worth more where a resolved session is worth less than its price.
    dear = [replace(one, usd=0.9) for one in good]
    assert choose_pattern([*bad, *dear], worth=0.5)["pattern"] == "pattern/escalate"
    alike = [*played("a", 20, 10), *played("b", 20, 10)]
    assert "only" in choose_pattern(alike, worth=1.0)["why"]


def test_few_sessions_say_nothing_and_unknown_ones_are_counted_apart():
    few = [*played("a", LEAST_SESSIONS - 1, 0), *played("b", 0, 40)]
    assert choose_pattern(few, worth=1.0)["why"].startswith("too few sessions: 1 models")
    unknown = [replace(one, resolved=None) for one in played("a", 3, 0)] + [replace(one, usd=None) for one in played("a", 2, 0)]  # fmt: skip
    assert describe_patterns(unknown, worth=1.0) == [{"model": "a", "sessions": 5, "known": 0}]


def test_a_margin_is_replayed_where_both_decisions_were_seen():
    # Takeovers that promised little were not worth it; those that promised much were.
    taken = [Weighed(net_usd=0.4, taken=True, worth=0.9)] * 25 + [Weighed(net_usd=0.05, taken=True, worth=-0.5)] * 25  # fmt: skip
    stayed = [Weighed(net_usd=-0.1, taken=False, worth=0.2)] * 25
    found = choose_margin([*taken, *stayed], margin=0.01)
    assert 0.05 <= found["margin_usd"] < 0.4 and found["probability"] > 0.9
    assert "too few" in choose_margin(taken, margin=0.01)["why"]
    fine = [replace(one, worth=0.9) for one in taken]
    assert "no other margin" in choose_margin([*fine, *stayed], margin=0.01)["why"]


async def test_the_command_reports_what_a_store_holds(tmp_path, command_line):
    home = tmp_path / "home"

    def batuta(*args):
        env = {**os.environ, "BATUTA_HOME": str(home), "COLUMNS": "140"}
        return command_line.run("tune", "--from-sessions", str(home / "runs.db"), *args, cwd=tmp_path, env=env)  # fmt: skip

    missing = batuta()
    assert missing.returncode == 2 and "no runs at" in missing.stderr
    async with Store(home / "runs.db"):
        pass
    empty = batuta()
    assert empty.returncode == 2 and "belongs to a session" in empty.stderr
    async with Store(home / "runs.db") as store:
        for number in range(6):
            run = make_run(number)
            await store.append(run, session=f"ses_{number % 3}")
            await store.flush()
            if number % 3 == 0:
                await store.score(run.header.id, 1.0)
    told = json.loads(batuta("--json").stdout)
    assert told["sessions"] == 3
    assert sum(row["sessions"] for row in told["patterns"]) + told["of_several_models"] == 3
    assert told["choice"]["why"].startswith("too few sessions")
    shown = batuta()
    assert shown.returncode == 0 and "too few sessions" in shown.stdout
    assert batuta("--tasks", "mine.jsonl").returncode == 2
