"""Counts how often a step goes to the worker whom the draft's own thought names for it (world 1).

    .venv/bin/python recipes/pretrained-conductor/named.py runs/pretrained-rehearsal-1/measured.trained.distilled.jsonl

The file is what `measure.py` leaves of a policy's drafts. Counted are drafts of the two rules whose
steps have three rankings to obey: plan, solution and a check by another; two look-ups, two solutions
and a comparison. A name that is nearly spelled right counts, for the grammar of serving mends it.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from pathlib import Path

NEAR = 0.75
"""Likeness (`difflib`) of two spellings of one name."""
ORDERS = {
    "plans checks": (("plans", 0), ("", 0), ("checks", 0)),
    "knows checks": (("knows", 0), ("knows", 1), ("", 0), ("", 1), ("checks", 0)),
}
"""By what a thought ranks beside the family (""): for each step, the ranking and the place in it."""


def read_rankings(thought: str) -> dict[str, list[str]]:
    """By what is ranked ("" is the family): who is named as first, and as next."""
    rankings: dict[str, list[str]] = {}
    for said in thought.split(". "):
        given, _, first = said.partition(";")
        kind = given.partition(":")[0].strip() if rankings else ""
        rankings[kind] = [name.strip(" .") for name in first.split(",")]
    return rankings


def count_named(drafts: Sequence[str]) -> dict[str, list[int]]:
    """By rule: drafts, then for each step those in which it goes to whom the thought names."""
    found = {kinds: [0] * (1 + len(order)) for kinds, order in ORDERS.items()}
    for draft in drafts:
        thought, _, lists = draft.partition("\n")
        called = re.search(r"model_id = \[(.*?)\]", lists)
        rankings = read_rankings(thought)
        kinds = " ".join(kind for kind in rankings if kind)
        names = re.findall(r'"([^"]*)"', called[1]) if called else []
        order = ORDERS.get(kinds, ())
        if not order or len(names) != len(order):
            continue
        found[kinds][0] += 1
        for step, (kind, place) in enumerate(order):
            wanted = rankings[kind][place : place + 1]
            found[kinds][1 + step] += any(
                SequenceMatcher(None, names[step], name).ratio() >= NEAR for name in wanted
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("drafts", type=Path)
    wanted = parser.parse_args()
    drafts = [json.loads(line) for line in wanted.drafts.read_text("utf-8").splitlines()]
    for kinds, (count, *named) in count_named(drafts).items():
        print(f"family, {kinds}: {count} drafts, by step {named}")


if __name__ == "__main__":
    main()
