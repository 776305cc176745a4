"""A hand-written conductor: a `Client` that reads a conductor's prompt and writes a workflow.

It follows the fixed rules below and is not trained. Prompt, parser and engine are those of every
other conductor.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import final

from batuta.core import (
    MAX_STEPS,
    CallListener,
    Delta,
    Price,
    Reply,
    Request,
    Usage,
    Worker,
    WorkerId,
)
from batuta.core.conductor import NULL_LISTENER
from batuta.lab.worlds.client import count_tokens, sleep_for, split_fragments
from batuta.lab.worlds.grammar import question_families, read_problem
from batuta.lab.worlds.knowledge_base import RELATIONS
from batuta.lab.worlds.problem import Problem
from batuta.language.material import (
    MATERIAL_NOTE,
    PREVIOUS_HEADING,
    QUESTION_HEADING,
    TOOLS_HEADING,
    WORKERS_HEADING,
)
from batuta.language.prompt import CLOSING, FORM
from batuta.usage import usage_cost

PRICE = Price(input=Decimal("0.02"), output=Decimal("0.08"))
"""Dollars per million tokens of the hand-written conductor."""
CONDUCTOR_WORKER = Worker(id=WorkerId("hand-written"), model="hand-written", price=PRICE)
"""The hand-written conductor's model, by whose price the cost of a call is reserved."""

SOLVE = "Solve the question step by step and give the final answer."
PLAN = "Plan the solution: list the steps in order. Do not solve it."
SOLVE_BY_PLAN = "Solve the question step by step according to the plan and give the final answer."
LOOK_UP = "Look up the facts that the question needs and state what you know."
SOLVE_FROM_FACTS = (
    "Use the facts above to solve the question step by step and give the final answer."
)
SECOND_OPINION = "Give a second opinion: solve the question independently, step by step."
VERIFY = "Verify the solution step by step, and give the final answer."
REPAIR = "Check the solution step by step, repair what is wrong, and give the complete answer."
COMPARE = "Compare the solutions step by step, decide where they differ, and give the final answer."


@dataclass(frozen=True, slots=True, kw_only=True)
class ConductorPrompt:
    """The contents of a conductor's prompt."""

    question: str
    workers: tuple[str, ...]
    """The descriptions of the workers, by number."""
    max_steps: int
    answers: tuple[str, ...] | None
    """The answers of the previous round's steps; None in the first round."""


@dataclass(frozen=True, slots=True)
class DraftedStep:
    """A step to be written: its worker's number, subtask and access list."""

    worker: int
    subtask: str
    access: tuple[int, ...] | None = ()
    """None: all earlier steps, the previous round included."""


_WORKER = re.compile(r"^Model id (\d+)(?:: (.*))?$", re.MULTILINE)
_STEPS = re.compile(r"workflow has 1 to (\d+)")
_ANSWER = re.compile(r"^Answer: (.+)$", re.MULTILINE)
_TURN = re.compile(r"(?:^|\n\n)User: ")


def read_prompt(text: str) -> ConductorPrompt:
    """Parse the conductor's prompt."""
    fixed, _, asked = text.partition(f"\n\n{QUESTION_HEADING}\n")
    workers = fixed.partition(f"\n\n{WORKERS_HEADING}\n")[2].partition("\n\n")[0]
    question, _, previous = asked.partition(f"\n\n{PREVIOUS_HEADING}\n")
    for end in (CLOSING, FORM, MATERIAL_NOTE, TOOLS_HEADING):
        question = question.partition(f"\n\n{end}")[0]
    lines = [found[1] for found in _WORKER.findall(workers)]
    most = _STEPS.search(text)
    return ConductorPrompt(
        question=_TURN.split(question)[-1].strip(),
        workers=tuple(lines) or ("",),
        max_steps=int(most[1]) if most else MAX_STEPS,
        answers=tuple(_ANSWER.findall(previous)) if previous else None,
    )


