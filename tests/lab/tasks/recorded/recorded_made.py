"""A small record, made up: four questions, three models, two samples."""

import numpy as np

from batuta.core import Task, TaskId
from batuta.lab.tasks.recorded import GRADER, RecordedOutcomes, RecordedUsage

NAN = np.nan
QUESTIONS = ("What is 1+1?", "What is 2+2?\nThink.", "What is 3+3?", "What is 1+1?")
MODELS = ("big/model", "small", "odd")
ANSWERS = ("2", "4", "6", "7")


def made() -> RecordedOutcomes:
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
    return RecordedOutcomes(
        name="made/up",
        tasks=tuple(
            Task(id=TaskId(f"q{place}"), question=text, target="?", grader=GRADER)
            for place, text in enumerate(QUESTIONS)
        ),
        families=("one", "two", "three", "one"),
        models=MODELS,
        scores_qms=scores,
        solved_from=0.99,
        answers_qms=answers,
        answers=ANSWERS,
        usage=RecordedUsage(
            input_qms=tokens,
            output_qms=2 * tokens,
            usd_qms=usd,
            seconds_qms=np.full(scores.shape, NAN),
        ),
    ).with_texts([("q0", "big/model", 0, "One and one make 2."), ("q0", "unknown", 0, "dropped")])
