"""Converts rows of MATH, MATH-500, AIME, GSM8K, OlympiadBench and TheoremQA."""

from __future__ import annotations

import re
from typing import Any, cast

from batuta.core import Task, TaskId
from batuta.lab.tasks.datasets.answer_values import answer_text, is_missing, whole_number
from batuta.lab.tasks.datasets.dataset import RowConverter, text_digest
from batuta.lab.tasks.datasets.rows import Row

BOX_INSTRUCTION = "Put the final answer in \\boxed{}."

_BOX = re.compile(r"\\(?:boxed|fbox)\s*")
_AIME_URL = re.compile(r"_AIME_(I+)_Problems/Problem_(\d+)")
_AIME_ID = re.compile(r"(?<!I)(I++)[-_](\d+)$")
_AIME_PROBLEMS = 15


def boxed_solution(text: str) -> str:
    r"""Return the content of the last `\boxed{}` of a solution; "" if none or incomplete."""
    found = list(_BOX.finditer(text))
    if not found:
        return ""
    rest = text[found[-1].end() :]
    if not rest.startswith("{"):
        return re.split(r"[\s$.]", rest, maxsplit=1)[0]
    depth = 0
    for index, character in enumerate(rest):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return rest[1:index]
    return ""


def convert_math(row: Row) -> Task | None:
    """Convert a problem of MATH; return None for the few without an answer."""
    answer = row["answer"] if "answer" in row else boxed_solution(row["solution"])
    if is_missing(answer):
        return None
    subject = row.get("subject") or row["type"]
    held_out = ("math-500",) if row.get("in_math500") else ()
    level = re.search(r"\d", str(row["level"]))
    return Task(
        id=TaskId(f"math/{text_digest(row['problem'])}"),
        question=_with_instruction(row["problem"], BOX_INSTRUCTION),
        target=answer_text(answer),
        grader="math",
        tags=("math", subject, *held_out),
        difficulty=float(level[0]) if level else None,
    )


def convert_math_500(row: Row) -> Task:
    """Convert a problem of MATH-500."""
    return Task(
        id=TaskId(f"math-500/{row.get('unique_id') or row['id']}"),
        question=_with_instruction(row["problem"], BOX_INSTRUCTION),
        target=answer_text(row["answer"]),
        grader="math",
        tags=("math", row["subject"]),
        difficulty=float(row["level"]),
    )


def aime_converter(year: int) -> RowConverter:
    """Return a converter for the problems of the two AIME contests of a year."""

    def convert(row: Row) -> Task:
        contest, number = _aime_problem(row)
        answer = row["answer"] if "answer" in row else row["gold_answer"]
        return Task(
            id=TaskId(f"aime-{year}/{contest}-{number}"),
            question=_with_instruction(
                row["problem"], f"The answer is an integer from 0 to 999. {BOX_INSTRUCTION}"
            ),
            target=integer_answer(answer),
            grader="integer",
            tags=("math", "aime", str(year)),
            difficulty=float(number),
        )

    return convert


def _aime_problem(row: Row) -> tuple[str, int]:
    """Return the contest, I or II, and the problem's number in it."""
    if "url" in row and (found := _AIME_URL.search(row["url"])):
        return found[1], int(found[2])
    if found := _AIME_ID.search(str(row.get("task_id") or row.get("id") or "")):
        return found[1], int(found[2])
    number = int(row["problem_idx"])
    return ("I", number) if number <= _AIME_PROBLEMS else ("II", number - _AIME_PROBLEMS)


def convert_gsm8k(row: Row) -> Task:
    """Convert a word problem of GSM8K."""
    problem = row["problem"] if "problem" in row else row["question"]
    answer = integer_answer(answer_text(row["answer"]).rpartition("####")[2])
    question = _with_instruction(problem, f"The answer is an integer. {BOX_INSTRUCTION}")
    return Task(
        id=TaskId(f"gsm8k/{text_digest(problem)}"),
        question=question,
        target=answer,
        grader="integer",
        tags=("math",),
    )


def integer_answer(text: object) -> str:
    """Return an integer answer as plain digits.

    Raises:
        ValueError: the answer is not an integer.
    """
    digits = whole_number(answer_text(text))
    if digits is None:
        raise ValueError(f"the answer {str(text).strip()!r} is not an integer")
    return str(int(digits))


def convert_olympiad_bench(row: Row) -> Task:
    """Convert a problem of OlympiadBench with a final answer."""
    problem = row["problem"] if "problem" in row else row["question"]
    found: Any = row["answer"] if "answer" in row else row["final_answer"]
    parts = cast("list[Any]", found) if isinstance(found, list) else [found]
    answer = ", ".join(map(answer_text, parts))
    unit = f" Answer in the unit {row['unit']}." if row.get("unit") else ""
    subject = row.get("subject") if "problem" in row else row.get("subfield")
    return Task(
        id=TaskId(f"olympiadbench/{str(row['id']).rpartition('/')[2]}"),
        question=_with_instruction(problem, f"{BOX_INSTRUCTION}{unit}"),
        target=answer,
        grader="math",
        tags=("math", "olympiad", str(subject)),
    )


_THEOREM_FORMS = {
    "integer": ("integer", f"The answer is an integer. {BOX_INSTRUCTION}"),
    "float": ("freeform", f"The answer is a number. {BOX_INSTRUCTION}"),
    "bool": ("freeform", f"Answer True or False. {BOX_INSTRUCTION}"),
    "option": ("choice", "Answer with the letter of one option."),
}
"""The grader and the instruction for each kind of answer that is no list."""
_THEOREM_LIST = ("math", f"The answer is a list of numbers in brackets. {BOX_INSTRUCTION}")
"""The same for lists, without an example, since small models repeat examples word for word."""


def convert_theorem_qa(row: Row) -> Task | None:
    """Convert a question of TheoremQA; return None for a question with a picture."""
    if row.get("picture") or row.get("Picture"):
        return None
    question = row["question"] if "question" in row else row["Question"]
    found: Any = row["answer"] if "answer" in row else row["Answer"]
    answer = str(found)  # `5.0` keeps its decimal, as a measured value does
    kind = row["answer_type"] if "answer_type" in row else row["Answer_type"]
    grader, instruction = _THEOREM_FORMS.get(kind, _THEOREM_LIST)
    target = answer.strip("()").upper() if kind == "option" else answer
    tags = ("theorem", kind, *((row["field"], row["subfield"]) if "field" in row else ()))
    id_ = TaskId(f"theoremqa/{text_digest(question)}")
    return Task(
        id=id_,
        question=_with_instruction(question, instruction),
        target=target,
        grader=grader,
        tags=tags,
    )


def _with_instruction(problem: str, form: str) -> str:
    return f"{problem.strip()}\n\n{form}"
