"""Draws the questions of this recipe by set and number, and writes them as task files.

    python recipes/real-benchmarks/questions.py draw                       # questions.json, once
    python recipes/real-benchmarks/questions.py write runs/real-benchmarks # needs the sets, in BATUTA_DATA

`questions.json` holds identifiers alone, so that nothing of the sets is redistributed; what is written has the
questions and stays outside of the repository. `judge.jsonl` is asked once; `learn.jsonl` is what tuning and
training see; `unseen.jsonl` are the sets of which nothing is ever learned.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

from batuta.core import Task
from batuta.lab.tasks.datasets.coding import CALL_QUESTION
from batuta.lab.tasks.datasets.loader import load_tasks
from batuta.lab.tasks.datasets.short_answers import ANSWER_LINE

HERE = Path(__file__).parent
DRAW = HERE / "questions.json"
SEED = 20261127
ASKED = {
    ANSWER_LINE: "End with a line such as `Answer: the answer`.",
    CALL_QUESTION: "What does this call return? End with a line such as `Answer: [1, 2]`.",
    "The answer is a list of numbers in brackets.": "The answer is a list such as [1, 2].",
}
"""How questions of BBH, CRUXEval and TheoremQA were worded when they were fixed and first asked, by today's words.
Eleven of the 150 judged answers of qwen-1.5b to BBH repeat these words, and 69 of 150 to CRUXEval; they
stay as they are until the whole record is made anew."""
JUDGED = 150
LEARNED = 120
UNSEEN_BBH = 3
JUDGED_SETS = {
    "gsm8k": "gsm8k:test",
    "math-500": "math-500:test",
    "mmlu": "mmlu:test",
    "bbh": "bbh:test",
    "mbpp": "mbpp:test",
    "humaneval": "humaneval:test",
}
LEARNED_SETS = {
    "gsm8k": "gsm8k:train",
    "math-500": "math:train",
    "mmlu": "mmlu:test",
    "bbh": "bbh:test",
    "mbpp": "mbpp:train",
}
UNSEEN_SETS = {"cruxeval": "cruxeval:test", "theoremqa": "theoremqa:test"}


def draw() -> dict[str, dict[str, list[str]]]:
    """Return the identifiers of the questions, by part and set."""
    lot = random.Random(SEED)
    bbh = {str(task.id): task.tags for task in load_tasks(JUDGED_SETS["bbh"])}
    kinds = sorted({tags[1] for tags in bbh.values()})
    unseen = set(lot.sample(kinds, UNSEEN_BBH))

    def identifiers(name: str, source: str) -> list[str]:
        ids = [str(task.id) for task in load_tasks(source)]
        return [one for one in ids if bbh[one][1] not in unseen] if name == "bbh" else ids

    parts: dict[str, dict[str, list[str]]] = {"judge": {}, "learn": {}, "unseen": {}}
    for name, source in JUDGED_SETS.items():
        ids = identifiers(name, source)
        parts["judge"][name] = lot.sample(ids, len(ids) if name == "humaneval" else JUDGED)
    for name, source in LEARNED_SETS.items():
        held_out = set(parts["judge"][name])
        ids = [one for one in identifiers(name, source) if one not in held_out]
        parts["learn"][name] = lot.sample(ids, LEARNED)
    for name, source in UNSEEN_SETS.items():
        ids = [str(task.id) for task in load_tasks(source)]
        parts["unseen"][name] = lot.sample(ids, JUDGED)
    ids = [one for one, tags in bbh.items() if tags[1] in unseen]
    parts["unseen"]["bbh-unseen"] = lot.sample(ids, JUDGED)
    return parts


def write(folder: Path) -> None:
    """Write the parts as task files; the sets take turns, so that any beginning has all of them."""
    folder.mkdir(parents=True, exist_ok=True)
    sources = {
        "judge": JUDGED_SETS,
        "learn": LEARNED_SETS,
        "unseen": UNSEEN_SETS | {"bbh-unseen": JUDGED_SETS["bbh"]},
    }
    for part, sets in json.loads(DRAW.read_text("utf-8")).items():
        columns = [
            [as_row(name, tasks[one]) for one in ids]
            for name, ids in sets.items()
            for tasks in [{str(task.id): task for task in load_tasks(sources[part][name])}]
        ]
        rows = [
            column[at]
            for at in range(max(map(len, columns)))
            for column in columns
            if at < len(column)
        ]
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / f"{part}.jsonl").write_text(text, "utf-8")
        print(f"{folder / part}.jsonl: {len(rows)} questions")


def as_row(name: str, task: Task) -> dict[str, object]:
    """Return a task as a row of a task file; its first tag is the set."""
    question = task.question
    for today, asked in ASKED.items():
        question = question.replace(today, asked)
    row: dict[str, object] = {
        "id": str(task.id),
        "question": question,
        "answer": task.target,
        "grader": task.grader,
        "tags": [name, *task.tags],
    }
    return row | ({"data": task.data} if task.data else {})


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=("draw", "write"))
    parser.add_argument("folder", nargs="?", type=Path, default=Path("runs/real-benchmarks"))
    said = parser.parse_args()
    if said.command == "draw":
        DRAW.write_text(json.dumps(draw(), indent=0) + "\n", "utf-8")
    else:
        write(said.folder)
