"""Executes and grades every completion of the policy, hundreds concurrently."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace

import anyio

from batuta.conductors import LLMConductor, RecursiveConductor
from batuta.core import (
    CallListener,
    Client,
    Grade,
    Limits,
    Pool,
    Question,
    Reply,
    Request,
    Run,
    Task,
    Usage,
    WorkerId,
)
from batuta.core.conductor import NULL_LISTENER
from batuta.engine import RunSettings, conduct
from batuta.lab.executor import Executor, ExecutorJob, LocalExecutor
from batuta.lab.tasks.graders import grade_answer
from batuta.lab.train.budget import is_refused
from batuta.lab.train.episodes import Episode
from batuta.lab.train.reward import Executions, right_shares, run_reward, scheduled_cost_weight
from batuta.lab.train.settings import RewardSettings
from batuta.language import PromptOptions
from batuta.usage import ZERO_COST

AnswerGrader = Callable[[Task, str], Awaitable[Grade]]
"""Grades the answer to a task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDraft:
    """A completion as the policy wrote it."""

    text: str
    prompt_tokens: int = 0
    tokens: int = 0
    """Tokens of the completion."""
    root: PolicyDraft | None = None
    """The first round's draft, if this draft belongs to a second round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GradedRollout:
    """An executed and graded completion."""

    episode: Episode
    draft: PolicyDraft
    run: Run
    """The first execution."""
    grade: Grade | None
    """The grade of the first execution; None if it had no answer."""
    reward: float | None
    """Mean reward of the executions that have one; None if none has, as after outages: the
    completion is then left out of its group."""
    refused: bool = False
    """True if the training's budget refused a call of the executions or of their judge."""


@dataclass(frozen=True, slots=True)
class DraftClient:
    """A client that replies with a draft that the policy has already written."""

    draft: PolicyDraft

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        """Return the draft with its token counts; the policy's own tokens cost nothing."""
        usage = Usage(calls=1, input=self.draft.prompt_tokens, output=self.draft.tokens)
        return Reply(text=self.draft.text, usage=usage, cost=ZERO_COST)


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftOrder:
    """A draft to execute, here or on another machine."""

    task: Task
    pool: Pool
    draft: PolicyDraft
    seed: int
    """The seed of the first execution; each further execution adds 1."""
    times: int
    """Number of executions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRunner:
    """The clients that execute drafts and the grader of their answers."""

    clients: Mapping[WorkerId, Client]
    judge: AnswerGrader
    rendering: PromptOptions
    limits: Limits = Limits()
    """The limits of a run; its rounds are two for a draft of a second round, and one otherwise."""

    async def run_order(self, order: DraftOrder) -> Executions:
        """Execute the draft `order.times` times, one execution after another."""
        seeds = range(order.seed, order.seed + order.times)
        return [await self._run_draft(order, seed) for seed in seeds]

    async def _run_draft(self, order: DraftOrder, seed: int) -> tuple[Run, Grade | None]:
        """Execute the draft once, after its first round's draft if it has one."""
        draft = order.draft
        conductor = LLMConductor(name="policy", client=DraftClient(draft), rendering=self.rendering)
        first = draft.root and LLMConductor(
            name="policy", client=DraftClient(draft.root), rendering=self.rendering
        )
        run = await conduct(
            Question.of(order.task.question),
            RecursiveConductor(first, conductor) if first else conductor,
            order.pool,
            self.clients,
            limits=replace(self.limits, rounds=2 if first else 1),
            seed=seed,
            settings=RunSettings(fallback=False, resamples=0),
        )
        if run.answer is None:
            return run, None
        return run, await grade_answer(self.judge, order.task, run.answer)


@dataclass(frozen=True, slots=True)
class OpenedDraftRunner:
    """An executor's job for a runner that is already open in this process."""

    runner: DraftRunner
    slots: anyio.Semaphore | None = None
    """Limits the concurrent orders of all batches together; None: no such limit."""

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Callable[[DraftOrder], Awaitable[Executions]]]:
        """Yield a function that executes an order; the runner stays open."""
        yield self._run_in_slot

    async def _run_in_slot(self, order: DraftOrder) -> Executions:
        async with self.slots or nullcontext():
            return await self.runner.run_order(order)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRunner:
    """Executes drafts, here or on other machines, and rewards them."""

    job: ExecutorJob[DraftOrder, Executions]
    rewards: RewardSettings
    concurrency: int
    """Maximum number of concurrent orders of a batch."""
    executor: Executor = field(default_factory=LocalExecutor)

    async def run_drafts(
        self, drafts: Sequence[tuple[Episode, PolicyDraft]], seeds: Sequence[int], step: int
    ) -> list[GradedRollout]:
        """Execute every draft with its seed, and return the rollouts in the order of the drafts.

        `step` determines the part of the cost that is charged.

        Raises:
            ExceptionGroup: an order failed; it has the first error.
        """
        times = self.rewards.executions
        orders = [
            DraftOrder(task=episode.task, pool=episode.pool, draft=draft, seed=seed, times=times)
            for (episode, draft), seed in zip(drafts, seeds, strict=True)
        ]
        found: dict[int, Executions] = {}
        await self.executor.run_all(
            self.job, orders, found.__setitem__, concurrency=self.concurrency
        )
        executions = [found[index] for index in range(len(orders))]
        charge = scheduled_cost_weight(step, self.rewards)
        groups = [(episode.number, draft.root is not None) for episode, draft in drafts]
        shares = right_shares(groups, executions, self.rewards)
        return [
            self._reward_executions(episode, draft, parts, charge * share**self.rewards.by_ease)
            for (episode, draft), parts, share in zip(drafts, executions, shares, strict=True)
        ]

    def _reward_executions(
        self, episode: Episode, draft: PolicyDraft, parts: Executions, cost_weight: float
    ) -> GradedRollout:
        earned = [run_reward(run, grade, self.rewards, cost_weight) for run, grade in parts]
        known = [value for value in earned if value is not None]
        run, grade = parts[0]
        return GradedRollout(
            episode=episode,
            draft=draft,
            run=run,
            grade=grade,
            reward=sum(known) / len(known) if known else None,
            refused=any(is_refused(run, grade) for run, grade in parts),
        )
