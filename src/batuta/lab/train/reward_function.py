"""TRL's asynchronous reward: it executes and grades all completions of a step concurrently."""

from __future__ import annotations

import asyncio
import time
from asyncio import Lock
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from batuta.core import AcceptedAnswer, MalformedPlan, Outcome
from batuta.errors import WorkerLostError
from batuta.lab.evals.outage import lost_reply, outage_reason
from batuta.lab.train.episodes import Episode
from batuta.lab.train.grpo import FirstRound
from batuta.lab.train.reward import mix_rewards
from batuta.lab.train.rollouts import GradedRollout, PolicyDraft, RolloutRunner
from batuta.lab.train.settings import TrainSettings

RolloutListener = Callable[[int, Sequence[GradedRollout]], None]
"""Called with the step, from 0, and its executed completions."""

MOST_LOST_STEPS = 3
"""Consecutive steps in which no workflow is rewarded, after which the training ends."""
EASY_LEVEL, HARD_LEVEL = 1, 6
"""Maximum difficulty of an easy question, and minimum difficulty of a hard one."""


class RewardFunction:
    """Executes, grades and rewards completions; it is passed to TRL as a reward function."""

    __name__ = "conducted"

    def __init__(
        self,
        settings: TrainSettings,
        episodes: Sequence[Episode],
        open_runner: Callable[[], Awaitable[RolloutRunner]],
        on_rollouts: RolloutListener,
    ) -> None:
        self._settings = settings
        self._episodes = episodes
        self._open_runner = open_runner
        self._runner: RolloutRunner | None = None
        self._on_rollouts = on_rollouts
        self._running: dict[int, Future[list[GradedRollout]]] = {}
        self._opening = Lock()
        self.has_budget = settings.pool.max_usd is not None
        self.refused = False
        """True if the training's budget refused a call of the latest batch."""
        self._lost_steps = 0

    async def __call__(
        self,
        *,
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]],
        episode: Sequence[int],
        trainer_state: Any,
        log_metric: Callable[[str, float], None],
        root: Sequence[FirstRound | None] | None = None,
        prompt_tokens: Sequence[int] | None = None,
        **_: Any,
    ) -> list[float | None]:
        """Return the reward of every completion; TRL leaves those with None out of their group.

        Rows of one group must be adjacent.

        Raises:
            WorkerLostError: several steps in a row had no reward, as workers do not answer.
            BatutaError: the pool, the journal or the grader cannot be opened.
            ExceptionGroup: an order failed; it has the first error.
        """
        began = time.perf_counter()
        step = int(trainer_state.global_step)
        roots = root or [None] * len(completions)
        running = self._running.pop(step, None)
        if running is None:
            texts = [_completion_text(completion) for completion in completions]
            read = prompt_tokens or [0] * len(completions)
            rollouts = await self._run_batch(
                step, self._drafts(texts, episode, completion_ids, read=read, roots=roots), roots
            )
        else:
            rollouts = await asyncio.wrap_future(running)
        rewards = mix_rewards(
            [each.reward for each in rollouts],
            [start and start.row for start in roots],
            self._settings.recursion.discount,
        )
        self.refused = any(each.refused for each in rollouts)
        if self.refused:  # `StalePolicyTrainer` ends the training before it learns from them
            return rewards
        self._check_workers(step, rollouts)
        no_spread = share_without_spread(rewards, self._settings.optimiser.group)
        for name, value in (rollout_metrics(rollouts) | {"no_spread": no_spread}).items():
            log_metric(name, value)
        log_metric("time/playing", time.perf_counter() - began)
        self._on_rollouts(step, rollouts)
        return rewards

    def _check_workers(self, step: int, rollouts: Sequence[GradedRollout]) -> None:
        """Raise WorkerLostError after `MOST_LOST_STEPS` steps in which no workflow was rewarded.

        Malformed drafts, which are rewarded without a call, do not count.
        """
        reason = find_lost_reason(rollouts)
        self._lost_steps = self._lost_steps + 1 if reason else 0
        if self._lost_steps >= MOST_LOST_STEPS:
            raise WorkerLostError(
                f"no workflow could be rewarded in {self._lost_steps} consecutive steps, last in "
                f"step {step + 1} ({reason}); once the workers answer, --resume continues from the "
                "last checkpoint"
            )

    def start_rollouts(
        self, step: int, rows: Mapping[str, Any], texts: Sequence[str], loop: Any
    ) -> None:
        """Start to execute and grade the batch of `step`, whose reward awaits the result.

        `rows` are TRL's columns, `texts` the completions, and `loop` the event loop to run in.
        """
        roots = rows["root"]
        drafts = self._drafts(
            texts, rows["episode"], rows["completion_ids"], read=rows["prompt_tokens"], roots=roots
        )
        self._running[step] = asyncio.run_coroutine_threadsafe(
            self._run_batch(step, drafts, roots), loop
        )

    async def cancel(self) -> None:
        """Cancel the rollouts of later steps and wait until they end, in their event loop."""
        running = [asyncio.wrap_future(each) for each in self._running.values()]
        self._running.clear()
        for each in running:
            each.cancel()
        if running:
            await asyncio.wait(running)

    def _drafts(
        self,
        texts: Sequence[str],
        numbers: Sequence[int],
        ids: Sequence[Sequence[int]],
        *,
        read: Sequence[int],
        roots: Sequence[FirstRound | None],
    ) -> list[tuple[Episode, PolicyDraft]]:
        first_drafts = [root and root.draft for root in roots]
        rows = zip(numbers, texts, read, ids, first_drafts, strict=True)
        return [
            (
                self._episodes[number],
                PolicyDraft(text=text, prompt_tokens=tokens, tokens=len(mine), root=root),
            )
            for number, text, tokens, mine, root in rows
        ]

    async def _run_batch(
        self,
        step: int,
        drafts: Sequence[tuple[Episode, PolicyDraft]],
        roots: Sequence[FirstRound | None],
    ) -> list[GradedRollout]:
        seeds = [self._seed(step, start.row if start else row) for row, start in enumerate(roots)]
        runner = await self._open_runner_once()
        return await runner.run_drafts(drafts, seeds, step)

    def run_first_rounds(
        self, chosen: Sequence[tuple[Episode, PolicyDraft, int]], trainer: Any, step: int
    ) -> list[FirstRound | None]:
        """Execute first rounds and wait for them, because second rounds' prompts show them."""
        seeds = [self._seed(step, row) for _, _, row in chosen]
        drafts = [(e, draft) for e, draft, _ in chosen]
        rollouts = self.run_drafts(drafts, seeds, trainer, step=step)
        return [
            None if not is_continuable(each) else FirstRound(draft, row, each.run.rounds)
            for each, (_, draft, row) in zip(rollouts, chosen, strict=True)
        ]

    def run_drafts(
        self,
        drafts: Sequence[tuple[Episode, PolicyDraft]],
        seeds: Sequence[int],
        trainer: Any,
        *,
        step: int | None = None,
    ) -> list[GradedRollout]:
        """Execute drafts and wait until they end.

        `step` determines the part of the cost that is charged; None is the trainer's current step.

        Raises:
            BatutaError: the pool, the journal or the grader cannot be opened.
            ExceptionGroup: an order failed; it has the first error.
        """
        charged_step = int(trainer.state.global_step) if step is None else step

        async def run_all() -> list[GradedRollout]:
            runner = await self._open_runner_once()
            return await runner.run_drafts(drafts, seeds, charged_step)

        return asyncio.run_coroutine_threadsafe(run_all(), trainer.async_loop).result()

    async def _open_runner_once(self) -> RolloutRunner:
        async with self._opening:  # batches of several steps begin at the same time
            if self._runner is None:
                self._runner = await self._open_runner()
        return self._runner

    def _seed(self, step: int, row: int) -> int:
        return ((self._settings.seed * 100_003 + step) * 10_007 + row) % 2**31


