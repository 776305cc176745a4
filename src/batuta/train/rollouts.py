"""Every completion of the policy is played by the engine and graded: hundreds at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from batuta.core import (
    CallListener,
    Client,
    Grade,
    Limits,
    Question,
    Reply,
    Request,
    Run,
    Task,
    Usage,
    WorkerId,
)
from batuta.core.conductor import NULL_LISTENER
from batuta.core.usage import ZERO_COST
from batuta.engine import conduct
from batuta.language import PromptOptions
from batuta.solvers import LLMConductor, RecursiveConductor
from batuta.tasks.graders import grade_answer
from batuta.train.episodes import Episode
from batuta.train.reward import Executions, step_rewards
from batuta.train.settings import RewardSettings

AnswerGrader = Callable[[Task, str], Awaitable[Grade]]
"""Grades an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDraft:
    """A completion, as the policy wrote it."""

    text: str
    prompt_tokens: int = 0
    tokens: int = 0
    root: PolicyDraft | None = None
    """The first round's draft, if this one is of a second round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GradedRollout:
    """A completion, played and graded."""

    episode: Episode
    draft: PolicyDraft
    run: Run
    grade: Grade | None
    reward: float | None
    """None: a worker's outage; the completion leaves its group."""


@dataclass(frozen=True, slots=True)
class DraftClient:
    """A client that says what the policy has already written."""

    draft: PolicyDraft

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        """The draft, with its tokens; the policy's own are free."""
        usage = Usage(calls=1, input=self.draft.prompt_tokens, output=self.draft.tokens)
        return Reply(text=self.draft.text, usage=usage, cost=ZERO_COST)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRunner:
    """Who plays and who judges."""

    clients: Mapping[WorkerId, Client]
    judge: AnswerGrader
    rendering: PromptOptions
    rewards: RewardSettings
    concurrency: int
    seconds: float | None = None

    async def run_drafts(
        self, drafts: Sequence[tuple[Episode, PolicyDraft]], seeds: Sequence[int], step: int
    ) -> list[GradedRollout]:
        """Every draft played, in their order.

        Args:
            drafts: completions and what they are for.
            seeds: of each draft's run.
            step: of the training, which says how much of the cost is charged.
        """
        places = asyncio.Semaphore(self.concurrency)

        async def one(episode: Episode, draft: PolicyDraft, seed: int) -> Executions:
            async with places:
                times = range(self.rewards.executions)
                return [await self._run_draft(episode, draft, seed + n) for n in times]

        async with asyncio.TaskGroup() as group:
            playing = [
                group.create_task(one(episode, draft, seed))
                for (episode, draft), seed in zip(drafts, seeds, strict=True)
            ]
        played = [task.result() for task in playing]
        groups = [(episode.number, draft.root is not None) for episode, draft in drafts]
        earned = step_rewards(groups, played, self.rewards, step)
        return [
            GradedRollout(
                episode=episode, draft=draft, run=parts[0][0], grade=parts[0][1], reward=reward
            )
            for (episode, draft), parts, reward in zip(drafts, played, earned, strict=True)
        ]

    async def _run_draft(
        self, episode: Episode, draft: PolicyDraft, seed: int
    ) -> tuple[Run, Grade | None]:
        """One run; a second round comes after its first, played again with the same seed."""
        conductor = LLMConductor(name="policy", client=DraftClient(draft), rendering=self.rendering)
        first = draft.root and LLMConductor(
            name="policy", client=DraftClient(draft.root), rendering=self.rendering
        )
        run = await conduct(
            Question.of(episode.task.question),
            RecursiveConductor(first, conductor) if first else conductor,
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
