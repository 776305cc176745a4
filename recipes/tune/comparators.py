"""Methods that a tuning is compared with, each with the same dollars to learn from.

All are run by the same runner, on the same questions, with the same accounting.

- best single: every worker alone, as long as the money lasts.
- self-consistency: five samples of the best single worker, the majority of their answers (Wang et
  al., arXiv 2203.11171).
- mixed vote: the three best workers solve, the best decides.
- random search: random workflows of the library on few questions each, the best few of them again
  on fresh ones.
- LLMSelector (Chen et al., arXiv 2502.14815): a fixed pipeline, plan, solve, check; one step at a
  time gets the worker with the best end-to-end score until nothing changes.
- k-means router: Avengers (arXiv 2505.19797), as `baselines.routing.avengers` has it.
- cascade: FrugalGPT (arXiv 2305.05176), as `baselines.cascade` has it.
- AFlow (Zhang et al., arXiv 2410.10762): a tree of workflows; a parent is drawn by a mixture of
  chance and score, changed by one operator (generate, ensemble, review, custom), scored on the
  same validation questions.
- gepa alone: the best single worker with one instruction, which gepa rewrites (arXiv 2507.19457).

Deviations
- No model writes workflows: AFlow's optimiser and LLMSelector's diagnoser are language models; here
  operators and workers are drawn by lot, and scores are the graded answers.
- AFlow has one model for all operators; here an operator's worker is drawn too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import numpy as np

from batuta.core import Pool, Task, WorkerId
from batuta.lab.baselines import ConductorSolver, SelfConsistency
from batuta.lab.baselines.cascade_training import fit_cascade
from batuta.lab.baselines.routing import avengers
from batuta.lab.evals.learned_methods import measured_history
from batuta.lab.learners.history import History
from batuta.lab.tune.candidate_runner import CandidateRunner, Entry
from batuta.lab.tune.library import Candidate, CandidateStep, StepRole, neighbouring_candidates
from batuta.lab.tune.rewriting import Rewriting, is_rewriting_installed, rewrite_candidate
from batuta.lab.tune.spending import DollarLimit

_AT_ONCE = 10
_SAMPLES, _VOTERS = 5, 3
FEWEST_QUESTIONS = 20
"""That a router or a cascade learns from; with fewer it is the best single worker so far."""
_FEW, _AGAIN, _KEPT = 20, 60, 8
_VALIDATED = 40
_MOST_DRAWN = 600
"""Workflows that are drawn by lot at most, for where calls are free money ends nothing."""
_CHANCE, _SHARPNESS = 0.2, 25.0
"""AFlow's mixture of chance and score, and how sharply scores differ (its lambda; its alpha on
scores from 0 to 1)."""
_MARGIN = 1.5
"""Times the mean call that a later one may cost, which reads others' answers."""
_CALIBRATED = 0.5
"""Share of the money that may go into learning who is the best single worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparatorContext:
    """What a method may use."""

    runner: CandidateRunner
    tasks: Sequence[Task]
    family: Callable[[Task], str]
    usd: float
    """Dollars for learning."""
    seed: int = 0

    @property
    def workers(self) -> tuple[WorkerId, ...]:
        """Everybody."""
        return tuple(worker.id for worker in self.runner.pool)

    def can_pay(self, calls: int, share: float = 1.0) -> bool:
        """Whether so many more calls are likely to fit that share of the money.

        An estimate, so that little is begun in vain; the meter's limit is what holds.
        """
        meter = self.runner.meter
        each = _MARGIN * float(meter.usd) / max(meter.calls, 1)
        return float(meter.usd) + calls * each <= share * self.usd


Fitter = Callable[[ComparatorContext], Awaitable[Entry]]
"""Learns a method; the same entry then runs every question."""


async def fit_comparator(name: str, context: ComparatorContext) -> Entry:
    """Learns the method of that name for the context's dollars, never for more.

    What is run afterwards is not limited.
    """
    meter = context.runner.meter
    meter.limit = DollarLimit(Decimal(str(context.usd)), context.runner.unknown)
    try:
        return await COMPARATORS[name](context)
    finally:
        meter.limit = None


async def _run_solver(
    context: ComparatorContext, tasks: Sequence[Task], entries: Sequence[Candidate], share: float
) -> list[Task]:
    """As many of the tasks as there is money for, with all entries."""
    done: list[Task] = []
    for start in range(0, len(tasks), _AT_ONCE):
        batch = tasks[start : start + _AT_ONCE]
        calls = len(batch) * sum(map(len, entries))
        if not context.can_pay(calls, share):
            break
        if not await context.runner.run_all((task, one) for task in batch for one in entries):
            break
        done += batch
    return done


def _mean_score(context: ComparatorContext, tasks: Sequence[Task], one: Candidate) -> float:
    found = [context.runner.find_result(task, one) for task in tasks]
    scores = [result.score for result in found if result and result.score is not None]
    return float(np.mean(scores)) if scores else 0.0


async def _rank_workers(context: ComparatorContext, share: float) -> tuple[list[Task], Pool]:
    """Asks every worker, and ranks the pool by what they scored."""
    singles = [Candidate.single(worker) for worker in context.workers]
    done = await _run_solver(context, context.tasks, singles, share)
    strength = [_mean_score(context, done, one) for one in singles]
    pool = Pool(
        tuple(
            replace(worker, strength=each)
            for worker, each in zip(context.runner.pool, strength, strict=True)
        )
    )
    context.runner.rank_by(pool)
    return done, pool


async def fit_best_single(context: ComparatorContext) -> Entry:
    """The worker that was right most often."""
    _, pool = await _rank_workers(context, 1.0)
    return Candidate.single(pool.ranked()[0].id)


async def fit_self_consistency(context: ComparatorContext) -> Entry:
    """Its samples."""
    await _rank_workers(context, 1.0)
    return SelfConsistency(_SAMPLES)


async def fit_mixed_vote(context: ComparatorContext) -> Entry:
    """The best workers solve, the best decides."""
    _, pool = await _rank_workers(context, 1.0)
    best = [worker.id for worker in pool.ranked()][:_VOTERS]
    if len(best) < 2:
        return Candidate.single(best[0])
    votes = tuple(CandidateStep(StepRole.SOLVE, worker) for worker in best)
    return Candidate((*votes, CandidateStep(StepRole.DECIDE, best[0])))


async def fit_random_search(context: ComparatorContext) -> Entry:
    """Random workflows on few questions, the best few again on fresh ones."""
    rng = np.random.default_rng(context.seed)
    few, fresh = context.tasks[:_FEW], context.tasks[_FEW : _FEW + _AGAIN]
    tried: dict[Candidate, float] = {}
    for _ in range(_MOST_DRAWN):
        one = _random_candidate(context, rng)
        if one in tried:
            continue
        if len(await _run_solver(context, few, [one], 1 - _CALIBRATED)) < len(few):
            break
        tried[one] = _mean_score(context, few, one)
    kept = sorted(tried, key=lambda each: (-tried[each], each))[:_KEPT]
    kept = kept or [Candidate.single(context.workers[0])]
    done = await _run_solver(context, fresh, kept, 1.0)
    return max(kept, key=lambda each: _mean_score(context, done, each))


def _random_candidate(context: ComparatorContext, rng: np.random.Generator) -> Candidate:
    one = Candidate.single(context.workers[int(rng.integers(len(context.workers)))])
    for _ in range(int(rng.integers(4))):
        near = list(neighbouring_candidates(one, context.workers))
        one = near[int(rng.integers(len(near)))] if near else one
    return one


async def fit_llm_selector(context: ComparatorContext) -> Entry:
    """Coordinate ascent over the workers of plan, solve, check."""
    _, pool = await _rank_workers(context, _CALIBRATED / 2)
    best = pool.ranked()[0].id
    roles = (StepRole.PLAN, StepRole.SOLVE, StepRole.CHECK)
    chosen = [best] * len(roles)
    asked = context.tasks[-_VALIDATED:]

    def build(workers: Sequence[WorkerId]) -> Candidate:
        return Candidate(tuple(map(CandidateStep, roles, workers)))

    changed = True
    while changed:
        changed = False
        for place in range(len(roles)):
            options = [
                build([*chosen[:place], worker, *chosen[place + 1 :]]) for worker in context.workers
            ]
            done = await _run_solver(context, asked, options, 1.0)
            if len(done) < len(asked):
                return build(chosen)
            found = [_mean_score(context, asked, one) for one in options]
            leader = context.workers[int(np.argmax(found))]
            if max(found) > found[context.workers.index(chosen[place])]:
                chosen[place], changed = leader, True
    return build(chosen)


async def _learn_history(context: ComparatorContext) -> History | None:
    """What every worker scored; None: on too few questions to learn anything from."""
    done, _ = await _rank_workers(context, 1.0)
    if len(done) < FEWEST_QUESTIONS:
        return None

    def find(worker: WorkerId, task: Task) -> Any:
        found = context.runner.find_result(task, Candidate.single(worker))
        if found is None:
            return None
        return SimpleNamespace(score=found.score, answer=found.answer, answer_usd=found.usd)

    return measured_history(done, context.workers, find, context.family)


async def fit_k_means_router(context: ComparatorContext) -> Entry:
    """A worker for each cluster of questions."""
    history = await _learn_history(context)
    if history is None:
        return Candidate.single(context.runner.ranked.ranked()[0].id)
    router = avengers.fit_avengers(history, seed=context.seed)
    return ConductorSolver(router, calls=1)


async def fit_frugal_cascade(context: ComparatorContext) -> Entry:
    """Asks one worker after another until an answer is good enough."""
    history = await _learn_history(context)
    if history is None:
        return Candidate.single(context.runner.ranked.ranked()[0].id)
    return fit_cascade(history, seed=context.seed)


_OPERATORS: Mapping[str, tuple[StepRole, ...]] = {
    "generate": (StepRole.SOLVE,),
    "ensemble": (StepRole.SOLVE, StepRole.DECIDE),
    "review": (StepRole.CHECK,),
    "custom": (StepRole.PLAN,),
}
"""AFlow's operators, as the steps of the library that they add."""


