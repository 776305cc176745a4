"""How good fitted probabilities are on recorded answers of language models, on families no fit has seen.

    BATUTA_DATA=/path/to/data python recipes/confidence/measure.py

Of each set the best workers on the known families answer side by side, and the best one's answer counts;
where a worker has several samples it answers that often. Runs are made of the recorded answers, and fitted by
the same function as `batuta eval --calibrate`. Whole families are divided by five seeds: 80 % are known, 20 % measured.

Compared are three orders of the measured answers, by the area under the risk-coverage curve (the mean share of wrong
answers among the surest, over all shares of them; less is better): the fitted probability, the share of other answers
that agree, and the answering worker's own share right, which is one number and so orders nothing.

Beside the calibration error stands what perfect probabilities would have on as many answers of as many families (families.py): the mean, and
where nine of ten draws lie; and the error of all five divisions' answers together.
"""

from __future__ import annotations

import sys
from collections import Counter

import numpy as np
from families import family_variance, perfect_errors

from batuta.config.confidence import StoredCalibration
from batuta.core import (
    Limits,
    Outcome,
    Plan,
    Pool,
    Question,
    Reply,
    Round,
    Run,
    RunHeader,
    RunId,
    Step,
    StepRun,
    TimeSpan,
    Usage,
    Worker,
    WorkerId,
    Workflow,
)
from batuta.engine.confidence import Calibration, answer_signals
from batuta.errors import SourceError
from batuta.lab.evals.confidence import GradedRun, fit_confidence, measure_confidence
from batuta.lab.tasks.recorded import load_recorded, unseen_family_split

SETS = (
    "reasoning_gym/easy", "reasoning_gym/hard", "mmlu_pro/seven", "medagentsbench/test",
    "medagentsbench/hard", "matharena/aime25",
)  # fmt: skip
SEEDS = range(5)
WORKERS = 5
"""Workers that answer, the best on the known families."""
KNOWN = 1200
"""Known questions that are fitted to, drawn by the seed: about as many as somebody grades."""


def make_run(record, row, models, samples):
    """The run in which these models answer a question side by side, the first one's first sample last."""
    places = [(m, s) for m in models for s in range(samples) if has_answer(record, row, m, s)]
    if not places or places[0] != (models[0], 0):
        return None
    order = [*places[1:], places[0]]
    answering = make_round(record, row, order)
    right = record.credit_qms[row, models[0], 0]
    return grade(record, row, (answering,), answering.steps[-1], right, "side-by-side")


def make_round(record, row, places, purpose="answer"):
    """The round of these recorded answers side by side; each is a worker's sample."""
    names = [WorkerId(record.models[model]) for model, _ in places]
    flow = Workflow(tuple(Step(subtask="", worker=name) for name in names))
    steps = tuple(
        StepRun(
            index=index,
            planned=name,
            worker=name,
            request=None,
            result=reply_of(record, row, *place),
            span=TimeSpan(0, 0),
        )
        for index, (name, place) in enumerate(zip(names, places, strict=True))
    )
    return Round(decision=Plan(flow, purpose=purpose), workflow=flow, steps=steps)


def grade(record, row, rounds, step, credit, conductor):
    """The graded run of these rounds, whose answer is that step's."""
    names = dict.fromkeys(one.worker for round_ in rounds for one in round_.steps)
    header = RunHeader(
        id=RunId("r"),
        question=Question.of(record.tasks[row].question or "?"),
        pool=Pool(tuple(Worker(id=name, model=name) for name in names)),
        seed=None,
        limits=Limits(),
        conductor=conductor,
    )
    run = Run(
        header=header,
        rounds=rounds,
        outcome=Outcome.ANSWERED,
        answer=step.result.text,
        reply=step.result,
    )
    return GradedRun(run=run, step=step, reply=step.result, right=bool(credit >= 0.5))


def has_answer(record, row, model, sample):
    """Whether that answer was recorded."""
    return not np.isnan(record.scores_qms[row, model, sample])


def reply_of(record, row, model, sample):
    """The recorded answer in the form in which answers are compared, with its length where it is known."""
    index = record.answers_qms[row, model, sample]
    said = record.answers[index] if index >= 0 else ""
    place = row, model, sample
    written = 0 if record.usage is None else max(0, int(record.usage.output_qms[place]))
    if record.texts is not None:  # four bytes a token; hidden reasoning was not recorded
        written = int(record.texts.ends_qms[place] - record.texts.starts_qms[place]) // 4
    return Reply(text=f"Answer: {said}" if said else "", usage=Usage(calls=1, output=written))


