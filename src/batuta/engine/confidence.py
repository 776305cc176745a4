"""The probability that a run's answer is correct, from signals of the run and further samples.

A logistic regression on a few signals gives the probability. `batuta tune` or `batuta eval
--calibrate` fits it to graded runs of the same conductor. An answer has no probability if its
conductor or worker did not occur in these runs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import exp, log, log1p

from batuta.core import (
    Failure,
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
"""The signals' names; the fit relies on the order of the first two."""
SAMPLES = "samples"
"""The signal that is the share of samples agreeing with the answer."""
JUDGED = {
    Outcome.ANSWERED,
    Outcome.FALLBACK,
    Outcome.DEGRADED,
    Outcome.LIMITED,
    Outcome.UNSURE,
}
"""Outcomes of runs whose answer, if there is one, can have a probability."""
_ACCURACY_MARGIN = 0.02
"""Accuracies are kept at least this far from 0 and from 1, where log-odds are infinite."""
_EDGES = " \t\n.,;:$*`'\"()[]{}\\"
_MAX_COMPARED = 200
"""Maximum number of characters of answers that are compared; longer answers are hardly ever equal.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The fitted confidence model of one conductor."""

    weights: Mapping[str, float]
    """The weight of each signal."""
    workers: Mapping[WorkerId, float]
    """The accuracy, in [0, 1], of each worker that answered in the graded runs, shrunk towards the
    accuracy of all of these runs."""
    runs: int
    """Number of graded runs used for the fit."""
    curve: tuple[tuple[float, float], ...] = ()
    """Points (probability of the regression, calibrated probability), ascending, between which the
    correction is linear; empty: no correction."""
    sampled: Calibration | None = None
    """The calibration for runs with samples; None if none was fitted to such samples."""

    def probability(self, signals: Mapping[str, float]) -> float:
        """Return the probability for the signals, at least 0.01 and at most 0.99."""
        log_odds = sum(self.weights.get(name, 0.0) * value for name, value in signals.items())
        calibrated = self._follow_curve(1 / (1 + exp(-max(-30.0, min(30.0, log_odds)))))
        return round(min(0.99, max(0.01, calibrated)), 4)

    def _follow_curve(self, probability: float) -> float:
        index = bisect_left(self.curve, probability, key=lambda knot: knot[0])
        if not self.curve:
            return probability
        if index in {0, len(self.curve)}:
            return self.curve[min(index, len(self.curve) - 1)][1]
        (low, before), (high, after) = self.curve[index - 1 : index + 1]
        return before + (after - before) * (probability - low) / (high - low)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSetting:
    """How often, and by which worker, a question that has an answer is answered again."""

    count: int
    """Number of further answers."""
    worker: WorkerId | None = None
    """The worker to sample; None: the worker that wrote the answer."""

    def sampler_of(self, writer: WorkerId) -> WorkerId:
        """Return the worker to sample if `writer` wrote the answer."""
        return self.worker or writer

    def find_worker(self, pool: Pool, writer: WorkerId) -> Worker | None:
        """Return the worker to sample; None if it is not a language model of the pool."""
        sampler = self.sampler_of(writer)
        return next((worker for worker in pool if worker.id == sampler and worker.is_model), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfidenceModel:
    """The calibrations of a file, and the setting of the samples that they use."""

    conductors: Mapping[str, Calibration] = field(default_factory=dict[str, Calibration])
    """The calibrations by the conductor's name, which includes its version."""
    samples: SampleSetting | None = None
    """None: no answers are sampled."""
    collects: bool = False
    """True while data is collected for a fit: answers are sampled without a calibration too."""

    def find_samples(self, conductor: str, writer: WorkerId) -> SampleSetting | None:
        """Return the samples to take of an answer that the worker `writer` wrote.

        Return None if no samples are set, or if no calibration would use them and no data is
        collected.
        """
        if self.samples is None or self.collects:
            return self.samples
        fitted = self.conductors.get(conductor)
        uses = fitted is not None and fitted.sampled is not None and writer in fitted.workers
        return self.samples if uses else None

    def expected_samples(self, conductor: str, workflow: Workflow) -> SampleSetting | None:
        """Return the samples that are likely to be taken after that workflow; None if none are."""
        return self.find_samples(conductor, workflow.steps[-1].worker)

    def of_answer(self, conductor: str, rounds: Sequence[Round], reply: Reply) -> float | None:
        """Return the probability that the reply is correct.

        Return None if nothing was fitted for this conductor and worker, if no step gave the reply,
        or if the reply calls tools.
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
    """Return the step that gave the reply, not counting samples and checks; None if none did.

    Pictures are not compared: the answer may have those of other steps.
    """
    answering = (round_ for round_ in reversed(rounds) if not round_.is_aside)
    steps = (step for round_ in answering for step in round_.steps)
    return next((step for step in steps if _is_same_reply(step.result, reply)), None)


def _is_same_reply(result: Reply | Failure, reply: Reply) -> bool:
    """Return True if the result is the reply, apart from its pictures."""
    if result is reply:
        return True
    return isinstance(result, Reply) and replace(result, images=reply.images) == reply


def find_sample_round(rounds: Sequence[Round]) -> Round | None:
    """Return the newest round of samples; None if no samples were taken."""
    for round_ in reversed(rounds):
        if isinstance(round_.decision, Plan) and round_.decision.purpose == "samples":
            return round_
    return None


def share_of_samples(
    rounds: Sequence[Round], step: StepRun, reply: Reply, setting: SampleSetting
) -> float | None:
    """Return the share of the samples that state the same answer as the reply.

    Return None if `answer_form` finds no answer in the reply, or if any of the samples is missing.
    """
    own, taken = answer_form(reply.text), find_sample_round(rounds)
    if not own or taken is None:
        return None
    sampler = setting.sampler_of(step.worker)
    texts = [
        sample.result.text
        for sample in taken.steps
        if isinstance(sample.result, Reply) and sample.worker == sampler
    ]
    if len(texts) != setting.count:
        return None
    return sum(answer_form(text) == own for text in texts) / setting.count


def answer_signals(
    rounds: Sequence[Round], step: StepRun, reply: Reply, share: float
) -> dict[str, float]:
    """Return the signals of an answer but not of its samples; `share` is its worker's accuracy."""
    return {**run_signals(rounds, step, reply), "worker": worker_signal(share)}


def worker_signal(share: float) -> float:
    """Return the log-odds of a worker's accuracy."""
    bounded = min(1 - _ACCURACY_MARGIN, max(_ACCURACY_MARGIN, share))
    return log(bounded / (1 - bounded))


def run_signals(rounds: Sequence[Round], step: StepRun, reply: Reply) -> dict[str, float]:
    """Return the signals of an answer that follow from its run alone."""
    own = answer_form(reply.text)
    others = [
        form
        for round_ in rounds
        if not round_.is_aside
        for other in round_.steps
        if isinstance(other.result, Reply) and other is not step
        if (form := answer_form(other.result.text))
    ]
    logprobs = [token.logprob for token in reply.logprobs]
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
        "logprob": max(-5.0, sum(logprobs) / len(logprobs)) if logprobs else 0.0,
    }


