"""`batuta train warmup`: makes a tokenizer and a network, and teaches it the workflow syntax."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import anyio
import torch

from batuta.clients import HttpTransport
from batuta.config.load import load_config
from batuta.core import Limits, Pool, Question, Round, Task
from batuta.engine import RunSettings, conduct
from batuta.lab.learners.random_workflows import RandomConductor
from batuta.lab.train.allocator import retain_freed_memory
from batuta.lab.train.device import bf16_autocast, set_threads
from batuta.lab.train.episodes import apply_word_dropout
from batuta.lab.train.fit_checkpoint import FitCheckpoint
from batuta.lab.train.fitting import FitLoss
from batuta.lab.train.model import load_trainable, make_policy, save_stage
from batuta.lab.train.questions import draw_others, kept_back_keys
from batuta.lab.train.run_folder import RunFolder
from batuta.lab.train.settings import TrainSettings
from batuta.lab.train.tokenizer import make_tokenizer
from batuta.lab.train.warmup import fit_warmup, warmup_texts
from batuta.language.prompt import PREFILL

QUESTION_COUNT = 8000
"""Questions whose wording the policy reads; none of them is graded."""
TOKENIZER_EXAMPLES = 4000
"""Prompts and drafts from which the tokenizer is made."""
RANDOM_ROUNDS = 600
"""Random workflows that are executed, so that prompts of second rounds can show them."""


def run_warmup(
    settings: TrainSettings, on_step: Callable[[int, float], None], *, resume: bool = False
) -> Path:
    """Train a policy that writes random well-formed workflows, from scratch or from `policy.start`.

    Returns:
        The policy's folder.

    Raises:
        ConfigError: a source, the pool or the checkpoint cannot be used.
    """
    warm, rendering = settings.warmup, settings.prompt.rendering()
    retain_freed_memory()
    log = RunFolder(settings.output).log_losses("warmup")
    torch.manual_seed(settings.seed)
    set_threads(settings)
    asked = _draw_questions(settings)
    pool, first_rounds = anyio.run(
        _run_random_rounds, settings, asked[: RANDOM_ROUNDS if warm.revisions else 0]
    )
    texts = partial(
        warmup_texts,
        _hide_words(asked, settings),
        pool,
        rendering=rendering,
        first_rounds=first_rounds,
        seed=settings.seed,
    )
    if settings.policy.start:
        model, tokenizer = load_trainable(settings.policy.start, settings)
    else:
        read = texts(settings=warm.model_copy(update={"drills": 0.0}))
        model, tokenizer = _make_policy(settings, islice(read, TOKENIZER_EXAMPLES))

    def report_step(step: int, loss: FitLoss) -> None:
        log(step, loss.shown, loss.drills)
        on_step(step, loss.shown)

    checkpoint = FitCheckpoint.of_stage(settings, "warmup", "", resume=resume)
    fit_warmup(
        model,
        tokenizer,
        pairs=texts(settings=warm),
        settings=warm,
        on_step=report_step,
        prefill="" if rendering.compact else PREFILL,
        autocast=bf16_autocast(settings),
        checkpoint=checkpoint,
    )
    return checkpoint.end(save_stage(model, tokenizer, settings, "warmup"))


def _draw_questions(settings: TrainSettings) -> list[Task]:
    names = list(settings.curriculum[0].tasks)
    count, seed = QUESTION_COUNT // len(names), settings.seed + 90_001
    without = kept_back_keys(settings)
    return [task for name in names for task in draw_others(name, count, seed, without)]


def _hide_words(asked: Sequence[Task], settings: TrainSettings) -> list[Task]:
    """Return the questions with words hidden as the settings say."""
    rng, hidden = random.Random(f"veil {settings.seed}"), settings.prompt.hidden
    return [
        replace(task, question=apply_word_dropout(task.question, hidden, rng)) for task in asked
    ]


def _make_policy(settings: TrainSettings, read: Iterable[tuple[str, str]]) -> tuple[Any, Any]:
    """Return a network and a tokenizer made from these texts alone."""
    net = settings.policy.network
    tokenizer = make_tokenizer((text for pair in read for text in pair), net.vocabulary)
    return make_policy(tokenizer, net), tokenizer


async def _run_random_rounds(
    settings: TrainSettings, tasks: list[Task]
) -> tuple[Pool, list[tuple[Task, Pool, Round]]]:
    """Return the pool, and random workflows that it executed if its workers are simulated."""
    async with HttpTransport() as http:
        loaded = await load_config(
            http, pool=settings.pool.source, conductor="best", time_scale=0.0
        )
        if not loaded.simulated:
            return loaded.pool, []
        rng = random.Random(settings.seed)
        rounds: list[tuple[Task, Pool, Round]] = []
        for task in tasks:
            pool = loaded.pool.shuffled(rng)
            run = await conduct(
                Question.of(task.question),
                RandomConductor(),
                pool,
                loaded.clients,
                limits=Limits(),
                seed=rng.randrange(2**31),
                settings=RunSettings(fallback=False),
            )
            rounds.append((task, pool, run.rounds[0]))
        return loaded.pool, rounds
