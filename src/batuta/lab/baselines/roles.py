"""Chooses the worker for a role by the workers' descriptions.

A role goes to the worker whose description recommends it most for that role; of equal workers the
first of `Pool.ranked` is chosen.
"""

from __future__ import annotations

import re

from batuta.core import Pool, Worker, WorkerId

PLANNING = r"plan\w*|decompos\w*|reason\w*"
CHECKING = r"check\w*|verif\w*|review\w*"
JUDGING = r"compar\w*|judg\w*|check\w*|verif\w*|review\w*"
COMBINING = r"compar\w*|combin\w*|merg\w*|synthesi\w*|aggregat\w*|long context"

_PRAISE_LEVELS = (
    (re.compile(r"\b(?:excellent|outstanding|best|expert)\b", re.IGNORECASE), 3),
    (re.compile(r"\b(?:good|strong|capable|skilled|careful)\b", re.IGNORECASE), 2),
    (re.compile(r"\b(?:fair|decent|average)\b", re.IGNORECASE), 1),
    (re.compile(r"\b(?:weak|poor|bad|little|cannot)\b", re.IGNORECASE), -1),
)
_UNRATED_LEVEL = 2
"""The level of a clause that mentions the role without praise or blame."""
_CLAUSE = re.compile(r"[;.]")


def best_worker_for_role(pool: Pool, role: str, exclude: WorkerId | None = None) -> WorkerId:
    """Return the worker whose description recommends it most for the role.

    `role` is a regular expression of words that name the role, such as `CHECKING`. The worker
    `exclude` is chosen only if there is no other.
    """
    named = re.compile(rf"\b(?:{role})\b", re.IGNORECASE)
    others = [worker for worker in pool.ranked() if worker.id != exclude]
    return max(others or pool.workers, key=lambda worker: _role_score(worker, named)).id


def _role_score(worker: Worker, named: re.Pattern[str]) -> int:
    """Return the sum of the levels of all clauses that mention the role; 0 if there is none."""
    clauses = (c for c in _CLAUSE.split(worker.description) if named.search(c))
    return sum(_praise_level(clause) for clause in clauses)


def _praise_level(clause: str) -> int:
    return next((level for words, level in _PRAISE_LEVELS if words.search(clause)), _UNRATED_LEVEL)
