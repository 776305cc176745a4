"""Four disjoint parts of the questions, near-duplicates never in two of them. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

from batuta.core import Task
from batuta.errors import SourceError
from batuta.lab.tasks.question_keys import text_key

FEWEST = 24
"""Questions with which a tuning can begin."""
_LEAST_PART = 2
_SHARES = (0.55, 0.10, 0.10, 0.25)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionParts:
    """Which questions serve for what; no question, nor one like it, is in two parts."""

    search: tuple[Task, ...]
    """Calibration and search."""
    selection: tuple[Task, ...]
    """How fine a selector is worth having."""
    finalists: tuple[Task, ...]
    """Who is nominated."""
    judgement: tuple[Task, ...]
    """Opened once, at the end."""
    doubles: int
    """Questions left out because they come twice."""

    def unjudged(self) -> QuestionParts:
        """The same where nothing is judged: what would judge serves the selection."""
        return replace(self, selection=(*self.selection, *self.judgement), judgement=())


def split_questions(
    tasks: Iterable[Task], family: Callable[[Task], str], seed: int = 0
) -> QuestionParts:
    """The parts, each with all families in about the same shares.

    Questions that differ in case, spaces and punctuation only are near-duplicates and stay
    together; those that differ in a number are others, with another answer.

    Raises:
        SourceError: there are too few different questions.
    """
    distinct = {task.question.strip(): task for task in tasks}
    doubles = len(tuple(tasks)) - len(distinct) if isinstance(tasks, Sequence) else 0
    if len(distinct) < FEWEST:
        raise SourceError(
            f"{len(distinct)} different questions are too few: a tuning splits them into four "
            f"parts and needs at least {FEWEST}, better 300 or more"
        )
    families: dict[str, dict[str, list[Task]]] = defaultdict(lambda: defaultdict(list))
    for task in distinct.values():
        families[family(task)][text_key(task.question)].append(task)
    parts: tuple[list[Task], ...] = ([], [], [], [])
    for _, clusters in sorted(families.items()):
        _deal_clusters(
            [clusters[key] for key in sorted(clusters, key=lambda k: _draw_lot(k, seed))], parts
        )
    if min(map(len, parts)) < _LEAST_PART:
        raise SourceError(
            "the questions are nearly all alike: without punctuation they have "
            f"{sum(map(len, families.values()))} different texts, too few for four parts"
        )
    ordered = (tuple(sorted(part, key=lambda task: _draw_lot(task.id, seed))) for part in parts)
    search, selection, finalists, judgement = ordered
    return QuestionParts(
        search=search,
        selection=selection,
        finalists=finalists,
        judgement=judgement,
        doubles=doubles,
    )


def _deal_clusters(clusters: Sequence[Sequence[Task]], parts: Sequence[list[Task]]) -> None:
    """Each cluster to the part that lacks most of its share; a family's first ones searched."""
    total, dealt = 0, [0.0] * len(parts)
    for cluster in clusters:
        total += len(cluster)
        lacking = [share * total - have for share, have in zip(_SHARES, dealt, strict=True)]
        place = lacking.index(max(lacking))
        parts[place].extend(cluster)
        dealt[place] += len(cluster)


def _draw_lot(text: str, seed: int) -> bytes:
    return blake2b(f"{seed} {text}".encode("utf-8", "replace"), digest_size=8).digest()
