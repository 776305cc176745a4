"""The probability that a run's answer is right, from what the run has, and from further samples.

It is a logistic regression on a few signals, fitted by `batuta tune` or `batuta eval --calibrate`
to graded runs of the same conductor. What it was not fitted to has no probability: it is absent,
never invented.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, log, log1p

from batuta.core import (
    Finish,
    Outcome,
    Plan,
    Pool,
    Reply,
    Round,
    RunFinished,
    StepRun,
    Worker,
    WorkerId,
    Workflow,
)
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
SAMPLES = "samples"
"""This signal is the share of the samples that came out the same."""
JUDGED = {
    Outcome.ANSWERED,
    Outcome.FALLBACK,
    Outcome.DEGRADED,
    Outcome.LIMITED,
    Outcome.UNSURE,
}
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
    sampled: Calibration | None = None
    """The same for runs that were asked again; None: too few of the graded ones were."""

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
class SampleSetting:
    """It says how often a question is asked again once it has an answer."""

    count: int
    worker: WorkerId | None = None
    """This worker is asked; None: whoever wrote the answer is."""

    def sampler_of(self, writer: WorkerId) -> WorkerId:
        """Return who is asked again where that worker wrote the answer."""
        return self.worker or writer

    def find_worker(self, pool: Pool, writer: WorkerId) -> Worker | None:
        """Return the worker that is asked again, if it is a language model of the pool."""
        sampler = self.sampler_of(writer)
        return next((one for one in pool if one.id == sampler and one.is_model), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfidenceModel:
    """The calibrations of a file, and whether questions are asked again for them."""

    conductors: Mapping[str, Calibration] = field(default_factory=dict[str, Calibration])
    """These calibrations were fitted; the key is the conductor's name, which has its version."""
    samples: SampleSetting | None = None
    """None: no question is asked again."""
    collects: bool = False
    """True while there is something to be fitted: every answer is asked for again."""

    def find_samples(self, conductor: str, writer: WorkerId) -> SampleSetting | None:
        """Return how often the question of an answer is asked again; None: not at all.

        That is where nothing was fitted that such samples would tell anything.
        """
        if self.samples is None or self.collects:
            return self.samples
        fitted = self.conductors.get(conductor)
        is_told = fitted is not None and fitted.sampled is not None and writer in fitted.workers
        return self.samples if is_told else None

    def foresee_samples(self, conductor: str, workflow: Workflow) -> SampleSetting | None:
        """Return how often a question is likely to be asked again after that workflow."""
        return self.find_samples(conductor, workflow.steps[-1].worker)

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
        signals = answer_signals(rounds, step, reply, share)
        if calibration.sampled is not None and self.samples is not None:
            same = share_of_samples(rounds, step, reply, self.samples)
            if same is not None:
                return calibration.sampled.probability({**signals, SAMPLES: same})
        return calibration.probability(signals)


def find_step(rounds: Sequence[Round], reply: Reply) -> StepRun | None:
    """Return the step that the reply is of."""
    answering = (round_ for round_ in reversed(rounds) if not round_.is_aside)
    steps = (step for round_ in answering for step in round_.steps)
    return next((step for step in steps if step.result == reply), None)


def find_sample_round(rounds: Sequence[Round]) -> Round | None:
    """Return the round in which the question was asked again; None: it was not."""
    return next((one for one in reversed(rounds) if _is_sampled(one)), None)


def _is_sampled(round_: Round) -> bool:
    return isinstance(round_.decision, Plan) and round_.decision.purpose == "samples"


def share_of_samples(
    rounds: Sequence[Round], step: StepRun, reply: Reply, wanted: SampleSetting
) -> float | None:
    """Return the share of the samples that state the same answer as the reply.

    None if it states none, or if not all of the wanted samples are there.
    """
    own, taken = answer_form(reply.text), find_sample_round(rounds)
    if not own or taken is None:
        return None
    sampler = wanted.sampler_of(step.worker)
    texts = [
        one.result.text
        for one in taken.steps
        if isinstance(one.result, Reply) and one.worker == sampler
    ]
    if len(texts) != wanted.count:
        return None
    return sum(answer_form(text) == own for text in texts) / wanted.count


def answer_signals(
    rounds: Sequence[Round], step: StepRun, reply: Reply, share: float
) -> dict[str, float]:
    """Return the signals of an answer, by a worker whose share right is that."""
    return {**run_signals(rounds, step, reply), "worker": worker_signal(share)}


def worker_signal(share: float) -> float:
    """Return the log-odds of a worker's share right."""
    bounded = min(1 - _LEAST_SHARE, max(_LEAST_SHARE, share))
    return log(bounded / (1 - bounded))


def run_signals(rounds: Sequence[Round], step: StepRun, reply: Reply) -> dict[str, float]:
    """Return the signals of an answer that its run alone has."""
    own = answer_form(reply.text)
    others = [
        form
        for round_ in rounds
        if not round_.is_aside
        for other in round_.steps
        if isinstance(other.result, Reply) and other is not step
        if (form := answer_form(other.result.text))
    ]
    likely = [token.logprob for token in reply.logprobs]
    compared = bool(own and others)
    read = [form for text in _texts_read(rounds, step) if (form := answer_form(text))]
    checked = 0.0 if not (own and read) else 1.0 if own in read else -1.0
    return {
        "intercept": 1.0,
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
    if ended.reply is None or ended.outcome not in JUDGED or ended.reply.tool_calls:
        return ended
    sure = model.of_answer(conductor, rounds, ended.reply)
    unsure = least is not None and (sure is None or sure < least)
    outcome = Outcome.UNSURE if unsure else ended.outcome
    return replace(ended, confidence=sure, outcome=outcome)
