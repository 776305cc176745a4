"""Rows with short answers in words or numbers: RLPR, BBH."""

from __future__ import annotations

import re
from pathlib import PurePath

from batuta.core import Task, TaskId
from batuta.tasks.datasets.dataset import text_digest
from batuta.tasks.datasets.rows import Row

_CHAT = re.compile(r"User:\s*(.*?)\s*(?:Assistant:|$)", re.DOTALL)
_LETTER = re.compile(r"\(([A-Z])\)")
_INTEGER = re.compile(r"-?\d+")


def convert_rlpr(row: Row) -> Task | None:
    """A question of RLPR's training set, taken out of its chat template."""
    said = "\n".join(turn["content"] for turn in row["prompt"] if turn["role"] == "user")
    wrapped = _CHAT.search(said)
    question = (wrapped[1] if wrapped else said).strip()
    target = str(row["reward_model"]["ground_truth"]).strip()
    if not question or not target:
        return None
    asked = f"{question}\n\nPut the final answer in \\boxed{{}}."
    tags = ("rlpr", *((row["ability"],) if row.get("ability") else ()))
    return Task(
        id=TaskId(f"rlpr/{text_digest(question)}"),
        question=asked,
        target=target,
        grader="freeform",
        tags=tags,
    )


def convert_bbh(row: Row) -> Task:
    """A question of BIG-Bench Hard; options are lettered in the text and keep their order."""
    family = row["task"] if "task" in row else PurePath(row["file"]).parent.name
    question = row["question"] if "question" in row else row["input"]
    answer = (row["answer"] if "answer" in row else row["target"]).strip()
    id_ = TaskId(f"bbh/{family}/{text_digest(question)}")
    if letter := _LETTER.fullmatch(answer):
        form, target, grader = "Answer with the letter of one option.", letter[1], "choice"
    else:
        form, target = "End with a line such as `Answer: the answer`.", answer
        grader = "integer" if _INTEGER.fullmatch(answer) else "exact"
    return Task(
        id=id_,
        question=f"{question.strip()}\n\n{form}",
        target=target,
        grader=grader,
        tags=("bbh", family),
    )
