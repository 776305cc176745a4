"""Seconds that llama.cpp takes for a plan, whether its drafts are workflows, and how many are right.

    .venv/bin/python recipes/pretrained-conductor/serving.py mine.gguf --plans 20 [--free] [--kind wordings]

As `batuta ask --conductor mine.gguf` has it: llama.cpp in this process on one thread, so that its processor
time can be read. Questions are those of `measure.py`, greedy, one after another, none of them asked before. Without
`--free` a draft can be written in its form alone (a grammar). Workers are simulated.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from measure import UNSEEN, count_best_last, make_questions, say_why_malformed, summarise
from search import COMPACT, open_runner
from worlds import WORLDS, add_world_option

from batuta.core import Sampling
from batuta.embedded.gguf_client import GgufClient
from batuta.lab.train.rollouts import PolicyDraft
from batuta.lab.train.settings import RewardSettings

ALL = 600
"""Questions of the table in RESULT.md, of which the first are asked."""


async def serve(wanted: argparse.Namespace) -> dict[str, Any]:
    """What was measured."""
    client = GgufClient.open(wanted.model, holds_form=not wanted.free)
    world = WORLDS[wanted.world]
    some = make_questions(world, wanted.kind, ALL, wanted.workers)[wanted.skip :][: wanted.plans]
    wall: list[float] = []
    spent: list[float] = []
    drafts: list[PolicyDraft] = []
    for episode in some:
        sampling = Sampling(temperature=0.0, max_tokens=wanted.most)
        request = replace(episode.request(COMPACT), sampling=sampling)
        began, used = time.perf_counter(), time.process_time()
        reply = await client.complete(request)
        wall.append(time.perf_counter() - began)
        spent.append(time.process_time() - used)
        prompt, written = reply.usage.input, reply.usage.output
        drafts.append(PolicyDraft(text=reply.text, prompt_tokens=prompt, tokens=written))
    runner = open_runner(world, (wanted.workers, UNSEEN[1]), RewardSettings())
    pairs = list(zip(some, drafts, strict=True))
    rollouts = await runner.run_drafts(pairs, range(len(pairs)), 0)
    return {
        "held to the form": not wanted.free,
        "tokens of a prompt and a draft, mean": [
            round(statistics.fmean(d.prompt_tokens for d in drafts), 1),
            round(statistics.fmean(d.tokens for d in drafts), 1),
        ],
        "wall seconds, median and longest": _middle_and_most(wall),
        "CPU seconds, median and longest": _middle_and_most(spent),
        **summarise(rollouts),
        "malformed": say_why_malformed(rollouts),
        "who is last: the family's best, second, third": count_best_last(some, rollouts),
        "thoughts that name the question's family": sum(
            draft.text.startswith(f"{episode.task.tags[1]}: ")
            for episode, draft in zip(some, drafts, strict=True)
        ),
        "last draft": drafts[-1].text,
    }


def _middle_and_most(seconds: list[float]) -> list[float]:
    return [round(statistics.median(seconds), 2), round(max(seconds), 2)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--plans", type=int, default=20)
    parser.add_argument("--skip", type=int, default=0, help="questions before the first plan")
    parser.add_argument("--kind", choices=["trained", "wordings", "family"], default="trained")
    parser.add_argument("--workers", type=int, default=UNSEEN[0], help="seed they are drawn by")
    parser.add_argument("--most", type=int, default=176)
    add_world_option(parser)
    parser.add_argument("--free", action="store_true", help="no grammar")
    print(json.dumps(asyncio.run(serve(parser.parse_args())), indent=2))


if __name__ == "__main__":
    main()
