"""Is the world worth training in? `python -m batuta.rehearsal.check` measures it.

One fixed workflow near the best everywhere would make it too flat to learn anything from.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from batuta.core import (
    Plan,
    PlanningContext,
    Pool,
    Question,
    Reply,
    Request,
    Round,
    Sampling,
    Step,
    StepRun,
    Task,
    TimeSpan,
    WorkerId,
    Workflow,
)
from batuta.language import PromptOptions, conductor_request, parse_workflow, worker_messages
from batuta.rehearsal import hand_written_conductor
from batuta.rehearsal.client import RehearsalClient
from batuta.rehearsal.grammar import question_families
from batuta.rehearsal.pools import rehearsal_pool
from batuta.rehearsal.profiles import PROFILES
from batuta.rehearsal.seeded_random import seeded_generator
from batuta.rehearsal.tasks import HELD_OUT_FAMILY, TRAINING_FAMILIES, draw_tasks, grade_answer

ALL_FAMILIES = (*TRAINING_FAMILIES, HELD_OUT_FAMILY)
BANDS = ((1, 2), (3, 4), (5, 6))
"""Easy, medium and hard."""

WorkflowWriter = Callable[[Task], Workflow]
FamilyBand = tuple[str, int]
"""A family and the number of a band."""

_CLIENTS = {profile.name: RehearsalClient(profile) for profile in PROFILES}
_NO_TIME = TimeSpan(0.0, 0.0)


def play_workflow(workflow: Workflow, task: Task, seed: int = 0) -> str:
    """The last step's reply, the steps played one after another and without an engine."""
    question = Question.of(task.question)
    played: list[StepRun] = []
    for index, step in enumerate(workflow.steps):
        so_far = Round(decision=Plan(workflow), workflow=workflow, steps=tuple(played))
        messages = worker_messages(question, workflow, index, (so_far,))
        request = Request(messages=messages, sampling=Sampling(seed=seed * 1_000_003 + index))
        reply = _CLIENTS[step.worker].reply(request)
        played.append(
            StepRun(
                index=index,
                planned=step.worker,
                worker=step.worker,
                request=request,
                result=reply,
                span=_NO_TIME,
            )
        )
    last = played[-1].result
    return last.text if isinstance(last, Reply) else ""


def measure_accuracy(workflow: WorkflowWriter, questions: Iterable[Task], seed: int = 0) -> float:
    """Share of the questions that are answered correctly."""
    scores = [
        grade_answer(task, play_workflow(workflow(task), task, seed)).score or 0.0
        for task in questions
    ]
    return sum(scores) / len(scores)


def build_workflow(*steps: tuple[str, str] | tuple[str, str, tuple[int, ...]]) -> Workflow:
    """A workflow of (worker, subtask, access) triples; no access reads nothing."""
    whole = (step if len(step) > 2 else (*step, ()) for step in steps)  # noqa: PLR2004
    return Workflow(
        tuple(
            Step(subtask=subtask, worker=WorkerId(worker), access=access)
            for worker, subtask, access in whole
        )
    )


def single_worker_workflow(worker: str) -> Workflow:
    """One worker answers."""
    return build_workflow((worker, hand_written_conductor.SOLVE))


def hand_written_writer(among: Pool) -> WorkflowWriter:
    """The hand-written conductor's workflows over that pool, through prompt and parser."""
    model = hand_written_conductor.HandWrittenClient(0)

    def write(task: Task) -> Workflow:
        brief = PlanningContext(question=Question.of(task.question), pool=among)
        draft = model.reply(conductor_request(brief, PromptOptions(examples=False), Sampling()))
        decided = parse_workflow(draft.text, among)
        if not isinstance(decided, Workflow):
            raise TypeError("a first round cannot be accepted")
        return decided

    return write


SUBTASKS = (
    hand_written_conductor.SOLVE,
    hand_written_conductor.PLAN,
    hand_written_conductor.LOOK_UP,
    hand_written_conductor.SECOND_OPINION,
    hand_written_conductor.VERIFY,
    hand_written_conductor.REPAIR,
    hand_written_conductor.COMPARE,
)


