"""Builds a report's figures as JSON values, from which all other formats are rendered."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict
from decimal import Decimal
from functools import partial
from math import fsum
from operator import attrgetter
from statistics import stdev
from typing import Any

from batuta.core import TaskId, WorkerId
from batuta.lab.evals.cost_quality import build_curves, build_recovered
from batuta.lab.evals.evaluation import Evaluation, explain_best
from batuta.lab.evals.result_log import TrialResult
from batuta.lab.evals.runner import INVALID_PLAN
from batuta.lab.evals.stats import (
    MIN_GROUPS,
    RunKey,
    bootstrap_interval,
    correct_p_values,
    mean_or_none,
    paired_difference,
    score_interval,
)
from batuta.lab.learners.history import History

Json = dict[str, Any]

ENOUGH = 0.9
"""The share of runs whose tokens, dollars or seconds must be known for a mean. Of three or more
runs, one may always be unknown."""

UNSEEN = "unseen"
"""The split that holds out whole families, so that families, not questions, are independent."""


def build_report(evaluation: Evaluation, command: str = "") -> Json:
    """Return the whole report; figures are means over scored runs, and accuracies are in [0, 1].

    `command` is the command line that made the evaluation; empty if unknown.
    """
    tasks, terms, subject = evaluation.tasks, evaluation.options, evaluation.subject
    grouped = tasks.split == UNSEEN
    systems = {name: summarize_runs(runs, grouped) for name, runs in evaluation.results.items()}
    return {
        "systems": systems,
        "differences": _compare_systems(evaluation, grouped),
        "references": [system.name for system in evaluation.systems if system.is_reference],
        "fitted": [system.name for system in evaluation.systems if system.fitter],
        "tasks": tasks.name,
        "questions": len({task.id for part in evaluation.parts for task in part.tasks.tasks}),
        "seeds": [seed for part in evaluation.parts for seed in part.seeds],
        "split": tasks.split or None,
        "concurrency": terms.concurrency,
        "pool": [str(worker.id) for worker in subject.pool],
        "sub_pool": terms.sub_pool,
        "simulated": subject.simulated,
        "recorded": subject.replay_pool is not None,
        "calibration": _describe_calibration(evaluation),
        "budgets": [asdict(budget) for budget in evaluation.budgets],
        "left_out": dict(evaluation.left_out),
        "unasked": evaluation.unasked,
        **_cost_quality(evaluation, systems),
        "incomplete": 0 if subject.replay_pool is None else subject.replay_pool.record.incomplete,
        "unread": [] if subject.replay_pool is None else list(subject.replay_pool.record.unread),
        "command": command,
    }


def _cost_quality(evaluation: Evaluation, systems: Json) -> Json:
    """Return the curves of accuracy over cost, the recovered gaps, and the cascades' rules."""
    references = [system.name for system in evaluation.systems if system.is_reference]
    workers = [str(worker.id) for worker in evaluation.subject.pool]
    about = {name: sorted({one.about for one in parts if one and one.about})
             for name, parts in evaluation.fitted.items()}  # fmt: skip
    return {
        "cost_quality": build_curves(systems, references, workers),
        "recovered_gap": build_recovered(evaluation.fitted, partial(_worker_credit, evaluation)),
        "asks": {name: details for name, details in about.items() if details},
    }


def _worker_credit(
    evaluation: Evaluation, part: int, worker: str, tasks: Sequence[str]
) -> list[float | None] | None:
    """Return the scores of a `CreditTable`, as recorded or measured here."""
    replays = evaluation.parts[part].subject.replay_pool
    if replays is not None:
        record = replays.record
        q_of = {task.id: q for q, task in enumerate(record.tasks)}
        credit_q = record.credit_qm()[:, record.models.index(worker)]
        return [float(credit_q[q_of[TaskId(task)]]) for task in tasks]
    seeds = evaluation.parts[part].seeds
    if worker not in evaluation.results:
        return None
    known = task_scores(evaluation.results[worker])
    return [mean_or_none([known[task, s] for s in seeds if (task, s) in known]) for task in tasks]


def _describe_calibration(evaluation: Evaluation) -> Json:
    """Describe how the best single worker was chosen, or assumed if nothing was measured."""
    pool = evaluation.subject.pool
    needing = [system.name for system in evaluation.systems if system.needs_calibration]
    measured = any(strength is not None for strength in evaluation.strengths.values())
    known = [part.history for part in evaluation.parts if part.history] if measured else []
    return {
        "needed": bool(needing),
        "questions": _calibration_questions(evaluation),
        "strengths": {str(worker): s for worker, s in evaluation.strengths.items()},
        "unmeasured": [] if measured else needing,
        "assumed": str(pool.ranked()[0].id),
        "believed": any(worker.strength is not None for worker in pool),
        "why": explain_best(pool),
        "asked": sum(len(one.questions) for one in known),
        "measured": {
            str(worker): sum(_count_measured(one, worker) for one in known)
            for worker in evaluation.strengths
            if all(worker in one.workers for one in known)
        },
    }


def _count_measured(known: History, worker: WorkerId) -> int:
    """Count the questions on which the worker has an outcome."""
    return int((known.runs_qm[:, known.workers.index(worker)] > 0).sum())


def _calibration_questions(evaluation: Evaluation) -> int:
    """Return the mean number, over the parts, of questions by which the best worker was chosen."""
    if not evaluation.strengths:
        return 0
    known = [len(part.history.questions) for part in evaluation.parts if part.history]
    return round(sum(known) / len(known)) if known else 0


