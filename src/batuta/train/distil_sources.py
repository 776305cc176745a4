"""Workflows that were found elsewhere, as examples: a file of drafts, or the folder of a tuning."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from batuta.core import Pool, Step, Task, TaskId, WorkerId, Workflow
from batuta.errors import ConfigError, WorkflowError
from batuta.language import parse_workflow, render_workflow
from batuta.train.episodes import Episode, make_episodes, render_chat_prompt
from batuta.train.settings import TrainSettings
from batuta.train.warmup import TrainingExample

WORKFLOWS = "workflows.jsonl"
"""The file in a tuning's folder: each of its questions with the workflow found for it."""


def read_found_workflows(folder: Path, pool: Pool) -> list[tuple[Task, Workflow]]:
    """The questions of a tuning and what it runs on them.

    Args:
        folder: where `batuta tune` wrote.
        pool: whom the policy is to conduct.

    Raises:
        ConfigError: there are none, or the pool lacks a worker of theirs.
    """
    path = folder / WORKFLOWS
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        rows: list[Mapping[str, Any]] = [orjson.loads(line) for line in lines if line.strip()]
        found = [_read_row(row) for row in rows]
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}; name the folder that batuta tune wrote"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} holds no workflows of a tuning: {error!r}") from None
    absent = sorted({s.worker for _, flow in found for s in flow.steps if s.worker not in pool})
    if absent or not found:
        lacks = f"the pool has no worker {', '.join(absent)}" if absent else "it is empty"
        raise ConfigError(f"{path} cannot be learned from: {lacks}")
    return found


def _read_row(row: Mapping[str, Any]) -> tuple[Task, Workflow]:
    steps = tuple(
        Step(
            subtask=str(step["subtask"]),
            worker=WorkerId(str(step["worker"])),
            access=tuple(step["access"]),
        )
        for step in row["steps"]
    )
    task = Task(id=TaskId(str(row["id"])), question=str(row["question"]), target="", grader="exact")
    return task, Workflow(steps)


def make_tuned_examples(
    settings: TrainSettings,
    tokenizer: Any,
    pool: Pool,
    found: Sequence[tuple[Task, Workflow]],
) -> list[list[TrainingExample]]:
    """Prompts as the policy will meet them; a question whose workers are not listed is left out."""
    episodes = make_episodes(
        [task for task, _ in found],
        pool,
        settings=settings.pool,
        seed=settings.seed,
        word_dropout=settings.prompt.hidden,
    )
    rendering = settings.prompt.rendering()
    return [
        [
            TrainingExample(
                render_chat_prompt(tokenizer, episode.request(rendering)),
                render_workflow(flow, episode.pool, names=True),
            )
        ]
        for episode, (_, flow) in zip(episodes, found, strict=True)
        if all(step.worker in episode.pool for step in flow.steps)
    ]


def read_drafts(
    path: Path, pool: Pool, settings: TrainSettings, tokenizer: object
) -> list[list[TrainingExample]]:
    """The examples of a file, those of one prompt together.

    Raises:
        ConfigError: it cannot be read, or a line is no draft over workers of the pool.
    """
    try:
        lines = path.read_text("utf-8").split("\n")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    rendering = settings.prompt.rendering()
    groups: dict[str, list[TrainingExample]] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            read = json.loads(line)
            listed = Pool(tuple(pool[name] for name in read["pool"]))
            parse_workflow(read["draft"], listed)
            task = Task(
                id=TaskId(f"{path.name}-{number}"),
                question=read["question"],
                target="",
                grader="exact",
            )
            weight = float(read.get("weight", 1.0))
        except (KeyError, TypeError, ValueError, WorkflowError) as error:
            raise ConfigError(f"{path}, line {number}: no draft over that pool: {error}") from None
        episode = Episode(number=number, task=task, pool=listed, seed=number)
        prompt = render_chat_prompt(tokenizer, episode.request(rendering))
        groups.setdefault(prompt, []).append(TrainingExample(prompt, read["draft"], weight))
    if not groups:
        raise ConfigError(f"{path} holds no drafts")
    return list(groups.values())
