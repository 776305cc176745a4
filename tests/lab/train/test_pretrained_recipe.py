"""The scripts of recipes/pretrained-conductor and their like in bench/ run, in small."""

from __future__ import annotations

import importlib
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from batuta.core import Pool, Worker, Workflow
from batuta.lab.train.episodes import Episode
from batuta.lab.train.rollouts import PolicyDraft
from batuta.lab.train.settings import RewardSettings
from batuta.lab.worlds import draw_tasks
from batuta.lab.worlds.drawn_workers import drawn_pool
from batuta.lab.worlds.world2 import draw_world2_tasks, world2_pool
from batuta.language import parse_workflow, render_workflow
from batuta.language.instructions import classify_instruction
from lab.train.stage import LIBRARIES

pytestmark = LIBRARIES
ROOT = Path(__file__).parents[3]
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
    world = search.WORLDS[search.WORLD2]
    runner = search.open_runner(
        world, SMALL, RewardSettings(cost="calls", unit=1, coefficient=0.02)
    )
    found = await search.race_workflows(runner, pool, "ranks", 5, laps=((6, 1), (2, 2)))
    assert [asked for _, _, asked in found] == [3, 3]
    assert found[0][1] >= found[1][1] >= 0.4
    for flow, _, _ in found:
        assert parse_workflow(render_workflow(flow, pool, names=True), pool) == flow


@pytest.mark.anyio
@pytest.mark.parametrize(("named", "family"), [("world2", "bills"), ("rehearsal", "facts")])
async def test_a_search_over_rules_names_the_best_of_those_that_met_most_questions(
    scripts: Any, named: str, family: str
) -> None:
    rules = scripts("rules")
    world = rules.WORLDS[named]
    everyone = world.pool(*SMALL)
    runner = rules.open_runner(world, SMALL, RewardSettings())
    found = await rules.race_rules(runner, world, everyone, family, laps=((None, 1), (2, 2)))
    raced = rules.RULES if named == "rehearsal" else rules.PLAIN_RULES
    assert {one["rule"] for one in found} == set(raced)
    assert [one["questions"] for one in found] == [3, 3, *[1] * (len(raced) - 2)]
    assert found[0]["reward"] >= found[1]["reward"] > 0
    chosen = rules.choose_rule(found, rules.form_team(Pool(everyone.workers[:3]), family))
    assert chosen in {one["rule"] for one in found[:2]}


@pytest.fixture
def lines(scripts: Any) -> list[dict[str, Any]]:
    """What drafts.py writes, the commonest rule being one that plans."""
    drafts = scripts("drafts")
    world = drafts.WORLDS["world2"]
    chosen = {**dict.fromkeys(world.training, PLANS), "ranks": "two solve, the best compares"}
    return [json.loads(json.dumps(line)) for line in drafts.write_lines(world, chosen, 160, seed=1)]


def test_the_drafts_are_workflows_that_read_their_cards_rightly(lines: Any, scripts: Any) -> None:
    training = scripts("worlds").WORLDS["world2"].training
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
        if family not in training:
            assert all(f" the {family}" in step.subtask for step in workflow.steps)


def test_nothing_of_the_held_out_families_is_shown(lines: Any, scripts: Any) -> None:
    """Neither as a question nor on a card: their words are not there."""
    said = json.dumps(lines).lower() + str(scripts("other_families").FAMILIES).lower()
    for word in ("mixture", "shifts", "litre", "caesar", "cipher", "encrypt", "encode", "pour"):
        assert word not in said, word


def test_the_right_column_stands_anywhere_on_the_cards(lines: Any, scripts: Any) -> None:
    training = scripts("worlds").WORLDS["world2"].training
    places: dict[bool, set[int]] = {True: set(), False: set()}
    for line in lines:
        if "draft" in line:
            columns = [list(worker["shares"]) for worker in line["workers"]]
            family = line["draft"].partition(":")[0]
            assert columns[0] == columns[1] == columns[2] and 5 <= len(columns[0]) <= 9
            places[family in training].add(columns[0].index(family))
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
    for family in rules.WORLDS["world2"].training:
        team = rules.form_team(pool, family)
        shares = [worker.measured[family] for worker in team[:3]]
        assert shares == sorted(shares, reverse=True) and set(team[:3]) == set(pool)
        planned = [rules.read_share(worker, "plans") for worker in pool]
        assert f"plans {max(planned)}%" in team.planner.description
        said = rules.read_cards(PLANS, pool, family)
        assert f"; {team.best.id}, {team.second.id}. plans: " in said
        assert said.endswith(f"; {team.planner.id}.")
    assert "plans" not in rules.read_cards("two solve, the best compares", pool, "ranks")


