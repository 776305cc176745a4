"""The state of a session between its requests. Pure.

A session has threads: an agent and the agents that it starts share its name, and each of them has a
conversation of its own. A thread is known by the user's first words. The state has no words of
anybody, and its size does not grow with the session.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal

from batuta.core import WorkerId
from batuta.usage import ZERO_COST, Cost

MOST_THREADS = 8
"""Threads of a session that are remembered; the one that was quiet the longest goes first."""
MOST_WARM = 8
"""Workers of a thread whose prompts are remembered."""


@dataclass(frozen=True, slots=True)
class WarmPrefix:
    """A prompt that a worker has read, and that its provider may have in its cache."""

    tokens: int
    """About how many tokens it had."""
    at: float
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionThread:
    """One conversation of a session."""

    acting: WorkerId | None = None
    """The worker whose tool calls reach the client; None: nobody has acted yet."""
    turn: str = ""
    """A digest of the user's words that began the present turn."""
    tokens: int = 0
    """About how many tokens the newest request had."""
    warm: Mapping[WorkerId, WarmPrefix] = field(default_factory=dict[WorkerId, WarmPrefix])

    def with_reader(self, worker: WorkerId, tokens: int, now: float) -> SessionThread:
        """Return the thread after the worker has read its prompt."""
        others = {one: warm for one, warm in self.warm.items() if one != worker}
        while len(others) >= MOST_WARM:
            del others[min(others, key=lambda one: others[one].at)]
        return replace(self, warm={**others, worker: WarmPrefix(tokens, now)})


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEntry:
    """A request adds this to its session."""

    thread: str
    """The thread that it belongs to, as its key; empty: none is kept of it."""
    after: SessionThread
    """That thread after it."""
    cost: Cost = ZERO_COST
    consultations: int = 0
    """How often a second model was asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionState:
    """A session as far as it has come."""

    cost: Cost = ZERO_COST
    """The ledger: what its requests have cost."""
    turns: int = 0
    consultations: int = 0
    threads: Mapping[str, SessionThread] = field(default_factory=dict[str, SessionThread])
    """Its threads by their keys, the one that was quiet the longest first."""

    def with_entry(self, entry: SessionEntry) -> SessionState:
        """Return the session after a request.

        Law: what entries add to the ledger does not depend on their order.
        """
        known = self.threads.get(entry.thread)
        is_turn = bool(entry.thread) and (known is None or known.turn != entry.after.turn)
        threads = {key: each for key, each in self.threads.items() if key != entry.thread}
        if entry.thread:
            threads[entry.thread] = entry.after
        while len(threads) > MOST_THREADS:
            del threads[next(iter(threads))]
        return SessionState(
            cost=self.cost + entry.cost,
            turns=self.turns + is_turn,
            consultations=self.consultations + entry.consultations,
            threads=threads,
        )

    def left_usd(self, most: Decimal | None) -> Decimal | None:
        """Return the dollars that are left of a limit; None: there is no limit."""
        return None if most is None else max(Decimal(0), most - self.cost.usd)


NEW_SESSION = SessionState()
