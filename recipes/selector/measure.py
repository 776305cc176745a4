"""The learned selector and the cascade on recorded pools: `measure.py OUT.jsonl [CASE...]`.

The protocol, fixed before what it measures was tuned:

- Sets, splits and comparators are those below. `--seeds 0-4` are reported; whatever was tuned was
  tuned on seeds from 100 on.
- The cascade's shipped prior was fitted on these very sets, so here each set is measured with a
  prior that was fitted without its source (`fit_prior.py`), which is kept beside OUT.
- Everything is chosen inside the training part; the split's calibration part is training too.

One line a set, split and seed, as soon as it is measured; lines that OUT has already are skipped.
Of sets without answers, only the text routers are measured. `--wanted` says on which splits mini or
the cascade is more than a point below the best single worker, and where the vote is above every arm
of the cascade. `--table` prints them: the mean over the seeds, the difference to the best single worker with its
interval (10,000 resamples of whole families on unseen families, of questions on random splits),
and the worst split.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from fit_prior import make_prior
from numpy.typing import NDArray

from batuta.conductors.selector import Selector
from batuta.embedded.blas import limit_blas_to_one_thread
from batuta.errors import SourceError
from batuta.lab.baselines.cascade_training import fit_cascade
from batuta.lab.baselines.routing import avengers, knn
from batuta.lab.evals.learned_methods import QUESTION_FEATURES
from batuta.lab.learners.agreement import AgreementPrior, load_shipped_prior
from batuta.lab.learners.history import History, history_from_record
from batuta.lab.learners.selector_training import SelectorRecipe, fit_selector
from batuta.lab.tasks.recorded import (
    RECORDED_NAMES,
    RecordedOutcomes,
    load_recorded,
    random_split,
    unseen_family_split,
)

PRICES = (None, 0.005, 0.001)
"""Of the cascade; None: chosen on the training labels."""
SHORT = {
    "hard": "reasoning_gym/hard",
    "easy": "reasoning_gym/easy",
    "mmlu-pro seven": "mmlu_pro/seven",
    "mmlu-pro all": "mmlu_pro/all",
    "medagents test": "medagentsbench/test",
    "medagents hard": "medagentsbench/hard",
    "medagents methods": "medagentsbench/methods",
}
SETS = {**SHORT, **{name: name for name in RECORDED_NAMES if name not in SHORT.values()}}
"""Every recorded set; those that have no answers have no vote and no cascade."""
SPLITS = {"random": random_split, "unseen": unseen_family_split}
CASES = {f"{name}, {split}": (name, split) for split in ("unseen", "random") for name in SETS}
SAMPLES = 10_000
FAR_BELOW = 1.0
"""Points."""
FEWEST_CALLS = 6
"""At most, of the cascade whose calls are for nothing, in a small pool."""
FEW = 40
"""Labels of the arm that has few of them."""
Line = dict[str, Any]
Floats = NDArray[np.floating[Any]]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is missing, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("cases", nargs="*", help="such as 'hard, unseen'; none: all")
    parser.add_argument("--seeds", default="0-4")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--wanted", action="store_true")
    parser.add_argument("--each", action="store_true", help="a line a set, every seed")
    parser.add_argument("--quick", action="store_true", help="one price, all labels")
    parser.add_argument("--most", type=int, help="questions of a set, drawn by lot; none: all")
    parser.add_argument("--shipped-prior", action="store_true", help="which has seen these sets")
    parser.add_argument("--text-only", action="store_true", help="no vote, no cascade, no prior")
    asked = parser.parse_args(arguments)
    out: Path = asked.out
    done = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    if asked.table:
        print_table(done)
        return
    if asked.wanted or asked.each:
        (print_misses if asked.wanted else print_each)(done)
        return
    limit_blas_to_one_thread()
    have = {(line["case"], line["seed"]) for line in done}
    first, _, last = asked.seeds.partition("-")
    for seed in range(int(first), int(last or first) + 1):
        for case in asked.cases or CASES:
            if (case, seed) not in have:
                try:
                    found = measure(
                        case,
                        seed,
                        None if asked.shipped_prior else out.parent,
                        quick=asked.quick,
                        text_only=asked.text_only,
                        most=asked.most,
                    )
                except SourceError as error:
                    print(f"{case}, seed {seed}: {error}")
                    continue
                line = {"case": case, "seed": seed, **found}
                with out.open("a") as file:
                    file.write(json.dumps(line) + "\n")


@cache
def recorded(name: str, most: int | None) -> RecordedOutcomes:
    """A recorded set, read once; at most so many of its questions, drawn by lot."""
    record = load_recorded(name, with_texts=False)
    if most is None or len(record.tasks) <= most:
        return record
    drawn = np.random.Generator(np.random.PCG64(0)).permutation(len(record.tasks))
    return record.select(np.sort(drawn[:most]))


@cache
def prior_without(source: str, folder: Path) -> AgreementPrior:
    """The prior of all other sources, fitted once."""
    path = folder / f"prior-without-{source}.json"
    if not path.exists():
        path.write_bytes(orjson.dumps(make_prior(source).to_json()))
    return AgreementPrior.from_json(orjson.loads(path.read_bytes()))


def measure(
    case: str,
    seed: int,
    folder: Path | None,
    *,
    quick: bool = False,
    text_only: bool = False,
    most: int | None = None,
) -> Line:
    """What each arm earned on each test question, and its calls a question."""
    start = time.process_time()
    name, split = CASES[case]
    record = recorded(SETS[name], most)
    division = SPLITS[split](record, seed)
    known = history_from_record(record, np.concatenate([division.train, division.calibration]))
    test = history_from_record(record, division.test)
    best = known.workers.index(known.best_worker())
    earned: dict[str, Floats] = {"best single": first_credit(test, best)}
    calls: dict[str, float] = {"best single": 1.0}
    whole = SelectorRecipe(features=QUESTION_FEATURES)
    selector = fit_selector(known, whole, seed=seed)
    earned["mini"] = picked_credit(test, selector.choose_indices(test.questions))
    for router in (knn.fit_knn, avengers.fit_avengers):
        fitted = router(known, seed=seed, features=QUESTION_FEATURES)
        places = [int(fitted.score(text).argmax()) for text in test.questions]
        earned[fitted.name.partition("/")[0]] = picked_credit(test, places)
    if test.samples is not None and not text_only:
        source = SETS[name].partition("/")[0]
        prior = load_shipped_prior() if folder is None else prior_without(source, folder)
        measure_answers(known, test, selector, prior, seed, (earned, calls), quick=quick)
    earned["oracle"] = np.nan_to_num(first_credits(test)).max(axis=1)
    return {
        "questions": len(test.questions),
        "rows": division.test.tolist(),
        "families": list(test.families),
        "earned": {arm: np.round(credit, 3).tolist() for arm, credit in earned.items()},
        "calls": calls,
        "cpu seconds": time.process_time() - start,
    }


def measure_answers(
    known: History,
    test: History,
    selector: Selector,
    prior: AgreementPrior,
    seed: int,
    found: tuple[dict[str, Floats], dict[str, float]],
    *,
    quick: bool,
) -> None:
    """What those earn that look at answers, put into `found`."""
    earned, calls = found
    best = known.workers.index(known.best_worker())
    earned["vote"], calls["vote"] = plurality_credit(test, best), float(len(test.workers))
    if known.runs_qm[:, best].max() >= 3 <= test.runs_qm[:, best].min():
        earned["self-consistency@3"] = majority_credit(test, best)
        calls["self-consistency@3"] = 3.0
    everyone = max(FEWEST_CALLS, len(known.workers))
    ways = [(f"cascade@{price:g}" if price else "cascade", price, None) for price in PRICES]
    free = ("cascade, calls for nothing", 0.0, everyone)
    for name, price, most in [ways[0], free] if quick else [*ways, free]:
        cascade = fit_cascade(
            known, seed=seed, price=price, calls=most, selector=selector, prior=prior
        )
        earned[name], drawn_n = cascade.replay_history(test)
        calls[name] = float(drawn_n.mean())
        if price is None:
            calls["(default price)"] = cascade.price
    if not quick:
        measure_few_labels(known, test, prior, seed, found)


def measure_few_labels(
    known: History,
    test: History,
    prior: AgreementPrior,
    seed: int,
    found: tuple[dict[str, Floats], dict[str, float]],
) -> None:
    """What the best single worker and the cascade earn that know few labels, put into `found`."""
    earned, calls = found
    rng = np.random.Generator(np.random.PCG64(seed))
    few = known.select(rng.permutation(len(known.questions))[:FEW])
    earned[f"best single, {FEW} labels"] = first_credit(
        test, known.workers.index(few.best_worker())
    )
    recipe = SelectorRecipe(features=QUESTION_FEATURES)
    sparse = fit_cascade(few, recipe, seed=seed, prior=prior)
    earned[f"cascade, {FEW} labels"], drawn_n = sparse.replay_history(test)
    calls[f"cascade, {FEW} labels"] = float(drawn_n.mean())


def first_credit(test: History, worker: int) -> Floats:
    """What the worker's first answer earns."""
    return picked_credit(test, [worker] * len(test.questions))


