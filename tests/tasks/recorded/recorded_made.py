"""A small record, made up: four questions, three models, two samples."""

import numpy as np

from batuta.core import Task, TaskId
from batuta.tasks.recorded import GRADER, Recorded, Spent

NAN = np.nan
QUESTIONS = ("What is 1+1?", "What is 2+2?\nThink.", "What is 3+3?", "What is 1+1?")
MODELS = ("big/model", "small", "odd")
ANSWERS = ("2", "4", "6", "7")


def made() -> Recorded:
    scores = np.array(
        [
            [[1.0, 1.0], [1.0, 0.0], [0.0, NAN]],
            [[1.0, 0.5], [0.0, 0.0], [0.0, NAN]],
            [[0.0, 1.0], [0.0, 0.0], [NAN, NAN]],
            [[1.0, 1.0], [0.0, 0.0], [1.0, NAN]],
        ],
        np.float32,
    )
    answers = np.array(
        [
            [[0, 0], [0, 3], [3, -1]],
            [[1, 1], [3, 3], [3, -1]],
            [[3, 2], [3, 3], [-1, -1]],
            [[0, 0], [3, -1], [0, -1]],
        ],
        np.int32,
    )
    tokens = np.where(np.isnan(scores), -1, 10).astype(np.int32)
    tokens[:, 1] = -1
    usd = np.where(np.isnan(scores), NAN, 0.25)
    usd[:, 1:] = NAN
    return Recorded(
        "made/up",
        tuple(Task(TaskId(f"q{place}"), text, "?", GRADER) for place, text in enumerate(QUESTIONS)),
        ("one", "two", "three", "one"),
        MODELS,
        scores,
        0.99,
        answers,
        ANSWERS,
        spent=Spent(tokens, 2 * tokens, usd, np.full(scores.shape, NAN)),
    ).with_texts([("q0", "big/model", 0, "One and one make 2."), ("q0", "unknown", 0, "dropped")])