def risk_area(sure_n, right_n):
    """The mean share of wrong answers among the k surest, over all k; ties count in their mean order."""
    areas = []
    for seed in range(20):
        order = np.lexsort((np.random.default_rng(seed).random(len(sure_n)), -sure_n))
        wrong = np.cumsum(1 - right_n[order]) / np.arange(1, len(order) + 1)
        areas.append(wrong.mean())
    return float(np.mean(areas))


def measure_seed(record, seed):
    """The probabilities, agreements and grades of the measured answers of one division."""
    split = unseen_family_split(record, seed, (0.7, 0.1, 0.2))
    known, test = [*split.train, *split.calibration], split.test
    strength = record.credit_qm()[known].mean(axis=0)
    models = [int(m) for m in np.argsort(-strength)[:WORKERS]]
    samples = record.scores_qms.shape[2]
    some = np.random.default_rng(seed).permutation(known)[:KNOWN]
    graded = [run for row in some if (run := make_run(record, row, models, samples))]
    fitted: StoredCalibration = fit_confidence(graded).stored.conductors["side-by-side"]
    calibration = Calibration(
        weights=fitted.weights,
        workers={WorkerId(name): share for name, share in fitted.workers.items()},
        runs=fitted.runs,
        curve=fitted.curve,
    )
    sure, agree = [], []
    measured = [(row, run) for row in test if (run := make_run(record, row, models, samples))]
    for _, one in measured:
        share = calibration.workers[one.step.worker]
        signals = answer_signals(one.run.rounds, one.step, one.run.reply, share)
        sure.append(calibration.probability(signals))
        agree.append(signals["agreement"])
    right = np.array([one.right for _, one in measured], float)
    variance = known_variance(record, calibration, some, models, samples)
    families = np.array([record.families[row] for row, _ in measured])
    perfect = perfect_errors(np.array(sure), families, variance)
    return np.array(sure), np.array(agree), right, perfect, record.models[models[0]]


def known_variance(record, calibration, rows, models, samples):
    """The variance of the known families' effects beyond the fitted probabilities."""
    found = [(row, run) for row in rows if (run := make_run(record, row, models, samples))]
    share = calibration.workers[found[0][1].step.worker]
    sure = [
        calibration.probability(answer_signals(one.run.rounds, one.step, one.run.reply, share))
        for _, one in found
    ]
    right = np.array([one.right for _, one in found], float)
    families = np.array([record.families[row] for row, _ in found])
    return family_variance(np.array(sure), right, families)


def main():
    """Print the table."""
    print("| set | answers | calibration error | of perfect ones | of all together | area: fitted | agreement | own share | right of all | of the surest 80 % |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name in SETS:
        try:
            record = load_recorded(name)
        except SourceError as error:
            print(f"{name}: {error}", file=sys.stderr)
            continue
        if record.answers_qms is None:
            print(f"{name}: it has grades and no answers, so nothing can agree", file=sys.stderr)
            continue
        parts = [measure_seed(record, seed) for seed in SEEDS]
        told = [measure_confidence(sure, right) for sure, _, right, *_ in parts]
        areas = [
            [risk_area(sure, right), risk_area(agree, right), 1 - right.mean()]
            for sure, agree, right, *_ in parts
        ]
        fitted, agreement, own = np.mean(areas, axis=0)
        count = sum(one.runs for one in told)
        error, right, best = (
            np.mean([getattr(one, field) for one in told])
            for field in ("calibration_error", "right", "right_at_80")
        )
        perfect = np.mean([one for *_, one, _ in parts], axis=0)
        low, high = np.mean([np.quantile(one, (0.05, 0.95)) for *_, one, _ in parts], axis=0)
        together = measure_confidence(
            np.concatenate([sure for sure, *_ in parts]),
            np.concatenate([right for _, _, right, *_ in parts]),
        )
        sys.stdout.flush()
        print(f"| {name} | {count} | {error:.3f} | {perfect.mean():.3f} ({low:.3f} to {high:.3f}) | {together.calibration_error:.3f} | {fitted:.3f} | {agreement:.3f} | {own:.3f} | {right:.1%} | {best:.1%} |")  # fmt: skip
        best_workers = Counter(model for *_, model in parts)
        print(f"{name}: answered by {dict(best_workers)}", file=sys.stderr)


if __name__ == "__main__":
    main()