def summarize_runs(runs: Sequence[TrialResult], grouped: bool = False) -> Json:  # noqa: FBT001, FBT002
    """Return one system's figures; with `grouped`, whole families are resampled, not questions."""
    scored = [run for run in runs if run.score is not None]
    return {
        "n": len(scored),
        "accuracy": mean_or_none(_run_scores(scored)),
        "ci95": _confidence_interval(scored, grouped=grouped),
        **_seed_accuracies(scored),
        "tokens": _known_mean([run.tokens for run in scored]),
        "tokens_unknown": sum(run.tokens is None for run in scored),
        "usd": _known_mean([run.usd for run in scored]),
        "usd_unknown": sum(run.usd is None for run in scored),
        "judge_usd": _known_mean([run.judge_usd for run in scored]),
        "calls": mean_or_none([run.calls for run in scored]),
        "steps": mean_or_none([len(run.steps) for run in scored]),
        "seconds": _known_mean([run.seconds for run in scored]),
        "conductor_tokens": mean_or_none([run.conductor_tokens for run in scored]),
        "rounds": mean_or_none([run.rounds for run in scored]),
        "depth": mean_or_none([run.depth for run in scored]),
        "failed_steps": sum(run.failed for run in scored),
        "simulated_runs": sum(run.simulated > 0 for run in scored),
        "invalid": sum(run.outcome == INVALID_PLAN for run in scored),
        "unscored": len(runs) - len(scored),
        "unscored_because": dict(Counter(r.unscored for r in runs if r.unscored)),
        "outcomes": dict(sorted(Counter(run.outcome for run in runs).items())),
        "by_difficulty": _group_figures(scored, _round_difficulty),
        "by_family": _group_figures(scored, attrgetter("family")),
        "workers": _count_worker_steps(scored),
    }


def task_scores(runs: Sequence[TrialResult]) -> dict[RunKey, float]:
    """Return the known scores, by question and seed."""
    return {(run.task, run.seed): run.score for run in runs if run.score is not None}


def _run_scores(runs: Sequence[TrialResult]) -> list[float]:
    return [run.score for run in runs if run.score is not None]


def _confidence_interval(scored: Sequence[TrialResult], *, grouped: bool) -> list[float] | None:
    groups = [
        _run_scores(group)
        for group in _group_runs(scored, attrgetter("family" if grouped else "task")).values()
    ]
    if len(groups) < (MIN_GROUPS if grouped else 1):
        return None
    return list(bootstrap_interval(groups) if grouped else score_interval(groups))


def _seed_accuracies(scored: Sequence[TrialResult]) -> Json:
    """Return the accuracy with each seed, and their standard deviation if there are several."""
    found = {
        str(seed): mean_or_none(_run_scores(own))
        for seed, own in sorted(_group_runs(scored, attrgetter("seed")).items())
    }
    known = [accuracy for accuracy in found.values() if accuracy is not None]
    return {"by_seed": found, "seed_sd": stdev(known) if len(known) > 1 else None}


def _group_runs(
    runs: Sequence[TrialResult], key: Callable[[TrialResult], Any]
) -> dict[Any, list[TrialResult]]:
    groups: dict[Any, list[TrialResult]] = defaultdict(list)
    for run in runs:
        if (name := key(run)) is not None:
            groups[name].append(run)
    return groups


def _round_difficulty(run: TrialResult) -> float | None:
    return None if run.difficulty is None else float(f"{run.difficulty:g}")


def _group_figures(runs: Sequence[TrialResult], key: Callable[[TrialResult], Any]) -> Json:
    """Return the main figures of each group."""
    return {
        name if isinstance(name, str) else f"{name:g}": {
            "n": len(group),
            "accuracy": mean_or_none(_run_scores(group)),
            "steps": mean_or_none([len(run.steps) for run in group]),
            "calls": mean_or_none([run.calls for run in group]),
            "depth": mean_or_none([run.depth for run in group]),
        }
        for name, group in sorted(_group_runs(runs, key).items())
    }


def _count_worker_steps(runs: Sequence[TrialResult]) -> dict[str, dict[str, int]]:
    """Count each worker's steps by kind of subtask."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for run in runs:
        for step in run.steps:
            found[step.worker][step.kind] += 1
    return {worker: dict(sorted(kinds.items())) for worker, kinds in sorted(found.items())}


def _known_mean(values: Sequence[float | Decimal | None]) -> float | None:
    """Return the mean of the known values; None if fewer are known than `ENOUGH` demands."""
    known = [float(value) for value in values if value is not None]
    few = len(values) - 1 if len(values) > 2 else len(values)  # noqa: PLR2004 - one of two is half
    needed = min(ENOUGH * len(values), few)
    return fsum(known) / len(known) if known and len(known) >= needed else None


def _compare_systems(evaluation: Evaluation, grouped: bool) -> Json:  # noqa: FBT001
    """Compare each system with the first system, on the runs that both have."""
    results = evaluation.results
    if len(results) < 2:  # noqa: PLR2004 - nothing to compare
        return {}
    against, theirs = next((name, task_scores(runs)) for name, runs in results.items())
    families = {run.task: run.family for runs in results.values() for run in runs}
    found = {
        name: paired_difference(task_scores(runs), theirs, families if grouped else None)
        for name, runs in results.items()
        if name != against
    }
    known = correct_p_values({name: delta for name, delta in found.items() if delta is not None})
    return {
        "against": against,
        "correction": "Holm",
        "systems": {name: asdict(delta) for name, delta in known.items()},
    }