def random_workflow(rng: Random) -> Workflow:
    """Any workflow of 1 to 5 steps."""
    steps: list[Step] = []
    names = [profile.name for profile in PROFILES]
    for index in range(rng.randint(1, 5)):
        access = tuple(i for i in range(index) if rng.random() < 0.6)  # noqa: PLR2004
        steps.append(
            Step(subtask=rng.choice(SUBTASKS), worker=WorkerId(rng.choice(names)), access=access)
        )
    return Workflow(tuple(steps))


def _mutate_workflow(workflow: Workflow, rng: Random) -> Workflow:
    """The workflow with one step changed, added or left out."""
    other = random_workflow(rng)
    steps = list(workflow.steps)
    at = rng.randrange(len(steps))
    change = rng.random()
    if change < 0.35:  # noqa: PLR2004
        steps[at] = Step(
            subtask=steps[at].subtask, worker=other.steps[0].worker, access=steps[at].access
        )
    elif change < 0.55:  # noqa: PLR2004
        steps[at] = Step(
            subtask=other.steps[0].subtask, worker=steps[at].worker, access=steps[at].access
        )
    elif change < 0.75 and len(steps) < 5:  # noqa: PLR2004
        access = tuple(i for i in range(len(steps)) if rng.random() < 0.7)  # noqa: PLR2004
        steps.append(
            Step(subtask=other.steps[0].subtask, worker=other.steps[0].worker, access=access)
        )
    elif len(steps) > 1:
        steps.pop()
    return Workflow(tuple(steps))


