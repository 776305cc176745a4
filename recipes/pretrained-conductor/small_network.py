"""The small network's plans as it is served: names of listed workers alone can be written (guided decoding).

    .venv/bin/python recipes/pretrained-conductor/small_network.py OUT.json FOLDER [FOLDER...] --plans 120

As `batuta ask --conductor FOLDER` has it, in numpy. Questions are the first of those of `measure.py`, greedy; its
comparators meet the same ones. Everything is simulated.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from measure import (
    SYSTEMS,
    UNSEEN,
    count_best_last,
    make_questions,
    read_rules,
    say_why_malformed,
    summarise,
)
from search import COMPACT, open_runner
from worlds import WORLD2, WORLDS

from batuta.core import Sampling
from batuta.embedded.client import EmbeddedClient
from batuta.lab.train.episodes import Episode
from batuta.lab.train.rollouts import PolicyDraft, RolloutRunner
from batuta.lab.train.settings import RewardSettings
from batuta.language import render_workflow


async def write_guided(folder: Path, episodes: Sequence[Episode], most: int) -> list[PolicyDraft]:
    """A greedy draft for every question."""
    client = EmbeddedClient.open(folder)
    sampling = Sampling(temperature=0.0, max_tokens=most)
    replies = [
        await client.complete(replace(e.request(COMPACT), sampling=sampling)) for e in episodes
    ]
    return [PolicyDraft(text=reply.text) for reply in replies]


async def measure_kind(
    runner: RolloutRunner, kind: str, wanted: argparse.Namespace
) -> dict[str, Any]:
    """The rows of one kind of questions."""
    episodes = make_questions(WORLDS[WORLD2], kind, 600, wanted.workers)[: wanted.plans]
    systems = dict(SYSTEMS)
    if wanted.rules:
        systems["the searched rules (told the family)"] = read_rules(WORLDS[WORLD2], wanted.rules)
    rows: dict[str, Any] = {}
    for name, plan in systems.items():
        drafts = [
            (e, PolicyDraft(text=render_workflow(plan(e), e.pool, names=True))) for e in episodes
        ]
        rows[name] = summarise(await runner.run_drafts(drafts, range(len(drafts)), 0))
        print(kind, name, rows[name]["right"], rows[name]["interval"], flush=True)
    for folder in wanted.folders:
        began = time.process_time()
        drafts = await write_guided(folder, episodes, wanted.most)
        spent = time.process_time() - began
        pairs = list(zip(episodes, drafts, strict=True))
        rollouts = await runner.run_drafts(pairs, range(len(pairs)), 0)
        rows[folder.name] = {
            **summarise(rollouts),
            "CPU seconds a plan": round(spent / len(pairs), 3),
            "malformed": say_why_malformed(rollouts),
            "who is last: the family's best, second, third": count_best_last(episodes, rollouts),
            "sample": [draft.text for draft in drafts[:3]],
        }
        print(kind, folder.name, json.dumps(rows[folder.name]), flush=True)
    return rows


async def measure_kinds(wanted: argparse.Namespace) -> dict[str, Any]:
    runner = open_runner(WORLDS[WORLD2], (wanted.workers, UNSEEN[1]), RewardSettings())
    return {kind: await measure_kind(runner, kind, wanted) for kind in wanted.kinds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("folders", type=Path, nargs="+", help="stages of the small network")
    parser.add_argument("--plans", type=int, default=120)
    parser.add_argument("--most", type=int, default=160)
    parser.add_argument("--workers", type=int, default=UNSEEN[0], help="seed they are drawn by")
    parser.add_argument("--rules", type=Path, help="what rules.py chose, as a comparator")
    parser.add_argument("--kinds", nargs="+", default=["trained", "wordings", "family"])
    wanted = parser.parse_args()
    found = asyncio.run(measure_kinds(wanted))
    wanted.out.write_text(json.dumps(found, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
