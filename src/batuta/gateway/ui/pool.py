"""The pool screen: the workers' health, their figures in the latest runs, and measured skills."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import final

import anyio
import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response

from batuta.conductors.bandit import ArmStats
from batuta.config.aliases import ULTRA_MODEL
from batuta.config.conductors import CONDUCTOR
from batuta.core import (
    Cost,
    Failure,
    Pool,
    Reply,
    Run,
    Usage,
    Worker,
    WorkerId,
)
from batuta.core.conductor import PromptDescription, describe_prompt
from batuta.core.formatting import format_percent
from batuta.core.run import HEDGE_LOST
from batuta.engine.step_prompt import PROMPT_FAILURES
from batuta.gateway.access.caller import CallerRole
from batuta.gateway.serving.drift import DriftMonitor
from batuta.gateway.serving.explore import summarise_arms
from batuta.gateway.serving.models import Catalogue, Outcomes
from batuta.gateway.ui.pool_forms import PoolForms
from batuta.gateway.ui.rendering import render_page
from batuta.gateway.ui.session import WebSession
from batuta.store import Store
from batuta.store.recent_runs import recent_runs
from batuta.usage import ZERO_COST, ZERO_USAGE

LATEST_RUNS = 100
"""Maximum number of runs from which the figures are computed."""
CACHE_SECONDS = 20.0
"""Seconds for which the figures are cached."""
_MAX_CACHED = 100
"""Maximum number of tenants whose figures are cached."""
_DOWN_SHARE = 0.5
"""Minimum share of a worker's calls that failed without being `declined`, to count as down."""
_TROUBLED_SHARE = 0.1
"""Minimum share of a worker's calls that failed, to count as troubled."""
_MIN_CALLS = 3
"""Minimum number of calls for a worker to count as down."""
_NOT_FAILED = frozenset({"cancelled", "limit", "circuit_open", HEDGE_LOST})
"""Codes of failures that say nothing about the worker: the call was ended, or not made."""
_MAX_FAMILIES = 12
_MAX_ARMS = 60


@dataclass(slots=True, kw_only=True)
class WorkerStats:
    """Figures of a worker's calls."""

    calls: int = 0
    """Number of answered steps and of failed calls, without the codes `_NOT_FAILED`."""
    failures: int = 0
    declined: int = 0
    """Number of the failures that depend on the prompt."""
    last_failure: str = ""
    """The code of the latest failure; empty if no call failed."""
    usage: Usage = ZERO_USAGE
    cost: Cost = ZERO_COST
    seconds: list[float] = field(default_factory=list[float])
    """The time of each answered step."""
    scores: list[float] = field(default_factory=list[float])
    """Scores of the judged runs that this worker answered."""

    @property
    def health(self) -> str:
        """`good`, `troubled`, `down`, or `unknown` if the worker was not called."""
        if self.calls < 1:
            return "unknown"
        outages = self.failures - self.declined
        if self.calls >= _MIN_CALLS and outages / self.calls >= _DOWN_SHARE:
            return "down"
        return "troubled" if self.failures / self.calls >= _TROUBLED_SHARE else "good"

    @property
    def median_seconds(self) -> float | None:
        """The median of `seconds`; None if no step was answered."""
        return median(self.seconds) if self.seconds else None

    @property
    def score(self) -> float | None:
        """The mean of `scores`; None if there are none."""
        return fmean(self.scores) if self.scores else None


@dataclass(frozen=True, slots=True)
class SkillTable:
    """Accuracy of the workers by task family."""

    families: tuple[str, ...]
    share: dict[str, dict[str, float]]
    """Accuracy, 0 to 1, by worker and family; unknown values are missing."""


def count_worker_stats(
    pool: Pool, scored_runs: Iterable[tuple[Run, float | None]]
) -> dict[str, WorkerStats]:
    """Return the figures of each worker of the pool.

    The runs are given with their scores, newest first.
    """
    found: defaultdict[str, WorkerStats] = defaultdict(WorkerStats)
    for run, score in scored_runs:
        if score is not None and (author := _answer_author(run)) is not None:
            found[author].scores.append(score)
        for step in reversed(run.steps):
            own = found[step.worker]
            if isinstance(step.result, Reply):
                own.calls += 1
                own.seconds.append(step.span.seconds)
                own.usage, own.cost = own.usage + step.result.usage, own.cost + step.result.cost
            elif step.request is not None:
                _count_failure(own, step.result)
            for attempt in reversed(step.attempts):
                _count_failure(found[attempt.worker], attempt.failure)
    return {str(worker.id): found[worker.id] for worker in pool}


def _answer_author(run: Run) -> WorkerId | None:
    """Return the worker of the last step whose reply is the answer; None if there is none."""
    return next((s.worker for s in reversed(run.steps) if _is_answer(s.result, run.reply)), None)


def _is_answer(result: Reply | Failure, answer: Reply | None) -> bool:
    """Return True if the result is the answer, which may also contain earlier steps' images."""
    if answer is None or isinstance(result, Failure):
        return False
    return replace(answer, images=result.images) == result


def _count_failure(stats: WorkerStats, failure: Failure) -> None:
    stats.usage, stats.cost = stats.usage + failure.usage, stats.cost + failure.cost
    if failure.code not in _NOT_FAILED:
        stats.calls += 1
        stats.failures += 1
        stats.declined += failure.code in PROMPT_FAILURES
        stats.last_failure = stats.last_failure or failure.code