def search_workflow(questions: Sequence[Task], seed: int, tries: int) -> Workflow:
    """The best workflow that random search and small changes find on the questions."""
    rng = seeded_generator("search", seed)
    few = questions[: max(12, len(questions) // 4)]

    def worth(workflow: Workflow, on: Sequence[Task]) -> float:
        return measure_accuracy(lambda _: workflow, on) - 0.004 * len(workflow)

    start = [single_worker_workflow(p.name) for p in PROFILES] + list(
        _seed_workflows(rng, tries // 2)
    )
    best = sorted(start, key=lambda w: worth(w, few), reverse=True)[:12]
    scored = sorted(((worth(w, questions), i, w) for i, w in enumerate(best)), reverse=True)[:4]
    for number in range(tries // 2):
        child = _mutate_workflow(rng.choice(scored)[2], rng)
        if worth(child, few) >= worth(scored[-1][2], few):
            value = worth(child, questions)
            if all(child != known for _, _, known in scored):
                scored = sorted([*scored, (value, 100 + number, child)], reverse=True)[:4]
    return scored[0][2]


def _seed_workflows(rng: Random, count: int) -> Iterable[Workflow]:
    """Random workflows, half of them of well-known shapes with random workers."""
    names = [profile.name for profile in PROFILES]
    shapes = (
        (
            (hand_written_conductor.PLAN, ()),
            (hand_written_conductor.SOLVE_BY_PLAN, (0,)),
            (hand_written_conductor.REPAIR, (0, 1)),
        ),
        (
            (hand_written_conductor.SOLVE, ()),
            (hand_written_conductor.SECOND_OPINION, ()),
            (hand_written_conductor.COMPARE, (0, 1)),
        ),
        (
            (hand_written_conductor.LOOK_UP, ()),
            (hand_written_conductor.LOOK_UP, ()),
            (hand_written_conductor.SOLVE_FROM_FACTS, (0, 1)),
        ),
        (
            (hand_written_conductor.LOOK_UP, ()),
            (hand_written_conductor.SOLVE_FROM_FACTS, (0,)),
            (hand_written_conductor.REPAIR, (0, 1)),
        ),
        ((hand_written_conductor.SOLVE, ()), (hand_written_conductor.VERIFY, (0,))),
        (
            (hand_written_conductor.PLAN, ()),
            (hand_written_conductor.SOLVE_BY_PLAN, (0,)),
            (hand_written_conductor.SOLVE_BY_PLAN, (0,)),
            (hand_written_conductor.COMPARE, (0, 1, 2)),
        ),
        (
            (hand_written_conductor.LOOK_UP, ()),
            (hand_written_conductor.LOOK_UP, ()),
            (hand_written_conductor.PLAN, ()),
            (hand_written_conductor.SOLVE_FROM_FACTS, (0, 1, 2)),
        ),
        (
            (hand_written_conductor.LOOK_UP, ()),
            (hand_written_conductor.LOOK_UP, ()),
            (hand_written_conductor.PLAN, ()),
            (hand_written_conductor.SOLVE_FROM_FACTS, (0, 1, 2)),
            (hand_written_conductor.REPAIR, (0, 1, 2, 3)),
        ),
    )
    for index in range(count):
        if index % 2:
            yield random_workflow(rng)
        else:
            shape = rng.choice(shapes)
            yield Workflow(
                tuple(
                    Step(subtask=s, worker=WorkerId(rng.choice(names)), access=a) for s, a in shape
                )
            )


@dataclass(frozen=True, slots=True)
class AccuracyRow:
    """One line of the table: a way of answering and its accuracy in every cell."""

    name: str
    cells: Mapping[FamilyBand, float]

    def family(self, name: str) -> float:
        """Mean over the bands of a family."""
        return _mean_value(v for (family, _), v in self.cells.items() if family == name)

    def band(self, number: int) -> float:
        """Mean over the families of a band."""
        return _mean_value(v for (_, band), v in self.cells.items() if band == number)

    @property
    def overall(self) -> float:
        """Mean over everything."""
        return _mean_value(self.cells.values())


def _mean_value(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)


QuestionsByCell = Mapping[FamilyBand, Sequence[Task]]


def draw_questions(per_cell: int, seed: int) -> QuestionsByCell:
    """Fresh questions for every family and band."""
    return {
        (family, number): tuple(
            task
            for difficulty in band
            for task in draw_tasks(family, per_cell // len(band), seed, difficulty=difficulty)
        )
        for family in ALL_FAMILIES
        for number, band in enumerate(BANDS)
    }


def measure_row(name: str, writer: WorkflowWriter, asked: QuestionsByCell) -> AccuracyRow:
    """A row of the table."""
    return AccuracyRow(name, {cell: measure_accuracy(writer, some) for cell, some in asked.items()})


def best_row_name(rows: Sequence[AccuracyRow], family: str) -> str:
    """The name of the best row in a family."""
    return max(rows, key=lambda row: row.family(family)).name


def constant_writer(workflow: Workflow) -> WorkflowWriter:
    """The same workflow for every question."""
    return lambda _: workflow


def fixed_rows(best: str, asked: QuestionsByCell) -> list[AccuracyRow]:
    """Ways that do not look at the question."""
    solve, verify = (best, hand_written_conductor.SOLVE), hand_written_conductor.VERIFY
    votes = [(best, hand_written_conductor.SOLVE)] * 4
    checks = [(best, verify, tuple(range(i))) for i in range(1, 5)]
    shapes = {
        "plan, solve, verify by the best": build_workflow(
            (best, hand_written_conductor.PLAN),
            (best, hand_written_conductor.SOLVE_BY_PLAN, (0,)),
            (best, verify, (0, 1)),
        ),
        "solve, then verify 4x, by the best": build_workflow(solve, *checks),
        "vote of 5 by the best": build_workflow(
            *votes, (best, hand_written_conductor.COMPARE, (0, 1, 2, 3))
        ),
        "plan as the last step": build_workflow(
            solve, ("piano", hand_written_conductor.PLAN, (0,))
        ),
        "verify nothing": build_workflow((best, verify)),
    }
    return [measure_row(name, constant_writer(shape), asked) for name, shape in shapes.items()]


def conditioned_rows(
    singles: Sequence[AccuracyRow], asked: QuestionsByCell, seed: int
) -> list[AccuracyRow]:
    """Ways that look at the question, and the random one that does not."""
    router = {
        family: single_worker_workflow(best_row_name(singles, family).split()[0])
        for family in ALL_FAMILIES
    }
    rng = seeded_generator("random workflows", seed)
    return [
        measure_row("router that knows the family", lambda task: router[_task_family(task)], asked),
        measure_row("random workflows", lambda _: random_workflow(rng), asked),
        measure_row("hand-written conductor", hand_written_writer(rehearsal_pool()), asked),
    ]


def _task_family(task: Task) -> str:
    return next(tag for tag in task.tags if tag in question_families())


def searched_rows(asked: QuestionsByCell, seed: int, tries: int) -> list[AccuracyRow]:
    """The best workflow for each cell and the best one for everything, found on others."""
    training = draw_questions(60, seed + 1)
    found: dict[FamilyBand, Workflow] = {}
    for cell, some in training.items():
        _show_progress(f"searching {cell[0]}, band {cell[1] + 1}")
        found[cell] = search_workflow(some, seed, tries)
    mixture = [task for some in training.values() for task in some[::6]]
    _show_progress("searching one workflow for everything")
    everywhere = search_workflow(mixture, seed, tries)
    cells = {
        cell: measure_accuracy(constant_writer(found[cell]), some) for cell, some in asked.items()
    }
    rows = [
        measure_row("best one fixed workflow, found", constant_writer(everywhere), asked),
        AccuracyRow("best workflow per family and band, found", cells),
    ]
    named = {f"{family} {band + 1}": workflow for (family, band), workflow in found.items()}
    for name, workflow in {**named, "everywhere": everywhere}.items():
        _print_line(f"  {name:14} {_describe_workflow(workflow)}")
    return rows


_SUBTASK_LABELS = {
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


def _describe_workflow(workflow: Workflow) -> str:
    return " | ".join(
        f"{s.worker} {_SUBTASK_LABELS[s.subtask]} {list(s.access)}" for s in workflow.steps
    )


def _print_line(line: str) -> None:
    sys.stdout.write(line + "\n")


def _show_progress(line: str) -> None:
    sys.stderr.write(f"\r{line:60}")
    sys.stderr.flush()


def _print_table(rows: Sequence[AccuracyRow]) -> None:
    heads = [*(name[:6] for name in ALL_FAMILIES), "easy", "medium", "hard", "all"]
    _print_line(f"{'':42}" + "".join(f"{head:>8}" for head in heads))
    for row in rows:
        values = [row.family(name) for name in ALL_FAMILIES]
        values += [row.band(number) for number in range(len(BANDS))]
        _print_line(f"{row.name:42}" + "".join(f"{100 * v:8.1f}" for v in (*values, row.overall)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures the world and prints the table."""
    parser = argparse.ArgumentParser(description="Measures the rehearsal world.")
    parser.add_argument("--per-cell", type=int, default=40, help="questions a family and band")
    parser.add_argument("--tries", type=int, default=600, help="workflows searched a cell; 0: none")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args(arguments)
    asked = draw_questions(options.per_cell, options.seed)
    singles = [
        measure_row(f"{p.name} alone", constant_writer(single_worker_workflow(p.name)), asked)
        for p in PROFILES
    ]
    for row in singles:
        _show_progress(row.name)
    best = max(singles, key=lambda row: row.overall).name.split()[0]
    rows = [*singles, *fixed_rows(best, asked)]
    rows += conditioned_rows(singles, asked, options.seed)
    if options.tries:
        rows += searched_rows(asked, options.seed, options.tries)
    _show_progress("")
    sys.stderr.write("\r")
    _print_line(f"{sum(map(len, asked.values()))} questions; percent right; best alone: {best}")
    _print_table(rows)


if __name__ == "__main__":
    main()
