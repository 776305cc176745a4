"""The shipped prior of the cascade: `fit_prior.py OUT.json [--without SET]`.

Small pools are drawn from recorded sets; in each, families of questions are known, by a few
labels, and others are not. On these the weights of agreement are fitted. `--without` leaves out
every part of a set, to judge the prior on a pool that it never saw.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import orjson
from agreement_training import fit_agreement_prior

from batuta.embedded.blas import limit_blas_to_one_thread
from batuta.lab.learners.agreement import AgreementPrior
from batuta.lab.learners.answer_posterior import DrawOrder, TrainingDraws, collision_rate
from batuta.lab.learners.history import History, history_from_record
from batuta.lab.learners.simulated_draws import simulate_draws
from batuta.lab.tasks.recorded import load_recorded

SETS = {
    "reasoning_gym": ("reasoning_gym/hard", "reasoning_gym/easy"),
    "mmlu_pro": ("mmlu_pro/all",),
    "medagentsbench": ("medagentsbench/test", "medagentsbench/hard"),
}
"""Recorded sets with answers, by their source; each source weighs the same."""
WORLDS = 240
"""Small pools of each source."""
QUESTIONS = 150
"""Questions of each small pool whose families are not known."""
CALLS = 6
LABELS = (40, 100, 300, 1000)
"""Questions by which the workers of a small pool are known."""
PRICES = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05)


def make_prior(without: str | None = None, seed: int = 0) -> AgreementPrior:
    """The prior of all sources but one."""
    worlds: list[TrainingDraws] = []
    for source, parts in SETS.items():
        if source != without:
            rng = np.random.Generator(np.random.PCG64(seed))
            worlds += [_draw_world(_outcomes(parts[n % len(parts)]), rng) for n in range(WORLDS)]
    return fit_agreement_prior(worlds)


@cache
def _outcomes(name: str) -> History:
    return history_from_record(load_recorded(name, with_texts=False)).drop_unscored()


def _draw_world(history: History, rng: np.random.Generator) -> TrainingDraws:
    """Some workers, known by some families, on questions of the others."""
    size = int(rng.integers(3, min(len(history.workers), 10) + 1))
    workers = [history.workers[m] for m in rng.permutation(len(history.workers))[:size]]
    family_n = np.unique(np.asarray(history.families), return_inverse=True)[1]
    known_f = rng.random(family_n.max() + 1) < rng.uniform(0.3, 0.8)
    known_f[rng.permutation(len(known_f))[:2]] = (True, False)
    known_n, other_n = (
        rng.permutation(np.flatnonzero(known_f[family_n] == is_known)) for is_known in (True, False)
    )
    taught = history.select(known_n[: int(rng.choice(LABELS))], workers)
    asked = history.select(other_n[:QUESTIONS], workers)
    assert taught.samples is not None  # noqa: S101 - all of these sets have answers
    count_m = (~np.isnan(taught.scores_qm)).sum(axis=0)
    mean_m = (np.nansum(taught.scores_qm, axis=0) + 0.5) / (count_m + 1)
    order = DrawOrder(
        again=float(rng.choice((0.0, 0.02, 0.1, 1.0))), thrift=float(rng.choice((0, 0, 0.1, 1.0)))
    )
    worth_m = np.exp(rng.normal(0, 1.0, size)) if rng.integers(2) else np.ones(size)
    worth_m = worth_m / worth_m.mean()
    return simulate_draws(
        asked,
        np.broadcast_to(mean_m, (len(asked.questions), size)),
        order,
        CALLS,
        cost_m=float(rng.choice(PRICES)) * worth_m,
        calls_worth_m=worth_m,
        collisions=collision_rate(taught.samples.answers_qms, taught.samples.credit_qms),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit it and write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--without", choices=SETS)
    asked = parser.parse_args(arguments)
    limit_blas_to_one_thread()
    prior = make_prior(asked.without)
    asked.out.write_bytes(orjson.dumps(prior.to_json(), option=orjson.OPT_INDENT_2) + b"\n")
    print(f"{asked.out}: {prior.weights_kf.shape} and {prior.onward_kg.shape}")


if __name__ == "__main__":
    main()