def picked_credit(test: History, places: Sequence[int]) -> Floats:
    """What the first answers of the workers picked earn."""
    return np.nan_to_num(first_credits(test)[np.arange(len(places)), np.asarray(places, int)])


def first_credits(test: History) -> Floats:
    """What each worker's first answer earns; its mean, where only that is known: (q, m)."""
    return test.scores_qm if test.samples is None else test.samples.credit_qms[:, :, 0]


def plurality_credit(test: History, best: int) -> Floats:
    """What the most frequent first answer earns; of equals, that of the best worker, or first."""
    assert test.samples is not None  # noqa: S101 - the caller looked
    order = [best, *(m for m in range(len(test.workers)) if m != best)]
    codes, credit = (a[:, order, 0] for a in (test.samples.answers_qms, test.samples.credit_qms))
    return _majority(codes, credit)


def majority_credit(test: History, worker: int) -> Floats:
    """What the most frequent of three answers of a worker earns."""
    assert test.samples is not None  # noqa: S101 - the caller looked
    return _majority(
        test.samples.answers_qms[:, worker, :3], test.samples.credit_qms[:, worker, :3]
    )


def _majority(codes_qk: NDArray[np.int32], credit_qk: Floats) -> Floats:
    same = (codes_qk[:, :, None] == codes_qk[:, None, :]) & (codes_qk >= 0)[:, :, None]
    leader = same.sum(axis=2).argmax(axis=1)
    return np.nan_to_num(credit_qk[np.arange(len(leader)), leader])


