"""Smoothie takes the central answer, pays for all, and reads no score."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from routing_made import ADA, CHEAP, WORKERS, asked, made, pool, unhurried

from batuta.clients import ScriptedClient
from batuta.core import Outcome, Question
from batuta.errors import ConfigError, ProviderOverloadedError
from batuta.lab.baselines import SolverContext
from batuta.lab.baselines.routing import smoothie
from batuta.lab.baselines.routing.smoothie import estimate_deltas

pytestmark = pytest.mark.anyio

FORMS = pytest.mark.parametrize("form", ["answers", "embeddings"])


def context(*lines):
    """Each worker says its line."""
    members = pool(*WORKERS[: len(lines)])
    clients = {
        worker.id: ScriptedClient([line]) for worker, line in zip(members, lines, strict=True)
    }
    return SolverContext(pool=members, clients=clients)


@unhurried
@given(st.integers(0, 999), st.integers(3, 8))
def test_the_estimate_is_the_mean_over_all_pairs(seed, m):
    points = np.random.default_rng(seed).standard_normal((m, 4))
    apart = ((points[:, None] - points) ** 2).sum(axis=2)
    by_hand = [
        np.mean([
            (apart[i, j] + apart[i, k] - apart[j, k]) / 2
            for j in range(m)
            for k in range(j + 1, m)
            if i not in {j, k}
        ])
        for i in range(m)
    ]  # fmt: skip
    np.testing.assert_allclose(estimate_deltas(apart), by_hand, atol=1e-9)


@FORMS
@pytest.mark.parametrize("k", [None, 20])
@pytest.mark.parametrize(
    ("said", "chosen"),
    [
        (["Answer: 3", "Answer: 7", "Answer: 7"], "Answer: 7"),
        (["Answer: 7", "Answer: 3", "So it is 7.\nAnswer: 7"], "Answer: 7"),
        (["Answer: 1", "Answer: 2", ProviderOverloadedError("full")], "Answer: 1"),
    ],
)
async def test_without_a_history_of_answers_it_is_a_vote(form, k, said, chosen):
    solver = smoothie.fit_smoothie(made(12), form=form, k=k, features=CHEAP)
    run = await solver.answer(Question.of("What?"), context(*said), 1)
    assert run.answer == chosen and run.outcome is Outcome.ANSWERED
    assert len(run.steps) == solver.calls == 3
    assert run.usage.calls == sum(isinstance(line, str) for line in said)


@FORMS
async def test_whoever_agreed_most_before_wins_where_all_differ(form):
    told = (("same", "same", "other"), ("thing", "else", "thing")) * 4
    history = replace(made(8), answers=told)
    solver = smoothie.fit_smoothie(history, form=form)
    lines = ("Answer: apple", "Answer: pear", "Answer: quince")
    run = await solver.answer(Question.of("What?"), context(*lines), 1)
    assert run.answer == "Answer: apple"


async def test_the_neighbourhood_decides_in_the_local_form():
    _, sums = asked(60, 0)
    told = tuple(("x", "y", "x") if is_sum else ("y", "x", "x") for is_sum in sums)
    history = replace(made(60), answers=told)
    solver = smoothie.fit_smoothie(history, k=11, features=CHEAP)
    lines = [f"Answer: {fruit}" for fruit in ("apple", "pear", "quince")]
    found = {}
    for text, is_sum in zip(*asked(8, 3), strict=True):
        delta_m = solver.estimate_question_deltas(
            text, [line[8:] for line in lines], np.ones(3, bool)
        )
        found.setdefault(is_sum, set()).add(delta_m[0] < delta_m[1])
    assert found == {True: {True}, False: {False}}


@FORMS
@pytest.mark.parametrize("k", [None, 5])
def test_no_score_is_read(form, k):
    history = made(20, answers=True)
    blind = replace(history, scores_qm=np.full_like(history.scores_qm, np.nan))
    text, told = "Add 1 and 2.", ["right", "wrong 1", None]
    there = np.array([True, True, False])
    seeing, unseeing = (
        smoothie.fit_smoothie(h, form=form, k=k, features=CHEAP).estimate_question_deltas(
            text, told, there
        )
        for h in (history, blind)
    )
    np.testing.assert_array_equal(seeing, unseeing)


async def test_an_answer_can_be_read_in_another_way():
    solver = replace(smoothie.fit_smoothie(made(6)), extract=lambda _, reply: reply.text[:3])
    run = await solver.answer(Question.of("What?"), context("one 1", "two 2", "two 3"), 1)
    assert run.answer == "two 2"


async def test_a_reply_without_an_answer_agrees_with_nobody():
    solver = replace(smoothie.fit_smoothie(made(6)), extract=lambda _, reply: None)
    lines = ("same", "same", "same")
    assert (await solver.answer(Question.of("What?"), context(*lines), 1)).answer == "same"
    apart = solver.estimate_question_deltas("What?", [None] * 3, np.ones(3, bool))
    np.testing.assert_allclose(apart, 1.0)


async def test_all_failing_is_data():
    solver = smoothie.fit_smoothie(made(6))
    run = await solver.answer(
        Question.of("What?"), context(*[ProviderOverloadedError("full")] * 3), 1
    )
    assert run.outcome is Outcome.FAILED and run.answer is None


async def test_a_pool_that_lacks_a_worker_is_asked_without_it():
    solver = smoothie.fit_smoothie(made(6))
    run = await solver.answer(Question.of("What?"), context("Answer: 1", "Answer: 1"), 1)
    assert run.answer == "Answer: 1" and {step.worker for step in run.steps} == {*WORKERS[:2]}


async def test_a_pool_of_strangers_is_answered_by_its_best_worker():
    members = pool("dan", "fay")
    clients = {worker.id: ScriptedClient([f"I am {worker.id}."]) for worker in members}
    run = await smoothie.fit_smoothie(made(6)).answer(
        Question.of("What?"), SolverContext(pool=members, clients=clients), 1
    )
    assert run.answer == "I am dan." and run.usage.calls == 1


def test_two_workers_are_too_few():
    with pytest.raises(ConfigError, match="at least 3 workers"):
        smoothie.fit_smoothie(made(6).select(workers=[ADA, WORKERS[1]]))
