"""The probability that a run's answer is right, from what the run has anyway.

It is a logistic regression on a few signals, fitted by `batuta tune` or `batuta eval --calibrate`
to graded runs of the same conductor. What it was not fitted to has no probability: it is absent,
never invented.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, log, log1p

from batuta.core import Finish, Outcome, Reply, Round, RunFinished, StepRun, WorkerId
from batuta.language.answer_extraction import final_answer

SIGNALS = (
    "intercept",
    "worker",
    "compared",
    "agreement",
    "checked",
    "length",
    "cut",
    "replaced",
    "logprob",
)
"""The signals' names, in the order of the weights."""
_JUDGED = {Outcome.ANSWERED, Outcome.FALLBACK, Outcome.DEGRADED, Outcome.LIMITED}
"""Outcomes of runs whose answer has a probability."""
_LEAST_SHARE = 0.02
"""Shares of right answers are at least this far from 0 and from 1."""
_EDGES = " \t\n.,;:$*`'\"()[]{}\\"


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """It holds what was fitted for one conductor."""

    weights: Mapping[str, float]
    """The weight of each signal."""
    workers: Mapping[WorkerId, float]
    """The share of right answers of each worker that answered in the graded runs."""
    runs: int
    """The graded runs that it was fitted to."""
    curve: tuple[tuple[float, float], ...] = ()
    """What the regression's probability stands for, from the lowest on; empty: for itself."""

    def probability(self, signals: Mapping[str, float]) -> float:
        """Return the probability for those signals, at least 0.01 and at most 0.99."""
        odds = sum(self.weights.get(name, 0.0) * value for name, value in signals.items())
        sure = self._follow_curve(1 / (1 + exp(-max(-30.0, min(30.0, odds)))))
        return round(min(0.99, max(0.01, sure)), 4)

    def _follow_curve(self, sure: float) -> float:
        place = bisect_left(self.curve, sure, key=lambda knot: knot[0])
        if not self.curve:
            return sure
        if place in {0, len(self.curve)}:
            return self.curve[min(place, len(self.curve) - 1)][1]
        (low, before), (high, after) = self.curve[place - 1 : place + 1]
        return before + (after - before) * (sure - low) / (high - low)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfidenceModel:
    """The calibrations of a file."""

    conductors: Mapping[str, Calibration] = field(default_factory=dict[str, Calibration])
    """These calibrations were fitted; the key is the conductor's name, which has its version."""

    def of_answer(self, conductor: str, rounds: Sequence[Round], reply: Reply) -> float | None:
        """Return the probability that the reply is right.

        None where nothing was fitted to such a run.
        """
        calibration = self.conductors.get(conductor)
        step = find_step(rounds, reply)
        if calibration is None or step is None or reply.tool_calls:
            return None
        share = calibration.workers.get(step.worker)
        if share is None:
            return None
        return calibration.probability(answer_signals(rounds, step, reply, share))


def find_step(rounds: Sequence[Round], reply: Reply) -> StepRun | None:
    """Return the step that the reply is of."""
    steps = (step for round_ in reversed(rounds) for step in round_.steps)
    return next((step for step in steps if step.result == reply), None)


def answer_signals(
    rounds: Sequence[Round], step: StepRun, reply: Reply, share: float
) -> dict[str, float]:
    """Return the signals of an answer."""
    own = answer_form(reply.text)
    others = [
        form
        for round_ in rounds
        for other in round_.steps
        if isinstance(other.result, Reply) and other is not step
        if (form := answer_form(other.result.text))
    ]
    bounded = min(1 - _LEAST_SHARE, max(_LEAST_SHARE, share))
    likely = [token.logprob for token in reply.logprobs]
    compared = bool(own and others)
    read = [form for text in _texts_read(rounds, step) if (form := answer_form(text))]
    checked = 0.0 if not (own and read) else 1.0 if own in read else -1.0
    return {
        "intercept": 1.0,
        "worker": log(bounded / (1 - bounded)),
        "compared": float(compared),
        "agreement": others.count(own) / len(others) if compared else 0.0,
        "checked": checked,
        "length": log1p(reply.usage.output) / 10,
        "cut": float(reply.finish is Finish.LENGTH),
        "replaced": float(step.as_fallback or step.is_substituted),
        "logprob": max(-5.0, sum(likely) / len(likely)) if likely else 0.0,
    }


def _texts_read(rounds: Sequence[Round], step: StepRun) -> list[str]:
    """Return the replies that the step read: it keeps one of their answers, or corrects them."""
    place = next(number for number, round_ in enumerate(rounds) if step in round_.steps)
    here = rounds[place]
    plan = here.workflow.steps[step.index] if here.workflow and not step.as_fallback else None
    if plan is None:
        return []
    earlier = rounds[place - 1].steps if plan.previous and place else ()
    indices = range(step.index) if plan.previous else plan.access
    read = [*earlier, *(one for index in indices if (one := here.step(index)))]
    return [one.result.text for one in read if isinstance(one.result, Reply)]


def answer_form(text: str) -> str:
    """Return the stated answer without case, spaces and marks around it; empty if there is none."""
    found = "".join((final_answer(text) or "").casefold().split()).strip(_EDGES)
    return found if len(found) <= 200 else ""  # noqa: PLR2004 - longer ones agree by accident only


def state_confidence(
    ended: RunFinished,
    rounds: Sequence[Round],
    *,
    model: ConfidenceModel,
    conductor: str,
    least: float | None = None,
) -> RunFinished:
    """Return the end of a run with the probability of its answer.

    Args:
        ended: how it ended.
        rounds: all that was run.
        model: what was fitted.
        conductor: who wrote the workflow.
        least: below it, and where it is not known, the outcome is `unsure`.
    """
    if ended.reply is None or ended.outcome not in _JUDGED or ended.reply.tool_calls:
        return ended
    sure = model.of_answer(conductor, rounds, ended.reply)
    unsure = least is not None and (sure is None or sure < least)
    outcome = Outcome.UNSURE if unsure else ended.outcome
    return replace(ended, confidence=sure, outcome=outcome)
