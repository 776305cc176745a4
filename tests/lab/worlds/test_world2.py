"""World 2: what it draws is what its design says, and nothing is drawn anew."""

from statistics import mean

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.clients import HttpTransport
from batuta.config.load import load_config
from batuta.core import Limits, Outcome, Question, Request, Sampling, user_message
from batuta.engine import conduct
from batuta.errors import ConfigError
from batuta.lab.evals.grading import grade_by_task
from batuta.lab.evals.task_sets import open_tasks, task_family
from batuta.lab.train.questions import draw_from_source
from batuta.lab.worlds.world2 import (
    HELD_OUT_KINDS,
    KINDS,
    TRAINING_KINDS,
    draw_world2_tasks,
    world2_clients,
    world2_pool,
)
from batuta.lab.worlds.world2.questions import (
    WORDINGS,
    draw_world2_question,
    make_wrong_answer,
    read_world2_question,
)
from batuta.lab.worlds.world2.worker import draw_traits
from batuta.language.cards import worker_card
from lab.worlds.test_frozen_world import digest, prompt

WORLD = "6a5f7bfa70482e4c"
families = st.sampled_from(tuple(KINDS))
keys = st.tuples(st.integers(0, 10**6), st.integers(0, 10**4))


def answer_to(client, question, seed=0):
    asked = Request(messages=(user_message(question),), sampling=Sampling(seed=seed))
    return client.reply(asked).text.rpartition("Answer: ")[2]


@given(families, keys, st.booleans(), st.integers(1, 6))
def test_a_question_is_understood_in_every_wording(family, key, held_out, level):
    question = draw_world2_question(family, key, held_out=held_out, level=level)
    assert read_world2_question(question.text) == question
    assert question.kind.name == family
    assert question.level == level
    assert draw_world2_question(family, key, level=level).answer == question.answer


@given(families, keys, st.floats(0, 1, exclude_max=True))
def test_a_wrong_answer_is_wrong_and_of_the_same_form(family, key, pick):
    question = draw_world2_question(family, key)
    wrong = make_wrong_answer(question, pick)
    assert wrong != question.answer
    assert wrong.isdigit() == question.answer.isdigit()


def test_the_wordings_are_as_many_as_the_design_says():
    assert {n: len(w.training) for n, w in WORDINGS.items() if n in TRAINING_KINDS} == (
        dict.fromkeys(TRAINING_KINDS, 20)
    )
    assert all(len(WORDINGS[name].held_out) == 4 for name in TRAINING_KINDS)
    assert all(len(WORDINGS[name].held_out) == 8 for name in HELD_OUT_KINDS)
    texts = [t for w in WORDINGS.values() for t in (*w.training, *w.held_out)]
    assert len(set(texts)) == len(texts)


def test_workers_are_drawn_by_their_seed():
    assert draw_traits(5, 3) == draw_traits(5, 6)[:3]
    assert draw_traits(5, 3) != draw_traits(6, 3)
    assert len({worker.id for worker in world2_pool(5, 60)}) == 60


def test_a_card_says_what_was_measured():
    pool, clients = world2_pool(9, 4), world2_clients(9, 4)
    for number, worker in enumerate(pool):
        assert [skill.family for skill in worker.skills] == list(KINDS)
        assert all(skill.questions == 30 for skill in worker.skills)
        card = worker_card(number, worker, descriptions=True, prices=True)
        assert "almanac" in card
        tasks = draw_world2_tasks(None, 360, 31)
        fresh = mean(answer_to(clients[worker.id], t.question) == t.target for t in tasks)
        told = mean(s.share for s in worker.skills if s.family in TRAINING_KINDS)
        assert abs(fresh - told) < 0.15


def test_samples_and_workers_share_their_errors_as_fitted():
    tasks = draw_world2_tasks(None, 400, 123)
    clients = list(world2_clients(77, 12).values())
    said = [
        [[answer_to(client, task.question, seed) for task in tasks] for seed in range(3)]
        for client in clients
    ]
    truth = [task.target for task in tasks]
    once = mean(
        a == t for samples in said for row in samples for a, t in zip(row, truth, strict=True)
    )
    thrice = mean(
        any(row[at] == t for row in samples) for samples in said for at, t in enumerate(truth)
    )
    own = repeat_share([(samples[0], samples[1]) for samples in said], truth)
    pairs = [(a[0], b[0]) for n, a in enumerate(said) for b in said[:n]]
    assert 0.38 < once < 0.52
    assert 0.09 < thrice - once < 0.16
    assert 0.40 < own < 0.52
    assert 0.11 < repeat_share(pairs, truth) < 0.20


def repeat_share(pairs, truth):
    """Of answers that are both wrong, the share that is the same."""
    return mean(
        a == b
        for one, two in pairs
        for a, b, right in zip(one, two, truth, strict=True)
        if right not in {a, b}
    )


