"""Every completion of the policy is played by the engine and graded: hundreds at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from batuta.core import (
    Client,
    Grade,
    Limits,
    Listener,
    Question,
    Reply,
    Request,
    Run,
    Task,
    Usage,
    WorkerId,
)
from batuta.core.conductor import SILENT
from batuta.core.usage import FREE
from batuta.engine import conduct
from batuta.language import Rendering
from batuta.solvers import Learned, Recursive
from batuta.tasks.graders import grade_answer
from batuta.train.episodes import Episode
from batuta.train.reward import Executions, charged, reward, shares_right
from batuta.train.settings import RewardSettings

Judge = Callable[[Task, str], Awaitable[Grade]]
"""Grades an answer."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A completion, as the policy wrote it."""

    text: str
    prompt_tokens: int = 0
    tokens: int = 0
    root: Draft | None = None
    """The first round's draft, if this one is of a second round."""


@dataclass(frozen=True, slots=True)
class Played:
    """A completion, played and graded."""

    episode: Episode
    draft: Draft
    run: Run
    grade: Grade | None
    reward: float | None
    """None: a worker's outage; the completion leaves its group."""


@dataclass(frozen=True, slots=True)
class Said:
    """A client that says what the policy has already written."""

    draft: Draft

    async def complete(self, request: Request, listener: Listener = SILENT) -> Reply:
        """The draft, with its tokens; the policy's own are free."""
        usage = Usage(calls=1, input=self.draft.prompt_tokens, output=self.draft.tokens)
        return Reply(self.draft.text, usage=usage, cost=FREE)


@dataclass(frozen=True, slots=True)
class Players:
    """Who plays and who judges."""

    clients: Mapping[WorkerId, Client]
    judge: Judge
    rendering: Rendering
    rewards: RewardSettings
    concurrency: int
    seconds: float | None = None

    async def play(
        self, drafts: Sequence[tuple[Episode, Draft]], seeds: Sequence[int], step: int
    ) -> list[Played]:
        """Every draft played, in their order.

        Args:
            drafts: completions and what they are for.
            seeds: of each draft's run.
            step: of the training, which says how much of the cost is charged.
        """
        places = asyncio.Semaphore(self.concurrency)

        async def one(episode: Episode, draft: Draft, seed: int) -> Executions:
            async with places:
                times = range(self.rewards.executions)
                return [await self._once(episode, draft, seed + n) for n in times]

        async with asyncio.TaskGroup() as group:
            playing = [
                group.create_task(one(episode, draft, seed))
                for (episode, draft), seed in zip(drafts, seeds, strict=True)
            ]
        played = [task.result() for task in playing]
        charge = charged(step, self.rewards)
        groups = [(episode.number, draft.root is not None) for episode, draft in drafts]
        shares = shares_right(groups, played, self.rewards)
        return [
            self._rewarded(episode, draft, parts, charge * share**self.rewards.by_ease)
            for (episode, draft), parts, share in zip(drafts, played, shares, strict=True)
        ]

    def _rewarded(self, episode: Episode, draft: Draft, parts: Executions, charge: float) -> Played:
        earned = [reward(run, grade, self.rewards, charge) for run, grade in parts]
        known = [value for value in earned if value is not None]
        run, grade = parts[0]
        return Played(episode, draft, run, grade, sum(known) / len(known) if known else None)

    async def _once(self, episode: Episode, draft: Draft, seed: int) -> tuple[Run, Grade | None]:
        """One run; a second round comes after its first, played again with the same seed."""
        conductor = Learned("policy", Said(draft), self.rendering)
        first = draft.root and Learned("policy", Said(draft.root), self.rendering)
        run = await conduct(
            Question.of(episode.task.question),
            Recursive(first, conductor) if first else conductor,
            episode.pool,
            self.clients,
            limits=Limits(rounds=2 if first else 1, seconds=self.seconds),
            seed=seed,
            fallback=False,
            resamples=0,
        )
        if run.answer is None:
            return run, None
        return run, await grade_answer(self.judge, episode.task, run.answer)
