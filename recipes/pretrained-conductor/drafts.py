"""Writes the SFT data: drafts of what the rules chose, and drills that teach to read and to rank.

    .venv/bin/python recipes/pretrained-conductor/drafts.py RULES.json DRAFTS.jsonl --seed 1

A draft is a line of thought that reads the cards aloud, and the rule's workflow. Its kinds of lines:

- drafts over three workers with names of their own, half of them for the families that `rules.py`
  searched, half for questions of other kinds (`other_families.py`), whose workflow is the rule that won
  most often (in the rehearsal, for kinds of knowledge, that of its family of facts). Their cards have
  other columns in another order, so that the right one is to be found by its meaning: a place in the list
  says nothing;
- drills in reading: a question, a card, and which of its figures counts;
- drills in ranking: the line of a draft's thought with names and shares by chance. From whole drafts
  alone a small model learns to copy the cards and not to compare what it has copied;
- where a thought ranks by more than one ability, drills in naming: a draft up to its list of workers, and
  the list. Its few names are otherwise lost among a draft's tokens.

The families that are held out are on no card here, and no question is of their kind.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from other_families import FAMILIES, LABELS, draw_other_question
from rules import RANKED, make_workflow, name_matter, read_aloud, read_cards
from search import SOURCE
from worlds import WORLDS, World, add_world_option, rule_of_family

from batuta.core import Pool, Skill, Worker, WorkerId
from batuta.lab.worlds.drawn_pools import draw_name
from batuta.language import render_workflow

LISTED = 3
"""Workers of a question."""
COLUMNS = (5, 9)
"""Families on a card, at least and at most."""
LINES, CARDS, LISTS = 10, 8, 6
"""Lines of a text of drills in ranking and in reading, and drafts of one in naming."""
RANK_WEIGHT, READ_WEIGHT, NAME_WEIGHT = 2.0, 4.0, 4.0
"""Of a drill's token beside a draft's: there are few of them."""
ALIKE = 0.3
"""How often two shares of a drill are near each other: what is hard to rank is rare by chance."""
KNOWN_ORDER = 0.5
"""How often the families of the world stand first on a card and in their order."""
SYNONYMS = {label: family.labels for family in FAMILIES.values() for label in family.labels}
"""Of a label those of its kind of questions: they do not stand on one card with it."""


def draw_names(rng: Random, count: int) -> list[str]:
    """Names that differ."""
    names: list[str] = []
    while len(names) < count:
        if (name := draw_name(rng)) not in names:
            names.append(name)
    return names


def draw_columns(world: World, family: str, rng: Random) -> list[str]:
    """The families on a card, that one among them."""
    same = {*SYNONYMS.get(family, (family,)), *world.too_near}
    others = rng.sample([label for label in LABELS if label not in same], COLUMNS[1])
    if family in world.training and rng.random() < KNOWN_ORDER:
        return [*world.training, *others[: rng.randrange(COLUMNS[1] - len(world.training) + 1)]]
    known = [kind for kind in world.training if kind != family and rng.random() < KNOWN_ORDER]
    columns = [family, *known, *others][: rng.randint(*COLUMNS)]
    return rng.sample(columns, len(columns))


def make_card(worker: Worker, name: str, columns: list[str], rng: Random) -> Worker:
    """The worker by another name; where it was not measured it gets about one of its shares."""
    shares = worker.measured
    near = {column: rng.choice([*shares.values()]) + rng.randint(-3, 3) / 30 for column in columns}
    skills = tuple(
        Skill(family=column, share=shares.get(column, min(1.0, max(0.0, near[column]))))
        for column in columns
    )
    return replace(worker, id=WorkerId(name), model=name, skills=skills)


def draw_pool(world: World, everyone: Pool, family: str, rng: Random) -> Pool:
    """Three workers with new names and cards on which that family stands."""
    columns = draw_columns(world, family, rng)
    some = rng.sample(everyone.workers, LISTED)
    names = draw_names(rng, LISTED)
    cards = [make_card(w, n, columns, rng) for w, n in zip(some, names, strict=True)]
    return Pool(tuple(cards))


def draw_question(world: World, number: int, seed: int, rng: Random) -> tuple[str, str]:
    """A family and a question of it: of the world and of other kinds in turn."""
    if number % 2:
        return draw_far_question(world, rng)
    family = world.training[number // 2 % len(world.training)]
    (task,) = world.draw_tasks(family, 1, 800_000 + 100_000 * seed + number)
    return family, task.question


def draw_far_question(world: World, rng: Random) -> tuple[str, str]:
    """A question of another kind, which means none of the world's families."""
    while True:
        label, question = draw_other_question(rng)
        if label not in world.too_near:
            return label, question


