"""Measures how far the graders agree with recorded verdicts, and with those of the tables of cases.

Of each set: answers, how many are graded as recorded, and of the others those that the grader misses, leaves undecided,
or accepts. A table wants no answer accepted; a recorded set has verdicts that are themselves wrong at times (a scorer
that gives full marks for another wording), so before and after a change are compared. `mmlu_pro letters` is the letter
that is read, `livecodebench programs` the program that is extracted, whatever its tests say.
`BATUTA_DATA=… python bench/grader_agreement.py [FILE]` writes every verdict to FILE, to be compared line by line.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import sys
import time
from collections import Counter
from itertools import islice
from pathlib import Path

import pyarrow.parquet
import zstandard

from batuta.core import Task, TaskId
from batuta.lab.tasks.graders import ChoiceGrader, GraderRegistry, grade_answer
from batuta.lab.tasks.graders.code_extraction import extract_program

CASES = Path(__file__).parents[1] / "tests" / "lab" / "tasks" / "cases"
RECORDED = Path(os.environ.get("BATUTA_DATA", "/nonexistent")) / "recorded"
TABLES = {"maths": "math", "choice": "choice", "freeform": "freeform"}
EVERY = {"mmlu_pro": 17, "reasoning_gym": 37}
"""Takes one of so many recorded answers of each set."""
RIGHT = 0.99


def rows(path, every=1):
    """The rows of a compressed file of JSON lines, or every so many of them."""
    with path.open("rb") as file:
        reader = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(file)
        text = io.TextIOWrapper(reader, encoding="utf-8", newline="\n")
        return [json.loads(line) for line in islice(text, 0, None, every)]


def outcomes(name):
    return pyarrow.parquet.read_table(RECORDED / name / "outcomes.parquet").to_pylist()


def tables():
    """Every table with its rows: grader, question, target, answer, the acceptable verdicts."""
    for name, grader in TABLES.items():
        for kind in ("{}", "hostile_{}", "{}_held_out", "{}_fresh"):
            file = CASES / f"{kind.format(name)}.jsonl"
            found = [json.loads(line) for line in file.read_text("utf-8").split("\n") if line]
            yield (
                f"cases: {file.stem}",
                [
                    (
                        {"grader": grader, "data": {"options": row.get("options", [])}},
                        row["target"],
                        row["answer"],
                        row["score"] if isinstance(row["score"], list) else [row["score"]],
                    )
                    for row in found
                ],
            )


def mmlu_pro():
    known = {(str(row["query_id"]), row["model"]): row for row in outcomes("mmlu_pro")}
    asked = {str(row["query_id"]): row for row in rows(RECORDED / "mmlu_pro" / "queries.jsonl.zst")}
    replies = rows(RECORDED / "mmlu_pro" / "responses_top12.jsonl.zst", EVERY["mmlu_pro"])
    for reply in replies:
        key = str(reply["query_id"])
        if recorded := known.get((key, reply["model"])):
            yield asked[key], reply["response"], recorded


def reasoning_gym(grader):
    known = {(r["query_id"], r["model"], r["sample"]): r for r in outcomes("reasoning_gym")}
    folder = RECORDED / "reasoning_gym"
    asked = {row["query_id"]: row for row in rows(folder / "queries.jsonl.zst")}
    found = []
    for reply in rows(folder / "responses.jsonl.zst", EVERY["reasoning_gym"]):
        recorded = known.get((reply["query_id"], reply["model"], reply["sample"]))
        task = asked[reply["query_id"]]
        target = task["expected_answer"]
        if recorded is None or not isinstance(target, str) or not target.strip():
            continue
        if grader == "integer" and not target.strip().lstrip("-").isdigit():
            continue
        said = {"grader": grader, "question": task["question"]}
        found.append((said, target, reply["response"], [int(recorded["score"] >= RIGHT)]))
    return found


def letters(log):
    """The letter that is read, against the one that is recorded: same, none, another."""
    counts = Counter()
    for asked, response, recorded in mmlu_pro():
        chosen = ChoiceGrader(asked["options"]).chosen_letter(response)
        same = chosen == (recorded["answer"] or None)
        counts["same" if same else "none" if chosen is None else "another"] += 1
        shown = {"read": chosen, "recorded": recorded["answer"], "answer": response[-300:]}
        print(json.dumps(shown), file=log)
    return counts


def programs():
    counts = Counter()
    for row in rows(RECORDED / "livecodebench" / "responses_o1.jsonl.zst"):
        for output, code in zip(row["outputs"], row["codes"], strict=True):
            found = (extract_program(output) or "").split()
            same = found == code.split()
            counts["same" if same else "none" if not found else "another"] += 1
    return counts


async def graded(name, cases, log):
    counts, began = Counter(), time.process_time()
    with GraderRegistry() as graders:
        for number, (said, target, answer, wanted) in enumerate(cases):
            task = Task(
                id=TaskId(f"{name}/{number}"),
                question=said.get("question") or "?",
                target=target,
                grader=said["grader"],
                data=json.dumps(said.get("data", {})),
            )
            score = (await grade_answer(graders.grade, task, answer)).score
            kind = {1: "accepted", 0: "missed", None: "undecided"}.get(score, "missed")
            counts["right" if score in wanted else kind] += 1
            shown = {"task": task.id, "score": score, "wanted": wanted, "target": target}
            print(json.dumps({**shown, "answer": answer[-300:]}), file=log)
    seconds = time.process_time() - began
    shares = ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items()))
    print(
        f"{name:28} {len(cases):6} {100 * counts['right'] / len(cases):6.2f} %  {seconds:5.0f} s  {shares}",
        flush=True,
    )


def shown(name, counts):
    total = sum(counts.values())
    print(f"{name:28} {total:6} {100 * counts['same'] / total:6.2f} %  {dict(counts)}", flush=True)


async def run(log):
    for name, cases in tables():
        await graded(name, cases, log)
    if not RECORDED.is_dir():
        print("BATUTA_DATA names no folder with recorded sets: they are left out")
        return
    shown("livecodebench programs", programs())
    shown("mmlu_pro letters", letters(log))
    for grader in ("exact", "integer", "freeform", "math"):
        await graded(f"reasoning_gym {grader}", reasoning_gym(grader), log)


if __name__ == "__main__":
    with Path(sys.argv[1] if sys.argv[1:] else os.devnull).open("w", encoding="utf-8") as verdicts:
        asyncio.run(run(verdicts))