def find_lost_reason(rollouts: Sequence[GradedRollout]) -> str | None:
    """Return why no workflow was rewarded; None if one was, or if no draft is a workflow."""
    found = [one for one in rollouts if one.run.rounds and one.run.rounds[-1].workflow]
    if not found or any(one.reward is not None for one in found):
        return None
    reasons = (outage_reason(one.run) or lost_reply(one.run) for one in found)
    return next(filter(None, reasons), "no reply could be graded")


def share_without_spread(rewards: Sequence[float | None], group: int) -> float:
    """Return the share of the groups, each of `group` adjacent rows, whose known rewards are equal.

    Advantages in such groups are 0. TRL's own figure (`frac_reward_zero_std`) is another one if
    `optimiser.scale` is `batch`: it then compares the rewards of the whole batch.
    """
    groups = [set(rewards[at : at + group]) - {None} for at in range(0, len(rewards), group)]
    return sum(len(values) < 2 for values in groups) / len(groups)  # noqa: PLR2004 - two differ


def is_continuable(rollout: GradedRollout) -> bool:
    """Return whether a second round can continue the rollout, because its draft could be parsed."""
    rounds = rollout.run.rounds
    return bool(rounds) and not isinstance(rounds[-1].decision, MalformedPlan)


def _completion_text(completion: Any) -> str:
    return completion if isinstance(completion, str) else str(completion[-1]["content"])


