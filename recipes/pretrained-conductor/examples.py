"""Makes SFT data of what `search.py` found: questions, cards, and the finalists in free wordings.

    .venv/bin/python recipes/pretrained-conductor/examples.py FOUND.jsonl OUT.jsonl

For each pool and family: some fresh questions of that family in training wordings, the three workers in
a random order, and two drafts of the best workflow. A finalist whose mean reward is within 0.01 of the
best and that calls fewer workers is the best.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from random import Random
from typing import Any

from worlds import WORLD2, WORLDS

from batuta.core import Pool, Step, Workflow
from batuta.lab.learners.random_workflows import FREE_PHRASINGS
from batuta.language import render_workflow

SOURCE = (1, 300)
NEAR = 0.01
DRAFTS = 2


def choose_workflow(finalists: list[dict[str, Any]]) -> dict[str, Any]:
    """The shortest of those that are as good as the best."""
    best = max(one["reward"] for one in finalists)
    near = [one for one in finalists if one["reward"] >= best - NEAR]
    return min(near, key=lambda one: (len(one["steps"]), -one["reward"]))


def word_freely(steps: list[Any], rng: Random) -> Workflow:
    """The workflow with each step in one of the forty wordings."""
    return Workflow(
        tuple(
            Step(
                subtask=f"{rng.choice(FREE_PHRASINGS[said.rstrip('.')])}.",
                worker=worker,
                access=tuple(access),
            )
            for said, worker, access in steps
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("found", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--questions", type=int, default=4)
    wanted = parser.parse_args()
    world = WORLDS[WORLD2]
    everyone = world.pool(*SOURCE)
    lines: list[str] = []
    for number, text in enumerate(wanted.found.read_text("utf-8").splitlines()):
        found = json.loads(text)
        rng = Random(f"examples {number}")
        chosen = choose_workflow(found["finalists"])["steps"]
        tasks = world.draw_tasks(found["family"], wanted.questions, 600_000 + number)
        for task in tasks:
            pool = Pool(tuple(everyone[name] for name in rng.sample(found["pool"], 3)))
            for _ in range(DRAFTS):
                line = {
                    "question": task.question,
                    "pool": [worker.id for worker in pool],
                    "draft": render_workflow(word_freely(chosen, rng), pool, names=True),
                }
                lines.append(json.dumps(line))
    wanted.out.write_text("\n".join(lines) + "\n", "utf-8")
    print(f"{len(lines)} drafts")


if __name__ == "__main__":
    main()