def _texts_read(rounds: Sequence[Round], step: StepRun) -> list[str]:
    """Return the texts of the replies that the step read; none if it read the whole question."""
    number = next(number for number, round_ in enumerate(rounds) if step in round_.steps)
    own = rounds[number]
    planned = own.workflow.steps[step.index] if own.workflow and not step.as_fallback else None
    if planned is None:
        return []
    earlier = rounds[number - 1].steps if planned.previous and number else ()
    indices = range(step.index) if planned.previous else planned.access
    read = [*earlier, *(other for index in indices if (other := own.step(index)))]
    return [other.result.text for other in read if isinstance(other.result, Reply)]


def answer_form(text: str) -> str:
    """Return the stated answer without case, spaces and outer punctuation.

    Return an empty text if no answer is stated, or one longer than `_MAX_COMPARED` characters.
    """
    form = "".join((final_answer(text) or "").casefold().split()).strip(_EDGES)
    return form if len(form) <= _MAX_COMPARED else ""


def state_confidence(
    ended: RunFinished,
    rounds: Sequence[Round],
    *,
    model: ConfidenceModel,
    conductor: str,
    least: float | None = None,
) -> RunFinished:
    """Return the end of a run with the probability that its answer is correct.

    An end without an answer, with tool calls, or with an outcome outside `JUDGED` is returned
    unchanged.

    Args:
        ended: the run's end without a probability.
        rounds: all rounds of the run.
        model: the fitted model.
        conductor: the name of the conductor.
        least: minimum probability; if the probability is lower or unknown, the outcome is
            `unsure`. None: no minimum.
    """
    if ended.reply is None or ended.outcome not in JUDGED or ended.reply.tool_calls:
        return ended
    probability = model.of_answer(conductor, rounds, ended.reply)
    unsure = least is not None and (probability is None or probability < least)
    outcome = Outcome.UNSURE if unsure else ended.outcome
    return replace(ended, confidence=probability, outcome=outcome)
