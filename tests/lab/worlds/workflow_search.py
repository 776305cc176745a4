"""Workflows of the rehearsal without an engine: run, measured, drawn at random and searched."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
from batuta.lab.worlds import hand_written_conductor
from batuta.lab.worlds.client import RehearsalClient
from batuta.lab.worlds.profiles import PROFILES
from batuta.lab.worlds.seeded_random import seeded_generator
from batuta.lab.worlds.tasks import grade_answer
from batuta.language import PromptOptions, conductor_request, parse_workflow, worker_messages

WorkflowWriter = Callable[[Task], Workflow]

_CLIENTS = {profile.name: RehearsalClient(profile) for profile in PROFILES}
_NO_TIME = TimeSpan(0.0, 0.0)


def run_workflow(workflow: Workflow, task: Task, seed: int = 0) -> str:
    """The last step's reply; the steps run one after another, without an engine."""
    question = Question.of(task.question)
    step_runs: list[StepRun] = []
    for index, step in enumerate(workflow.steps):
        so_far = Round(decision=Plan(workflow), workflow=workflow, steps=tuple(step_runs))
        messages = worker_messages(question, workflow, index, (so_far,))
        request = Request(messages=messages, sampling=Sampling(seed=seed * 1_000_003 + index))
        reply = _CLIENTS[step.worker].reply(request)
        step_runs.append(
            StepRun(
                index=index,
                planned=step.worker,
                worker=step.worker,
                request=request,
                result=reply,
                span=_NO_TIME,
            )
        )
    last = step_runs[-1].result
    return last.text if isinstance(last, Reply) else ""


def measure_accuracy(workflow: WorkflowWriter, questions: Iterable[Task], seed: int = 0) -> float:
    """Share of the questions that are answered correctly."""
    scores = [
        grade_answer(task, run_workflow(workflow(task), task, seed)).score or 0.0
        for task in questions
    ]
    return sum(scores) / len(scores)


def build_workflow(*steps: tuple[str, str] | tuple[str, str, tuple[int, ...]]) -> Workflow:
    """A workflow of (worker, subtask, access) triples; no access reads nothing."""
    whole = (step if len(step) > 2 else (*step, ()) for step in steps)
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
        context = PlanningContext(question=Question.of(task.question), pool=among)
        draft = model.reply(conductor_request(context, PromptOptions(examples=False), Sampling()))
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
        access = tuple(i for i in range(index) if rng.random() < 0.6)
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
    if change < 0.35:
        steps[at] = Step(
            subtask=steps[at].subtask, worker=other.steps[0].worker, access=steps[at].access
        )
    elif change < 0.55:
        steps[at] = Step(
            subtask=other.steps[0].subtask, worker=steps[at].worker, access=steps[at].access
        )
    elif change < 0.75 and len(steps) < 5:
        access = tuple(i for i in range(len(steps)) if rng.random() < 0.7)
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
