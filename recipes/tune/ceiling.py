"""The ceiling of each small world: its best workflow for each kind and length, by trying them all.

    python recipes/tune/ceiling.py

Every workflow of the library of up to four steps, in its first phrasings, is run on 200
questions of each cell (kind; longer than four or not); the best 20 of each cell on 1,500 others,
which name the best; it is measured on 1,000 fresh ones. Calls are not counted against it.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from batuta.lab.tune.library import write_workflow
from lab.tune.worlds import _ANSWER, ALL, every_candidate, kind, length, truth

STEPS = 4


def score_workflow(world, flow, question, known, right):
    """Whether the last answer is the right one; calls that were made before are not made again."""
    said, asked = [], {}
    for step in flow.steps:
        prompt = question
        if step.subtask or step.access:
            parts = [f"<overall_task>\n{question}\n</overall_task>"]
            parts += [
                f'<agent_response step="{i}">\n{said[i]}\n</agent_response>' for i in step.access
            ]
            prompt = "\n".join([*parts, f"Your assigned subtask: {step.subtask}"])
        asked[step.worker, prompt] = times = asked.get((step.worker, prompt), -1) + 1
        key = step.worker, prompt, times
        if key not in known:
            known[key] = world.answer(*key)
        said.append(known[key])
    found = _ANSWER.findall(said[-1])
    return bool(found) and int(found[-1]) == right


def measure(world, flows, questions, truth_of=truth):
    """The share right of each workflow."""
    right = [0] * len(flows)
    for question in questions:
        known = {}
        for place, flow in enumerate(flows):
            right[place] += score_workflow(world, flow, question, known, truth_of(question))
    return [one / len(questions) for one in right]


def cells(world, count, seed):
    """Questions by kind and length."""
    found = {}
    for task in world.tasks(count, seed):
        found.setdefault((kind(task.question), length(task.question) > 4), []).append(task.question)
    return found


def main():
    """Prints a line for each world."""
    for name, world in ALL.items():
        if len(sys.argv) > 1 and name not in sys.argv[1:]:
            continue
        every = every_candidate(world.workers, STEPS)
        flows = [write_workflow(one) for one in every]
        first, more, fresh = (
            cells(world, n, seed) for n, seed in ((1200, 31), (9000, 32), (6000, 33))
        )
        total, count, best, alone = 0.0, 0, {}, [0.0] * len(world.workers)
        for cell, questions in sorted(first.items()):
            shares = measure(world, flows, questions[:200])
            top = sorted(range(len(flows)), key=lambda place: -shares[place])[:20]
            again = measure(world, [flows[place] for place in top], more[cell])
            chosen = top[max(range(len(top)), key=again.__getitem__)]
            many = len(fresh[cell])
            total += many * measure(world, [flows[chosen]], fresh[cell])[0]
            singles = [place for place, one in enumerate(every) if len(one) == 1]
            for at, share in enumerate(measure(world, [flows[p] for p in singles], fresh[cell])):
                alone[at] += many * share
            count += many
            best[f"{cell[0]} {'long' if cell[1] else 'short'}"] = str(every[chosen])
        line = {"world": name, "workflows": len(flows), "best single": round(100 * max(alone) / count, 1),
                "ceiling": round(100 * total / count, 1), "by": best}  # fmt: skip
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
