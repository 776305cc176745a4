"""Compares stored sessions by pattern, and chooses a margin for the pattern `escalate`.

A session counts for the model that its conversation was sent to; its dollars include titles and
other helper requests. A session was resolved if its newest score is at least 0.5. The user states
what a resolved session is worth in dollars; the worth of a session is this amount if the session
was resolved, less its cost. Sessions without a score or with a call of unknown price have no worth
and are counted separately. The comparison is observational: the patterns were not assigned at
random.

The margin is the amount in dollars by which the expected gain of a takeover must exceed its cost. A
margin is replayed with the first takeover that `escalate` weighed in each session. If the margin
would have led to the same decision, the session's own worth counts; otherwise the mean worth of the
sessions with the other decision.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batuta.config.aliases import MINI_MODEL
from batuta.core import Run
from batuta.core.intervals import wilson_interval
from batuta.errors import ConfigError
from batuta.lab.evals.stats import bootstrap_interval
from batuta.store import RunSummary, Store

LEAST_SESSIONS = 20
"""Minimum number of sessions with a known worth, of each pattern or with each decision."""
SURE = 0.8
"""Minimum probability for recommending a pattern or a margin."""
_RESOLVED = 0.5
_DRAWS = 2000
_HELPER = ", not conducted"
"""The suffix of the conductor's name in the run of a helper request."""
_WEIGHED = re.compile(
    r"(takes over from|stayed with) .{1,200}?: "
    r"(?:no cache is lost and|(?:it costs|a switch to .{1,200}? would cost) "
    r"\$([0-9.,]+) of cache and) "
    r"is expected to gain \$([0-9.,]+)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedSession:
    """A stored session of one model."""

    id: str
    model: str
    """The served model that the conversation was sent to, which names the pattern."""
    resolved: bool | None
    """None if it has no score."""
    usd: float | None
    """None if a call's price is unknown."""

    def worth(self, resolved_usd: float) -> float | None:
        """Return the session's worth in dollars; None if its score or a price is unknown.

        `resolved_usd` is what a resolved session is worth before its cost.
        """
        if self.resolved is None or self.usd is None:
            return None
        return resolved_usd * self.resolved - self.usd


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighed:
    """A takeover of a session by another worker that `escalate` weighed."""

    net_usd: float
    """The takeover's expected gain less its cost, in dollars."""
    taken: bool
    """Whether the other worker took over."""
    worth: float
    """The worth of the session, in dollars."""


def read_session(rows: Sequence[RunSummary]) -> PlayedSession | None:
    """Return the session of these runs, the newest run first.

    None unless the conversation was sent to one served model. For this, helper requests and
    requests to batuta-mini, which answers agents' small side questions, do not count.
    """
    models = {row.model for row in rows if not row.conductor.endswith(_HELPER)} - {MINI_MODEL}
    if len(models) != 1:
        return None
    scores = [row.score for row in rows if row.score is not None]
    priced = not any(row.cost.unpriced_calls for row in rows)
    return PlayedSession(
        id=rows[0].session or "",
        model=models.pop(),
        resolved=scores[0] >= _RESOLVED if scores else None,
        usd=float(sum(row.cost.usd for row in rows)) if priced else None,
    )


def find_takeover(reasons: Iterable[str], worth: float) -> Weighed | None:
    """Return the first takeover weighed in the reasons, or None; `worth` is the session's."""
    for reason in reasons:
        if found := _WEIGHED.search(reason):
            gain, cost = (float((usd or "0").replace(",", "")) for usd in (found[3], found[2]))
            return Weighed(net_usd=gain - cost, taken=found[1] == "takes over from", worth=worth)
    return None


def describe_patterns(sessions: Sequence[PlayedSession], worth: float) -> list[dict[str, Any]]:
    """Return each model's number of sessions, their resolved share and cost, the best model first.

    The best model has the greatest mean worth. `worth` is that of a resolved session, in dollars.
    """
    rows: list[dict[str, Any]] = []
    for model in {one.model for one in sessions}:
        own = [one for one in sessions if one.model == model]
        known = [one for one in own if one.worth(worth) is not None]
        row: dict[str, Any] = {"model": model, "sessions": len(own), "known": len(known)}
        if known:
            right, usd = sum(bool(one.resolved) for one in known), [one.usd or 0.0 for one in known]
            row |= {
                "resolved": right / len(known),
                "resolved_interval": wilson_interval(right, len(known)),
                "usd": fmean(usd),
                "usd_interval": bootstrap_interval([[each] for each in usd]),
                "worth_usd": fmean(one.worth(worth) or 0.0 for one in known),
            }
        rows.append(row)
    return sorted(rows, key=lambda row: (-row.get("worth_usd", float("-inf")), row["model"]))


def choose_pattern(
    sessions: Sequence[PlayedSession], worth: float, seed: int = 0
) -> dict[str, Any]:
    """Return the pattern to set and the probability that it is best, or why none is chosen.

    `worth` is the worth of a resolved session in dollars.
    """
    worths: dict[str, list[float]] = {}
    for one in sessions:
        if (each := one.worth(worth)) is not None:
            worths.setdefault(one.model, []).append(each)
    enough = {model: each for model, each in worths.items() if len(each) >= LEAST_SESSIONS}
    if len(enough) < 2:  # noqa: PLR2004 - a comparison takes two
        least = f"at least {LEAST_SESSIONS} scored sessions with known prices"
        have = f"{len(enough)} models have {least}"
        return {"why": f"too few sessions: {have}, and a comparison takes two"}
    rng = np.random.default_rng(seed)
    means = {model: _resample_means(each, rng) for model, each in enough.items()}
    best = max(enough, key=lambda model: fmean(enough[model]))
    others = np.vstack([drawn for model, drawn in means.items() if model != best])
    probability = _measure_share(means[best], others.max(axis=0))
    if probability < SURE:
        return {"why": f"{best} did best, but with a probability of {probability:.0%} only"}
    return {"pattern": best, "probability": probability}


def choose_margin(weighed: Sequence[Weighed], margin: float, seed: int = 0) -> dict[str, Any]:
    """Return the margin to set and the probability that it is better, or why none is chosen.

    `weighed` has one takeover for each session; `margin` is the present margin in dollars.
    """
    groups = {
        taken: [one.worth for one in weighed if one.taken is taken] for taken in (True, False)
    }
    if min(map(len, groups.values())) < LEAST_SESSIONS:
        counts = f"{len(groups[True])} sessions with a takeover and {len(groups[False])} without"
        return {"why": f"too few sessions: {counts}, and {LEAST_SESSIONS} of each are needed"}
    grid = _list_margins(weighed, margin)
    means = {taken: fmean(each) for taken, each in groups.items()}
    replayed = {at: _replay_margin(weighed, at, means) for at in grid}
    best = max(grid, key=lambda at: (fsum(replayed[at]), at == margin))
    gains = np.array(replayed[best]) - np.array(replayed[margin])
    drawn = _resample_means(list(gains), np.random.default_rng(seed))
    probability = _measure_share(drawn, np.zeros(len(drawn)))
    if best == margin or probability < SURE:
        return {"why": "no other margin is shown to be better than the present one"}
    return {"margin_usd": best, "probability": probability}


def _list_margins(weighed: Sequence[Weighed], margin: float) -> list[float]:
    """Return the margins to try: 0, the present margin, and the positive deciles of net gains."""
    nets = sorted(one.net_usd for one in weighed)
    tenths = {round(nets[len(nets) * tenth // 10], 4) for tenth in range(1, 10)}
    return sorted({0.0, margin, *(each for each in tenths if each > 0)})


def _replay_margin(
    weighed: Iterable[Weighed], margin: float, means: Mapping[bool, float]
) -> list[float]:
    """Estimate the worth of each session with that margin."""
    return [
        one.worth if one.taken is (one.net_usd > margin) else means[not one.taken]
        for one in weighed
    ]


def _resample_means(values: Sequence[float], rng: np.random.Generator) -> NDArray[np.float64]:
    """Return the means of bootstrap resamples."""
    drawn = rng.integers(0, len(values), (_DRAWS, len(values)))
    return np.array(values)[drawn].mean(axis=1)


def _measure_share(values: NDArray[np.float64], others: NDArray[np.float64]) -> float:
    return float(np.count_nonzero(values > others)) / len(values)


async def replay_sessions(
    target: str, *, worth: float, margin: float, seed: int = 0
) -> dict[str, Any]:
    """Read the stored sessions, and choose a pattern and a margin by them.

    The store is named as for `batuta runs`. `worth` is the worth of a resolved session, and
    `margin` the present margin of `escalate`, both in dollars.

    Raises:
        ConfigError: there is no such store, or it has no session.
        StoreError: the store cannot be read.
    """
    if "://" not in target and not Path(target).exists():
        raise ConfigError(f"there are no runs at {target}; name the store that the server used")
    async with Store.open(target) as store:
        rows = await _list_by_session(store)
        if not rows:
            raise ConfigError(
                f"no run in {target} belongs to a session; `batuta serve` writes them"
            )
        read = {name: read_session(each) for name, each in rows.items()}
        sessions = [one for one in read.values() if one is not None]
        weighed: list[Weighed] = []
        for one in sessions:
            value = one.worth(worth)
            if one.model.endswith("escalate") and value is not None:
                found = find_takeover(await _read_reasons(store, rows[one.id]), value)
                weighed += [found] if found else []
    return {
        "sessions": len(rows),
        "of_several_models": len(rows) - len(sessions),
        "worth_usd": worth,
        "patterns": describe_patterns(sessions, worth),
        "choice": choose_pattern(sessions, worth, seed),
        "margin": choose_margin(weighed, margin, seed),
    }


async def _list_by_session(store: Store) -> dict[str, list[RunSummary]]:
    """Return the runs of each session, the newest first."""
    found: dict[str, list[RunSummary]] = {}
    async for row in store.read_all():
        if row.session is not None:
            found.setdefault(row.session, []).append(row)
    return found


async def _read_reasons(store: Store, rows: Sequence[RunSummary]) -> list[str]:
    """Return the reasons of the session's decisions, the oldest first; deleted runs are skipped."""
    reasons: list[str] = []
    for row in reversed(rows):
        run = await store.get(row.id)
        reasons += [] if run is None else _list_reasons(run)
    return reasons


def _list_reasons(run: Run) -> list[str]:
    reasons = (getattr(each.decision, "reason", "") for each in run.rounds)
    return [reason for reason in reasons if reason]
