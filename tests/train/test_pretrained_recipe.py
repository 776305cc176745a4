"""The scripts of recipes/pretrained-conductor and their like in bench/ run, in small."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from batuta.core import Pool, Worker, Workflow
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
PLANS = "the planner plans, two solve, the best compares"


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
async def test_a_search_over_rules_names_the_best_of_those_that_met_most_questions(
    scripts: Any,
) -> None:
    rules = scripts("rules")
    everyone = world2_pool(*SMALL)
    runner = rules.open_runner(SMALL, RewardSettings())
    found = await rules.race_rules(runner, everyone, "bills", laps=((None, 1), (2, 2)))
    assert {one["rule"] for one in found} == set(rules.RULES)
    assert [one["questions"] for one in found] == [3, 3, *[1] * (len(rules.RULES) - 2)]
    chosen = rules.choose_rule(found, rules.form_team(Pool(everyone.workers[:3]), "bills"))
    assert chosen in {one["rule"] for one in found[:2]}


@pytest.fixture
def lines(scripts: Any) -> list[dict[str, Any]]:
    """What drafts.py writes, the commonest rule being one that plans."""
    drafts, rules = scripts("drafts"), scripts("rules")
    chosen = {**dict.fromkeys(rules.TRAINING_KINDS, PLANS), "ranks": "two solve, the best compares"}
    return [json.loads(json.dumps(line)) for line in drafts.write_lines(chosen, 160, seed=1)]


def test_the_drafts_are_workflows_that_read_their_cards_rightly(lines: Any, scripts: Any) -> None:
    rules = scripts("rules")
    drafts = [line for line in lines if "draft" in line]
    assert len(drafts) == 160 and len({line["question"] for line in drafts}) > 150
    for line in drafts:
        workers = line["workers"]
        pool = Pool(tuple(Worker(id=w["id"], model="m") for w in workers))
        workflow = parse_workflow(line["draft"], pool)
        assert isinstance(workflow, Workflow)
        family, _, thought = line["draft"].partition(": ")
        shares = [round(100 * worker["shares"][family]) for worker in workers]
        told = ", ".join(f"{w['id']} {share}" for w, share in zip(workers, shares, strict=True))
        best = max(workers, key=lambda w: w["shares"][family])["id"]
        assert thought.startswith(f"{told}; {best}, ")
        assert workflow.steps[-1].worker == best
        assert (len(workflow.steps) == 3) == (family == "ranks")
        if family not in rules.TRAINING_KINDS:
            assert all(f" the {family}" in step.subtask for step in workflow.steps)


def test_nothing_of_the_held_out_families_is_shown(lines: Any, scripts: Any) -> None:
    """Neither as a question nor on a card: their words are not there."""
    said = json.dumps(lines).lower() + str(scripts("other_families").FAMILIES).lower()
    for word in ("mixture", "shifts", "litre", "caesar", "cipher", "encrypt", "encode", "pour"):
        assert word not in said, word


def test_the_right_column_stands_anywhere_on_the_cards(lines: Any, scripts: Any) -> None:
    rules = scripts("rules")
    places: dict[bool, set[int]] = {True: set(), False: set()}
    for line in lines:
        if "draft" in line:
            columns = [list(worker["shares"]) for worker in line["workers"]]
            family = line["draft"].partition(":")[0]
            assert columns[0] == columns[1] == columns[2] and 5 <= len(columns[0]) <= 9
            places[family in rules.TRAINING_KINDS].add(columns[0].index(family))
    assert places[True] >= set(range(7)) and places[False] >= set(range(7))


def test_drills_teach_what_their_texts_say(lines: Any) -> None:
    ranked = [line["drill"] for line in lines if line.get("weight") == 2.0]
    read = [line["drill"] for line in lines if line.get("weight") == 4.0]
    assert (len(ranked), len(read)) == (40, 20)
    for parts in ranked:
        assert len(parts) == 2 * 2 * 10 + 1
        for given, follows in zip(parts[::2], parts[1::2], strict=False):
            shares = re.findall(r"(\w+) (\d+)[,;]", given.partition(":")[2])
            names = follows.strip(" .").split(", ")
            best = sorted(shares, key=lambda share: -int(share[1]))
            assert len(shares) == 3 and names == [name for name, _ in best[: len(names)]]
    for parts in read:
        assert len(parts) == 2 * 8 + 1
        for given, follows in zip(parts[::2], parts[1::2], strict=False):
            family, _, share = follows.partition(": ")
            assert re.search(rf"[ ,]{family} {share}%[,.]", given.rpartition("Right alone:")[2])


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
            for matter in (*rules.MATTERS.values(), "the mixtures", "the shifts"):
                said = wording.format(matter)
                assert classify_instruction(said) is classify_instruction(plain), said


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
