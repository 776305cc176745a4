"""`batuta train warmup`: tokenizer and network made from nothing, and taught the syntax."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import anyio
import torch

from batuta.clients import Http
from batuta.config import open_ensemble
from batuta.core import Limits, Pool, Question, Round, Task
from batuta.engine import conduct
from batuta.solvers.random import RandomWorkflows
from batuta.train.episodes import veiled
from batuta.train.memory import keep_memory
from batuta.train.model import keep_stage, make_model, use_threads
from batuta.train.questions import source
from batuta.train.rundir import RunFolder
from batuta.train.settings import Settings
from batuta.train.tokenizer import make_tokenizer
from batuta.train.warmup import texts, warm_up

QUESTIONS = 8000
"""Whose wording is read; none of them is graded."""
READ = 4000
"""Prompts and drafts that the tokenizer is made from."""
ROUNDS = 600
"""Random workflows that are played, so that second rounds can be shown."""


def start(settings: Settings, told: Callable[[int, float], None]) -> Path:
    """A policy that writes well-formed workflows at random.

    Args:
        settings: the file.
        told: hears each step's number and loss.

    Returns:
        Its folder.

    Raises:
        ConfigError: a source or the pool cannot be used.
        StoreError: the folder cannot be written.
    """
    warm = settings.warmup
    keep_memory()
    RunFolder(settings.output)
    torch.manual_seed(settings.seed)
    use_threads(settings)
    names = list(settings.curriculum[0].tasks)
    asked = [t for n in names for t in source(n, QUESTIONS // len(names), settings.seed + 90_001)]
    pool, played = anyio.run(_played, settings, asked[: ROUNDS if warm.revisions else 0])
    rng, rendering = random.Random(f"veil {settings.seed}"), settings.prompt.rendering()
    hidden = settings.prompt.hidden
    asked = [replace(task, question=veiled(task.question, hidden, rng)) for task in asked]
    pairs = texts(asked, pool, rendering, warm, played, settings.seed)
    mixed = warm.model_copy(update={"drills": 0.0})
    read = islice(texts(asked, pool, rendering, mixed, played, settings.seed), READ)
    tokenizer = make_tokenizer(
        (text for pair in read for text in pair), settings.policy.network.vocabulary
    )
    net = settings.policy.network
    model = make_model(
        tokenizer,
        hidden=net.hidden,
        layers=net.layers,
        heads=net.heads,
        kv_heads=net.kv_heads,
        inner=net.inner,
        positions=net.positions,
    )
    warm_up(model, tokenizer, pairs, warm, told)
    return keep_stage(model, tokenizer, settings, "warmup")


async def _played(
    settings: Settings, asked: list[Task]
) -> tuple[Pool, list[tuple[Task, Pool, Round]]]:
    """The pool, and random workflows played by it if its workers are simulated."""
    async with Http() as http:
        ensemble = await open_ensemble(
            http, pool=settings.pool.source, conductor="best", time_scale=0.0
        )
        if not ensemble.simulated:
            return ensemble.pool, []
        rng = random.Random(settings.seed)
        rounds: list[tuple[Task, Pool, Round]] = []
        for task in asked:
            pool = ensemble.pool.shuffled(rng)
            run = await conduct(
                Question.of(task.question),
                RandomWorkflows(),
                pool,
                ensemble.clients,
                limits=Limits(),
                seed=rng.randrange(2**31),
                fallback=False,
            )
            rounds.append((task, pool, run.rounds[0]))
        return ensemble.pool, rounds
