"""World 2: simulated workers drawn from a distribution that was fixed before any training.

design/0015-world-2.md explains the distribution. `world2_pool` and `world2_clients` return the
workers, `draw_world2_tasks` the questions.
"""

from batuta.lab.worlds.world2.pools import world2_clients, world2_pool
from batuta.lab.worlds.world2.questions import HELD_OUT_KINDS, KINDS, TRAINING_KINDS
from batuta.lab.worlds.world2.task_source import draw_world2_tasks

__all__ = [
    "HELD_OUT_KINDS",
    "KINDS",
    "TRAINING_KINDS",
    "draw_world2_tasks",
    "world2_clients",
    "world2_pool",
]
