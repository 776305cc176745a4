"""Fits what world 2 takes from recorded answers of several samples (design/0015-world-2.md).

    .venv/bin/python bench/fit_world2.py OUTCOMES.parquet

The file has a row for each sample: query_id (`split/category/task/…`), model, score, answer. Needs
pyarrow. The record is not part of this repository; its source is named in the design note.
"""

from __future__ import annotations

import math
import random
import sys
from collections import defaultdict
from itertools import combinations
from statistics import NormalDist
from typing import Any

import numpy as np
import pyarrow.parquet as pq

NORMAL = NormalDist()
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(40)
PAIRS = 1200
SAMPLES = 3
_erf = np.vectorize(math.erf, otypes=[float])


def both_right(first: float, second: float, correlation: float) -> float:
    """Chance that two probits of those shares both come out right."""
    root, rest = math.sqrt(correlation), math.sqrt(1 - correlation)
    total = np.ones_like(NODES)
    for share in (first, second):
        at = (NORMAL.inv_cdf(share) - root * NODES) / rest
        total = total * 0.5 * (1 + _erf(at / math.sqrt(2)))
    return float((WEIGHTS / WEIGHTS.sum() * total).sum())


def fit_correlation(rows: list[tuple[float, float, float, int]]) -> float:
    """The latent correlation at which as many pairs are both right as were seen."""
    seen = sum(row[2] * row[3] for row in rows)
    low, high = 0.0, 0.999
    for _ in range(14):
        middle = (low + high) / 2
        if sum(both_right(a, b, middle) * n for a, b, _, n in rows) < seen:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def read_samples(path: str) -> dict[str, dict[str, dict[str, list[tuple[bool, str]]]]]:
    """task -> model -> question -> its samples (right, answer)."""
    table: dict[str, list[Any]] = pq.read_table(path).to_pydict()
    found: Any = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    columns = (table[name] for name in ("query_id", "model", "score", "answer"))
    for query, model, score, answer in zip(*columns, strict=True):
        if query.startswith("easy/"):
            known = (score >= 0.99, (answer or "").strip())
            found[query.rsplit("/", 1)[0]][model][query].append(known)
    return found


def fit_repeats(tasks: Any) -> tuple[float, float]:
    """Share of pairs of wrong answers that are the same: of one model, of two."""
    own, other = [0, 0], [0, 0]
    for models in tasks.values():
        for asked in models.values():
            for samples in asked.values():
                wrong = [a for right, a in samples[:SAMPLES] if not right and a]
                for one, two in combinations(wrong, 2):
                    own[0], own[1] = own[0] + (one == two), own[1] + 1
        for first, second in combinations(models.values(), 2):
            for query in first.keys() & second.keys():
                (right, one), (too, two) = first[query][0], second[query][0]
                if not right and not too and one and two:
                    other[0], other[1] = other[0] + (one == two), other[1] + 1
    return own[0] / own[1], other[0] / other[1]


def fit_right(tasks: Any) -> None:
    """Prints the correlations, the spreads, and the gain of three samples."""
    same, across, once, best = [], [], [], []
    probits: Any = defaultdict(dict)
    for task, models in tasks.items():
        shares: dict[str, Any] = {}
        for model, asked in models.items():
            whole = {q: s for q, s in asked.items() if len(s) >= SAMPLES}
            if len(whole) < 30:
                continue
            right = np.array([[r for r, _ in s[:SAMPLES]] for s in whole.values()], float)
            shares[model] = dict(zip(whole, right.mean(1), strict=True))
            mean = right.mean()
            once.append(mean)
            best.append(right.max(1).mean())
            probits[model][task] = NORMAL.inv_cdf(min(0.98, max(0.02, mean)))
            if 0.05 < mean < 0.95:
                pairs = [(right[:, i] * right[:, j]).mean() for i, j in ((0, 1), (0, 2), (1, 2))]
                same.append((mean, mean, float(np.mean(pairs)), len(right)))
        for one, two in combinations(shares.values(), 2):
            common = sorted(one.keys() & two.keys())
            if len(common) < 30:
                continue
            a, b = (np.array([each[q] for q in common]) for each in (one, two))
            if 0.05 < a.mean() < 0.95 and 0.05 < b.mean() < 0.95:
                across.append((a.mean(), b.mean(), (a * b).mean(), len(common)))
    across = random.Random(1).sample(across, min(PAIRS, len(across)))
    print(f"one model's samples {fit_correlation(same):.3f} ({len(same)} models x tasks)")
    print(f"two models {fit_correlation(across):.3f} ({len(across)} pairs x tasks)")
    print(f"one sample right {np.mean(once):.3f}, one of three {np.mean(best):.3f}")
    common = [t for t in tasks if all(t in each for each in probits.values())]
    table = np.array([[each[t] for t in common] for each in probits.values()])
    models, tasks_ = table.mean(1, keepdims=True), table.mean(0, keepdims=True)
    rest = table - models - tasks_ + table.mean()
    freedom = (table.shape[0] - 1) * (table.shape[1] - 1)
    print(f"models {models.std(ddof=1):.3f}, tasks {tasks_.std(ddof=1):.3f}")
    print(f"model x task {math.sqrt((rest**2).sum() / freedom):.3f} probits")


def main() -> None:
    tasks = read_samples(sys.argv[1])
    fit_right(tasks)
    own, other = fit_repeats(tasks)
    print(f"the same wrong answer: one model {own:.3f}, two models {other:.3f}")


if __name__ == "__main__":
    main()
