"""How the workers stand: what they did in the latest runs, and what is known of their skills."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import final

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from batuta.core import (
    Brief,
    Conductor,
    Cost,
    Failure,
    Pool,
    Question,
    Run,
    Usage,
    Worker,
    WorkerId,
)
from batuta.core.usage import FREE, ZERO
from batuta.gateway.models import Orchestra
from batuta.gateway.ui.screens import screen
from batuta.gateway.ui.visitor import Visitor
from batuta.language import conductor_request
from batuta.solvers import Learned
from batuta.solvers.history import History
from batuta.store.latest import latest

LATEST = 100
"""Runs that are looked at."""
FRESH = 20.0
"""Seconds for which what was counted is shown again."""
_SICK = 0.5
_ILL = 0.1
"""Shares of failed calls from which a worker counts as down, and as troubled."""
_FEWEST = 3
"""Calls from which a share of failures says something."""
_MOST_FAMILIES = 12


@dataclass(slots=True)
class Standing:
    """What a worker did."""

    calls: int = 0
    failures: int = 0
    last_failure: str = ""
    usage: Usage = ZERO
    cost: Cost = FREE
    seconds: list[float] = field(default_factory=list[float])
    scores: list[float] = field(default_factory=list[float])
    """Of the judged runs whose answer is this worker's."""

    @property
    def health(self) -> str:
        """`good`, `troubled`, `down`, or `unknown` where it was not called."""
        if self.calls < 1:
            return "unknown"
        share = self.failures / self.calls
        if self.calls >= _FEWEST and share >= _SICK:
            return "down"
        return "troubled" if share >= _ILL else "good"

    @property
    def median_seconds(self) -> float | None:
        """Of the calls that gave a reply."""
        return median(self.seconds) if self.seconds else None

    @property
    def score(self) -> float | None:
        """The mean judgement."""
        return fmean(self.scores) if self.scores else None


@dataclass(frozen=True, slots=True)
class Skills:
    """Shares of right answers by task family."""

    families: tuple[str, ...]
    share: dict[str, dict[str, float]]
    """By worker and family; what is not known is not there."""


def standings(pool: Pool, played: Iterable[tuple[Run, float | None]]) -> dict[str, Standing]:
    """How each worker of the pool stands after those runs, given with their scores."""
    found: defaultdict[str, Standing] = defaultdict(Standing)
    for run, score in played:
        if score is not None and (author := _author(run)) is not None:
            found[author].scores.append(score)
        for step in run.steps:
            for attempt in step.attempts:
                _fail(found[attempt.worker], attempt.failure)
            if isinstance(step.result, Failure):
                if step.request is not None:
                    _fail(found[step.worker], step.result)
                continue
            own = found[step.worker]
            own.calls += 1
            own.seconds.append(step.span.seconds)
            own.usage, own.cost = own.usage + step.result.usage, own.cost + step.result.cost
    return {str(worker.id): found[worker.id] for worker in pool}


def _author(run: Run) -> WorkerId | None:
    """Whose reply the answer is; a stored run has its reply a second time."""
    said = (step.worker for step in reversed(run.steps) if step.result == run.reply)
    return next(said, None)


def _fail(standing: Standing, failure: Failure) -> None:
    standing.calls += 1
    standing.failures += 1
    standing.last_failure = standing.last_failure or failure.code
    standing.usage, standing.cost = standing.usage + failure.usage, standing.cost + failure.cost


def skills(history: History | None, pool: Pool) -> Skills | None:
    """What the outcomes tell; None: there are none of these workers."""
    if history is None:
        return None
    families = tuple(dict.fromkeys(name for name in history.families if name))[:_MOST_FAMILIES]
    rows = {name: [i for i, own in enumerate(history.families) if own == name] for name in families}
    share: dict[str, dict[str, float]] = {}
    for place, worker in enumerate(history.workers):
        if worker in pool:
            means = {name: history.scores_qm[rows[name], place] for name in families}
            known = {n: float(np.nanmean(m)) for n, m in means.items() if not np.isnan(m).all()}
            share[str(worker)] = known
    return Skills(families, share) if families and share else None


def told(conductor: Conductor | None, pool: Pool) -> str | None:
    """What the conductor is given with a question; None: it is no language model."""
    if not isinstance(conductor, Learned):
        return None
    brief = Brief(Question.of("(the question)"), pool)
    request = conductor_request(brief, conductor.rendering, conductor.sampling)
    return "\n\n".join(message.text for message in request.messages)


@final
class PoolScreen:
    """The screen."""

    def __init__(self, orchestra: Orchestra) -> None:
        self._orchestra = orchestra
        self._kept: dict[str | None, tuple[float, dict[str, Standing], int]] = {}

    async def page(self, request: Request, visitor: Visitor) -> Response:
        """Every worker, and how it stands."""
        orchestra = self._orchestra
        found, runs = await self._standings(visitor)
        found = {worker.id: found.get(worker.id, Standing()) for worker in orchestra.pool}
        prompts = [(m.name, told(m.conductor, m.pool)) for m in orchestra.models if m.conductor]
        return screen(
            request,
            "pool.html.jinja",
            visitor=visitor,
            source=orchestra.showcase.source,
            simulated=orchestra.showcase.simulated,
            workers=[(w, found[w.id], _facts(w)) for w in orchestra.pool],
            health=orchestra.health,
            pool=orchestra.pool,
            calls=sum(each.calls for each in found.values()),
            runs=runs,
            skills=skills(orchestra.showcase.history, orchestra.pool),
            prompts=[(name, text) for name, text in prompts if text],
        )

    async def _standings(self, visitor: Visitor) -> tuple[dict[str, Standing], int]:
        """Counted anew after a while."""
        kept = self._kept.get(visitor.tenant)
        if kept is not None and kept[0] > time.monotonic():
            return kept[1], kept[2]
        store, played = self._orchestra.store, list[tuple[Run, float | None]]()
        if store is not None:
            played = await latest(store.database, LATEST, visitor.tenant)
        found = standings(self._orchestra.pool, played)
        if len(self._kept) > LATEST:
            self._kept.clear()
        self._kept[visitor.tenant] = (time.monotonic() + FRESH, found, len(played))
        return found, len(played)


def _facts(worker: Worker) -> list[str]:
    """What is known of a worker, in words."""
    window = f"{worker.context_window:,} tokens of context" if worker.context_window else ""
    strength = f"strength {worker.strength:.0%}" if worker.strength is not None else ""
    return [fact for fact in (*worker.tags, window, strength) if fact]
