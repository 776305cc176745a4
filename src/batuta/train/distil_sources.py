"""Workflows that were found elsewhere, as examples: a file of drafts, or the folder of a tuning."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import orjson

from batuta.core import Pool, Skill, Step, Task, TaskId, Worker, WorkerId, Workflow
from batuta.errors import ConfigError, WorkflowError
from batuta.language import parse_workflow, render_workflow
from batuta.train.episodes import Episode, make_episodes, render_chat_prompt
from batuta.train.fitting import Drill, Example, TrainingExample
from batuta.train.settings import TrainSettings

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


def digest_source(source: Path) -> str:
    """Of the bytes that are learned from: a stage that is gone on with has to find the same.

    Raises:
        ConfigError: it cannot be read.
    """
    path = source / WORKFLOWS if source.is_dir() else source
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None


def read_examples(
    path: Path, pool: Pool, settings: TrainSettings, tokenizer: object
) -> list[list[Example]]:
    """The examples of a file, those of one prompt together.

    A line is a draft: `question`, the workers that are listed, as `pool` (ids of the settings'
    pool) or as `workers` (each an `id` and what its card says, a `description` and `shares` in
    [0, 1] by family), `draft`, and `weight` if it is not 1. Or it is a drill: `drill`, texts that
    are given and learned in turn, and `weight`.

    Raises:
        ConfigError: it cannot be read, or a line is neither.
    """
    try:
        lines = path.read_text("utf-8").split("\n")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    rendering = settings.prompt.rendering()
    groups: dict[str, list[Example]] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            read = json.loads(line)
            weight = _read_weight(read.get("weight", 1.0))
            if "drill" in read:
                groups[f"drill {number}"] = [Drill(_read_parts(read["drill"]), weight)]
                continue
            listed = _read_workers(read, pool)
            parse_workflow(read["draft"], listed)
            task = Task(
                id=TaskId(f"{path.name}-{number}"),
                question=read["question"],
                target="",
                grader="exact",
            )
        except (KeyError, TypeError, ValueError, AttributeError, WorkflowError) as error:
            raise ConfigError(
                f"{path}, line {number}: no draft over that pool and no drill: {error}"
            ) from None
        episode = Episode(number=number, task=task, pool=listed, seed=number)
        prompt = render_chat_prompt(tokenizer, episode.request(rendering))
        groups.setdefault(prompt, []).append(TrainingExample(prompt, read["draft"], weight))
    if not groups:
        raise ConfigError(f"{path} holds no drafts")
    return list(groups.values())


def _read_workers(read: Mapping[str, Any], pool: Pool) -> Pool:
    if "workers" not in read:
        return Pool(tuple(pool[name] for name in read["pool"]))
    return Pool(
        tuple(
            Worker(
                id=WorkerId(str(one["id"])),
                model=str(one["id"]),
                description=str(one.get("description", "")),
                skills=tuple(
                    Skill(family=str(family), share=float(share))
                    for family, share in one.get("shares", {}).items()
                ),
            )
            for one in read["workers"]
        )
    )


def _read_weight(said: Any) -> float:
    weight = float(said)
    if not 0 < weight < math.inf:
        raise ValueError(f"a weight is a number above 0, not {said}")
    return weight


def _read_parts(parts: Any) -> tuple[str, ...]:
    listed = cast("list[object]", parts) if isinstance(parts, list) else []
    texts = tuple(part for part in listed if isinstance(part, str) and part)
    if len(texts) != len(listed) or not texts[1:]:
        raise ValueError("a drill is at least two texts, none empty, given and learned in turn")
    return texts
