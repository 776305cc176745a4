"""What can go wrong while a policy learns, seen in the figures of its steps. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean

WINDOW = 5
"""Steps whose mean is looked at."""
QUIET_STEPS = 10
"""Steps after which the same trouble is reported, and acted on, again."""
SAME_SHARE = 0.9
"""Share of a step's questions that get one and the same workflow, from which it is a trouble."""
LEAST_ENTROPY = 0.03
"""Nats a token below which nothing new is tried."""
DEPTH_SHARE = 0.95
"""Of the greatest number of steps, from which depth is at its limit."""
VALIDITY_LOSS = 0.15
"""Fall of the share of valid drafts, from its best, that is a trouble."""


class TroubleKind(StrEnum):
    """What is wrong."""

    ONE_WORKFLOW = "one workflow for everything"
    ENTROPY_GONE = "entropy gone"
    DEPTH_AT_LIMIT = "depth at its limit"
    VALIDITY_FALLS = "validity falling"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFigures:
    """What a step says of the policy."""

    step: int
    valid: float
    """Share of drafts that are workflows."""
    right: float
    steps: float
    """Steps of a workflow."""
    entropy: float | None = None
    """Nats a token; None: it was not measured."""
    same: float | None = None
    """Share of questions whose commonest workflow is the commonest of all; None: few questions."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that a person would stop the training for."""

    kind: TroubleKind
    step: int
    seen: str
    """The figures, in words."""


def most_common_share(chosen: Sequence[Sequence[Hashable]]) -> float | None:
    """Share of questions whose commonest workflow is the commonest of all questions.

    Args:
        chosen: of each question the workflows of its group; what was malformed is left out.
    """
    commonest = [Counter(group).most_common(1)[0][0] for group in chosen if group]
    if len(commonest) < WINDOW:
        return None
    return Counter(commonest).most_common(1)[0][1] / len(commonest)


def find_troubles(
    history: Sequence[StepFigures], told: Sequence[Trouble], most_steps: int
) -> list[Trouble]:
    """The troubles of the latest steps that were not told a while ago.

    Args:
        history: every step so far, in order.
        told: the troubles that were found before.
        most_steps: steps that a workflow may have.
    """
    if len(history) < WINDOW:
        return []
    now, latest = history[-1].step, history[-WINDOW:]
    recent = {trouble.kind for trouble in told if now - trouble.step < QUIET_STEPS}
    found: list[Trouble] = []
    same = [figures.same for figures in latest if figures.same is not None]
    if len(same) == WINDOW and fmean(same) >= SAME_SHARE:
        seen = f"{fmean(same):.0%} of the questions get the same workflow"
        found.append(Trouble(TroubleKind.ONE_WORKFLOW, now, seen))
    entropy = [figures.entropy for figures in latest if figures.entropy is not None]
    if len(entropy) == WINDOW and fmean(entropy) < LEAST_ENTROPY:
        seen = f"{fmean(entropy):.3f} nats a token"
        found.append(Trouble(TroubleKind.ENTROPY_GONE, now, seen))
    depth = fmean(figures.steps for figures in latest)
    if depth >= DEPTH_SHARE * most_steps:
        seen = f"{depth:.1f} steps a workflow of {most_steps} allowed"
        found.append(Trouble(TroubleKind.DEPTH_AT_LIMIT, now, seen))
    valid, best = fmean(figures.valid for figures in latest), _best_validity(history)
    if valid < best - VALIDITY_LOSS:
        seen = f"{valid:.0%} of the drafts are workflows, after {best:.0%}"
        found.append(Trouble(TroubleKind.VALIDITY_FALLS, now, seen))
    return [trouble for trouble in found if trouble.kind not in recent]


def _best_validity(history: Sequence[StepFigures]) -> float:
    """The best mean of a window."""
    return max(
        fmean(figures.valid for figures in history[at : at + WINDOW])
        for at in range(len(history) - WINDOW + 1)
    )
