"""Answers that nobody would write, a million of them, through every grader that runs no program.

`escaped` must be 0: what gets out of the one boundary (`grade_answer`) ends a whole evaluation.
`caught` are answers at which a grader raised and the boundary made them ungraded; each is a fault
of that grader, and its first answer is shown. Mathematics is compared by its rules in this process
and, for a part of the answers, by algebra in processes of its own. Text from a fixed seed. `slowest` is
processor time of this process, so that what else a machine does is not counted.
`python bench/fuzz_graders.py [answers] [seed]`
"""

from __future__ import annotations

import asyncio
import collections
import json
import random
import sys
import time

from batuta.core import Grade, Task, TaskId
from batuta.lab import worlds
from batuta.lab.tasks.graders import (
    ChoiceGrader,
    ExactGrader,
    FreeFormGrader,
    GraderRegistry,
    IntegerGrader,
    JsonSchemaGrader,
    MathsGrader,
    grade_answer,
)
from batuta.lab.tasks.graders.code import is_same_output
from batuta.lab.tasks.graders.code_extraction import extract_program
from batuta.lab.tasks.graders.structured_data import is_same_value

ANSWERS, SEED, ALGEBRA_EACH = 1_000_000, 20, 500
PIECES = r"""
\frac \sqrt \boxed{ \boxed \fbox{ \left( \right) \text{ \pm \cup \infty \le \begin{pmatrix} \end{pmatrix}
\mathbb{R} \emptyset \overline{ \dfrac12 \sqrt[3] \cdot \times ^\circ \% \{ \} { } {{ }} ( ) [ ] ^ _ , ; : = < > +
- * / % & \\ \$ $ 0 1 2 10 3.5 1e400 -0 0x1f 1_000 ١٢ x y A B (C) i e pi sqrt( nan inf and or answer is the not
Answer: <answer> </answer> <think> </think> #### ½ ² √ π cm m/s kg 90^\circ . ! ' " ''' \" # ` ``` ``` ~~~
```python def return lambda: print( None True False {1:2} {[]:1} {{}} {{'a':1}} [1,2] (1,) b'x' f'{x}' 1if 1j
12:30 1/3 1,000 one twelve \u202e \x00 İ ﬁ A. B) C: **D** option choice 一 二 答案 Ответ null [[[[ ]]]] :=
"""
WORDS = [*PIECES.split(), "\n", " ", "\t", "\x00", "\ud800", "\U0001f600", "\u2028", "﻿", "\r\n"]
GIANTS = (
    "9",
    "(",
    "[",
    "{",
    "-",
    "not ",
    "lambda:",
    "\\frac{",
    "1+",
    "\\boxed{",
    "```\n",
    "1,",
    "$",
)
MARKS = ("", "Answer: ", "The answer is ", "\\boxed{", "<answer>", "#### ", "```python\n", "A: ")
TARGETS = ("12", "[1, 2]", "'a'", "{'a': 1}", "\\frac{1}{2}", "B", "Paris", "3 m/s", "1.5", "yes")


def text(draw):
    """An answer."""
    kind = draw.random()
    if kind < 0.01:
        middle = draw.choice(GIANTS) * draw.choice((30, 300, 3000, 30000))
    elif kind < 0.2:
        middle = "".join(
            chr(draw.choice((127, 0x2FFF, 0x10FFF))) for _ in range(draw.randrange(12))
        )
        middle += "".join(chr(draw.randrange(draw.choice((128, 0x3000)))) for _ in range(9))
    else:
        glue = draw.choice((" ", ""))
        middle = glue.join(draw.choices(WORDS, k=draw.randrange(1, 25)))
    closing = draw.choice(("", "", "}", "</answer>", "\n```", ".", "\n"))
    return draw.choice(MARKS) + middle + closing


class OutOfAlgebra:
    """A pool that compares nothing: the rules alone."""

    async def compare(self, target, answer, near=0.0):
        from batuta.lab.tasks.graders import ComparisonResult

        return ComparisonResult.DIFFERENT


def kinds():
    """Every grader by name, as what grades a task's answer."""
    pool = OutOfAlgebra()
    made = {
        "choice": ChoiceGrader(),
        "choice with options": ChoiceGrader(("yes", "no", "12", "")),
        "exact": ExactGrader(),
        "integer": IntegerGrader(),
        "json-schema": JsonSchemaGrader({"type": "array", "items": {"type": "integer"}}),
        "maths": MathsGrader(pool),
        "freeform": FreeFormGrader(pool),
    }
    found = {
        name: (lambda task, answer, grader=grader: grader.grade(answer, task.target))
        for name, grader in made.items()
    }

    async def program(task, answer):
        return Grade(float(extract_program(answer) == task.target))

    async def output(task, answer):
        return Grade(float(is_same_output(task.target, answer)))

    async def value(task, answer):
        try:
            said = json.loads(answer[:4000])
        except (ValueError, RecursionError):
            said = answer
        return Grade(float(is_same_value(task.target, said)))

    async def simulated(task, answer):
        return worlds.grade_answer(task, answer)

    return found | {"program": program, "output": output, "value": value, "rehearsal": simulated}


async def fuzz(answers=ANSWERS, seed=SEED, algebra_each=ALGEBRA_EACH):
    """What escaped, what was caught, and how long it took."""
    draw, graders = random.Random(seed), kinds()
    names = list(graders)
    caught, first, escaped = collections.Counter(), {}, []
    slowest, began = (0.0, "", ""), time.perf_counter()
    with GraderRegistry() as shared:
        for number in range(answers):
            name, answer, target = names[number % len(names)], text(draw), draw.choice(TARGETS)
            grade, grader = graders[name], draw.choice(("list", "integer", "exact"))
            if name == "maths" and number // len(names) % algebra_each == 0:
                name, grade, grader = "algebra", shared.grade, "math"
            task, start = (
                Task(id=TaskId("fuzz"), question="?", target=target, grader=grader),
                time.process_time(),
            )
            try:
                found = await grade_answer(grade, task, answer)
            except BaseException as error:  # noqa: BLE001 - to see what gets out
                escaped.append((name, answer, repr(error)))
                continue
            slowest = max(slowest, (time.process_time() - start, name, answer))
            if found.reason.startswith("not graded: "):
                caught[name] += 1
                first.setdefault(name, (answer[:200], found.reason))
    return {
        "answers": answers,
        "escaped": escaped[:10],
        "caught": dict(caught),
        "first": first,
        "seconds": round(time.perf_counter() - began),
        "slowest": (round(slowest[0], 3), slowest[1], slowest[2][:100]),
    }


def run(answers=ANSWERS, seed=SEED):
    print(json.dumps(asyncio.run(fuzz(answers, seed)), indent=1))


if __name__ == "__main__":
    run(*map(int, sys.argv[1:]))