_TOPICS = {
    "arithmetic": r"arithmetic|math\w*|number\w*|calculat\w*",
    "code": r"list programs?|program\w*|code|coding",
    "facts": r"facts?|knowledge|recall|research|look-up",
    "text": r"text|words?|writing|letters",
    "calendar": r"dates?|units?|calendar",
    "planning": r"plan\w*|decompos\w*",
    "checking": r"check\w*|verif\w*|review\w*|judg\w*|compar\w*",
}
_LEVELS = (
    (r"excellent|outstanding|best|expert", 0.97),
    (r"good|strong|capable|skilled", 0.85),
    (r"fair|decent|average|medium", 0.7),
    (r"weak|poor|bad|little|cannot|no ", 0.35),
)
_UNMENTIONED_LEVEL = 0.6
_UNRATED_LEVEL = 0.8


def topic_merit(description: str, topic: str) -> float:
    """Return how good the description calls the worker at the topic, from 0 to 1."""
    pattern = re.compile(rf"\b(?:{_TOPICS[topic]})\b", re.IGNORECASE)
    best = None
    for clause in re.split(r"[;.]", description):
        if pattern.search(clause):
            levels = [
                v for words, v in _LEVELS if re.search(rf"\b(?:{words})", clause, re.IGNORECASE)
            ]
            level = levels[0] if levels else _UNRATED_LEVEL
            best = level if best is None else max(best, level)
    return _UNMENTIONED_LEVEL if best is None else best


def rank_workers(prompt: ConductorPrompt, *topics: str) -> list[int]:
    """Return the workers' numbers, the best at the topics first."""
    worth = [sum(topic_merit(line, topic) for topic in topics) for line in prompt.workers]
    return sorted(range(len(worth)), key=lambda number: -worth[number])


def compose_workflow(prompt: ConductorPrompt) -> tuple[DraftedStep, ...]:
    """Return the workflow for the prompt's question; empty if the last answers are accepted."""
    problem = read_problem(prompt.question)
    if problem is None:
        return (DraftedStep(0, SOLVE),)
    if prompt.answers is not None:
        return _correction_steps(prompt, problem)
    compose = _steps_with_facts if _count_hops(problem) else _steps_without_facts
    steps = compose(prompt, problem)
    if len(steps) <= prompt.max_steps:
        return steps
    return (DraftedStep(_rank_for_problem(prompt, problem)[0], SOLVE),)


def _rank_for_problem(prompt: ConductorPrompt, problem: Problem) -> list[int]:
    return rank_workers(prompt, question_families()[problem.family].skill)


def _count_hops(problem: Problem) -> int:
    return sum(op.kind in RELATIONS for op in problem.ops)


_EASY, _MEDIUM = 2, 4
"""Maximum number of elementary steps of an easy question, and of a medium one."""


def _steps_without_facts(prompt: ConductorPrompt, problem: Problem) -> tuple[DraftedStep, ...]:
    """Return one step for an easy question, else steps that plan, solve and check."""
    skill = question_families()[problem.family].skill
    best = _rank_for_problem(prompt, problem)
    first, second = best[0], best[min(1, len(best) - 1)]
    planner = rank_workers(prompt, "planning")[0]
    judge = next((n for n in rank_workers(prompt, "checking", skill) if n != first), first)
    if problem.difficulty <= _EASY:
        return (DraftedStep(first, SOLVE),)
    if problem.difficulty <= _MEDIUM or len(prompt.workers) == 1:
        return (
            DraftedStep(planner, PLAN),
            DraftedStep(first, SOLVE_BY_PLAN, (0,)),
            DraftedStep(judge, REPAIR, (0, 1)),
        )
    if second == judge:
        second = next((n for n in best if n not in (first, judge)), second)
    return (
        DraftedStep(planner, PLAN),
        DraftedStep(first, SOLVE_BY_PLAN, (0,)),
        DraftedStep(second, SOLVE_BY_PLAN, (0,)),
        DraftedStep(judge, COMPARE, (0, 1, 2)),
    )


