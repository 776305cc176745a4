"""Workers of world 1 drawn from a seed: each trait is that of a random one of its seven workers.

design/0017-drawn-workers.md explains the design. The rules and tables of world 1 are unchanged.
Each drawn worker has a card with measured skills.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TypeVar

from batuta.core import Client, Pool, Skill, Task, Worker, WorkerId
from batuta.lab.worlds.client import RehearsalClient, format_solution, model_name, write_reply
from batuta.lab.worlds.drawn_pools import (
    CARD_QUESTIONS,
    CARD_SEED,
    DEFAULT_COUNT,
    DEFAULT_SEED,
    draw_named,
    mean_share,
)
from batuta.lab.worlds.families import FACTS_FAMILY
from batuta.lab.worlds.grammar import read_problem
from batuta.lab.worlds.knowledge_base import RELATIONS
from batuta.lab.worlds.problem import (
    Problem,
    StepValue,
    apply_step,
    format_value,
    misread_step,
    perturb_value,
    phrase_step,
    read_value,
    solve_problem,
)
from batuta.lab.worlds.profiles import PROFILES, WorkerProfile
from batuta.lab.worlds.prompt_parser import ParsedPrompt, parse_reply
from batuta.lab.worlds.seeded_random import seeded_generator, uniform_numbers
from batuta.lab.worlds.tasks import HELD_OUT_FAMILY, TRAINING_FAMILIES, draw_tasks, grade_answer
from batuta.lab.worlds.worker_model import WorkedSolution, WorkedStep, WorkerModel

_FAMILIES = (*TRAINING_FAMILIES, HELD_OUT_FAMILY)
_REFUSED = tuple(dict.fromkeys(kind for profile in PROFILES for kind in profile.refuses))
"""The kinds of instructions that at least one worker does not always understand."""
_Trait = TypeVar("_Trait")


@lru_cache(maxsize=16)
def drawn_pool(seed: int = DEFAULT_SEED, count: int = DEFAULT_COUNT) -> Pool:
    """Return `count` workers drawn by `seed`, with their measured cards."""
    return Pool(tuple(_measure_worker(profile) for profile in draw_profiles(seed, count)))


def drawn_clients(
    seed: int = DEFAULT_SEED, count: int = DEFAULT_COUNT, time_scale: float = 0.0
) -> Mapping[WorkerId, Client]:
    """Return a client for each worker of `drawn_pool`; without delays if `time_scale` is 0."""
    return {
        WorkerId(profile.name): RehearsalClient(profile, time_scale)
        for profile in draw_profiles(seed, count)
    }


@lru_cache(maxsize=64)
def draw_profiles(seed: int, count: int) -> tuple[WorkerProfile, ...]:
    """Return `count` workers; a larger count only adds workers at the end."""
    rng = seeded_generator("world 1 workers", seed)

    def draw(trait: Callable[[WorkerProfile], _Trait]) -> _Trait:
        return trait(rng.choice(PROFILES))

    def draw_profile(name: str) -> WorkerProfile:
        refuses = {kind: draw(lambda p, k=kind: p.refuses.get(k, 0.0)) for kind in _REFUSED}
        return WorkerProfile(
            name=name,
            description="",
            skill={area: draw(lambda p, a=area: p.skill[a]) for area in PROFILES[0].skill},
            knows=draw(lambda p: p.knows),
            planning=draw(lambda p: p.planning),
            checking=draw(lambda p: p.checking),
            care=draw(lambda p: p.care),
            span=draw(lambda p: p.span),
            price=draw(lambda p: p.price),
            pace=draw(lambda p: p.pace),
            strength=0.0,
            refuses={kind: share for kind, share in refuses.items() if share},
            helpful=draw(lambda p: p.helpful),
            candid=draw(lambda p: p.candid),
            invents=draw(lambda p: p.invents),
            opening=draw(lambda p: p.opening),
        )

    return draw_named(rng, count, draw_profile)


def _measure_worker(profile: WorkerProfile) -> Worker:
    """Return the worker with a card of its accuracy on questions that it answers here."""
    skills = tuple(
        Skill(
            family=family,
            share=mean_share([_answers_correctly(profile, task) for task in _card_tasks(family)]),
            questions=CARD_QUESTIONS,
        )
        for family in _FAMILIES
    )
    mixture = [_card_tasks(_FAMILIES[n % len(_FAMILIES)])[n] for n in range(CARD_QUESTIONS)]
    checks = mean_share([_repairs_correctly(profile, task) for task in mixture])
    plans = mean_share([_plans_correctly(profile, task) for task in mixture])
    knows = mean_share(
        [fact for task in _card_tasks(FACTS_FAMILY.name) for fact in _check_facts(profile, task)]
    )
    return Worker(
        id=WorkerId(profile.name),
        model=model_name(profile),
        description=f"Checks {checks:.0%}, plans {plans:.0%}, knows {knows:.0%}.",
        tags=("rehearsal", "simulated", "local"),
        context_window=32_768,
        price=profile.price,
        strength=mean_share([skill.share for skill in skills]),
        skills=skills,
    )


@lru_cache(maxsize=16)
def _card_tasks(family: str) -> tuple[Task, ...]:
    return draw_tasks(family, CARD_QUESTIONS, CARD_SEED)


def _ask_worker(
    profile: WorkerProfile, task: Task, instruction: str | None = None, working: str = ""
) -> str:
    """Return the worker's reply to a question, or to a subtask that shows a solution."""
    prompt = ParsedPrompt(
        question=task.question,
        instruction=instruction,
        replies=(parse_reply(working),) if working else (),
        read_chars=len(working),
        text=f"{task.question}\n{working}",
    )
    return write_reply(WorkerModel(profile, _read_task(task), prompt, seed=0))