def test_a_rule_of_world_1_reads_who_knows_and_who_checks(scripts: Any) -> None:
    rules = scripts("rules")
    pool = Pool(drawn_pool(*SMALL).workers[:3])
    for family in rules.WORLDS["rehearsal"].training:
        team = rules.form_team(pool, family)
        knows = {worker.id: rules.read_share(worker, "knows") for worker in pool}
        checks = {worker.id: rules.read_share(worker, "checks") for worker in pool}
        assert min(knows.values()) > 0 and min(checks.values()) > 0
        assert knows[team.knower.id] >= knows[team.knows_next.id] >= min(knows.values())
        assert team.checker.id != team.best.id
        rule = "two who know look up, two solve, the checker compares"
        said = rules.read_cards(rule, pool, family)
        assert f" knows: {pool.workers[0].id} {knows[pool.workers[0].id]}, " in said
        assert f"; {team.knower.id}, {team.knows_next.id}. checks: " in said
        assert said.endswith(f"; {team.checker.id}.")
        steps = rules.make_workflow(rule, pool, family).steps
        assert [step.worker for step in steps] == [
            team.knower.id, team.knows_next.id, team.best.id, team.second.id, team.checker.id,
        ]  # fmt: skip


@pytest.mark.slow
def test_the_drafts_of_world_1_read_and_word_their_own_cards(scripts: Any) -> None:
    drafts, other = scripts("drafts"), scripts("other_families")
    world = drafts.WORLDS["rehearsal"]
    looked_up = "two who know look up, two solve, the checker compares"
    common = "the planner plans, the best, the checker repairs"
    chosen = {**dict.fromkeys(world.training, common), "facts": looked_up}
    lines = list(drafts.write_lines(world, chosen, 160, seed=1))
    seen = set()
    for line in lines:
        if "draft" not in line:
            continue
        family, _, thought = line["draft"].partition(": ")
        pool = Pool(tuple(Worker(id=w["id"], model="m") for w in line["workers"]))
        workflow = parse_workflow(line["draft"], pool)
        assert isinstance(workflow, Workflow)
        known = family == "facts" or family in other.KNOWLEDGE
        assert len(workflow.steps) == (5 if known else 3), family
        assert (" knows: " in thought, " plans: " in thought) == (known, not known)
        assert not world.too_near.intersection({family, *line["workers"][0]["shares"]})
        matter = world.matters.get(family, f"the {family}")
        assert all(matter in step.subtask for step in workflow.steps)
        seen.add((family in world.training, known))
    assert len(seen) == 4
    abilities = re.findall(
        r" (plans|knows|checks): ", json.dumps([x for x in lines if "drill" in x])
    )
    assert set(abilities) == set(world.abilities)
    text = json.dumps(lines).lower()
    assert "mixed" not in text
    assert not any(task.question.lower() in text for task in draw_tasks("mixed", 200, 900_000))


def test_a_family_that_was_not_searched_gets_the_rule_of_its_like(
    scripts: Any, tmp_path: Path
) -> None:
    measure = scripts("measure")
    rules = tmp_path / "rules.json"
    chosen = {
        "arithmetic": "the best alone", "lists": "the best alone", "facts": "all look up, the best",
    }  # fmt: skip
    rules.write_text(json.dumps({"chosen": chosen}))
    pool = Pool(drawn_pool(*SMALL).workers[:3])
    for family, steps in (("lists", 1), ("mixed", 4), ("facts", 4)):
        (task,) = draw_tasks(family, 1, 5)
        episode = Episode(number=0, task=task, pool=pool, seed=0)
        plan = measure.read_rules(measure.WORLDS["rehearsal"], rules)
        assert len(plan(episode).steps) == steps
    (task,) = draw_world2_tasks("shifts", 1, 5)
    three = Pool(world2_pool(*SMALL).workers[:3])
    episode = Episode(number=0, task=task, pool=three, seed=0)
    assert len(measure.read_rules(measure.WORLDS["world2"], rules)(episode).steps) == 1


