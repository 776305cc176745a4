"""What asking the same question again tells, on recorded answers of language models.

    BATUTA_DATA=/path/to/data python recipes/confidence/samples.py

Reasoning Gym, easy, is the one recorded set with several samples of a worker and what they said. One worker answers
with its first sample: the best on the known families, and then each in turn. Asked again is, twice, itself (its other
two samples) or another worker (its first two). Runs are made of the recorded answers and fitted by the function of
`batuta eval --calibrate`; divisions, known questions and figures are those of measure.py.
"""

from __future__ import annotations

import sys
from functools import lru_cache

import numpy as np
from measure import KNOWN, SEEDS, grade, has_answer, make_round, risk_area

from batuta.core import (
    WorkerId,
)
from batuta.engine.confidence import SampleSetting
from batuta.lab.evals.confidence import fit_calibrated, measure_confidence
from batuta.lab.tasks.recorded import load_recorded, unseen_family_split

SET = "reasoning_gym/easy"
TAKEN = 2
"""Samples beside the answer: of three that were recorded."""


def make_run(record, row, writer, sampler):
    """The run in which one model answers, and is or another one is asked again; None: not recorded."""
    again = [(sampler, number + (sampler == writer)) for number in range(TAKEN)]
    places = [(writer, 0), *again]
    if not all(has_answer(record, row, *place) for place in places):
        return None
    answering = make_round(record, row, places[:1])
    rounds = (answering, make_round(record, row, again, "samples"))
    return grade(record, row, rounds, answering.steps[0], credit_of(record)[row, writer], "alone")


@lru_cache(maxsize=1)
def credit_of(record):
    """Whether each model's first sample is right: (q, m)."""
    return record.credit_qms[:, :, 0]


def measure(record, seed, writer, sampler):
    """Calibration error, area and the surest, without and with the samples, and the share right."""
    split = unseen_family_split(record, seed, (0.7, 0.1, 0.2))
    known = np.random.default_rng(seed).permutation([*split.train, *split.calibration])[:KNOWN]
    graded = [run for row in known if (run := make_run(record, row, writer, sampler))]
    setting = SampleSetting(count=TAKEN, worker=WorkerId(record.models[sampler]))
    told = [one for one in graded if one.share_of_samples(setting) is not None]
    plain, sampled = fit_calibrated(graded), fit_calibrated(told, setting)
    asked = [run for row in split.test if (run := make_run(record, row, writer, sampler))]
    right = np.array([one.right for one in asked], float)
    found = []
    for samples in (None, setting):
        sure = np.array([state(one, plain, sampled, samples) for one in asked])
        measured = measure_confidence(sure, right)
        found += [measured.calibration_error, risk_area(sure, right), measured.right_at_80]
    return np.array([*found, right.mean()])


def state(one, plain, sampled, samples):
    """The probability as it is served: without the samples where they tell nothing."""
    tells = samples is not None and one.share_of_samples(samples) is not None
    share = plain.workers[one.step.worker]
    return (sampled if tells else plain).probability(one.signals(share, samples))


def best_known(record, seed, able):
    """The best of these models on the known families."""
    split = unseen_family_split(record, seed, (0.7, 0.1, 0.2))
    strength = record.credit_qm()[[*split.train, *split.calibration]].mean(axis=0)
    return max(able, key=lambda model: strength[model])


def mean_over(record, pairs):
    """The mean figures of these pairs of writer and sampler, over the divisions."""
    return np.mean([measure(record, *pair) for pair in pairs], axis=0), len(pairs)


def main():
    """Print the table."""
    record = load_recorded(SET)
    able = [
        m for m in range(len(record.models)) if not np.isnan(record.scores_qms[:, m, TAKEN]).all()
    ]
    best = {seed: best_known(record, seed, able) for seed in SEEDS}
    rows = {
        "the best, itself again": [(seed, best[seed], best[seed]) for seed in SEEDS],
        "each worker, itself again": [(seed, one, one) for seed in SEEDS for one in able],
    }  # fmt: skip
    for model in able:
        others = [(seed, best[seed], model) for seed in SEEDS if best[seed] != model]
        rows[f"the best, {record.models[model]}"] = others
    several = [(seed, one, other) for seed in SEEDS for one in able for other in able]
    rows["each worker, each other one"] = [pair for pair in several if pair[1] != pair[2]]
    print("| who answers, and who is asked again | fits | calibration error without | with | area without | with | right of all | of the surest 80 % without | with |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|")
    for name, pairs in rows.items():
        if not pairs:
            continue
        (error, area, sure, error_with, area_with, sure_with, right), count = mean_over(record, pairs)  # fmt: skip
        print(f"| {name} | {count} | {error:.3f} | {error_with:.3f} | {area:.3f} | {area_with:.3f} | {right:.1%} | {sure:.1%} | {sure_with:.1%} |", flush=True)  # fmt: skip
    print(f"answered by {[record.models[one] for one in best.values()]}", file=sys.stderr)


if __name__ == "__main__":
    main()
