"""Converts rows of MMLU, MMLU-Pro and GPQA."""

from __future__ import annotations

from batuta.core import TaskId
from batuta.lab.tasks.datasets.answer_values import answer_text
from batuta.lab.tasks.datasets.dataset import LETTERS, MultipleChoiceQuestion, text_digest
from batuta.lab.tasks.datasets.rows import Row


def convert_mmlu(row: Row) -> MultipleChoiceQuestion:
    """Convert a question of MMLU."""
    options = tuple(row["choices"])
    answer = answer_text(row["answer"])
    right = int(answer) if answer.isdecimal() else LETTERS.index(answer)
    subject = row["subject"]
    id_ = TaskId(f"mmlu/{subject}/{text_digest(row['question'], *options)}")
    return MultipleChoiceQuestion(
        id=id_, stem=row["question"], options=options, correct_index=right, tags=("mmlu", subject)
    )


def convert_mmlu_pro(row: Row) -> MultipleChoiceQuestion:
    """Convert a question of MMLU-Pro, which has up to ten options."""
    options = tuple(option for option in row["options"] if option != "N/A")
    right = options.index(row["options"][LETTERS.index(row["answer"])])
    id_ = TaskId(f"mmlu-pro/{row.get('question_id') or row['query_id']}")
    return MultipleChoiceQuestion(
        id=id_,
        stem=row["question"],
        options=options,
        correct_index=right,
        tags=("mmlu-pro", row["category"]),
    )


def convert_gpqa(row: Row) -> MultipleChoiceQuestion:
    """Convert a question of GPQA; it is private, as its authors ask not to publish it."""
    wrong = (row[f"Incorrect Answer {number}"].strip() for number in (1, 2, 3))
    tags = ("gpqa", row["High-level domain"])
    return MultipleChoiceQuestion(
        id=TaskId(f"gpqa-diamond/{row['Record ID']}"),
        stem=row["Question"].strip(),
        options=(row["Correct Answer"].strip(), *wrong),
        correct_index=0,
        tags=tags,
        private=True,
    )
