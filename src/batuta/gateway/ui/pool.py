"""How the workers stand: what they did in the latest runs, and what is known of their skills."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import final

import anyio
import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from batuta.config.load import CONDUCTOR
from batuta.core import (
    Conductor,
    Cost,
    Failure,
    PlanningContext,
    Pool,
    Question,
    Run,
    Usage,
    Worker,
    WorkerId,
)
from batuta.core.formatting import format_percent
from batuta.gateway.access.caller import CallerRole
from batuta.gateway.serving.drift import DriftMonitor
from batuta.gateway.serving.explore import summarise_arms
from batuta.gateway.serving.models import ULTRA_MODEL, Catalogue
from batuta.gateway.ui.rendering import render_page
from batuta.gateway.ui.session import WebSession
from batuta.language import conductor_request
from batuta.language.cards import worker_card
from batuta.solvers import LLMConductor
from batuta.solvers.bandit import ArmStats
from batuta.solvers.history import History
from batuta.store import Store
from batuta.store.recent_runs import recent_runs
from batuta.usage import ZERO_COST, ZERO_USAGE

LATEST_RUNS = 100
"""Runs that are looked at, at most."""
CACHE_SECONDS = 20.0
"""Seconds for which what was counted is shown again."""
_DOWN_SHARE = 0.5
_TROUBLED_SHARE = 0.1
"""Shares of failed calls from which a worker counts as down, and as troubled."""
_MIN_CALLS = 3
"""Calls from which a share of failures says something."""
_MAX_FAMILIES = 12
_MAX_ARMS = 60


@dataclass(slots=True, kw_only=True)
class WorkerStats:
    """What a worker did."""

    calls: int = 0
    failures: int = 0
    last_failure: str = ""
    usage: Usage = ZERO_USAGE
    cost: Cost = ZERO_COST
    seconds: list[float] = field(default_factory=list[float])
    scores: list[float] = field(default_factory=list[float])
    """Of the judged runs whose answer is this worker's."""

    @property
    def health(self) -> str:
        """`good`, `troubled`, `down`, or `unknown` where it was not called."""
        if self.calls < 1:
            return "unknown"
        share = self.failures / self.calls
        if self.calls >= _MIN_CALLS and share >= _DOWN_SHARE:
            return "down"
        return "troubled" if share >= _TROUBLED_SHARE else "good"

    @property
    def median_seconds(self) -> float | None:
        """Of the calls that gave a reply."""
        return median(self.seconds) if self.seconds else None

    @property
    def score(self) -> float | None:
        """The mean judgement."""
        return fmean(self.scores) if self.scores else None


@dataclass(frozen=True, slots=True)
class SkillTable:
    """Shares of right answers by task family."""

    families: tuple[str, ...]
    share: dict[str, dict[str, float]]
    """By worker and family; what is not known is not there."""


def count_worker_stats(
    pool: Pool, scored_runs: Iterable[tuple[Run, float | None]]
) -> dict[str, WorkerStats]:
    """How each worker of the pool stands after those runs, given with their scores."""
    found: defaultdict[str, WorkerStats] = defaultdict(WorkerStats)
    for run, score in scored_runs:
        if score is not None and (author := _answer_author(run)) is not None:
            found[author].scores.append(score)
        for step in run.steps:
            for attempt in step.attempts:
                _count_failure(found[attempt.worker], attempt.failure)
            if isinstance(step.result, Failure):
                if step.request is not None:
                    _count_failure(found[step.worker], step.result)
                continue
            own = found[step.worker]
            own.calls += 1
            own.seconds.append(step.span.seconds)
            own.usage, own.cost = own.usage + step.result.usage, own.cost + step.result.cost
    return {str(worker.id): found[worker.id] for worker in pool}


def _answer_author(run: Run) -> WorkerId | None:
    """Whose reply the answer is; a stored run has its reply a second time."""
    said = (step.worker for step in reversed(run.steps) if step.result == run.reply)
    return next(said, None)


def _count_failure(standing: WorkerStats, failure: Failure) -> None:
    standing.calls += 1
    standing.failures += 1
    standing.last_failure = standing.last_failure or failure.code
    standing.usage, standing.cost = standing.usage + failure.usage, standing.cost + failure.cost


def skill_table(history: History | None, pool: Pool) -> SkillTable | None:
    """What the outcomes tell; None: there are none of these workers."""
    if history is None:
        return None
    families = tuple(dict.fromkeys(name for name in history.families if name))[:_MAX_FAMILIES]
    rows = {name: [i for i, own in enumerate(history.families) if own == name] for name in families}
    share: dict[str, dict[str, float]] = {}
    for place, worker in enumerate(history.workers):
        if worker in pool:
            means = {name: history.scores_qm[rows[name], place] for name in families}
            known = {n: float(np.nanmean(m)) for n, m in means.items() if not np.isnan(m).all()}
            share[str(worker)] = known
    return SkillTable(families, share) if families and share else None


