"""Episodes: every question of a training with its pool, fixed before the training begins."""

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
"""Written in place of a hidden word."""
SHUFFLED_SHARE = 0.5
"""Share of the hidden words in whose place their shuffled letters are written instead."""
_WORD = re.compile(r"[^\W\d_]+")
_CLAUSE = re.compile(r"[^.,;:?!=>\n]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """A question of the training, with the workers that its prompt lists."""

    number: int
    """Index of the question among those of the training, or among the held-out ones."""
    task: Task
    pool: Pool
    """The workers that the policy may call, in the order of its prompt."""
    seed: int
    """The seed of the planning context; the prompt does not depend on it."""
    policy_question: str | None = None
    """The question in the policy's prompt, in which words may be hidden; None: `task.question`.
    Workers always read `task.question`."""

    def request(self, rendering: PromptOptions, previous: tuple[Round, ...] = ()) -> Request:
        """Return the policy's prompt for the first round, or for the round after `previous`."""
        context = PlanningContext(
            question=Question.of(self.policy_question or self.task.question),
            pool=self.pool,
            seed=self.seed,
            previous=previous,
        )
        return conductor_request(context, rendering, Sampling())


def render_chat_prompt(tokenizer: Any, request: Request) -> str:
    """Return the request in the policy's chat format, up to the start of the draft."""
    return f"{render_user_prompt(tokenizer, request.messages[0].text)}{request.prefill}"


def render_user_prompt(tokenizer: Any, prompt: str) -> str:
    """Return one user message in the policy's chat format, up to the start of the reply."""
    messages = [{"role": "user", "content": prompt}]
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


def make_episodes(
    tasks: Sequence[Task],
    pool: Pool,
    settings: PoolSettings,
    seed: int,
    *,
    word_dropout: float = 0.0,
) -> list[Episode]:
    """Return one episode for each task, each with a sub-pool of its own.

    `word_dropout` is the mean share of a question's words that are hidden from the policy.
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
    """Return the text with about that share of its words hidden; digits and punctuation stay.

    A small policy trained from scratch recognises a question by a few words that it knows. With
    some words hidden it must use the others, and depends less on the wording. The share differs
    from clause to clause: in most clauses nearly all words are hidden, or nearly none. Half of the
    hidden words are written with their letters shuffled, which makes unknown words of them.
    """
    if not share:
        return text

    def clause(found: re.Match[str]) -> str:
        clause_share = rng.betavariate(share, 1 - share)

        def word(found: re.Match[str]) -> str:
            if rng.random() >= clause_share:
                return found[0]
            shuffled = "".join(rng.sample(found[0], len(found[0])))
            return shuffled if rng.random() < SHUFFLED_SHARE else DROPPED_WORD

        return _WORD.sub(word, found[0])

    return _CLAUSE.sub(clause, text)


def draw_pool(pool: Pool, settings: PoolSettings, rng: Random) -> Pool:
    """Return the sub-pool of one question, drawn and shuffled as the settings say."""
    drawn = pool
    if settings.fewest is not None and rng.random() >= settings.whole:
        most = min(settings.most or len(pool), len(pool))
        size = rng.randint(min(settings.fewest, most), most)
        drawn = pool.subset(worker.id for worker in rng.sample(pool.workers, size))
    return drawn.shuffled(rng) if settings.permute else drawn
