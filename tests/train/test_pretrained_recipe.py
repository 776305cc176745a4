"""The scripts of recipes/pretrained-conductor and their like in bench/ run, in small."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

from batuta.core import Pool, Workflow
from batuta.language import parse_workflow, render_workflow
from batuta.language.instructions import classify_instruction
from batuta.rehearsal.world2 import world2_pool
from batuta.train.episodes import Episode
from batuta.train.rollouts import PolicyDraft
from batuta.train.settings import RewardSettings
from train.stage import LIBRARIES

pytestmark = LIBRARIES
ROOT = Path(__file__).parents[2]
SMALL = (9_101, 4)


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "recipes" / "pretrained-conductor"))
    return importlib.import_module


@pytest.mark.anyio
async def test_a_search_over_workflows_names_finalists_over_the_pool(scripts: Any) -> None:
    search = scripts("search")
    pool = Pool(world2_pool(*SMALL).workers[:3])
    runner = search.open_runner(SMALL, RewardSettings(cost="calls", unit=1, coefficient=0.02))
    found = await search.race_workflows(runner, pool, "ranks", 5, laps=((6, 1), (2, 2)))
    assert [asked for _, _, asked in found] == [3, 3]
    assert found[0][1] >= found[1][1] >= 0.4
    for flow, _, _ in found:
        assert parse_workflow(render_workflow(flow, pool, names=True), pool) == flow


@pytest.mark.anyio
async def test_a_search_over_rules_writes_drafts_that_are_workflows(scripts: Any) -> None:
    rules = scripts("rules")
    everyone = world2_pool(*SMALL)
    runner = rules.open_runner(SMALL, RewardSettings())
    found = await rules.race_rules(runner, everyone, "bills", laps=((None, 1), (2, 2)))
    assert {one["rule"] for one in found} == set(rules.RULES)
    assert [one["questions"] for one in found] == [3, 3, *[1] * (len(rules.RULES) - 2)]
    chosen = rules.choose_rule(found, rules.form_team(Pool(everyone.workers[:3]), "bills"))
    assert chosen in {one["rule"] for one in found[:2]}
    families = dict.fromkeys(rules.TRAINING_KINDS, chosen)
    lines = [json.loads(line) for line in rules.write_drafts(families, everyone, 7, seed=1)]
    assert len({line["question"] for line in lines}) == 7
    for line in lines:
        listed = Pool(tuple(everyone[name] for name in line["pool"]))
        workflow = parse_workflow(line["draft"], listed)
        assert isinstance(workflow, Workflow) and workflow.steps


def test_of_rules_as_good_the_one_with_the_fewest_calls_is_chosen(scripts: Any) -> None:
    rules = scripts("rules")
    team = rules.form_team(Pool(world2_pool(*SMALL).workers[:3]), "bills")
    row = {"questions": 9, "reward": 0.8}
    found = [
        {**row, "rule": "three solve, the best compares", "reward": 0.805},
        {**row, "rule": "the second plans, the best"},
        {**row, "rule": "the best alone", "reward": 0.79},
        {**row, "rule": "two look up, the best", "reward": 0.9, "questions": 3},
    ]
    assert rules.choose_rule(found, team) == "the second plans, the best"


def test_a_team_is_formed_by_what_the_cards_say(scripts: Any) -> None:
    rules = scripts("rules")
    pool = Pool(world2_pool(*SMALL).workers[:3])
    for family in rules.TRAINING_KINDS:
        team = rules.form_team(pool, family)
        shares = [worker.measured[family] for worker in team[:3]]
        assert shares == sorted(shares, reverse=True) and set(team[:3]) == set(pool)
        assert f"plans {max(map(rules.read_plan_share, pool))}%" in team.planner.description
        said = rules.read_cards(pool, family, plans=True)
        assert f"; {team.best.id}, {team.second.id}. plans: " in said
        assert said.endswith(f"; {team.planner.id}.")


def test_every_wording_is_understood_as_what_it_asks_for(scripts: Any) -> None:
    rules = scripts("rules")
    for plain, wordings in rules.WORDINGS.items():
        for wording in wordings:
            for matter in rules.MATTERS.values():
                said = wording.format(matter)
                assert classify_instruction(said) is classify_instruction(plain), said


def test_a_drill_teaches_the_order_of_what_it_tells(scripts: Any) -> None:
    drills = scripts("drills")
    for seed in range(200):
        pieces = drills.draw_line(Random(seed))
        assert [learned for _, learned in pieces] == [0, 1, 0, 1, 0]
        for told, follows in (pieces[0:2], pieces[2:4]):
            shares = re.findall(r"(\w+) (\d+)[,;]", told[0].partition(":")[2])
            ranked = sorted(shares, key=lambda share: -int(share[1]))
            names = follows[0].strip(" .").split(", ")
            assert len(shares) == 3 and names == [name for name, _ in ranked[: len(names)]]


@pytest.mark.anyio
async def test_the_measurement_counts_a_malformed_draft_as_wrong(scripts: Any) -> None:
    measure = scripts("measure")
    pool = Pool(world2_pool(*SMALL).workers[:3])
    (task,) = measure.draw_world2_tasks("ranks", 1, 77)
    episode = Episode(number=0, task=task, pool=pool, seed=0)
    runner = measure.open_runner(SMALL, RewardSettings())
    texts = [render_workflow(measure.SYSTEMS["random worker alone"](episode), pool, names=True)]
    pairs = [(episode, PolicyDraft(text=text)) for text in (*texts, "three lists, I think")]
    row = measure.summarise(await runner.run_drafts(pairs, [1, 2], 0))
    assert (row["questions"], row["valid"], row["calls"]) == (2, 50.0, 1.0)
    assert row["right"] in {0.0, 50.0}


def test_the_table_of_where_accuracy_comes_from_is_made() -> None:
    script = ROOT / "bench" / "where_accuracy_comes_from.py"
    done = subprocess.run(
        [sys.executable, str(script), "--questions", "4"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == ["untyped", "typed"]
