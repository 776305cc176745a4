"""A change of the pool after fitting: workers have left, others have joined.

Methods that learned from all workers then serve the remaining ones; of a worker that joins, only a
few outcomes are known.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from batuta.core import Pool
from batuta.core.suggestions import suggest_names
from batuta.errors import ConfigError
from batuta.lab.learners.history import History

FEW_OUTCOMES = 40
"""The number of questions on which a joining worker is known, by default."""
_COUNTED = re.compile(r"(.+):([1-9]\d*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolChange:
    """The workers that left and joined after the outcomes were gathered."""

    leaves: tuple[str, ...] = ()
    joins: tuple[tuple[str, int], ...] = ()
    """Workers that join, each with the number of questions on which it is known."""

    def __bool__(self) -> bool:
        return bool(self.leaves or self.joins)

    def __str__(self) -> str:
        """Return the change as a suffix of a record's name."""
        gone = "".join(f", {name} left" for name in self.leaves)
        return gone + "".join(f", {name} joined with {count}" for name, count in self.joins)

    @staticmethod
    def parse(leaves: str | None, joins: str | None) -> PoolChange:
        """Parse names separated by commas; `NAME:COUNT` gives the number of known questions.

        Raises:
            ConfigError: a worker both leaves and joins.
        """
        gone = _split_names(leaves)
        counted = [(_COUNTED.fullmatch(name), name) for name in _split_names(joins)]
        new = tuple(
            (found[1], int(found[2])) if found else (name, FEW_OUTCOMES) for found, name in counted
        )
        if both := sorted(set(gone) & {name for name, _ in new}):
            raise ConfigError(f"{both[0]} cannot both leave and join")
        return PoolChange(leaves=gone, joins=new)

    def apply(self, pool: Pool, history: History, seed: int) -> tuple[Pool, History]:
        """Return the pool after the change, and what is known about it.

        Args:
            pool: all workers.
            history: the outcomes of all workers on the training questions.
            seed: the seed for choosing the questions on which joining workers are known.

        Raises:
            ConfigError: there is no such worker, or none of the old ones is left.
        """
        for name in (*self.leaves, *(name for name, _ in self.joins)):
            if name not in pool:
                known = suggest_names(name, (worker.id for worker in pool))
                raise ConfigError(f"there is no worker {name!r} that could leave or join; {known}")
        stay = [worker.id for worker in pool if worker.id not in self.leaves]
        if len(stay) <= len(self.joins):
            raise ConfigError("no worker is left that was there before")
        known = self._forget(history, seed)
        strength = dict(zip(known.workers, known.mean_m().tolist(), strict=True))
        workers = (replace(pool[name], strength=strength[name]) for name in stay)
        return Pool(tuple(workers)), known

    def _forget(self, history: History, seed: int) -> History:
        """Return the history in which joining workers are known on a few questions only."""
        if not self.joins:
            return history
        rng = np.random.Generator(np.random.PCG64(seed))
        scores_qm, usd_qm = history.scores_qm.copy(), history.usd_qm.copy()
        runs_qm, samples = history.runs_qm.copy(), history.samples
        if samples is not None:
            samples = replace(
                samples,
                credit_qms=samples.credit_qms.copy(),
                answers_qms=samples.answers_qms.copy(),
            )
        for name, count in self.joins:
            place = [str(worker) for worker in history.workers].index(name)
            there = rng.permutation(np.flatnonzero(~np.isnan(scores_qm[:, place])))
            gone = np.setdiff1d(np.arange(len(scores_qm)), there[:count])
            scores_qm[gone, place] = usd_qm[gone, place] = np.nan
            runs_qm[gone, place] = 0
            if samples is not None:
                samples.credit_qms[gone, place] = np.nan
                samples.answers_qms[gone, place] = -1
        return replace(
            history,
            scores_qm=scores_qm,
            usd_qm=usd_qm,
            runs_qm=runs_qm,
            answers=None,
            samples=samples,
        )


def _split_names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())
