"""TRL's asynchronous reward: every completion of a step is conducted, all at the same time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from batuta.core import Malformed
from batuta.train.episodes import Episode
from batuta.train.grpo import Root
from batuta.train.play import Draft, Played, Players
from batuta.train.settings import Settings

Hear = Callable[[int, Sequence[Played]], None]
"""Is told every step's played completions."""

EASY, HARD = 1, 6
"""Difficulty of what is counted as easy at most and as hard at least."""


class Conducted:
    """Plays, grades, and rewards."""

    __name__ = "conducted"

    def __init__(
        self,
        settings: Settings,
        episodes: Sequence[Episode],
        opened: Callable[[], Awaitable[Players]],
        hear: Hear,
    ) -> None:
        """Learns what to play.

        Args:
            settings: of the training.
            episodes: what the rows are about.
            opened: opens the workers' clients, in the loop where they will be called.
            hear: is told what was played.
        """
        self._settings = settings
        self._episodes = episodes
        self._opened = opened
        self._players: Players | None = None
        self._hear = hear

    async def __call__(
        self,
        *,
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]],
        episode: Sequence[int],
        trainer_state: Any,
        log_metric: Callable[[str, float], None],
        root: Sequence[Root | None] | None = None,
        prompt_tokens: Sequence[int] | None = None,
        **_: Any,
    ) -> list[float | None]:
        """The reward of every completion; None: it leaves its group."""
        began = time.perf_counter()
        step = int(trainer_state.global_step)
        roots = root or [None] * len(completions)
        read = prompt_tokens or [0] * len(completions)
        drafts = [
            (self._episodes[number], Draft(_text(said), tokens, len(ids), start and start.draft))
            for number, said, tokens, ids, start in zip(
                episode, completions, read, completion_ids, roots, strict=True
            )
        ]
        seeds = [self._seed(step, start.row if start else row) for row, start in enumerate(roots)]
        players = await self._ready()
        played = await players.play(drafts, seeds, step)
        for name, value in measured(played).items():
            log_metric(name, value)
        log_metric("time/playing", time.perf_counter() - began)
        self._hear(step, played)
        return mixed([each.reward for each in played], roots, self._settings.recursion.discount)

    def play_roots(
        self, chosen: Sequence[tuple[Episode, Draft, int]], trainer: Any
    ) -> list[Root | None]:
        """First rounds, played now because a second round's prompt shows them."""
        step = int(trainer.state.global_step)

        async def play() -> list[Played]:
            players = await self._ready()
            seeds = [self._seed(step, row) for _, _, row in chosen]
            return await players.play([(e, draft) for e, draft, _ in chosen], seeds, step)

        played = asyncio.run_coroutine_threadsafe(play(), trainer.async_loop).result()
        return [
            None if not continues(each) else Root(draft, row, each.run.rounds)
            for each, (_, draft, row) in zip(played, chosen, strict=True)
        ]

    async def _ready(self) -> Players:
        if self._players is None:
            self._players = await self._opened()
        return self._players

    def _seed(self, step: int, row: int) -> int:
        return ((self._settings.seed * 100_003 + step) * 10_007 + row) % 2**31


def continues(played: Played) -> bool:
    """Whether a second round can go on from it: its draft could be read."""
    rounds = played.run.rounds
    return bool(rounds) and not isinstance(rounds[-1].decision, Malformed)


def mixed(
    rewards: Sequence[float | None], roots: Sequence[Root | None], discount: float
) -> list[float | None]:
    """First rounds are also paid for what the second made of them (paper, section 3.3).

    Reward of a continued first round: (1 - discount) of its own and `discount` of the mean of the
    second round's group.
    """
    later: dict[int, list[float]] = {}
    for value, root in zip(rewards, roots, strict=True):
        if root is not None and value is not None:
            later.setdefault(root.row, []).append(value)
    paid = list(rewards)
    for row, values in later.items():
        own = paid[row]
        if own is not None:
            paid[row] = (1 - discount) * own + discount * sum(values) / len(values)
    return paid


def _text(completion: Any) -> str:
    return completion if isinstance(completion, str) else str(completion[-1]["content"])


def measured(played: Sequence[Played]) -> dict[str, float]:
    """What a step's rollouts say about the policy."""
    valid = [each for each in played if each.run.rounds and each.run.rounds[-1].workflow]
    accepted = sum(not isinstance(each.run.rounds[-1].decision, Malformed) for each in played)
    counted = [each for each in played if each.reward is not None]
    found = {
        "valid": accepted / len(played),
        "outages": (len(played) - len(counted)) / len(played),
        "right": _mean([(each.grade.score or 0.0) if each.grade else 0.0 for each in counted]),
        "steps": _mean([len(each.run.rounds[-1].steps) for each in valid]),
        "worker_tokens": _mean([each.run.usage.total for each in valid]),
        "usd": _mean([float(each.run.cost.usd) for each in valid]),
    }
    found |= _by_round(played)
    easy = [each for each in valid if (each.episode.task.difficulty or EASY + 1) <= EASY]
    hard = [each for each in valid if (each.episode.task.difficulty or 0) >= HARD]
    for name, some in (("steps_easy", easy), ("steps_hard", hard)):
        if some:
            found[name] = _mean([len(each.run.rounds[-1].steps) for each in some])
    return found


def _by_round(played: Sequence[Played]) -> Mapping[str, float]:
    """How often the second round lets the answer stand, and when that is right."""
    second = [each for each in played if each.draft.root]
    if not second:
        return {}
    stands = [each for each in second if each.run.rounds[-1].workflow is None]
    return {
        "second/stands": len(stands) / len(second),
        "second/right": _mean([float((e.grade and e.grade.score) or 0.0) for e in second]),
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