def _read_task(task: Task) -> Problem:
    problem = read_problem(task.question)
    if problem is None:
        raise ValueError(f"this is not a question of the rehearsal: {task.question}")
    return problem


def _answers_correctly(profile: WorkerProfile, task: Task) -> bool:
    return grade_answer(task, _ask_worker(profile, task)).score == 1


def _plans_correctly(profile: WorkerProfile, task: Task) -> bool:
    return parse_reply(_ask_worker(profile, task, "Plan the steps.")).plan == _read_task(task).ops


def _check_facts(profile: WorkerProfile, task: Task) -> list[bool]:
    """Return whether the worker states each fact that the question needs correctly."""
    stated = parse_reply(_ask_worker(profile, task, "Look up the facts.")).facts
    value: StepValue | None = _read_task(task).start
    found: list[bool] = []
    for op in _read_task(task).ops:
        before, value = str(value), None if value is None else apply_step(op, value)
        if op.kind in RELATIONS and value is not None:
            found.append(stated.get((op.kind, before)) == str(value))
    return found


def _repairs_correctly(profile: WorkerProfile, task: Task) -> bool:
    """Return whether the worker's answer is correct after reading a correct or a wrong solution."""
    coin, at, pick, *_ = uniform_numbers("world 1 card", task.question)
    correct = coin < 0.5  # noqa: PLR2004 - a coin
    working = (
        work_out(_read_task(task)) if correct else work_out_wrongly(_read_task(task), at, pick)
    )
    reply = _ask_worker(profile, task, "Repair the solution.", format_solution(working))
    return grade_answer(task, reply).score == 1


def work_out(problem: Problem, wrong_at: int | None = None, pick: float = 0.0) -> WorkedSolution:
    """Solve the problem step by step, misreading step `wrong_at`; None: no step.

    `pick` in [0, 1) chooses the error. The value is None if a step cannot be applied.
    """
    value: StepValue = problem.start
    lines: list[WorkedStep] = []
    for index, op in enumerate(problem.ops):
        after = misread_step(op, value, pick) if index == wrong_at else apply_step(op, value)
        if after is None:
            return WorkedSolution(tuple(lines), None, 0)
        lines.append(
            WorkedStep(phrase_step(op), format_value(value), format_value(after), guess=False)
        )
        value = after
    return WorkedSolution(tuple(lines), value, 0)


def work_out_wrongly(problem: Problem, at: float, pick: float) -> WorkedSolution:
    """Return a solution with one wrong step and therefore a wrong answer.

    `at` in [0, 1) chooses the step; if its error does not lead to a wrong answer, another step is
    taken, or else the result of the last step is changed. `pick` in [0, 1) chooses the error.
    """
    truth = solve_problem(problem)
    steps = len(problem.ops)
    for offset in range(steps):
        work = work_out(problem, (int(at * steps) + offset) % steps, pick)
        if work.value not in {None, truth}:
            return work
    *lines, last = work_out(problem).lines
    wrong = perturb_value(read_value(last.after), pick)
    return WorkedSolution((*lines, last._replace(after=format_value(wrong))), wrong, 0)
