"""What was measured, as JSON: the figures that every other form of the report shows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict
from decimal import Decimal
from math import fsum
from statistics import stdev
from typing import Any

from batuta.evals.evaluate import Evaluation
from batuta.evals.ledger import Result
from batuta.evals.runner import INVALID
from batuta.evals.stats import FEWEST, bootstrap, corrected, difference, interval, mean

Json = dict[str, Any]

UNSEEN = "unseen"
"""The split that draws whole families, so that they and not their questions are independent."""


def report(evaluation: Evaluation, command: str = "") -> Json:
    """The whole report; figures are means over scored runs, accuracies are shares."""
    tasks, terms, subject = evaluation.tasks, evaluation.terms, evaluation.subject
    grouped = tasks.split == UNSEEN
    return {
        "systems": {name: summary(runs, grouped) for name, runs in evaluation.results.items()},
        "differences": _differences(evaluation, grouped),
        "references": [system.name for system in evaluation.systems if system.reference],
        "fitted": [system.name for system in evaluation.systems if system.fitted],
        "tasks": tasks.name,
        "questions": len({task.id for part in evaluation.parts for task in part.tasks.tasks}),
        "seeds": [seed for part in evaluation.parts for seed in part.seeds],
        "split": tasks.split or None,
        "concurrency": terms.concurrency,
        "pool": [str(worker.id) for worker in subject.pool],
        "sub_pool": terms.sub_pool,
        "simulated": subject.simulated,
        "recorded": subject.deck is not None,
        "calibration": {
            "needed": any(system.calibrated for system in evaluation.systems),
            "questions": _known_questions(evaluation),
            "strengths": {str(worker): s for worker, s in evaluation.strengths.items()},
        },
        "budgets": [asdict(budget) for budget in evaluation.budgets],
        "left_out": dict(evaluation.left_out),
        "command": command,
    }


def _known_questions(evaluation: Evaluation) -> int:
    """The mean number of questions that a part's best worker was chosen by."""
    if not evaluation.strengths:
        return 0
    known = [len(part.history.questions) for part in evaluation.parts if part.history]
    return round(sum(known) / len(known)) if known else 0


def summary(runs: Sequence[Result], grouped: bool = False) -> Json:  # noqa: FBT001, FBT002
    """One system's figures; `grouped`: families were drawn, not questions."""
    scored = [run for run in runs if run.score is not None]
    return {
        "n": len(scored),
        "accuracy": mean(_scores(scored)),
        "ci95": _interval(scored, grouped=grouped),
        **_by_seed(scored),
        "tokens": _known([run.tokens for run in scored]),
        "usd": _known([run.usd for run in scored]),
        "judge_usd": _known([run.judge_usd for run in scored]),
        "calls": mean([run.calls for run in scored]),
        "steps": mean([len(run.steps) for run in scored]),
        "seconds": _known([run.seconds for run in scored]),
        "conductor_tokens": mean([run.conductor_tokens for run in scored]),
        "rounds": mean([run.rounds for run in scored]),
        "depth": mean([run.depth for run in scored]),
        "failed_steps": sum(run.failed for run in scored),
        "simulated_runs": sum(run.simulated > 0 for run in scored),
        "invalid": sum(run.outcome == INVALID for run in scored),
        "unscored": len(runs) - len(scored),
        "unscored_because": dict(Counter(r.unscored for r in runs if r.unscored)),
        "outcomes": dict(sorted(Counter(run.outcome for run in runs).items())),
        "by_difficulty": dict(sorted(_part(scored, _difficulty).items(), key=_as_number)),
        "by_family": _part(scored, _family),
        "workers": _workers(scored),
    }


def scores(runs: Sequence[Result]) -> dict[str, float]:
    """Mean score by task, of the tasks that have one."""
    found = {task: _scores(group) for task, group in _by(runs, _task).items()}
    return {task: sum(values) / len(values) for task, values in found.items() if values}


def _scores(runs: Sequence[Result]) -> list[float]:
    return [run.score for run in runs if run.score is not None]


def _interval(scored: Sequence[Result], *, grouped: bool) -> list[float] | None:
    groups = [_scores(group) for group in _by(scored, _family if grouped else _task).values()]
    if len(groups) < (FEWEST if grouped else 1):
        return None
    return list(bootstrap(groups) if grouped else interval(groups))


def _by_seed(scored: Sequence[Result]) -> Json:
    """The accuracy with each seed, and how much they scatter; unknown of a single one."""
    found = {seed: mean(_scores(own)) for seed, own in sorted(_by(scored, _seed).items(), key=_int)}
    known = [accuracy for accuracy in found.values() if accuracy is not None]
    return {"by_seed": found, "seed_sd": stdev(known) if len(known) > 1 else None}


def _task(run: Result) -> str:
    return run.task


def _seed(run: Result) -> str:
    return str(run.seed)


def _family(run: Result) -> str:
    return run.family


def _difficulty(run: Result) -> str | None:
    return None if run.difficulty is None else f"{run.difficulty:g}"


def _as_number(item: tuple[str, Any]) -> float:
    return float(item[0])


def _int(item: tuple[str, Any]) -> int:
    return int(item[0])


def _by(runs: Sequence[Result], key: Callable[[Result], str | None]) -> dict[str, list[Result]]:
    groups: dict[str, list[Result]] = defaultdict(list)
    for run in runs:
        if (name := key(run)) is not None:
            groups[name].append(run)
    return groups


def _part(runs: Sequence[Result], key: Callable[[Result], str | None]) -> Json:
    """The main figures of each group."""
    return {
        name: {
            "n": len(group),
            "accuracy": mean(_scores(group)),
            "steps": mean([len(run.steps) for run in group]),
            "calls": mean([run.calls for run in group]),
            "depth": mean([run.depth for run in group]),
        }
        for name, group in sorted(_by(runs, key).items())
    }


def _workers(runs: Sequence[Result]) -> dict[str, dict[str, int]]:
    """How often each worker was called for each kind of subtask."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for run in runs:
        for step in run.steps:
            found[step.worker][step.kind] += 1
    return {worker: dict(sorted(kinds.items())) for worker, kinds in sorted(found.items())}


def _known(values: Sequence[float | Decimal | None]) -> float | None:
    """The mean; None if one of them is not known."""
    known = [float(value) for value in values if value is not None]
    return fsum(known) / len(known) if known and len(known) == len(values) else None


def _differences(evaluation: Evaluation, grouped: bool) -> Json:  # noqa: FBT001
    """Each system against the first one, on the questions that both have."""
    results = evaluation.results
    if len(results) < 2:  # noqa: PLR2004 - nothing to compare
        return {}
    against, theirs = next((name, scores(runs)) for name, runs in results.items())
    families = {run.task: run.family for runs in results.values() for run in runs}
    found = {
        name: difference(scores(runs), theirs, families if grouped else None)
        for name, runs in results.items()
        if name != against
    }
    known = corrected({name: delta for name, delta in found.items() if delta is not None})
    return {
        "against": against,
        "correction": "Holm",
        "systems": {name: asdict(delta) for name, delta in known.items()},
    }