def conductor_prompt(conductor: Conductor | None, pool: Pool) -> str | None:
    """What the conductor is given with a question; None: it is no language model."""
    if not isinstance(conductor, LLMConductor):
        return None
    context = PlanningContext(question=Question.of("(the question)"), pool=pool)
    request = conductor_request(context, conductor.rendering, conductor.sampling)
    return "\n\n".join(message.text for message in request.messages)


def conductor_descriptions(conductor: Conductor | None, pool: Pool) -> dict[str, list[str]]:
    """What the conductor's prompt holds of each worker, line by line; empty: it reads no prompt."""
    if not isinstance(conductor, LLMConductor):
        return {}
    shown = conductor.rendering
    if shown.compact:
        prompt = (conductor_prompt(conductor, pool) or "").splitlines()
        return {
            str(worker.id): [line for line in prompt if line.startswith(f"{worker.id}: ")]
            or ["Its name alone."]
            for worker in pool
        }
    return {
        str(worker.id): worker_card(
            number, worker, descriptions=shown.descriptions, prices=shown.prices
        ).splitlines()
        for number, worker in enumerate(pool)
    }


@final
class PoolPage:
    """The screen."""

    def __init__(self, catalogue: Catalogue, store: Store | None, drift: DriftMonitor) -> None:
        self._catalogue = catalogue
        self._store = store
        self._drift = drift
        self._cache: dict[str | None, tuple[float, dict[str, WorkerStats], int]] = {}
        self._counting = anyio.Lock()

    async def page(self, request: Request, session: WebSession) -> Response:
        """Every worker, and how it stands; a key's holder sees no numbers that count others."""
        catalogue, whole = self._catalogue, session.caller.role is not CallerRole.KEY
        found, runs = await self._worker_stats(session)
        found = {worker.id: found.get(worker.id, WorkerStats()) for worker in catalogue.pool}
        prompts = [
            (m.name, conductor_prompt(m.conductor, m.pool)) for m in catalogue.models if m.conductor
        ]
        return render_page(
            request,
            "pool.html.jinja",
            session=session,
            source=catalogue.page_context.source,
            simulated=catalogue.page_context.simulated,
            workers=[(w, found[w.id], _worker_facts(w)) for w in catalogue.pool],
            health=catalogue.health,
            pool=catalogue.pool,
            calls=sum(each.calls for each in found.values()),
            runs=runs,
            skills=skill_table(catalogue.page_context.history, catalogue.pool),
            prompts=[(name, text) for name, text in prompts if text],
            told=conductor_descriptions(self._conductor(), catalogue.pool),
            drafts=catalogue.health.get(CONDUCTOR),
            drift=await self._drift.read(),
            learned=await self._learned() if whole else [],
            whole=whole,
        )

    async def _learned(self) -> list[tuple[str, str, str, ArmStats]]:
        """Of each system that explores, what judgements said of its ways to answer."""
        found: list[tuple[str, str, str, ArmStats]] = []
        for model in self._catalogue.models:
            if model.explore is None or model.conductor is None or self._store is None:
                continue
            known = await self._store.exploration.read(model.conductor.name)
            found += [(model.name, *row) for row in summarise_arms(known)[:_MAX_ARMS]]
        return found

    def _conductor(self) -> Conductor | None:
        """Who conducts the model that writes workflows."""
        served = self._catalogue.find_model(ULTRA_MODEL)
        return served.conductor if served else None

    async def _worker_stats(self, session: WebSession) -> tuple[dict[str, WorkerStats], int]:
        """Counted anew after a while, by one visitor; the others see what was counted before."""
        kept = self._cache.get(session.tenant)
        if kept is not None and (kept[0] > time.monotonic() or self._counting.locked()):
            return kept[1], kept[2]
        async with self._counting:
            kept = self._cache.get(session.tenant)
            if kept is None or kept[0] <= time.monotonic():
                kept = self._cache[session.tenant] = await self._count(session)
            return kept[1], kept[2]

    async def _count(self, session: WebSession) -> tuple[float, dict[str, WorkerStats], int]:
        """What the latest runs say, and until when that counts."""
        scored_runs = list[tuple[Run, float | None]]()
        if self._store is not None:
            scored_runs = await recent_runs(self._store.database, LATEST_RUNS, session.tenant)
        found = count_worker_stats(self._catalogue.pool, scored_runs)
        if len(self._cache) > LATEST_RUNS:
            self._cache.clear()
        return time.monotonic() + CACHE_SECONDS, found, len(scored_runs)


def _worker_facts(worker: Worker) -> list[str]:
    """What is known of a worker, in words."""
    window = f"{worker.context_window:,} tokens of context" if worker.context_window else ""
    strength = f"strength {format_percent(worker.strength)}" if worker.strength is not None else ""
    return [fact for fact in (*worker.tags, window, strength) if fact]