def _steps_with_facts(prompt: ConductorPrompt, problem: Problem) -> tuple[DraftedStep, ...]:
    """Return one step for an easy question, else steps that look up facts, solve and may check."""
    knowing = rank_workers(prompt, "facts")
    if problem.difficulty == 1 or len(knowing) == 1:
        return (DraftedStep(knowing[0], SOLVE),)
    calculates = _count_hops(problem) < problem.difficulty
    solver = rank_workers(prompt, "arithmetic")[0] if calculates else knowing[0]
    lookers = [n for n in knowing if n != solver][: 2 if problem.difficulty > _EASY else 1]
    steps = [DraftedStep(number, LOOK_UP) for number in lookers]
    if problem.difficulty > _MEDIUM:
        steps.append(DraftedStep(rank_workers(prompt, "planning")[0], PLAN))
    steps.append(DraftedStep(solver, SOLVE_FROM_FACTS, tuple(range(len(steps)))))
    if calculates and problem.difficulty > _EASY:
        judge = next(n for n in rank_workers(prompt, "checking", "arithmetic") if n != solver)
        steps.append(DraftedStep(judge, REPAIR, tuple(range(len(steps)))))
    return tuple(steps)


def _correction_steps(prompt: ConductorPrompt, problem: Problem) -> tuple[DraftedStep, ...]:
    """Return no steps if the last two answers (or the only one) agree, else a second opinion.

    A comparison follows the second opinion, or replaces it if one step is allowed.
    """
    answers = prompt.answers or ()
    if answers and len(set(answers[-2:])) == 1:
        return ()
    best = _rank_for_problem(prompt, problem)
    judge = rank_workers(prompt, "checking", question_families()[problem.family].skill)[0]
    other = next((number for number in best[1:] if number != judge), best[-1])
    steps = DraftedStep(other, SECOND_OPINION), DraftedStep(judge, COMPARE, None)
    return steps[-prompt.max_steps :]


def write_draft(prompt: ConductorPrompt) -> str:
    """Return the conductor's reply: brief reasoning and the three lists."""
    steps = compose_workflow(prompt)
    access = [["all"] if step.access is None else list(step.access) for step in steps]
    lists = (
        f"model_id = {[step.worker for step in steps]}\n"
        f"subtasks = {json.dumps([step.subtask for step in steps])}\n"
        f"access_list = {json.dumps(access)}"
    )
    return f"{_write_reasoning(prompt, steps)}\n\n{lists}"


def _write_reasoning(prompt: ConductorPrompt, steps: tuple[DraftedStep, ...]) -> str:
    problem = read_problem(prompt.question)
    rules = "I am a hand-written conductor: fixed rules, nothing trained."
    if problem is None:
        return f"{rules} I do not know this kind of question, so one model answers it."
    kind = f"a question of the family {problem.family} with {problem.difficulty} elementary steps"
    if not steps:
        return f"{rules} This was {kind}; the last answers agree, so the answer stands."
    call = "one call is enough" if len(steps) == 1 else f"{len(steps)} calls should do"
    return f"{rules} This is {kind}; by the models' descriptions, {call}."


@final
class HandWrittenClient:
    """The hand-written conductor's model."""

    def __init__(self, time_scale: float = 1.0) -> None:
        """Create the client, with `time_scale` as the factor of the delay; 0: no delay."""
        self._time_scale = time_scale

    def __repr__(self) -> str:
        return "HandWritten()"

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        """Return the draft for a conductor's prompt."""
        reply = self.reply(request)
        fragments = split_fragments(reply.text) if listener.streaming else [""]
        for fragment in fragments:
            await sleep_for(0.04 * self._time_scale / len(fragments))
            if listener.streaming:
                await listener.on_delta(Delta(text=fragment))
        return reply

    def reply(self, request: Request) -> Reply:
        """Return the reply without sleeping."""
        prompt = "\n\n".join(message.text for message in request.messages)
        text = write_draft(read_prompt(prompt))
        usage = Usage(calls=1, input=count_tokens(prompt), output=count_tokens(text))
        cost = usage_cost(usage, PRICE)
        return Reply(text=text, usage=usage, cost=cost, model="rehearsal/hand-written")
