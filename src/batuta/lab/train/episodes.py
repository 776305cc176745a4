"""What is asked in which step: a task, a pool and a seed for every question, known beforehand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from batuta.core import PlanningContext, Pool, Question, Request, Round, Sampling, Task
from batuta.lab.train.settings import PoolSettings
from batuta.language import PromptOptions, conductor_request

DROPPED_WORD = "_"
SHUFFLED_SHARE = 0.5
"""Share of the hidden words that are told by their letters, in any order."""
_WORD = re.compile(r"[^\W\d_]+")
_CLAUSE = re.compile(r"[^.,;:?!=>\n]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """A question as the policy meets it."""

    number: int
    """Counts all questions of the training, in order."""
    task: Task
    pool: Pool
    """The workers it may call, in the order it sees them."""
    seed: int
    policy_question: str | None = None
    """The question as the policy reads it; None: as it is. Workers always read it as it is."""

    def request(self, rendering: PromptOptions, previous: tuple[Round, ...] = ()) -> Request:
        """The policy's prompt, in the first round or after one that was run."""
        context = PlanningContext(
            question=Question.of(self.policy_question or self.task.question),
            pool=self.pool,
            seed=self.seed,
            previous=previous,
        )
        return conductor_request(context, rendering, Sampling())


def render_chat_prompt(tokenizer: Any, request: Request) -> str:
    """The request in the policy's chat format, up to where the draft begins."""
    messages = [{"role": "user", "content": request.messages[0].text}]
    opened = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return f"{opened}{request.prefill or ''}"


def make_episodes(
    tasks: Sequence[Task],
    pool: Pool,
    settings: PoolSettings,
    seed: int,
    *,
    word_dropout: float = 0.0,
) -> list[Episode]:
    """One episode a task, each with its own draw from the pool.

    Args:
        tasks: what is asked.
        pool: who can be called.
        settings: how each episode draws from it.
        seed: of the draws.
        word_dropout: share of the words that the policy does not get to read.
    """
    return [
        Episode(
            number=number,
            task=task,
            pool=draw_pool(pool, settings, Random(f"{seed} pool {number}")),
            seed=number,
            policy_question=apply_word_dropout(
                task.question, word_dropout, Random(f"{seed} veil {number}")
            ),
        )
        for number, task in enumerate(tasks)
    ]


def apply_word_dropout(text: str, share: float, rng: Random) -> str:
    """The text with about that share of its words hidden; figures and signs stay.

    A small policy made from nothing knows a question by the few words that it was trained on. With
    some of them hidden it must use all there is, and depends less on the wording. Of each clause
    another share is hidden, mostly nearly all or nearly none: so a clause looks that is worded in a
    new way. Half of the hidden words have their letters shuffled instead, as words not met before.
    """
    if not share:
        return text

    def clause(found: re.Match[str]) -> str:
        mine = rng.betavariate(share, 1 - share)

        def word(found: re.Match[str]) -> str:
            if rng.random() >= mine:
                return found[0]
            shuffled = "".join(rng.sample(found[0], len(found[0])))
            return shuffled if rng.random() < SHUFFLED_SHARE else DROPPED_WORD

        return _WORD.sub(word, found[0])

    return _CLAUSE.sub(clause, text)


def draw_pool(pool: Pool, settings: PoolSettings, rng: Random) -> Pool:
    """The workers that one question lists."""
    drawn = pool
    if settings.fewest is not None and rng.random() >= settings.whole:
        most = min(settings.most or len(pool), len(pool))
        size = rng.randint(min(settings.fewest, most), most)
        drawn = pool.subset(worker.id for worker in rng.sample(pool.workers, size))
    return drawn.shuffled(rng) if settings.permute else drawn