def test_steps_that_go_to_whom_the_thought_names_are_counted(scripts: Any) -> None:
    """Of drafts whose names are changed at one step, that step alone; a letter is forgiven."""
    rules, named = scripts("rules"), scripts("named")
    pool = Pool(drawn_pool(*SMALL).workers[:3])
    rule = "the planner plans, the best, the checker repairs"
    team = rules.form_team(pool, "lists")
    flow = rules.make_workflow(rule, pool, "lists")
    thought = rules.read_cards(rule, pool, "lists")
    right = f"{thought}\n{render_workflow(flow, pool, names=True)}"
    before, list_begins, ids = right.partition("model_id")
    other = next(worker.id for worker in pool if worker.id not in {team.best.id, team.second.id})
    wrong = f'"{team.planner.id}", "{other}", "{team.checker.id}"'
    swapped = before + list_begins + re.sub(r"\[.*?\]", f"[{wrong}]", ids, count=1)
    spelled = before + list_begins + ids.replace(f'"{team.best.id}"', f'"{team.best.id}x"')
    counted = named.count_named([right, swapped, spelled, "no draft", f"{thought}\n"])
    assert counted == {"plans checks": [3, 3, 2, 3], "knows checks": [0, 0, 0, 0, 0, 0]}


def test_workers_changed_by_chance_leave_the_shape(scripts: Any) -> None:
    measure = scripts("measure")
    pool = Pool(drawn_pool(*SMALL).workers[:3])
    plan = measure.hand_written_plan
    changed = 0
    for number, task in enumerate(draw_tasks("text", 40, 5, difficulty=5)):
        episode = Episode(number=number, task=task, pool=pool, seed=0)
        before, after = plan(episode).steps, measure.shuffle_workers(plan)(episode).steps
        assert [(s.subtask, s.access) for s in before] == [(s.subtask, s.access) for s in after]
        pairs = {(one.worker, other.worker) for one, other in zip(before, after, strict=True)}
        assert len(dict(pairs)) == len(pairs) == len({other for _, other in pairs})
        changed += any(one != other for one, other in pairs)
    assert 25 < changed < 40  # by one draw in six nobody changes


def test_the_hand_written_conductor_reads_the_cards_of_drawn_workers(scripts: Any) -> None:
    """As a comparator it is told who is best at what: its solver is the best of the family's."""
    measure = scripts("measure")
    pool = Pool(drawn_pool(*SMALL).workers[:3])
    for family in ("arithmetic", "lists", "text", "calendar"):
        for difficulty, shape in ((1, 1), (3, 3), (6, 4)):
            (task,) = draw_tasks(family, 1, 5, difficulty=difficulty)
            flow = measure.hand_written_plan(Episode(number=0, task=task, pool=pool, seed=0))
            best = max(pool, key=lambda worker: worker.measured[family])
            assert len(flow.steps) == shape
            assert flow.steps[0 if shape == 1 else 1].worker == best.id


def test_every_wording_is_understood_as_what_it_asks_for(scripts: Any) -> None:
    rules = scripts("rules")
    for plain, wordings in rules.WORDINGS.items():
        for wording in wordings:
            known = [m for world in rules.WORLDS.values() for m in world.matters.values()]
            for matter in (*known, "the mixtures", "the shifts"):
                said = wording.format(matter)
                assert classify_instruction(said) is classify_instruction(plain), said


@pytest.mark.anyio
async def test_the_measurement_counts_a_malformed_draft_as_wrong(scripts: Any) -> None:
    measure = scripts("measure")
    pool = Pool(world2_pool(*SMALL).workers[:3])
    (task,) = draw_world2_tasks("ranks", 1, 77)
    episode = Episode(number=0, task=task, pool=pool, seed=0)
    runner = measure.open_runner(measure.WORLDS["world2"], SMALL, RewardSettings())
    texts = [render_workflow(measure.SYSTEMS["random worker alone"](episode), pool, names=True)]
    pairs = [(episode, PolicyDraft(text=text)) for text in (*texts, "three lists, I think")]
    row = measure.summarise(await runner.run_drafts(pairs, [1, 2], 0))
    assert (row["questions"], row["valid"], row["calls"]) == (2, 50.0, 1.0)
    assert row["right"] in {0.0, 50.0}


def test_the_table_of_where_accuracy_comes_from_is_made(training_line, tmp_path) -> None:
    script = ROOT / "bench" / "where_accuracy_comes_from.py"
    done = training_line.run_file(script, "--questions", "4", cwd=tmp_path, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == ["untyped", "typed"]