async def fit_aflow(context: ComparatorContext) -> Entry:
    """A tree of workflows, each one operator away from its parent."""
    rng = np.random.default_rng(context.seed)
    asked = context.tasks[:_VALIDATED]
    scores: dict[Candidate, float] = {}
    waiting = [Candidate.single(worker) for worker in context.workers]
    for _ in range(_MOST_DRAWN):
        one = (
            waiting.pop(0) if waiting else _apply_operator(context, _draw_parent(scores, rng), rng)
        )
        if one is None or one in scores:
            continue
        if len(await _run_solver(context, asked, [one], 1.0)) < len(asked):
            break
        scores[one] = _mean_score(context, asked, one)
    none = Candidate.single(context.workers[0])
    return max(scores, key=lambda one: (scores[one], -len(one)), default=none)


def _draw_parent(scores: Mapping[Candidate, float], rng: np.random.Generator) -> Candidate:
    known = list(scores)
    merit = np.array([scores[one] for one in known])
    sharp = np.exp(_SHARPNESS * (merit - merit.max()))
    return known[
        int(rng.choice(len(known), p=_CHANCE / len(known) + (1 - _CHANCE) * sharp / sharp.sum()))
    ]


def _apply_operator(
    context: ComparatorContext, parent: Candidate, rng: np.random.Generator
) -> Candidate | None:
    """The parent with an operator's steps added, or with another worker in one place."""
    wanted = _OPERATORS[list(_OPERATORS)[int(rng.integers(len(_OPERATORS)))]]
    near = [
        one
        for one in neighbouring_candidates(parent, context.workers)
        if not one.stops and set(wanted) & {step.role for step in one.steps}
    ]
    return near[int(rng.integers(len(near)))] if near else None


_PROMPT = "Solve the task step by step, and give the final answer."


async def fit_gepa(context: ComparatorContext) -> Entry:
    """The best single worker with an instruction that gepa has written."""
    _, pool = await _rank_workers(context, _CALIBRATED / 2)
    best = pool.ranked()[0].id
    first = Candidate((CandidateStep(StepRole.SOLVE, best, text=_PROMPT),))
    tasks = context.tasks
    return await rewrite_candidate(
        first,
        Rewriting(
            runner=context.runner,
            rewriter=best,
            train=tasks[_VALIDATED:],
            validation=tasks[:_VALIDATED],
            fits_budget=context.can_pay,
            seed=context.seed,
        ),
    )


COMPARATORS: Mapping[str, Fitter] = {
    "best single": fit_best_single,
    "self-consistency": fit_self_consistency,
    "mixed vote": fit_mixed_vote,
    "random search": fit_random_search,
    "LLMSelector": fit_llm_selector,
    "k-means router": fit_k_means_router,
    "cascade": fit_frugal_cascade,
    "AFlow": fit_aflow,
    **({"gepa alone": fit_gepa} if is_rewriting_installed() else {}),
}
"""By name; gepa where its package is installed."""
