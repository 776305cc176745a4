"""A made-up record: who is right depends on the family and on the sample."""

import numpy as np

from batuta.core import Task, TaskId
from batuta.lab.tasks.recorded import GRADER, RecordedOutcomes, RecordedUsage

MODELS = ("strong", "nimble", "weak")
FAMILIES = ("sums", "words", "maps", "codes", "games")


def made_up(questions=200, samples=2, priced=False, answered=True):
    """`nimble` is right on all words and nothing else, `strong` on most others, `weak` never.

    The second sample of `strong` is right where the first is wrong, on every other question that
    is not of words.
    """
    families = tuple(FAMILIES[n % len(FAMILIES)] for n in range(questions))
    scores = np.zeros((questions, len(MODELS), samples), np.float32)
    for n, family in enumerate(families):
        if family == "words":
            scores[n, 1] = 1
            continue
        scores[n, 0] = n % 10 < 7
        if samples > 1 and n % 2:
            scores[n, 0, 1] = 1 - scores[n, 0, 0]
    tasks = tuple(
        Task(
            id=TaskId(f"q{n}"),
            question=f"Question {n} of {family}?",
            target="right",
            grader=GRADER,
            tags=(family,),
        )
        for n, family in enumerate(families)
    )
    spent = RecordedUsage(
        input_qms=np.full(scores.shape, 100, np.int32),
        output_qms=np.full(scores.shape, 10, np.int32),
        usd_qms=np.broadcast_to(np.array([0.01, 0.002, 0.001])[None, :, None], scores.shape),
        seconds_qms=np.full(scores.shape, np.nan, np.float32),
    )
    return RecordedOutcomes(
        name="made/up",
        tasks=tasks,
        families=families,
        models=MODELS,
        scores_qms=scores,
        solved_from=None,
        answers_qms=(1 - scores).astype(np.int32) if answered else None,
        answers=("right", "wrong") if answered else (),
        texts=None,
        usage=spent if priced else None,
    )
