"""Workers drawn into world 1: what they are drawn from is what the design says, and cards are measured."""

from dataclasses import fields
from itertools import combinations
from statistics import correlation, mean

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.clients import HttpTransport
from batuta.config.load import load_config
from batuta.core import Limits, Outcome, Question, Request, Sampling, user_message
from batuta.engine import conduct
from batuta.errors import ConfigError
from batuta.lab.worlds import HELD_OUT_FAMILY, TRAINING_FAMILIES, draw_tasks, grade_answer
from batuta.lab.worlds.drawn_pools import parse_drawn_source
from batuta.lab.worlds.drawn_workers import (
    draw_profiles,
    drawn_clients,
    drawn_pool,
    work_out,
    work_out_wrongly,
)
from batuta.lab.worlds.grammar import read_problem
from batuta.lab.worlds.problem import solve_problem
from batuta.lab.worlds.profiles import PROFILES
from lab.worlds.test_frozen_world import digest, prompt

DRAWN = "e458b1039a3969d8"
MANY = 2000
TRAITS = {
    "knows", "planning", "checking", "care", "span", "price", "pace", "helpful", "candid",
    "invents", "opening",
}  # fmt: skip
FAMILIES = (*TRAINING_FAMILIES, HELD_OUT_FAMILY)


def traits(profile):
    """Every trait of a worker by name, as something that can be compared."""
    found = {name: getattr(profile, name) for name in TRAITS}
    found |= {f"skill {area}": share for area, share in profile.skill.items()}
    kinds = dict.fromkeys(kind for one in PROFILES for kind in one.refuses)
    return found | {f"refuses {kind}": profile.refuses.get(kind, 0.0) for kind in kinds}


def test_no_trait_of_a_worker_is_forgotten():
    told = {"name", "description", "strength", "skill", "refuses"}
    assert {field.name for field in fields(PROFILES[0])} == TRAITS | told


def test_each_trait_is_that_of_one_of_the_seven_with_equal_shares():
    drawn = [traits(profile) for profile in draw_profiles(5, MANY)]
    for name in drawn[0]:
        written = [traits(profile)[name] for profile in PROFILES]
        for value in set(map(str, written)):
            wanted = sum(str(one) == value for one in written) / len(written)
            share = mean(str(worker[name]) == value for worker in drawn)
            assert abs(share - wanted) < 0.05, (name, value)
        assert {str(worker[name]) for worker in drawn} == set(map(str, written))


def test_no_trait_says_anything_about_another():
    drawn = [traits(profile) for profile in draw_profiles(6, MANY)]
    numbers = [name for name, value in drawn[0].items() if isinstance(value, int | float)]
    columns = {name: [float(worker[name]) for worker in drawn] for name in numbers}
    assert len(columns) > 14
    for one, other in combinations(columns, 2):
        assert abs(correlation(columns[one], columns[other])) < 0.12, (one, other)


def test_workers_are_drawn_by_their_seed():
    assert draw_profiles(5, 3) == draw_profiles(5, 6)[:3]
    assert draw_profiles(5, 3) != draw_profiles(6, 3)
    assert len({profile.name for profile in draw_profiles(5, MANY)}) == MANY


def test_a_card_says_what_was_measured():
    pool, clients = drawn_pool(9, 4), drawn_clients(9, 4)
    for worker in pool:
        assert [skill.family for skill in worker.skills] == list(FAMILIES)
        assert all(skill.questions == 30 for skill in worker.skills)
        tasks = draw_tasks(None, 300, 31)
        right = []
        for task in tasks:
            asked = Request(messages=(user_message(task.question),), sampling=Sampling(seed=4))
            text = clients[worker.id].reply(asked).text  # pyright: ignore[reportAttributeAccessIssue]
            right.append(grade_answer(task, text).score)
        told = mean(s.share for s in worker.skills if s.family in TRAINING_FAMILIES)
        assert abs(mean(right) - told) < 0.12


@given(st.sampled_from(FAMILIES), st.integers(0, 10**6), st.floats(0, 1, exclude_max=True),
       st.floats(0, 1, exclude_max=True))  # fmt: skip
def test_a_working_is_right_and_a_wrong_one_is_wrong(family, seed, at, pick):
    (task,) = draw_tasks(family, 1, seed)
    problem = read_problem(task.question)
    assert problem is not None
    truth = solve_problem(problem)
    right, wrong = work_out(problem), work_out_wrongly(problem, at, pick)
    assert right.value == truth
    assert wrong.value not in {None, truth}
    assert len(wrong.lines) == len(right.lines) == problem.difficulty
    changed = [a.what == b.what for a, b in zip(right.lines, wrong.lines, strict=True)]
    assert all(changed)


def said():
    for seed in (1, 2):
        for worker in drawn_pool(seed, 3):
            price = worker.price
            yield (
                worker.id,
                worker.description,
                worker.skills,
                price and (price.input, price.output),
            )
            client = drawn_clients(seed, 3)[worker.id]
            for task in draw_tasks(None, 10, 99):
                for asked in ("Solve it.", "Plan the steps.", "Look up the facts.", "Verify it."):
                    yield client.reply(prompt(task.question, asked, ["Answer: 3"])).text  # pyright: ignore[reportAttributeAccessIssue]


def test_the_drawn_workers_are_those_that_figures_were_measured_on():
    assert digest(said()) == DRAWN


@pytest.mark.anyio
async def test_a_drawn_pool_answers():
    async with HttpTransport() as http:
        found = await load_config(http, pool="rehearsal:3:5", time_scale=0.0)
    assert found.simulated
    assert len(found.pool) == 5
    assert found.source == "the rehearsal, 5 simulated workers of seed 3"
    (task,) = draw_tasks("arithmetic", 1, 4, difficulty=1)
    run = await conduct(
        Question.of(task.question), found.conductor, found.pool, found.clients,
        limits=Limits(), seed=1,
    )  # fmt: skip
    assert run.outcome is Outcome.ANSWERED
    flow = run.rounds[-1].workflow
    best = max(found.pool, key=lambda worker: worker.strength or 0)
    assert flow is not None and [step.worker for step in flow.steps] == [best.id]


@pytest.mark.parametrize(
    "source",
    [
        "rehearsal:x", "rehearsal:1:0", "rehearsal:1:2:3", "rehearsal:1:99999", "rehearsal:-1",
        "rehearsal:١", "rehearsal:" + "9" * 5000,
    ],
)  # fmt: skip
def test_a_pool_that_is_not_there_is_one_sentence(source):
    async def load():
        async with HttpTransport() as http:
            await load_config(http, pool=source)

    with pytest.raises(ConfigError, match="write rehearsal, rehearsal:shifted, rehearsal:SEED or"):
        anyio.run(load)


@given(st.integers(0, 10**17), st.integers(1, 2000))
def test_a_source_is_read_as_it_is_written(seed, count):
    assert parse_drawn_source(f"world2:{seed}:{count}") == (seed, count)
    assert parse_drawn_source(f"world2:{seed}") == (seed, 7)
    assert parse_drawn_source("world2") == (1, 7)