def print_table(lines: list[Line]) -> None:
    """Each case: means, differences, intervals, the worst split; then every seed."""
    by_case: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        by_case[str(line["case"])].append(line)
    for case, found in by_case.items():
        found.sort(key=lambda line: line["seed"])
        print(f"\n**{case}**, seeds {', '.join(str(line['seed']) for line in found)}\n")
        seeds = " | ".join(str(line["seed"]) for line in found)
        print(f"| arm | right % | calls | over best single | 95 % | {seeds} |")
        print("|---" * (5 + len(found)) + "|")
        for arm in found[0]["earned"]:
            print(row(arm, found, whole_families="unseen" in case))


def print_each(lines: list[Line]) -> None:
    """A line for each set and split: what the main arms earned on each seed, one after another."""
    arms = ("best single", "mini", "cascade", "cascade, calls for nothing", "vote")
    by_case: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        by_case[str(line["case"])].append(line)
    print(f"| set, split | seeds | {' | '.join(arms)} |\n|---|---{'|---' * len(arms)}|")
    for case, found in sorted(by_case.items(), key=lambda one: one[0].split(", ")[::-1]):
        found.sort(key=lambda line: line["seed"])
        cells = [each_seed(arm, found) for arm in arms]
        seeds = " ".join(str(line["seed"]) for line in found)
        print(f"| {case} | {seeds} | {' | '.join(cells)} |")


