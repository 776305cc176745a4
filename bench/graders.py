"""Mathematical answers graded: how many are right, and how many a second on one core.

Three sets: the tricky cases of tests/lab/tasks/cases, MATH-500's solutions, and MATH-500's answers given
to other questions (all wrong). Three graders: texts alone, math-verify alone, and Batuta's. Answers a
second are of CPU time in one process, the comparisons that the pool would make included and what loads once not; `pool` is
wall time through one process of the pool, on whatever else the machine does. Batuta's answers a second
are the median of five rounds, each in a fresh process, so that nothing is remembered; the load is shown.
`BATUTA_DATA=… python bench/graders.py`; without BATUTA_DATA only the tricky cases.
"""

from __future__ import annotations

import asyncio
import json
import logging
import multiprocessing
import os
import random
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from batuta.lab.tasks.graders import MathsGrader, MathsPool, forms
from batuta.lab.tasks.graders.comparison_process import WARM_UP
from batuta.lab.tasks.graders.form_comparison import is_same_form
from batuta.lab.tasks.graders.latex import normalize_latex
from batuta.lab.tasks.graders.limits import limit_violation
from batuta.lab.tasks.graders.maths import compare_without_algebra, find_maths_answer

ROUNDS = {"texts": 1, "math-verify": 1, "Batuta": 5}
CASES = Path(__file__).parents[1] / "tests" / "lab" / "tasks" / "cases" / "maths.jsonl"
HOSTILE = {
    "tower of powers",
    "factorial of a billion",
    "long digits",
    "deep nesting",
    "deep roots",
}
"""Left out: math-verify alone would not come back from some of them."""


def sets():
    rows = [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines()]
    kept = [row for row in rows if row["trap"] not in HOSTILE]
    yield "tricky cases", [(row["answer"], row["target"], row["score"]) for row in kept]
    file = Path(os.environ.get("BATUTA_DATA", "/nonexistent")) / "bench/math500/test.jsonl"
    if not file.exists():
        print("BATUTA_DATA names no folder with bench/math500: MATH-500 is left out")
        return
    tasks = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    yield "MATH-500 solutions", [(task["solution"], task["answer"], 1) for task in tasks]
    targets = [task["answer"] for task in tasks]
    others = random.Random(0).sample(targets, len(targets))
    pairs = [
        (t, a)
        for t, a in zip(targets, others, strict=True)
        if normalize_latex(t) != normalize_latex(a)
    ]
    yield "MATH-500 shuffled", [(f"$\\boxed{{{a}}}$", t, 0) for t, a in pairs]


def texts_alone(answer, target):
    found = find_maths_answer(answer)
    return found is not None and normalize_latex(found) == normalize_latex(target)


def math_verify_alone(answer, target):
    from math_verify import parse, verify

    gold = parse(f"${target}$", parsing_timeout=None)
    given = parse(answer, parsing_timeout=None)
    return verify(gold, given, timeout_seconds=None)


def ours(answer, target):
    from batuta.lab.tasks.graders import symbolic, values

    found = find_maths_answer(answer)
    if found is None or limit_violation(found):
        return False
    wanted, given = normalize_latex(target), normalize_latex(found)
    quick = compare_without_algebra(wanted, given)
    if quick is not None:
        return quick

    def equal(one, other):
        return values.is_same_value(one, other, symbolic.is_same_expression)

    return is_same_form(forms.parse_form(wanted), forms.parse_form(given), equal)


async def through_the_pool(rows):
    with MathsPool() as pool:
        grader = MathsGrader(pool)
        await pool.compare("x", "y")
        started = time.perf_counter()
        for answer, target, _ in rows:
            await grader.grade(answer, target)
        return len(rows) / (time.perf_counter() - started)


GRADERS = {"texts": texts_alone, "math-verify": math_verify_alone, "Batuta": ours}


def measured(label, rows):
    """How many are missed, how many wrongly accepted, and answers per second of CPU time."""
    logging.disable(logging.CRITICAL)
    grade = GRADERS[label]
    for target, answer in WARM_UP:
        grade(f"$\\boxed{{{answer}}}$", target)
    started = time.process_time()
    verdicts = [bool(grade(answer, target)) for answer, target, _ in rows]
    rate = len(rows) / (time.process_time() - started)
    pairs = [(bool(right), said) for (*_, right), said in zip(rows, verdicts, strict=True)]
    return pairs.count((True, False)), pairs.count((False, True)), rate


def run():
    print(
        f"{'set':20} {'grader':12} {'right':>9} {'missed':>7} {'accepted':>9} {'a core':>10} {'pool':>9}"
    )
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    fresh = multiprocessing.get_context("spawn")
    for name, rows in sets():
        for label in GRADERS:
            rates = []
            for _ in range(ROUNDS[label]):
                with ProcessPoolExecutor(1, fresh) as process:
                    missed, accepted, rate = process.submit(measured, label, rows).result()
                rates.append(rate)
            rate = statistics.median(rates)
            wall = f"{asyncio.run(through_the_pool(rows)):,.0f}/s" if label == "Batuta" else ""
            right = len(rows) - missed - accepted
            print(
                f"{name:20} {label:12} {right:4}/{len(rows):4} {missed:7} {accepted:9}"
                f" {rate:8,.0f}/s {wall:>9}",
                flush=True,
            )


if __name__ == "__main__":
    run()
