"""The embedded rehearsal: a small simulated world that runs offline.

It has questions with known answers (`draw_tasks`, `grade_answer`), seven workers that compute and
make errors at set rates (`rehearsal_pool`, `rehearsal_clients`), and a hand-written conductor
(`HandWrittenClient`).
"""

from batuta.lab.worlds.client import OUT_OF_SCOPE_REPLY, RehearsalClient
from batuta.lab.worlds.grammar import read_problem, render_question
from batuta.lab.worlds.hand_written_conductor import HandWrittenClient
from batuta.lab.worlds.pools import rehearsal_clients, rehearsal_pool, shipped_policy_folder
from batuta.lab.worlds.tasks import HELD_OUT_FAMILY, TRAINING_FAMILIES, draw_tasks, grade_answer

__all__ = [
    "HELD_OUT_FAMILY",
    "OUT_OF_SCOPE_REPLY",
    "TRAINING_FAMILIES",
    "HandWrittenClient",
    "RehearsalClient",
    "draw_tasks",
    "grade_answer",
    "read_problem",
    "rehearsal_clients",
    "rehearsal_pool",
    "render_question",
    "shipped_policy_folder",
]
