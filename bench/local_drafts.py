"""Drafts of a small local model as the conductor: how many are workflows, how long, who is called.

    batuta local pull                                  # once
    BATUTA_DATA=… .venv/bin/python bench/local_drafts.py --first 0 --count 100 --journal drafts.jsonl
    … bench/local_drafts.py --first 0 --count 60 --tasks questions.jsonl   # the same, for batuta eval

Only the conductor's model is called, not its workers. Even numbers are questions of GSM8K's training
part, odd ones of BBH, without the questions that recipes/real-benchmarks judges and the families of
which it learns nothing. They stay in the folder BATUTA_DATA, and the journal knows them by number. What the journal has is not drafted again, so a
run that was cut off, by --seconds too, goes on.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import time
from pathlib import Path
from typing import Any

import anyio

from batuta.clients import HttpTransport
from batuta.config.load import load_config
from batuta.config.loaded import LoadedConfig
from batuta.core import Limits, MalformedPlan, Plan, PlanningContext, Question, Task
from batuta.core.conductor import NullListener
from batuta.lab.tasks.datasets.loader import load_tasks

JUDGED = Path(__file__).parents[1] / "recipes/real-benchmarks/questions.json"
SEED = 20261127


def questions() -> list[Task]:
    """GSM8K and BBH in turn, in a fixed order."""
    parts = json.loads(JUDGED.read_text("utf-8"))
    judged = {name for names in parts["judge"].values() for name in names}
    unseen = {family_of(name) for name in parts["unseen"]["bbh-unseen"]}
    columns: list[list[Task]] = []
    for source in ("gsm8k:train", "bbh:test"):
        tasks = [
            task
            for task in load_tasks(source)
            if str(task.id) not in judged and family_of(str(task.id)) not in unseen
        ]
        random.Random(SEED).shuffle(tasks)
        columns.append(tasks)
    return [task for pair in zip(*columns, strict=False) for task in pair]


def family_of(name: str) -> str:
    """The first two parts of a question's name: the set, and its family where it has some."""
    return "/".join(name.split("/")[:2])


class StreamedListener(NullListener):
    """Has drafts streamed, so that a slow machine's are not given up for silence."""

    streaming = True


async def draft(config: LoadedConfig, number: int, task: Task) -> dict[str, Any]:
    """The row of one question: its first draft, and the second if that was needed."""
    row: dict[str, Any] = {"number": number, "drafts": []}
    for sample in range(2):
        context = PlanningContext(
            question=Question.of(task.question),
            pool=config.pool,
            sample=sample,
            max_steps=Limits().steps,
        )
        began = time.perf_counter()
        decision = await config.conductor.plan(context, StreamedListener())
        usage = decision.draft.usage
        row["drafts"].append(
            {
                "seconds": round(time.perf_counter() - began, 2),
                "input": usage.input,
                "cached": usage.cached,
                "output": usage.output,
                "text": decision.draft.text,
                "fault": decision.reason if isinstance(decision, MalformedPlan) else "",
            }
        )
        if isinstance(decision, Plan):
            row["steps"] = [
                {"worker": step.worker, "subtask": step.subtask, "access": step.access}
                for step in decision.workflow.steps
            ]
        if not isinstance(decision, MalformedPlan) or not decision.again:
            break
    return row


async def measure(said: argparse.Namespace, chosen: dict[int, Task]) -> None:
    """Draft what the journal lacks, some at the same time, until the time is up."""
    rows = read_journal(said.journal)
    left = [number for number in chosen if number not in rows]
    stops = time.monotonic() + said.seconds
    async with HttpTransport() as http:
        config = await load_config(http, pool=said.pool, conductor=said.conductor)

        async def work() -> None:
            while left and time.monotonic() < stops:
                number = left.pop(0)
                row = await draft(config, number, chosen[number])
                with said.journal.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")

        async with anyio.create_task_group() as tasks:
            for _ in range(said.at_once):
                tasks.start_soon(work)


def read_journal(file: Path) -> dict[int, dict[str, Any]]:
    """What was drafted so far, by number."""
    if not file.exists():
        return {}
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    return {row["number"]: row for row in rows}


def report(rows: list[dict[str, Any]], workers: int) -> str:
    """The figures of the drafts."""
    first = [row["drafts"][0] for row in rows]
    every = [one for row in rows for one in row["drafts"]]
    planned = [row["steps"] for row in rows if "steps" in row]
    used = collections.Counter(name for steps in planned for name in {s["worker"] for s in steps})
    alone = sum(len(steps) == 1 for steps in planned)
    valid = sum(not one["fault"] for one in first)
    read, cached = mean(every, "input"), mean(every, "cached")
    lines = (
        f"questions {len(rows)}, drafts {len(every)}, at once {workers}",
        f"valid at first {valid} of {len(first)}, with one more {len(planned)} of {len(rows)}",
        f"tokens of a draft: mean {mean(every, 'output'):.0f}, most {most(every, 'output')}",
        f"tokens of the prompt: mean {read:.0f}, of them cached {cached:.0f}",
        f"seconds of a draft: mean {mean(every, 'seconds'):.1f}, most {most(every, 'seconds')}",
        f"steps: mean {sum(map(len, planned)) / max(len(planned), 1):.2f}, one alone {alone}",
        "workflows that call " + ", ".join(f"{name} {n}" for name, n in used.most_common()),
    )
    faults = collections.Counter(one["fault"] for one in every if one["fault"])
    return "\n".join((*lines, *(f"{n} × {fault}" for fault, n in faults.most_common(5))))


def mean(rows: list[dict[str, Any]], name: str) -> float:
    """The mean of a column."""
    return sum(row[name] for row in rows) / max(len(rows), 1)


def most(rows: list[dict[str, Any]], name: str) -> float:
    """The greatest value of a column."""
    return max((row[name] for row in rows), default=0)


def main() -> None:
    """Draft or write the questions, then report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--journal", type=Path, default=Path("drafts.jsonl"))
    parser.add_argument("--seconds", type=float, default=280.0, help="after which none is begun")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--pool", default="local:qwen-1.5b,qwen-0.5b,smol")
    parser.add_argument("--conductor", default="qwen-1.5b")
    parser.add_argument("--tasks", type=Path, help="write the questions as a task file instead")
    said = parser.parse_args()
    listed = questions()
    chosen = {n: listed[n] for n in range(said.first, said.first + said.count)}
    if said.tasks:
        rows = [
            {
                "id": str(task.id),
                "question": task.question,
                "answer": task.target,
                "grader": task.grader,
                "tags": list(task.tags),
                **({"data": task.data} if task.data else {}),
            }
            for task in chosen.values()
        ]
        said.tasks.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
        return
    anyio.run(measure, said, chosen)
    rows = [row for number, row in read_journal(said.journal).items() if number in chosen]
    print(report(rows, said.at_once))


if __name__ == "__main__":
    main()
