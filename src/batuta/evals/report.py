"""What was measured, as JSON and as Markdown."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict
from decimal import Decimal
from typing import Any

from batuta.evals.evaluate import Evaluation
from batuta.evals.ledger import Result
from batuta.evals.stats import difference, interval, mean
from batuta.evals.systems import ULTRA

Json = dict[str, Any]


def report(evaluation: Evaluation, command: str = "") -> Json:
    """The whole report; figures are means over scored runs, accuracies are shares."""
    tasks, terms, subject = evaluation.tasks, evaluation.terms, evaluation.subject
    return {
        "systems": {name: summary(runs) for name, runs in evaluation.results.items()},
        "differences": _differences(evaluation),
        "references": [system.name for system in evaluation.systems if system.reference],
        "tasks": tasks.name,
        "questions": len(tasks.tasks),
        "seeds": list(terms.seeds),
        "concurrency": terms.concurrency,
        "pool": [str(worker.id) for worker in subject.pool],
        "sub_pool": terms.sub_pool,
        "simulated": subject.simulated,
        "calibration": {
            "needed": any(system.calibrated for system in evaluation.systems),
            "questions": len(tasks.calibration) if evaluation.strengths else 0,
            "strengths": {str(worker): s for worker, s in evaluation.strengths.items()},
        },
        "equal_calls": evaluation.equal_calls,
        "command": command,
    }


def summary(runs: Sequence[Result]) -> Json:
    """One system's figures."""
    scored = [run for run in runs if run.score is not None]
    groups = [
        [r.score for r in group if r.score is not None] for group in _by(scored, _task).values()
    ]
    return {
        "n": len(scored),
        "accuracy": mean([run.score for run in scored if run.score is not None]),
        "ci95": list(interval(groups)) if groups else None,
        "tokens": mean([run.tokens for run in scored]),
        "usd": _usd(scored),
        "calls": mean([run.calls for run in scored]),
        "steps": mean([len(run.steps) for run in scored]),
        "seconds": mean([run.seconds for run in scored]),
        "conductor_tokens": mean([run.conductor_tokens for run in scored]),
        "rounds": mean([run.rounds for run in scored]),
        "depth": mean([run.depth for run in scored]),
        "failed_steps": sum(run.failed for run in scored),
        "unscored": len(runs) - len(scored),
        "unscored_because": dict(Counter(r.unscored for r in runs if r.unscored)),
        "outcomes": dict(sorted(Counter(run.outcome for run in runs).items())),
        "by_difficulty": dict(sorted(_part(scored, _difficulty).items(), key=_as_number)),
        "by_family": _part(scored, lambda run: run.family),
    }


def scores(runs: Sequence[Result]) -> dict[str, float]:
    """Mean score by task, of the tasks that have one."""
    found: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        if run.score is not None:
            found[run.task].append(run.score)
    return {task: sum(values) / len(values) for task, values in found.items()}


def _task(run: Result) -> str:
    return run.task


def _difficulty(run: Result) -> str | None:
    return None if run.difficulty is None else f"{run.difficulty:g}"


def _as_number(item: tuple[str, Any]) -> float:
    return float(item[0])


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
            "accuracy": mean([run.score for run in group if run.score is not None]),
            "steps": mean([len(run.steps) for run in group]),
            "calls": mean([run.calls for run in group]),
        }
        for name, group in sorted(_by(runs, key).items())
    }


def _usd(runs: Sequence[Result]) -> float | None:
    """Mean dollars; None if a call of any run has no known price."""
    known = [run.usd for run in runs if run.usd is not None]
    if not runs or len(known) < len(runs):
        return None
    return float(sum(known, Decimal(0)) / len(known))


def _differences(evaluation: Evaluation) -> Json:
    """Each system against `ultra`, or against the first one, on the questions that both have."""
    results = evaluation.results
    if len(results) < 2:  # noqa: PLR2004 - nothing to compare
        return {}
    against = ULTRA if ULTRA in results else next(iter(results))
    theirs = scores(results[against])
    found = {
        name: difference(scores(runs), theirs) for name, runs in results.items() if name != against
    }
    return {
        "against": against,
        "systems": {name: asdict(delta) for name, delta in found.items() if delta is not None},
    }
