"""Divides the questions into four parts, without near-duplicates in different parts. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import chain

from batuta.core import Task
from batuta.errors import SourceError
from batuta.lab.tasks.question_keys import text_key

FEWEST = 24
"""Minimum number of questions for a tuning run."""
_LEAST_PART = 2
"""Minimum number of questions of a part."""
_SHARES = (0.55, 0.10, 0.10, 0.25)
"""The shares of search, selection, finalists and judgement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionParts:
    """The four parts of the questions; near-duplicates are always in the same part."""

    search: tuple[Task, ...]
    """Questions for calibration and search."""
    selection: tuple[Task, ...]
    """Questions for choosing how fine a selector should be."""
    finalists: tuple[Task, ...]
    """Questions for choosing the nominees."""
    judgement: tuple[Task, ...]
    """Questions for the judgement, which are not used for anything else before it."""
    doubles: int
    """The number of questions that were left out because an equal question is kept."""

    @property
    def fitted(self) -> tuple[Task, ...]:
        """The questions that confidence is fitted to: all that the search did not use."""
        return (*self.selection, *self.finalists, *self.judgement)

    @property
    def counts(self) -> dict[str, int]:
        """The number of questions in each part, and of doubles, as reports show them."""
        return {
            "search": len(self.search),
            "selection": len(self.selection),
            "finalists": len(self.finalists),
            "judgement": len(self.judgement),
            "doubles": self.doubles,
        }

    def unjudged(self) -> QuestionParts:
        """Return the parts for a run without judgement: its questions join the selection."""
        return replace(self, selection=(*self.selection, *self.judgement), judgement=())


def split_questions(
    tasks: Sequence[Task], family: Callable[[Task], str], seed: int = 0
) -> QuestionParts:
    """Split the questions into four parts, and each family in about the same proportions.

    If families are too small for that, only the questions as a whole have these proportions.
    Questions that differ only in case, spaces and punctuation are near-duplicates and stay in one
    part, even if they are of different families.

    Raises:
        SourceError: there are too few different questions.
    """
    distinct = {task.question.strip(): task for task in tasks}
    if len(distinct) < FEWEST:
        raise SourceError(
            f"{len(distinct)} different questions are too few: a tuning splits them into four "
            f"parts and needs at least {FEWEST}, better 300 or more"
        )
    clusters: dict[str, list[Task]] = defaultdict(list)
    for task in distinct.values():
        clusters[text_key(task.question)].append(task)
    families: dict[str, list[str]] = defaultdict(list)
    for key, cluster in clusters.items():
        families[family(cluster[0])].append(key)
    by_family = [
        [clusters[key] for key in sorted(keys, key=lambda key: _random_key(key, seed))]
        for _, keys in sorted(families.items())
    ]
    parts = _deal_families(by_family)
    if min(map(len, parts)) < _LEAST_PART:  # small families have too few questions for each part
        parts = _deal_families([list(chain.from_iterable(by_family))])
    if min(map(len, parts)) < _LEAST_PART:
        raise SourceError(
            f"the questions do not suffice for four parts: {len(clusters)} of them differ in more "
            "than case and punctuation: add other questions"
        )
    ordered = (tuple(sorted(part, key=lambda task: _random_key(task.id, seed))) for part in parts)
    search, selection, finalists, judgement = ordered
    return QuestionParts(
        search=search,
        selection=selection,
        finalists=finalists,
        judgement=judgement,
        doubles=len(tasks) - len(distinct),
    )


def _deal_families(families: Sequence[Sequence[Sequence[Task]]]) -> tuple[list[Task], ...]:
    """Give each cluster of near-duplicates to the part that is furthest below its share.

    The shares are those of each family alone.
    """
    parts: tuple[list[Task], ...] = ([], [], [], [])
    for clusters in families:
        total, dealt = 0, [0.0] * len(parts)
        for cluster in clusters:
            total += len(cluster)
            lacking = [share * total - have for share, have in zip(_SHARES, dealt, strict=True)]
            neediest = lacking.index(max(lacking))
            parts[neediest].extend(cluster)
            dealt[neediest] += len(cluster)
    return parts


def _random_key(text: str, seed: int) -> bytes:
    return blake2b(f"{seed} {text}".encode("utf-8", "replace"), digest_size=8).digest()
