"""What is evaluated: a pool that can be called, and who conducts it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from batuta.baselines.chorus import Chorus
from batuta.clients.journal import Journal, Journaled
from batuta.core import Client, Conductor, Limits, Pool, WorkerId
from batuta.solvers import Learned
from batuta.tasks.recorded import Deck


@dataclass(frozen=True, slots=True)
class Subject:
    """A pool, how its workers are called, and its conductor."""

    pool: Pool
    clients: Mapping[WorkerId, Client]
    """Of a record: none, its deck deals them."""
    conductor: Conductor | None
    """None: nobody conducts a record."""
    limits: Limits = Limits()
    simulated: bool = False
    """The workers are programs, not language models."""
    deck: Deck | None = field(default=None, repr=False)
    """The workers are these recorded answers."""
    chorus: Chorus | None = field(default=None, repr=False)
    """Of a record: what everybody said, for all systems that look at it."""

    def deal(self) -> Mapping[WorkerId, Client]:
        """The clients of one run: of a record a fresh hand, so that its samples are distinct."""
        return self.clients if self.deck is None else self.deck.deal()

    @property
    def about(self) -> str:
        """What a run depends on beyond the pool, for its key."""
        recorded = self.deck and (self.deck.record.name, self.deck.simulate)
        counted = () if self.limits.usd is None else (self.limits.unknown,)
        return repr((self.limits, recorded, *counted))

    def journaled(self, journal: Journal) -> Subject:
        """The same, whose calls are read from the journal where they were paid before."""
        clients: dict[WorkerId, Client] = {
            worker: Journaled(client, journal, worker) for worker, client in self.clients.items()
        }
        conductor = self.conductor
        if isinstance(conductor, Learned):
            model = Journaled(conductor.client, journal, f"conductor {conductor.name}")
            conductor = replace(conductor, client=model)
        return replace(self, clients=clients, conductor=conductor)