def skill_table(history: Outcomes | None, pool: Pool) -> SkillTable | None:
    """Return the accuracies in the outcomes; None without outcomes of the pool's workers."""
    if history is None:
        return None
    families = tuple(dict.fromkeys(name for name in history.families if name))[:_MAX_FAMILIES]
    rows = {name: [i for i, own in enumerate(history.families) if own == name] for name in families}
    share: dict[str, dict[str, float]] = {}
    for column, worker in enumerate(history.workers):
        if worker in pool:
            scores_qm: NDArray[np.float64] = history.scores_qm
            means = {name: scores_qm[rows[name], column] for name in families}
            known = {n: float(np.nanmean(m)) for n, m in means.items() if not np.isnan(m).all()}
            share[str(worker)] = known
    return SkillTable(families, share) if families and share else None


@final
class PoolPage:
    """Serves /ui/pool."""

    def __init__(
        self, catalogue: Catalogue, store: Store | None, drift: DriftMonitor, forms: PoolForms
    ) -> None:
        self._catalogue = catalogue
        self._forms = forms
        self._store = store
        self._drift = drift
        self._cache: dict[str | None, tuple[float, dict[str, WorkerStats], int]] = {}
        self._counting = anyio.Lock()

    async def page(self, request: Request, session: WebSession) -> Response:
        """Show every worker with its health and figures.

        A visitor with a key sees no figures that include other tenants' runs, except the failures
        in a row of a worker whose breaker is not closed.
        """
        catalogue, whole = self._catalogue, session.caller.role is not CallerRole.KEY
        found, runs = await self._worker_stats(session)
        found = {worker.id: found.get(worker.id, WorkerStats()) for worker in catalogue.pool}
        prompts = [(m.name, describe_prompt(m.conductor, m.pool)) for m in catalogue.models]
        return render_page(
            request,
            "pool.html.jinja",
            session=session,
            source=catalogue.page_context.source,
            unfolded=request.query_params.get("worker", ""),
            simulated=catalogue.page_context.simulated,
            workers=[(w, found[w.id], _worker_facts(w)) for w in catalogue.pool],
            health=catalogue.health,
            pool=catalogue.pool,
            calls=sum(each.calls for each in found.values()),
            runs=runs,
            skills=skill_table(catalogue.page_context.history, catalogue.pool),
            prompts=[(name, prompt.text) for name, prompt in prompts if prompt],
            cards=_describe_workers(self._ultra_prompt()),
            drafts=catalogue.health.get(CONDUCTOR),
            drift=await self._drift.read(),
            learned=await self._learned() if whole else [],
            whole=whole,
            editing=await self._forms.describe(session),
            tests=self._forms.tests if session.is_admin else {},
        )

    async def _learned(self) -> list[tuple[str, str, str, ArmStats]]:
        """Return rows: exploring system, kind of question, alternative, and its judged results."""
        found: list[tuple[str, str, str, ArmStats]] = []
        for model in self._catalogue.models:
            if model.explore is None or model.conductor is None or self._store is None:
                continue
            known = await self._store.exploration.read(model.conductor.name)
            found += [(model.name, *row) for row in summarise_arms(known)[:_MAX_ARMS]]
        return found

    def _ultra_prompt(self) -> PromptDescription | None:
        """Describe the prompt of batuta-ultra's conductor; None if there is no such prompt."""
        served = self._catalogue.find_model(ULTRA_MODEL)
        return describe_prompt(served.conductor, self._catalogue.pool) if served else None

    async def _worker_stats(self, session: WebSession) -> tuple[dict[str, WorkerStats], int]:
        """Return the visitor's cached figures, and the number of runs in them.

        Once they expire, one request recounts them; meanwhile others get the expired figures.
        """
        kept = self._cache.get(session.tenant)
        if kept is not None and (kept[0] > time.monotonic() or self._counting.locked()):
            return kept[1], kept[2]
        async with self._counting:
            kept = self._cache.get(session.tenant)
            if kept is None or kept[0] <= time.monotonic():
                kept = self._cache[session.tenant] = await self._count(session)
            return kept[1], kept[2]

    async def _count(self, session: WebSession) -> tuple[float, dict[str, WorkerStats], int]:
        """Return the expiry time of the figures, the figures, and the number of runs in them."""
        scored_runs = list[tuple[Run, float | None]]()
        if self._store is not None:
            scored_runs = await recent_runs(self._store.database, LATEST_RUNS, session.tenant)
        found = count_worker_stats(self._catalogue.pool, scored_runs)
        if len(self._cache) >= _MAX_CACHED:
            self._cache.clear()
        return time.monotonic() + CACHE_SECONDS, found, len(scored_runs)


def _describe_workers(prompt: PromptDescription | None) -> dict[str, list[str]]:
    """Return the lines about each worker in the prompt; empty if there is no prompt."""
    if prompt is None:
        return {}
    return {str(worker): [*lines] or ["Its name alone."] for worker, lines in prompt.cards.items()}


def _worker_facts(worker: Worker) -> list[str]:
    """Return the tags, context window and strength of a worker, in words."""
    window = f"{worker.context_window:,} tokens of context" if worker.context_window else ""
    strength = f"strength {format_percent(worker.strength)}" if worker.strength is not None else ""
    return [fact for fact in (*worker.tags, window, strength) if fact]
