# ruff: noqa: INP001, T201 - a script that prints a table
"""The learned selector and the cascade on recorded pools: `measure.py OUT.jsonl [CASE...]`.

One line a set, split and seed, as soon as it is measured; lines that OUT has already are skipped.
`measure.py OUT.jsonl --table` prints the means.
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from batuta.baselines.cascade import fit_cascade
from batuta.baselines.routing import routerdc
from batuta.embedded.blas import limit_blas_to_one_thread
from batuta.evals.learned_methods import QUESTION_FEATURES
from batuta.solvers.features import load_features as reopened
from batuta.solvers.history import History, history_from_record
from batuta.solvers.selector import Selector, SelectorRecipe, fit_selector
from batuta.tasks.recorded import RecordedOutcomes, load_recorded, random_split, unseen_family_split

SEEDS = range(5)
PRICES = (0.001, 0.005)
CASES = {
    "hard, random": ("reasoning_gym/hard", random_split),
    "hard, unseen": ("reasoning_gym/hard", unseen_family_split),
    "easy, random": ("reasoning_gym/easy", random_split),
    "mmlu_pro, random": ("mmlu_pro/seven", random_split),
    "easy, unseen": ("reasoning_gym/easy", unseen_family_split),
    "mmlu_pro, unseen": ("mmlu_pro/seven", unseen_family_split),
    "routerdc, its split": ("routerdc/test", None),
}
"""Name: recorded set, split; None: trained on the set's own training part."""
PAPER = ("mmlu_test", "gsm8k-test", "cmmlu_test", "arc_challenge_test", "humaneval_test")
"""The test sets of the kinds that RouterDC trains on."""
OPTIONS = ("mmlu", "cmmlu", "arc", "ceval", "MATH")
"""Sets whose scores its authors count as right above 0."""
Line = dict[str, Any]


def main() -> None:
    """Measure what is missing, or print the table."""
    out, *wanted = (Path(sys.argv[1]), *sys.argv[2:])
    done = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    if "--table" in wanted:
        table(done)
        return
    limit_blas_to_one_thread()
    have = {(line["case"], line["seed"]) for line in done}
    for seed in SEEDS:
        for case in wanted or CASES:
            if (case, seed) not in have:
                line = {"case": case, "seed": seed, **measured(*parts(case, seed), seed)}
                with out.open("a") as file:
                    file.write(json.dumps(line) + "\n")


@cache
def recorded(name: str) -> RecordedOutcomes:
    """A recorded set, read once."""
    return load_recorded(name, with_texts=False)


def parts(case: str, seed: int) -> tuple[History, History]:
    """What is learned from, and what is measured on."""
    name, split = CASES[case]
    record = recorded(name)
    if split is None:
        return history_from_record(recorded(name.replace("test", "train"))), history_from_record(
            record
        )
    division = split(record, seed)
    known = np.concatenate([division.train, division.calibration])
    return history_from_record(record, known), history_from_record(record, division.test)


def measured(known: History, test: History, seed: int) -> Line:
    """Percent of the test questions, and calls a question; fitted on the known ones only."""
    start = time.process_time()
    best = known.workers.index(known.best_worker())
    selector = fit_selector(known, SelectorRecipe(features=QUESTION_FEATURES), seed=seed)
    line: Line = {
        "questions": len(test.questions),
        "best single": 100 * float(test.scores_qm[:, best].mean()),
        "mini, no guard": 100 * earned(selector, test, guarded=False),
        "mini": 100 * earned(selector, test),
        "oracle": 100 * float(test.scores_qm.max(axis=1).mean()),
        "head": bool(selector.head.weights_fm.any()),
        "µs a decision": decision(selector, test),
    }
    if PAPER[0] in test.families:
        line |= as_in_the_paper(known, test, selector, seed)
    for price in PRICES if known.samples and test.answers else ():
        cascade = fit_cascade(known, seed=seed, price=price, selector=selector)
        credit, calls = cascade.replay_history(test)
        line[f"cascade {price:g}"] = 100 * float(credit.mean())
        line[f"calls {price:g}"] = float(calls.mean())
    return {**line, "cpu seconds": time.process_time() - start}


def earned(selector: Selector, test: History, *, guarded: bool = True) -> float:
    """The mean credit of the workers picked."""
    if guarded:
        picked = np.asarray(selector.choose_indices(test.questions))
    else:
        picked = selector.logits(test.questions)[0].argmax(axis=1)
    return float(test.scores_qm[np.arange(len(picked)), picked].mean())


def as_in_the_paper(known: History, test: History, selector: Selector, seed: int) -> Line:
    """The mean over the five sets of RouterDC's first table, each counted as its authors count."""
    right_qm = test.scores_qm.copy()
    families = np.asarray(test.families)
    for q in np.flatnonzero([family.startswith(OPTIONS) for family in test.families]):
        right_qm[q] = right_qm[q] > 0
    router = routerdc.fit_routerdc(known, seed=seed, features=QUESTION_FEATURES)

    def mean(picked: Any) -> float:
        earned = right_qm[np.arange(len(right_qm)), picked]
        return 100 * float(np.mean([earned[families == name].mean() for name in PAPER]))

    best = max(mean(np.full(len(families), m)) for m in range(right_qm.shape[1]))
    return {
        "five sets: best single": best,
        "five sets: RouterDC": mean([int(router.score(text).argmax()) for text in test.questions]),
        "five sets: mini": mean(np.asarray(selector.choose_indices(test.questions))),
        "five sets: mini, no guard": mean(selector.logits(test.questions)[0].argmax(axis=1)),
    }


def decision(selector: Selector, test: History) -> float:
    """Microseconds of processor time for one decision; the median over 50 questions."""
    selector = replace(selector, features=reopened(*selector.features.save()))  # reads every text
    times: list[float] = []
    for question in test.questions[:50]:
        start = time.process_time()
        selector.choose_indices([question])
        times.append(time.process_time() - start)
    return 1e6 * float(np.median(times))


def table(lines: list[Line]) -> None:
    """The means over the seeds of each case, as Markdown."""
    by_case: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        by_case[str(line["case"])].append(line)
    columns = list(dict.fromkeys(key for line in lines for key in line if key != "case"))
    print("| case | " + " | ".join(columns) + " |\n" + "|---" * (len(columns) + 1) + "|")
    for case, found in by_case.items():
        means = [np.mean([line[c] for line in found]) if c in found[0] else None for c in columns]
        shown = ["–" if mean is None else f"{mean:.2f}" for mean in means]
        shown[0] = f"{len(found)} seeds"
        print(f"| {case} | " + " | ".join(shown) + " |")


if __name__ == "__main__":
    main()
