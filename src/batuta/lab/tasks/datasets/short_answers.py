"""Converts rows of RLPR, BBH, SimpleQA, MGSM, IFEval, MMLU, MMLU-Pro and GPQA."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from string import ascii_uppercase
from typing import Any

from batuta.core import Task, TaskId
from batuta.lab.tasks.datasets.answer_values import answer_text, whole_number
from batuta.lab.tasks.datasets.dataset import MultipleChoiceQuestion, as_json, text_digest
from batuta.lab.tasks.datasets.maths import integer_answer
from batuta.lab.tasks.datasets.rows import Row

ANSWER_LINE = "End with a line that begins with `Answer:` and gives your answer."
"""This line has no example, because small models repeated `Answer: the answer` word for word."""


def convert_mmlu(row: Row) -> MultipleChoiceQuestion:
    """Convert a question of MMLU."""
    options = tuple(row["choices"])
    answer = answer_text(row["answer"])
    right = int(answer) if answer.isdecimal() else ascii_uppercase.index(answer)
    subject = row["subject"]
    id_ = TaskId(f"mmlu/{subject}/{text_digest(row['question'], *options)}")
    return MultipleChoiceQuestion(
        id=id_, stem=row["question"], options=options, correct_index=right, tags=("mmlu", subject)
    )


def convert_mmlu_pro(row: Row) -> MultipleChoiceQuestion:
    """Convert a question of MMLU-Pro, which has up to ten options."""
    options = tuple(option for option in row["options"] if option != "N/A")
    right = options.index(row["options"][ascii_uppercase.index(row["answer"])])
    id_ = TaskId(f"mmlu-pro/{row.get('question_id') or row['query_id']}")
    return MultipleChoiceQuestion(
        id=id_,
        stem=row["question"],
        options=options,
        correct_index=right,
        tags=("mmlu-pro", row["category"]),
    )


def convert_gpqa(row: Row) -> MultipleChoiceQuestion:
    """Convert a question of GPQA, which is private because its authors ask not to publish it."""
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


_CHAT = re.compile(r"User:\s*(.*?)\s*(?:Assistant:|$)", re.DOTALL)
_LETTER = re.compile(r"\(([A-Z])\)")
_TOPIC = re.compile(r"""['"]topic['"]\s*:\s*['"]([^'"]+)['"]""")


def convert_rlpr(row: Row) -> Task | None:
    """Convert a question of RLPR, without its chat template; return None if a part is blank."""
    prompt = "\n".join(turn["content"] for turn in row["prompt"] if turn["role"] == "user")
    wrapped = _CHAT.search(prompt)
    question = (wrapped[1] if wrapped else prompt).strip()
    target = answer_text(row["reward_model"]["ground_truth"])
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
    """Convert a question of BIG-Bench Hard; lettered options keep their order."""
    family = row["task"] if "task" in row else PurePath(row["file"]).parent.name
    question = row["question"] if "question" in row else row["input"]
    answer = answer_text(row["answer"] if "answer" in row else row["target"])
    id_ = TaskId(f"bbh/{family}/{text_digest(question)}")
    if letter := _LETTER.fullmatch(answer):
        form, target, grader = "Answer with the letter of one option.", letter[1], "choice"
    else:
        form, digits = ANSWER_LINE, whole_number(answer)
        target, grader = (answer, "exact") if digits is None else (digits, "integer")
    return Task(
        id=id_,
        question=f"{question.strip()}\n\n{form}",
        target=target,
        grader=grader,
        tags=("bbh", family),
    )


def convert_simple_qa(row: Row) -> Task:
    """Convert a question of SimpleQA; an answer that no rule can grade needs a judge."""
    question, tags = str(row["problem"]).strip(), ("simpleqa", *_find_topic(row.get("metadata")))
    return Task(
        id=TaskId(f"simpleqa/{text_digest(question)}"),
        question=f"{question}\n\n{ANSWER_LINE}",
        target=answer_text(row["answer"]),
        grader="freeform",
        tags=tags,
    )


def _find_topic(metadata: object) -> tuple[str, ...]:
    """Return the topic, if any, from SimpleQA's metadata: a Python dictionary as text."""
    found = _TOPIC.search(str(metadata or ""))
    return (found[1],) if found else ()


def convert_mgsm(row: Row) -> Task:
    """Convert a word problem of MGSM; without a column `language`, the file's name ends in it."""
    question, language = str(row["question"]).strip(), _language_of(row)
    return Task(
        id=TaskId(f"mgsm/{language}/{text_digest(question)}"),
        question=f"{question}\n\nThe answer is an integer. Put it in \\boxed{{}}.",
        target=integer_answer(row["answer"]),
        grader="integer",
        tags=("mgsm", language),
    )


def _language_of(row: Row) -> str:
    stem = PurePath(str(row["file"])).name.partition(".")[0]
    return str(row.get("language") or stem.rpartition("_")[2])


def convert_if_eval(row: Row) -> Task:
    """Convert a prompt of IFEval with its instructions, leaving out missing arguments."""
    ids, arguments = row["instruction_id_list"], row["kwargs"]
    instructions = [
        {"id": id_, "arguments": _given_arguments(given)}
        for id_, given in zip(ids, arguments, strict=True)
    ]
    return Task(
        id=TaskId(f"ifeval/{row['key']}"),
        question=str(row["prompt"]),
        target="",
        grader="instructions",
        tags=("ifeval", str(ids[0]).partition(":")[0]),
        data=as_json({"instructions": instructions}),
    )


def _given_arguments(given: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (given or {}).items() if value is not None}