def rollout_metrics(rollouts: Sequence[GradedRollout]) -> dict[str, float]:
    """Return the means and shares of a step's rollouts, named as in the metrics file.

    Dollars are left out if a call's price is unknown, and the figures of easy questions, of hard
    questions and of second rounds if there were none.
    """
    valid = [each for each in rollouts if each.run.rounds and each.run.rounds[-1].workflow]
    counted = [each for each in rollouts if each.reward is not None]
    found = {
        "valid": sum(map(is_continuable, rollouts)) / len(rollouts),
        "outages": (len(rollouts) - len(counted)) / len(rollouts),
        "limited": sum(one.run.outcome is Outcome.LIMITED for one in rollouts) / len(rollouts),
        "right": _mean_or_zero(
            [(each.grade.score or 0.0) if each.grade else 0.0 for each in counted]
        ),
        "steps": _mean_or_zero([len(each.run.rounds[-1].steps) for each in valid]),
        "worker_tokens": _mean_or_zero([each.run.usage.total for each in valid]),
    }
    if not any(each.run.cost.unpriced_calls for each in valid):  # unknown is not zero
        found["usd"] = _mean_or_zero([float(each.run.cost.usd) for each in valid])
    found |= _second_round_metrics(rollouts)
    easy = [
        each for each in valid if (each.episode.task.difficulty or EASY_LEVEL + 1) <= EASY_LEVEL
    ]
    hard = [each for each in valid if (each.episode.task.difficulty or 0) >= HARD_LEVEL]
    for name, some in (("steps_easy", easy), ("steps_hard", hard)):
        if some:
            found[name] = _mean_or_zero([len(each.run.rounds[-1].steps) for each in some])
    return found


def _second_round_metrics(rollouts: Sequence[GradedRollout]) -> Mapping[str, float]:
    """Return the accuracy of second rounds, and the share that accepts the first answer."""
    second = [each for each in rollouts if each.draft.root]
    if not second:
        return {}
    last = [each.run.rounds[-1].decision for each in second if each.run.rounds]
    return {
        "second/stands": sum(isinstance(each, AcceptedAnswer) for each in last) / len(second),
        "second/right": _mean_or_zero([float((e.grade and e.grade.score) or 0.0) for e in second]),
    }


def _mean_or_zero(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
