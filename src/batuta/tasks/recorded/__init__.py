"""Recorded pools: what real models once answered, played back."""

from batuta.tasks.recorded.lines import Lines, lines, ranking, voted
from batuta.tasks.recorded.record import GRADER, Recorded, Spent, Texts
from batuta.tasks.recorded.replay import SIMULATED, Deck, Player
from batuta.tasks.recorded.sets import NAMES, SETS, RecordedSet, load
from batuta.tasks.recorded.split import SHARES, Division, random_split, unseen_split

__all__ = [
    "GRADER",
    "NAMES",
    "SETS",
    "SHARES",
    "SIMULATED",
    "Deck",
    "Division",
    "Lines",
    "Player",
    "Recorded",
    "RecordedSet",
    "Spent",
    "Texts",
    "lines",
    "load",
    "random_split",
    "ranking",
    "unseen_split",
    "voted",
]
