"""Measures the rehearsal's world, and says if it can be learned from.

    python recipes/rehearsal-conductor/measure_world.py

One fixed workflow near the best everywhere would make it too flat to learn anything from. The best workflows are
searched on other questions of the same cells. The ways of answering are those that tests/lab/worlds measures.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from batuta.lab.worlds import hand_written_conductor
from batuta.lab.worlds.profiles import PROFILES
from lab.worlds.measurement import (
    ALL_FAMILIES,
    BANDS,
    AccuracyRow,
    conditioned_rows,
    constant_writer,
    draw_questions,
    fixed_rows,
    measure_row,
)
from lab.worlds.workflow_search import measure_accuracy, search_workflow, single_worker_workflow

SUBTASKS = {
    hand_written_conductor.SOLVE: "solve",
    hand_written_conductor.PLAN: "plan",
    hand_written_conductor.SOLVE_BY_PLAN: "solve by plan",
    hand_written_conductor.LOOK_UP: "look up",
    hand_written_conductor.SOLVE_FROM_FACTS: "solve by facts",
    hand_written_conductor.SECOND_OPINION: "second",
    hand_written_conductor.VERIFY: "verify",
    hand_written_conductor.REPAIR: "repair",
    hand_written_conductor.COMPARE: "compare",
}


def searched_rows(questions, seed, tries):
    """The best workflow for each cell and the best one for everything, found on others."""
    training = draw_questions(60, seed + 1)
    found = {cell: search_workflow(some, seed, tries) for cell, some in training.items()}
    mixture = [task for some in training.values() for task in some[::6]]
    everywhere = search_workflow(mixture, seed, tries)
    for name, workflow in {
        **{f"{family} {band + 1}": flow for (family, band), flow in found.items()},
        "everywhere": everywhere,
    }.items():
        steps = (f"{s.worker} {SUBTASKS[s.subtask]} {list(s.access)}" for s in workflow.steps)
        print(f"  {name:14} {' | '.join(steps)}")
    cells = {
        cell: measure_accuracy(constant_writer(found[cell]), some)
        for cell, some in questions.items()
    }
    return [
        measure_row("best one fixed workflow, found", constant_writer(everywhere), questions),
        AccuracyRow("best workflow per family and band, found", cells),
    ]


def print_table(rows):
    heads = [*(name[:6] for name in ALL_FAMILIES), "easy", "medium", "hard", "all"]
    print(f"{'':42}" + "".join(f"{head:>8}" for head in heads))
    for row in rows:
        values = [row.family(name) for name in ALL_FAMILIES]
        values += [row.band(number) for number in range(len(BANDS))]
        print(f"{row.name:42}" + "".join(f"{100 * v:8.1f}" for v in (*values, row.overall)))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--per-cell", type=int, default=40, help="questions a family and band")
    parser.add_argument("--tries", type=int, default=600, help="workflows searched a cell; 0: none")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    questions = draw_questions(options.per_cell, options.seed)
    singles = [
        measure_row(f"{p.name} alone", constant_writer(single_worker_workflow(p.name)), questions)
        for p in PROFILES
    ]
    best = max(singles, key=lambda row: row.overall).name.split()[0]
    rows = [*singles, *fixed_rows(best, questions)]
    rows += conditioned_rows(singles, questions, options.seed)
    if options.tries:
        rows += searched_rows(questions, options.seed, options.tries)
    print(f"{sum(map(len, questions.values()))} questions; percent right; best alone: {best}")
    print_table(rows)


if __name__ == "__main__":
    main()
