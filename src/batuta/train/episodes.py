"""What is asked in which step: a task, a pool and a seed for every question, known beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from batuta.core import Brief, Pool, Question, Request, Round, Sampling, Task
from batuta.language import Rendering, conductor_request
from batuta.train.settings import PoolSettings


@dataclass(frozen=True, slots=True)
class Episode:
    """A question as the policy meets it."""

    number: int
    """Counts all questions of the training, in order."""
    task: Task
    pool: Pool
    """The workers it may call, in the order it sees them."""
    seed: int

    def request(self, rendering: Rendering, previous: tuple[Round, ...] = ()) -> Request:
        """The policy's prompt, in the first round or after one that was played."""
        brief = Brief(Question.of(self.task.question), self.pool, self.seed, previous=previous)
        return conductor_request(brief, rendering, Sampling())


def templated(tokenizer: Any, request: Request) -> str:
    """The request in the policy's chat format, up to where the draft begins."""
    messages = [{"role": "user", "content": request.messages[0].text}]
    opened = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return f"{opened}{request.prefill or ''}"


def episodes(tasks: Sequence[Task], pool: Pool, settings: PoolSettings, seed: int) -> list[Episode]:
    """One episode a task, each with its own draw from the pool."""
    return [
        Episode(number, task, drawn_pool(pool, settings, Random(f"{seed} pool {number}")), number)
        for number, task in enumerate(tasks)
    ]


def drawn_pool(pool: Pool, settings: PoolSettings, rng: Random) -> Pool:
    """The workers that one question lists."""
    drawn = pool
    if settings.fewest is not None and rng.random() >= settings.whole:
        most = min(settings.most or len(pool), len(pool))
        size = rng.randint(min(settings.fewest, most), most)
        drawn = pool.subset(worker.id for worker in rng.sample(pool.workers, size))
    return drawn.shuffled(rng) if settings.permute else drawn