def each_seed(arm: str, found: list[Line]) -> str:
    """Percent right on each seed, and the mean number of calls where it is not one."""
    have = [line for line in found if arm in line["earned"]]
    right = " ".join(f"{100 * np.mean(line['earned'][arm]):.1f}" for line in have)
    calls = np.mean([line["calls"].get(arm, 1.0) for line in have]) if have else 1.0
    return right + (f" ({calls:.2f})" if calls != 1 else "") if have else "–"


def print_misses(lines: list[Line]) -> None:
    """Splits far below the best single worker, and splits where the vote is above the cascade."""
    for split in SPLITS:
        found = [line for line in lines if str(line["case"]).endswith(split)]
        for arm in ("mini", "cascade"):
            having = [line for line in found if arm in line["earned"]]
            gaps = [(points_ahead(line, arm, "best single"), line) for line in having]
            below = [(ahead, line) for ahead, line in gaps if ahead < -FAR_BELOW]
            print(
                f"{split}: {arm} is below by more than {FAR_BELOW} on {len(below)} of {len(gaps)}"
            )
            for ahead, line in sorted(below, key=lambda one: one[0]):
                print(f"  {line['case']}, seed {line['seed']}: {ahead:+.1f} of {line['questions']}")
        voted = [line for line in found if "vote" in line["earned"]]
        for line in voted:
            arms = [arm for arm in line["earned"] if arm.startswith("cascade")]
            least = max(
                points_ahead(line, arm, "vote") for arm in arms if not arm.endswith("labels")
            )
            if least < 0:
                print(f"  {line['case']}, seed {line['seed']}: the vote is above by {-least:.1f}")
        print(f"{split}: {len(voted)} splits with a vote")


def points_ahead(line: Line, arm: str, other: str) -> float:
    """Points by which an arm is ahead of another one."""
    return 100 * float(np.mean(line["earned"][arm]) - np.mean(line["earned"][other]))


def row(arm: str, found: list[Line], *, whole_families: bool) -> str:
    """An arm's line of the table."""
    few = arm.endswith("labels")
    base = f"best single, {FEW} labels" if few else "best single"
    parts = [np.asarray(line["earned"][arm]) for line in found if arm in line["earned"]]
    less = [np.asarray(line["earned"][base]) for line in found if arm in line["earned"]]
    here = [line for line in found if arm in line["earned"]]
    calls = [line["calls"].get(arm, 1.0) for line in here]
    low, high = interval(here, parts, less, whole_families=whole_families)
    right = 100 * np.concatenate(parts).mean()
    ahead = 100 * (np.concatenate(parts) - np.concatenate(less)).mean()
    seeds = " | ".join(f"{100 * one.mean():.1f}" for one in parts)
    shown = f"{ahead:+.1f} | {low:+.1f} to {high:+.1f}" if arm != base else "– | –"
    return f"| {arm} | {right:.1f} | {np.mean(calls):.2f} | {shown} | {seeds} |"


def interval(
    found: list[Line], parts: list[Floats], less: list[Floats], *, whole_families: bool
) -> tuple[float, float]:
    """95 % of the mean difference in points, by the bootstrap over families or questions."""
    sums: dict[Any, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for line, ours, its in zip(found, parts, less, strict=True):
        units = line["families"] if whole_families else line["rows"]
        for unit, ahead in zip(units, ours - its, strict=True):
            sums[unit][0] += float(ahead)
            sums[unit][1] += 1
    total_u, count_u = np.asarray(list(sums.values())).T
    rng = np.random.Generator(np.random.PCG64(0))
    means = []
    for _ in range(SAMPLES):
        drawn = rng.integers(len(total_u), size=len(total_u))
        means.append(100 * total_u[drawn].sum() / count_u[drawn].sum())
    return float(np.quantile(means, 0.025)), float(np.quantile(means, 0.975))


if __name__ == "__main__":
    main()
