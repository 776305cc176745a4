"""World 1 is frozen: every figure about it was measured on these tables and these rules.

A change here is another world with another number, and all figures anew.
"""

import hashlib
from dataclasses import astuple
from decimal import Decimal

from batuta.core import Request, Sampling, user_message
from batuta.lab.worlds import (
    HELD_OUT_FAMILY,
    TRAINING_FAMILIES,
    RehearsalClient,
    draw_tasks,
)
from batuta.lab.worlds.grammar import question_families
from batuta.lab.worlds.knowledge_base import FACTS, KINDS_OF
from batuta.lab.worlds.pools import WORLD_PROFILES
from batuta.lab.worlds.problem import step_kinds
from batuta.language.prompt import LAST_STEP, WORKER_PREAMBLE

TABLES = "aa9ea8cb67cd8f82"
QUESTIONS = "9962f1264d4b8c9e"
REPLIES = "ad561857b864c2de"
INSTRUCTIONS = (
    "Solve the question.",
    "Plan the steps.",
    "Look up the facts.",
    "Verify the solution.",
    "Repair the solution.",
    "Compare the solutions.",
    "Give a second opinion.",
    "State the final answer.",
    "Hum a tune.",
)


def digest(parts):
    found = hashlib.sha256()
    for part in parts:
        found.update(f"{part}\x1f".encode())
    return found.hexdigest()[:16]


def without_later_prices(value):
    """The four prices that there were when the world was frozen; none of its workers has others."""
    if isinstance(value, tuple) and value and isinstance(value[0], Decimal):
        assert not any(value[4:])
        return value[:4]
    return value


def tables():
    for world, profiles in WORLD_PROFILES.items():
        for profile in profiles:
            rest = map(without_later_prices, astuple(profile)[3:])
            yield world, sorted(profile.skill.items()), *map(str, rest)
    yield from sorted(map(str, FACTS.items()))
    yield from sorted(KINDS_OF.items())
    for kind in step_kinds().values():
        yield kind.name, kind.skill, kind.phrases, kind.ranges, kind.confusable_with, kind.is_final
    for family in question_families().values():
        yield family.name, family.skill, family.styles


def questions():
    return [
        task
        for family in (*TRAINING_FAMILIES, HELD_OUT_FAMILY)
        for held_out in (False, True)
        for task in draw_tasks(family, 12, 4711, held_out=held_out)
    ]


def prompt(question, instruction, replies):
    said = "\n\n".join(
        f'<agent_response step="{number}">\n{reply}\n</agent_response>'
        for number, reply in enumerate(replies)
    )
    parts = [
        WORKER_PREAMBLE,
        f"<overall_task>\n{question}\n</overall_task>",
        said,
        f"Your assigned subtask: {instruction}",
        LAST_STEP,
    ]
    return Request(
        messages=(user_message("\n\n".join(part for part in parts if part)),),
        sampling=Sampling(seed=3),
    )


def replies():
    for world, profiles in WORLD_PROFILES.items():
        clients = [RehearsalClient(profile, 0.0) for profile in profiles]
        for task in questions()[::3]:
            heard = []
            for client in clients:
                for instruction in INSTRUCTIONS:
                    reply = client.reply(prompt(task.question, instruction, heard[-2:]))
                    yield world, reply.text, reply.usage
                heard.append(client.reply(prompt(task.question, INSTRUCTIONS[0], ())).text)


def test_the_tables_are_those_of_world_1():
    assert digest(tables()) == TABLES


def test_the_questions_are_those_of_world_1():
    assert digest((t.id, t.question, t.target, t.grader) for t in questions()) == QUESTIONS


def test_the_workers_of_world_1_say_what_they_always_said():
    assert digest(replies()) == REPLIES