def make_draft(world: World, family: str, pool: Pool, rule: str, rng: Random) -> str:
    """The cards read aloud and the rule's workflow, freely worded."""
    flow = make_workflow(rule, pool, family)
    worded = name_matter(flow, world.matters.get(family, f"the {family}"), rng)
    return f"{read_cards(rule, pool, family)}\n{render_workflow(worded, pool, names=True)}"


def draw_shares(rng: Random) -> list[str]:
    """Three shares of thirty questions, as the cards count, in percent."""
    shares = [rng.randrange(31) for _ in range(LISTED)]
    if rng.random() < ALIKE:
        shares[1] = min(30, max(0, shares[0] + rng.choice((-3, -2, -1, 1, 2, 3))))
        rng.shuffle(shares)
    return [str(round(100 * share / 30)) for share in shares]


def draw_ranking(world: World, rng: Random) -> list[str]:
    """A line of a thought: what is given, who is first, what is given, who is able, the line's end."""
    names = draw_names(rng, LISTED)
    parts: list[str] = []
    label = rng.choice((*world.training, *LABELS))
    ability = world.abilities[0] if len(world.abilities) == 1 else rng.choice(world.abilities)
    for of_what, ranked in ((label, 2), (f" {ability}", RANKED[ability])):
        shares = draw_shares(rng)
        order = sorted(range(LISTED), key=lambda at, known=shares: -int(known[at]))
        told = list(zip(names, shares, strict=True))
        said = read_aloud(of_what, told, [names[at] for at in order[:ranked]])
        given, _, follows = said.partition(";")
        parts += [f"{given};", follows]
    return [*parts, "\n"]


def draw_reading(world: World, everyone: Pool, number: int, seed: int, *, rng: Random) -> list[str]:
    """A question and a card, and the figure of it that counts."""
    family, question = draw_question(world, number, seed, rng)
    columns = draw_columns(world, family, rng)
    card = make_card(rng.choice(everyone.workers), draw_name(rng), columns, rng)
    told = ", ".join(f"{each} {share:.0%}" for each, share in card.measured.items())
    share = f"{card.measured[family]:.0%}".rstrip("%")
    return [f"{question}\nRight alone: {told}.\n", f"{family}: {share}", "\n"]


def draw_naming(world: World, everyone: Pool, chosen: Mapping[str, str], rng: Random) -> list[str]:
    """A draft up to its list of workers, the names on it, and the list's end."""
    family = rng.choice(rng.choice((world.training, LABELS)))
    pool = draw_pool(world, everyone, family, rng)
    draft = make_draft(world, family, pool, rule_of_family(world, chosen, family), rng)
    before, list_begins, rest = draft.partition("model_id = [")
    return [f"{before}{list_begins}", rest.partition("]")[0], "]\n"]


def join_parts(lines: list[list[str]]) -> list[str]:
    """Texts given and learned in turn, of lines that begin and end with what is given."""
    joined = [""]
    for first, *others in lines:
        joined[-1] += first
        joined += others
    return joined


def write_lines(
    world: World, chosen: Mapping[str, str], count: int, seed: int
) -> Iterator[dict[str, Any]]:
    """So many drafts, and among them a drill in reading, two in ranking and one in naming for every eight."""
    everyone = world.pool(*SOURCE)
    for number in range(count):
        rng = Random(f"drafts {seed} {number}")
        family, question = draw_question(world, number, seed, rng)
        pool = draw_pool(world, everyone, family, rng)
        rule = rule_of_family(world, chosen, family)
        yield {
            "question": question,
            "workers": [
                {"id": w.id, "description": w.description, "shares": w.measured} for w in pool
            ],
            "draft": make_draft(world, family, pool, rule, rng),
        }
        if number % 4 == 0:
            yield {
                "drill": join_parts([draw_ranking(world, rng) for _ in range(LINES)]),
                "weight": RANK_WEIGHT,
            }
        if number % 8 == 0:
            at = 10_000 + CARDS * number
            some = [draw_reading(world, everyone, at + n, seed, rng=rng) for n in range(CARDS)]
            yield {"drill": join_parts(some), "weight": READ_WEIGHT}
        if number % 8 == 4 and len(world.abilities) > 1:
            lists = [draw_naming(world, everyone, chosen, rng) for _ in range(LISTS)]
            yield {"drill": join_parts(lists), "weight": NAME_WEIGHT}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rules", type=Path, help="what rules.py chose")
    parser.add_argument("out", type=Path)
    parser.add_argument("--drafts", type=int, default=2400)
    add_world_option(parser)
    parser.add_argument("--seed", type=int, default=1)
    wanted = parser.parse_args()
    chosen: dict[str, str] = json.loads(wanted.rules.read_text("utf-8"))["chosen"]
    lines = [
        json.dumps(line)
        for line in write_lines(WORLDS[wanted.world], chosen, wanted.drafts, wanted.seed)
    ]
    wanted.out.write_text("\n".join(lines) + "\n", "utf-8")
    print(f"{len(lines)} lines")


if __name__ == "__main__":
    main()
