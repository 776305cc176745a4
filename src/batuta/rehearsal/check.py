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
    Brief,
    Plan,
    Pool,
    Question,
    Reply,
    Request,
    Round,
    Sampling,
    Span,
    Step,
    StepRun,
    Task,
    WorkerId,
    Workflow,
)
from batuta.language import Rendering, conductor_request, parse, worker_messages
from batuta.rehearsal import conductor
from batuta.rehearsal.chance import generator
from batuta.rehearsal.grammar import families
from batuta.rehearsal.orchestra import pool
from batuta.rehearsal.profiles import PROFILES
from batuta.rehearsal.tasks import FAMILIES, HELD_OUT_FAMILY, grade, tasks
from batuta.rehearsal.worker import RehearsalClient

ALL = (*FAMILIES, HELD_OUT_FAMILY)
BANDS = ((1, 2), (3, 4), (5, 6))
"""Easy, medium and hard."""

Writer = Callable[[Task], Workflow]
Cell = tuple[str, int]
"""A family and the number of a band."""

_CLIENTS = {profile.name: RehearsalClient(profile) for profile in PROFILES}
_NO_TIME = Span(0.0, 0.0)


def play(workflow: Workflow, task: Task, seed: int = 0) -> str:
    """The last step's reply, the steps played one after another and without an engine."""
    question = Question.of(task.question)
    played: list[StepRun] = []
    for index, step in enumerate(workflow.steps):
        so_far = Round(Plan(workflow), workflow=workflow, steps=tuple(played))
        messages = worker_messages(question, workflow, index, (so_far,))
        request = Request(messages, Sampling(seed=seed * 1_000_003 + index))
        reply = _CLIENTS[step.worker].reply(request)
        played.append(StepRun(index, step.worker, step.worker, request, reply, _NO_TIME))
    last = played[-1].result
    return last.text if isinstance(last, Reply) else ""


def accuracy(workflow: Writer, questions: Iterable[Task], seed: int = 0) -> float:
    """Share of the questions that are answered rightly."""
    scores = [grade(task, play(workflow(task), task, seed)).score or 0.0 for task in questions]
    return sum(scores) / len(scores)


def flow(*steps: tuple[str, str] | tuple[str, str, tuple[int, ...]]) -> Workflow:
    """A workflow of (worker, subtask, access) triples; no access reads nothing."""
    return Workflow(
        tuple(
            Step(step[1], WorkerId(step[0]), step[2] if len(step) == 3 else ())  # noqa: PLR2004
            for step in steps
        )
    )


def single(worker: str) -> Workflow:
    """One worker answers."""
    return flow((worker, conductor.SOLVE))


def hand_written(among: Pool) -> Writer:
    """The hand-written conductor's workflows over that pool, through prompt and parser."""
    model = conductor.HandWritten(0)

    def write(task: Task) -> Workflow:
        brief = Brief(Question.of(task.question), among)
        draft = model.reply(conductor_request(brief, Rendering(examples=False), Sampling()))
        decided = parse(draft.text, among)
        if not isinstance(decided, Workflow):
            raise TypeError("a first round cannot be accepted")
        return decided

    return write


SUBTASKS = (
    conductor.SOLVE,
    conductor.PLAN,
    conductor.LOOK_UP,
    conductor.SECOND,
    conductor.VERIFY,
    conductor.REPAIR,
    conductor.COMPARE,
)


def random_workflow(rng: Random) -> Workflow:
    """Any workflow of 1 to 5 steps."""
    steps: list[Step] = []
    names = [profile.name for profile in PROFILES]
    for index in range(rng.randint(1, 5)):
        access = tuple(i for i in range(index) if rng.random() < 0.6)  # noqa: PLR2004
        steps.append(Step(rng.choice(SUBTASKS), WorkerId(rng.choice(names)), access))
    return Workflow(tuple(steps))


def _mutated(workflow: Workflow, rng: Random) -> Workflow:
    """The workflow with one step changed, added or left out."""
    other = random_workflow(rng)
    steps = list(workflow.steps)
    at = rng.randrange(len(steps))
    change = rng.random()
    if change < 0.35:  # noqa: PLR2004
        steps[at] = Step(steps[at].subtask, other.steps[0].worker, steps[at].access)
    elif change < 0.55:  # noqa: PLR2004
        steps[at] = Step(other.steps[0].subtask, steps[at].worker, steps[at].access)
    elif change < 0.75 and len(steps) < 5:  # noqa: PLR2004
        access = tuple(i for i in range(len(steps)) if rng.random() < 0.7)  # noqa: PLR2004
        steps.append(Step(other.steps[0].subtask, other.steps[0].worker, access))
    elif len(steps) > 1:
        steps.pop()
    return Workflow(tuple(steps))


