"""Task sources of worlds that draw their questions from a seed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from batuta.core import Task
from batuta.errors import ConfigError

MAX_QUESTION = 2000
"""Maximum number of characters of a question; the drawn ones have at most about 400."""
HELD_OUT = "held-out"
TEST_SEED = 7_000_000
"""Added to the seed of test questions, so that training does not draw the same."""
CALIBRATION_SEED = 8_000_000
"""Added to the seed of calibration questions."""
OVERDRAW_FACTOR = 2
"""Questions drawn for each requested question, because some are drawn twice."""
_LEVELS_PATTERN = re.compile(r"([1-6])-([1-6])")


class DrawTasks(Protocol):
    """Draws fresh questions of a world, the same on every machine."""

    def __call__(
        self,
        family: str | None,
        n: int,
        seed: int,
        *,
        held_out: bool = False,
        difficulty: int | None = None,
    ) -> Sequence[Task]:
        """Return `n` questions of a family; None: of the training families in turn.

        Equal seeds give equal questions. With `held_out` the wordings are those that training never
        uses. `difficulty` is 1 to 6; None: random for each question.
        """
        ...


class DrawnTasks:
    """A source of fresh questions with computed answers (`batuta.lab.task_sources.TaskSource`)."""

    name: str
    families: Sequence[str]
    """Families for evaluation."""
    trainable: Sequence[str]
    """Families for training."""
    level_example: str
    """A family with difficulties, as the example in an error message."""
    draw: DrawTasks
    """The world's function that draws questions."""

    def _calibration_family(self, family: str | None) -> str | None:
        """Return the family to calibrate on for questions of `family`; None: training families."""
        return family

    def draw_test(
        self, parts: Sequence[str], limit: int, calibration: int, seed: int
    ) -> tuple[tuple[Task, ...], tuple[Task, ...]]:
        """Return at most `limit` test and `calibration` calibration questions, all different.

        Training uses other seeds. `parts` may contain a family, and `held-out` for wordings that
        training never uses.

        Raises:
            ConfigError: there is no such family.
        """
        chosen = [part for part in parts if part != HELD_OUT]
        if len(chosen) > 1 or any(part not in self.families for part in chosen):
            raise ConfigError(
                f"there are no tasks {':'.join((self.name, *parts))!r}; write {self.name}, "
                f"{self.name}:FAMILY or {self.name}:FAMILY:held-out, with FAMILY one of "
                f"{', '.join(self.families)}"
            )
        asked_family = chosen[0] if chosen else None
        drawn = self.draw(
            asked_family, OVERDRAW_FACTOR * limit, TEST_SEED + seed, held_out=HELD_OUT in parts
        )
        asked = dict(list({task.id: task for task in drawn}.items())[:limit])
        family = self._calibration_family(asked_family)
        more = self.draw(family, calibration, CALIBRATION_SEED + seed)
        others = {task.id: task for task in more if task.id not in asked}
        return tuple(asked.values()), tuple(others.values())

    def draw_training(self, parts: Sequence[str], count: int, seed: int) -> list[Task]:
        """Return `count` fresh questions for training.

        `parts` may contain a family (by default all training families) and difficulties such as
        `4-6` (by default all).

        Raises:
            ConfigError: there is no such family or difficulty.
        """
        levels = [found for part in parts if (found := _LEVELS_PATTERN.fullmatch(part))]
        chosen = [part for part in parts if not _LEVELS_PATTERN.fullmatch(part)]
        low, high = map(int, levels[0].groups() if levels else (1, 6))
        several = len(levels) > 1 or len(chosen) > 1
        if several or low > high or any(part not in self.trainable for part in chosen):
            raise ConfigError(
                f"cannot train on {':'.join((self.name, *parts))!r}; write "
                f"{self.name}[:FAMILY][:FROM-TO], with FAMILY one of "
                f"{', '.join(self.trainable)} and difficulties 1-6, such as {self.level_example}"
            )
        family = chosen[0] if chosen else None
        if not levels:
            return list(self.draw(family, count, seed))
        span = range(low, high + 1)
        each = -(-count // len(span))
        by_level = [self.draw(family, each, seed, difficulty=level) for level in span]
        return [task for some in zip(*by_level, strict=True) for task in some][:count]