def test_plans_and_facts_help_and_wrong_ones_hurt():
    clients = list(world2_clients(78, 12).values())

    def share(family, help_for):
        found = []
        for task in draw_world2_tasks(family, 150, 5, difficulty=6):
            question = read_world2_question(task.question)
            for client in clients:
                asked = prompt(task.question, "Solve the question.", help_for(question))
                text = client.reply(asked).text  # pyright: ignore[reportAttributeAccessIssue]
                found.append(text.endswith(f"Answer: {task.target}"))
        return mean(found)

    def plan(elements):
        lines = "\n".join(f"{n}. {e}" for n, e in enumerate(elements, 1))
        return [f"Plan:\n{lines}"]

    def facts(question, change):
        from batuta.lab.worlds.world2.questions import count_lighthouses

        return [
            "\n".join(
                f"- lighthouses of {t}: {count_lighthouses(t) + change}" for t in question.elements
            )
        ]

    alone = share("bills", lambda _: [])
    assert share("bills", lambda q: plan(q.elements)) > alone + 0.08
    assert share("bills", lambda q: plan(q.elements[1:])) < alone - 0.04
    unaided = share("almanac", lambda _: [])
    assert share("almanac", lambda q: facts(q, 0)) > unaided + 0.15
    assert share("almanac", lambda q: facts(q, 1)) < unaided - 0.05


def test_a_check_mends_and_spoils():
    """A checker that knows more than its neighbour is worth its call; one that knows less is not."""
    ranked = sorted(draw_traits(79, 12), key=lambda t: t.ability)
    weak, strong = (world2_clients(79, 12)[t.name] for t in (ranked[0], ranked[-1]))  # pyright: ignore[reportArgumentType]

    def mended(first, second):
        right = []
        for task in draw_world2_tasks(None, 300, 8):
            said = first.reply(prompt(task.question, "Solve the question.", [])).text
            text = second.reply(prompt(task.question, "Repair the solution.", [said])).text
            right.append(text.endswith(f"Answer: {task.target}"))
        return mean(right)

    alone = mean(answer_to(strong, t.question) == t.target for t in draw_world2_tasks(None, 300, 8))
    assert mended(weak, strong) > mended(weak, weak) + 0.1
    assert mended(strong, weak) < alone


def replies():
    for seed in (1, 2):
        for worker, client in world2_clients(seed, 3).items():
            yield worker
            for family in KINDS:
                for task in draw_world2_tasks(family, 4, 99, held_out=family in HELD_OUT_KINDS):
                    yield task.id, task.question, task.target
                    for asked in ("Solve it.", "Plan the steps.", "Look up the facts."):
                        yield client.reply(prompt(task.question, asked, [])).text  # pyright: ignore[reportAttributeAccessIssue]
                    for asked in ("Verify the solution.", "Compare the answers."):
                        heard = [f"Answer: {task.target}", "Answer: 3"]
                        yield client.reply(prompt(task.question, asked, heard)).text  # pyright: ignore[reportAttributeAccessIssue]
        yield [
            (w.id, w.description, w.price.input, w.price.output, w.skills)
            for w in world2_pool(seed, 3)
        ]


def test_world_2_is_the_one_that_figures_were_measured_in():
    assert digest(replies()) == WORLD


@pytest.mark.anyio
async def test_a_pool_of_world_2_answers_and_is_graded():
    async with HttpTransport() as http:
        found = await load_config(http, pool="world2:3:5")
        assert found.simulated
        assert len(found.pool) == 5
        tasks = open_tasks("world2:ranks:held-out", 8, 4)
        assert task_family(tasks.tasks[0]) == "ranks"
        for task in tasks.tasks:
            run = await conduct(
                Question.of(task.question), found.conductor, found.pool, found.clients,
                limits=Limits(), seed=1,
            )  # fmt: skip
            assert run.outcome in {Outcome.ANSWERED, Outcome.DEGRADED}
            grade = await grade_by_task(task, run.answer)  # pyright: ignore[reportArgumentType]
            assert grade.score == float(run.answer.endswith(f"Answer: {task.target}"))


@pytest.mark.parametrize("source", ["world2:x", "world2:1:0", "world2:1:2:3", "world2:1:99999"])
def test_a_pool_that_is_not_there_is_one_sentence(source):
    async def load():
        async with HttpTransport() as http:
            await load_config(http, pool=source)

    with pytest.raises(ConfigError, match="write world2, world2:SEED"):
        anyio.run(load)


def test_training_never_sees_what_is_held_out():
    drawn = draw_from_source("world2", 600, 3)
    assert {task.tags[1] for task in drawn} == set(TRAINING_KINDS)
    assert not any("held-out wording" in task.tags for task in drawn)
    with pytest.raises(ConfigError, match="cannot train on 'world2:shifts'"):
        draw_from_source("world2:shifts", 3, 1)
    with pytest.raises(ConfigError, match="cannot train on 'world2:bills:6-5'"):
        draw_from_source("world2:bills:6-5", 3, 1)
    hard = draw_from_source("world2:bills:5-6", 10, 3)
    assert {task.difficulty for task in hard} == {5.0, 6.0}