def search(questions: Sequence[Task], seed: int, tries: int) -> Workflow:
    """The best workflow that random search and small changes find on the questions."""
    rng = generator("search", seed)
    few = questions[: max(12, len(questions) // 4)]

    def worth(workflow: Workflow, on: Sequence[Task]) -> float:
        return accuracy(lambda _: workflow, on) - 0.004 * len(workflow)

    start = [single(p.name) for p in PROFILES] + list(_seeds(rng, tries // 2))
    best = sorted(start, key=lambda w: worth(w, few), reverse=True)[:12]
    scored = sorted(((worth(w, questions), i, w) for i, w in enumerate(best)), reverse=True)[:4]
    for number in range(tries // 2):
        child = _mutated(rng.choice(scored)[2], rng)
        if worth(child, few) >= worth(scored[-1][2], few):
            value = worth(child, questions)
            if all(child != known for _, _, known in scored):
                scored = sorted([*scored, (value, 100 + number, child)], reverse=True)[:4]
    return scored[0][2]


def _seeds(rng: Random, count: int) -> Iterable[Workflow]:
    """Random workflows, half of them of well-known shapes with random workers."""
    names = [profile.name for profile in PROFILES]
    shapes = (
        ((conductor.PLAN, ()), (conductor.PLANNED, (0,)), (conductor.REPAIR, (0, 1))),
        ((conductor.SOLVE, ()), (conductor.SECOND, ()), (conductor.COMPARE, (0, 1))),
        ((conductor.LOOK_UP, ()), (conductor.LOOK_UP, ()), (conductor.FROM_FACTS, (0, 1))),
        ((conductor.LOOK_UP, ()), (conductor.FROM_FACTS, (0,)), (conductor.REPAIR, (0, 1))),
        ((conductor.SOLVE, ()), (conductor.VERIFY, (0,))),
        (
            (conductor.PLAN, ()),
            (conductor.PLANNED, (0,)),
            (conductor.PLANNED, (0,)),
            (conductor.COMPARE, (0, 1, 2)),
        ),
        (
            (conductor.LOOK_UP, ()),
            (conductor.LOOK_UP, ()),
            (conductor.PLAN, ()),
            (conductor.FROM_FACTS, (0, 1, 2)),
        ),
        (
            (conductor.LOOK_UP, ()),
            (conductor.LOOK_UP, ()),
            (conductor.PLAN, ()),
            (conductor.FROM_FACTS, (0, 1, 2)),
            (conductor.REPAIR, (0, 1, 2, 3)),
        ),
    )
    for index in range(count):
        if index % 2:
            yield random_workflow(rng)
        else:
            shape = rng.choice(shapes)
            yield Workflow(tuple(Step(s, WorkerId(rng.choice(names)), a) for s, a in shape))


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a way of answering and its accuracy in every cell."""

    name: str
    cells: Mapping[Cell, float]

    def family(self, name: str) -> float:
        """Mean over the bands of a family."""
        return _mean(v for (family, _), v in self.cells.items() if family == name)

    def band(self, number: int) -> float:
        """Mean over the families of a band."""
        return _mean(v for (_, band), v in self.cells.items() if band == number)

    @property
    def overall(self) -> float:
        """Mean over everything."""
        return _mean(self.cells.values())


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)


Questions = Mapping[Cell, Sequence[Task]]


def questions(per_cell: int, seed: int) -> Questions:
    """Fresh questions for every family and band."""
    return {
        (family, number): tuple(
            task
            for difficulty in band
            for task in tasks(family, per_cell // len(band), seed, difficulty=difficulty)
        )
        for family in ALL
        for number, band in enumerate(BANDS)
    }


def measure(name: str, writer: Writer, asked: Questions) -> Row:
    """A row of the table."""
    return Row(name, {cell: accuracy(writer, some) for cell, some in asked.items()})


def best_of(rows: Sequence[Row], family: str) -> str:
    """The name of the best row in a family."""
    return max(rows, key=lambda row: row.family(family)).name


def constant(workflow: Workflow) -> Writer:
    """The same workflow for every question."""
    return lambda _: workflow


def fixed_rows(best: str, asked: Questions) -> list[Row]:
    """Ways that do not look at the question."""
    solve, verify = (best, conductor.SOLVE), conductor.VERIFY
    votes = [(best, conductor.SOLVE)] * 4
    checks = [(best, verify, tuple(range(i))) for i in range(1, 5)]
    shapes = {
        "plan, solve, verify by the best": flow(
            (best, conductor.PLAN), (best, conductor.PLANNED, (0,)), (best, verify, (0, 1))
        ),
        "solve, then verify 4x, by the best": flow(solve, *checks),
        "vote of 5 by the best": flow(*votes, (best, conductor.COMPARE, (0, 1, 2, 3))),
        "plan as the last step": flow(solve, ("piano", conductor.PLAN, (0,))),
        "verify nothing": flow((best, verify)),
    }
    return [measure(name, constant(shape), asked) for name, shape in shapes.items()]


def conditioned_rows(singles: Sequence[Row], asked: Questions, seed: int) -> list[Row]:
    """Ways that look at the question, and the random one that does not."""
    router = {family: single(best_of(singles, family).split()[0]) for family in ALL}
    rng = generator("random workflows", seed)
    return [
        measure("router that knows the family", lambda task: router[_family(task)], asked),
        measure("random workflows", lambda _: random_workflow(rng), asked),
        measure("hand-written conductor", hand_written(pool()), asked),
    ]


def _family(task: Task) -> str:
    return next(tag for tag in task.tags if tag in families())


def searched_rows(asked: Questions, seed: int, tries: int) -> list[Row]:
    """The best workflow for each cell and the best one for everything, found on others."""
    training = questions(60, seed + 1)
    found: dict[Cell, Workflow] = {}
    for cell, some in training.items():
        _progress(f"searching {cell[0]}, band {cell[1] + 1}")
        found[cell] = search(some, seed, tries)
    mixture = [task for some in training.values() for task in some[::6]]
    _progress("searching one workflow for everything")
    everywhere = search(mixture, seed, tries)
    cells = {cell: accuracy(constant(found[cell]), some) for cell, some in asked.items()}
    rows = [
        measure("best one fixed workflow, found", constant(everywhere), asked),
        Row("best workflow per family and band, found", cells),
    ]
    named = {f"{family} {band + 1}": workflow for (family, band), workflow in found.items()}
    for name, workflow in {**named, "everywhere": everywhere}.items():
        _say(f"  {name:14} {_shape(workflow)}")
    return rows


_SHORT = {
    conductor.SOLVE: "solve",
    conductor.PLAN: "plan",
    conductor.PLANNED: "solve by plan",
    conductor.LOOK_UP: "look up",
    conductor.FROM_FACTS: "solve by facts",
    conductor.SECOND: "second",
    conductor.VERIFY: "verify",
    conductor.REPAIR: "repair",
    conductor.COMPARE: "compare",
}


def _shape(workflow: Workflow) -> str:
    return " | ".join(f"{s.worker} {_SHORT[s.subtask]} {list(s.access)}" for s in workflow.steps)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


def _progress(line: str) -> None:
    sys.stderr.write(f"\r{line:60}")
    sys.stderr.flush()


def _table(rows: Sequence[Row]) -> None:
    heads = [*(name[:6] for name in ALL), "easy", "medium", "hard", "all"]
    _say(f"{'':42}" + "".join(f"{head:>8}" for head in heads))
    for row in rows:
        values = [row.family(name) for name in ALL]
        values += [row.band(number) for number in range(len(BANDS))]
        _say(f"{row.name:42}" + "".join(f"{100 * v:8.1f}" for v in (*values, row.overall)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures the world and prints the table."""
    parser = argparse.ArgumentParser(description="Measures the rehearsal world.")
    parser.add_argument("--per-cell", type=int, default=40, help="questions a family and band")
    parser.add_argument("--tries", type=int, default=600, help="workflows searched a cell; 0: none")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args(arguments)
    asked = questions(options.per_cell, options.seed)
    singles = [measure(f"{p.name} alone", constant(single(p.name)), asked) for p in PROFILES]
    for row in singles:
        _progress(row.name)
    best = max(singles, key=lambda row: row.overall).name.split()[0]
    rows = [*singles, *fixed_rows(best, asked)]
    rows += conditioned_rows(singles, asked, options.seed)
    if options.tries:
        rows += searched_rows(asked, options.seed, options.tries)
    _progress("")
    sys.stderr.write("\r")
    _say(f"{sum(map(len, asked.values()))} questions; percent right; best alone: {best}")
    _table(rows)


if __name__ == "__main__":
    main()
