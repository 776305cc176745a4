"""Rows of multiple choice: MMLU, MMLU-Pro, GPQA."""

from __future__ import annotations

from batuta.core import TaskId
from batuta.tasks.sources.rows import Row
from batuta.tasks.sources.source import LETTERS, Choice, digest


def mmlu(row: Row) -> Choice:
    """A question of MMLU."""
    options = tuple(row["choices"])
    answer = row["answer"]
    right = answer if isinstance(answer, int) else LETTERS.index(answer)
    subject = row["subject"]
    id_ = TaskId(f"mmlu/{subject}/{digest(row['question'], *options)}")
    return Choice(id_, row["question"], options, right, ("mmlu", subject))


def mmlu_pro(row: Row) -> Choice:
    """A question of MMLU-Pro, which has up to ten options."""
    options = tuple(option for option in row["options"] if option != "N/A")
    right = options.index(row["options"][LETTERS.index(row["answer"])])
    id_ = TaskId(f"mmlu-pro/{row.get('question_id') or row['query_id']}")
    return Choice(id_, row["question"], options, right, ("mmlu-pro", row["category"]))


def gpqa(row: Row) -> Choice:
    """A question of GPQA; private, as its authors ask that it is never published."""
    wrong = (row[f"Incorrect Answer {number}"].strip() for number in (1, 2, 3))
    tags = ("gpqa", row["High-level domain"])
    return Choice(
        TaskId(f"gpqa-diamond/{row['Record ID']}"),
        row["Question"].strip(),
        (row["Correct Answer"].strip(), *wrong),
        0,
        tags,
        private=True,
    )
