"""What the training tests share: settings, small networks, runners with a script."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from batuta.clients import ScriptedClient
from batuta.config.settings_file import validate_settings
from batuta.core import Grade, Limits, Pool, Task, TaskId, Worker, WorkerId
from batuta.lab.train.rollouts import DraftRunner, OpenedDraftRunner, RolloutRunner
from batuta.lab.train.settings import RewardSettings, TrainSettings
from batuta.language import PromptOptions

LIBRARIES = [
    pytest.mark.timeout(600),
    *(
        pytest.mark.filterwarnings(f"ignore:{said}")
        for said in (
            "`gradient_checkpointing` is deprecated:FutureWarning",
            "`is_gradient_checkpointing` is deprecated:FutureWarning",
            "`gradient_checkpointing_disable` is deprecated:FutureWarning",
            "`gradient_checkpointing_enable` is deprecated:FutureWarning",
        )
    ),
]
"""For modules that build a trainer: time, and silence for what TRL makes transformers complain of."""

NETWORK = {
    "vocabulary": 512, "hidden": 64, "layers": 2, "heads": 4, "kv_heads": 2, "inner": 128
}  # fmt: skip
POLICY = {
    "warmup": {
        "steps": 240, "batch": 16, "learning_rate": 6e-3,
        "drills": 0.3, "hints": 0.2, "revisions": 0.05, "prompt_weight": 0.05,
    }
}  # fmt: skip
"""A warm start of a quarter of a minute."""
SMALL = {
    "sampler": "own", "steps": 2, "questions": 2, "group": 4, "micro_batch": 8, "completion": 80,
    "learning_rate": 1e-3, "schedule": "constant", "warmup": 0.0, "loss": "dapo", "threads": 1,
}  # fmt: skip
"""The optimiser of a training of two steps."""

LEARNING = {
    "steps": 30, "questions": 16, "group": 8, "micro_batch": 128,
    "learning_rate": 1.5e-3, "max_grad_norm": 0.5, "entropy": 0.003,
}  # fmt: skip
"""The optimiser of a training that learns something in half a minute."""

FLUTE, OBOE = WorkerId("flute"), WorkerId("oboe")
POOL = Pool((Worker(id=FLUTE, model="m"), Worker(id=OBOE, model="n")))
ONE = 'model_id = ["flute"]\nsubtasks = ["Solve it."]\naccess_list = [[]]'
TWO = 'model_id = ["oboe", "flute"]\nsubtasks = ["Plan it.", "Solve it."]\naccess_list = [[], [0]]'
SIX_TIMES_SEVEN = Task(
    id=TaskId("t"),
    question="What is six times seven?",
    target="42",
    grader="integer",
    difficulty=1.0,
)


def settings(
    output: Path, *, optimiser: Mapping[str, Any] | None = None, **sections: Any
) -> TrainSettings:
    """A training of two steps on the rehearsal's arithmetic, changed as told."""
    told = {
        "output": output,
        "policy": {"network": NETWORK},
        "prompt": {"compact": True},
        "curriculum": [{"tasks": {"rehearsal:arithmetic": 1.0}}],
        "optimiser": {**SMALL, **(optimiser or {})},
        "log": {"checkpoint_every": 100, "sample_every": 1},
    }
    return validate_settings({**told, **sections}, "the test", TrainSettings)


def runner(
    say: Callable[..., Any] | Mapping[WorkerId, ScriptedClient],
    *,
    rewards: RewardSettings | None = None,
    judge: Callable[[str], float | None] = lambda answer: float("42" in answer),
    concurrency: int = 64,
    seconds: float | None = None,
) -> RolloutRunner:
    """Scripted workers, and a judge who looks for 42."""
    clients = say if isinstance(say, Mapping) else {w.id: ScriptedClient(say) for w in POOL}

    async def grade(task: Task, answer: str) -> Grade:
        return Grade(judge(answer))

    rendering = PromptOptions(descriptions=False, compact=True)
    draft_runner = DraftRunner(
        clients=clients, judge=grade, rendering=rendering, limits=Limits(seconds=seconds)
    )
    return RolloutRunner(
        job=OpenedDraftRunner(draft_runner),
        rewards=rewards or RewardSettings(),
        concurrency=concurrency,
    )


def metrics(folder: Path) -> list[dict[str, Any]]:
    """The figures of every step."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


TIMED = ("step_time", "time/", "profiling/", "train_")


def untimed(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The figures that two equal trainings share."""
    return [{k: v for k, v in line.items() if not k.startswith(TIMED)} for line in lines]
