"""The embedded orchestra: a small world that runs offline, computed and never pretended.

Questions with known answers (`tasks`, `grade`), seven workers that compute and slip (`pool`,
`clients`), and a hand-written conductor to hear them with (`HandWritten`).
`python -m batuta.rehearsal.check` measures the world.
"""

from batuta.rehearsal.conductor import CONDUCTOR_WORKER, HandWritten
from batuta.rehearsal.grammar import read, render
from batuta.rehearsal.orchestra import clients, pool, trained
from batuta.rehearsal.problem import Op, Problem
from batuta.rehearsal.tasks import FAMILIES, HELD_OUT_FAMILY, grade, tasks
from batuta.rehearsal.worker import OUTSIDE, RehearsalClient

__all__ = [
    "CONDUCTOR_WORKER",
    "FAMILIES",
    "HELD_OUT_FAMILY",
    "OUTSIDE",
    "HandWritten",
    "Op",
    "Problem",
    "RehearsalClient",
    "clients",
    "grade",
    "pool",
    "read",
    "render",
    "tasks",
    "trained",
]
