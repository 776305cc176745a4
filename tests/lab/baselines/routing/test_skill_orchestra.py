"""SkillOrchestra in a world where skills matter: who is right depends on what a question needs."""

import json
from dataclasses import replace
from decimal import Decimal
from random import Random

import numpy as np
import pytest
from routing_made import ADA, BOB, EVE, WORKERS, asked, made
from typer.testing import CliRunner

from batuta.clients import ScriptedClient
from batuta.core import Outcome, Pool, Price, Question, Worker
from batuta.core.worker import SEARCH
from batuta.errors import ConfigError, ProviderUnreachableError
from batuta.lab.baselines import SolverContext
from batuta.lab.baselines.routing.skill_learning import (
    QUESTIONS,
    count_outcomes,
    learn_handbook,
    read_skills,
)
from batuta.lab.baselines.routing.skill_orchestra import (
    Handbook,
    SkillOrchestra,
    read_demand,
)
from batuta.lab.commands import evaluate

pytestmark = pytest.mark.anyio
PRICE = Price(input=Decimal(1), output=Decimal(3))
FOUND = json.dumps(
    {
        "categories": [
            {
                "name": "numbers",
                "skills": [
                    {"skill_id": "adding", "description": "adds", "indicators": ["add"]},
                    {"skill_id": "doubling", "description": "doubles", "indicators": []},
                ],
            },
            {
                "name": "facts",
                "skills": [{"skill_id": "facts.capitals", "description": "knows cities"}],
            },
        ]
    }
)
SKILLS = read_skills(FOUND)


def demand_of(text):
    id_ = "numbers.adding" if "Add" in text.rpartition("Question:")[2] else "facts.capitals"
    return json.dumps({"required_skills": [{"skill_id": id_, "percentage": 100}]})


def model(prompt):
    return f"Here they are:\n{FOUND}" if "Find the skills" in prompt else demand_of(prompt)


class Asked:
    """The orchestrating model, which counts its calls."""

    def __init__(self, say=model):
        self.say, self.prompts = say, []

    async def __call__(self, prompt):
        self.prompts.append(prompt)
        return self.say(prompt)


def handbook(**changes):
    known = {
        "workers": WORKERS,
        "skills": SKILLS,
        "right_km": np.array([[9, 1, 5], [0, 0, 0], [1, 9, 5]], float),
        "asked_km": np.array([[10, 10, 10], [0, 0, 0], [10, 10, 10]], float),
        "usd_km": np.tile([0.01, 0.02, 0.001], (3, 1)),
        "right_m": np.array([10, 10, 10], float),
        "asked_m": np.array([20, 20, 20], float),
    }
    return Handbook(**(known | changes))


class TestLearning:
    async def test_skills_decide_where_they_matter(self):
        ask = Asked()
        learned = await learn_handbook(made(60), ask)
        assert learned.depth > 0
        texts, sums = asked(40, seed=9)
        for text, is_sum in zip(texts, sums, strict=True):
            weights = read_demand(demand_of(f"Question:\n{text}"), learned.skills, text)
            assert WORKERS[learned.choose(weights, WORKERS, 0.0)] == (ADA if is_sum else BOB)

    async def test_one_call_finds_skills_and_one_labels_each_question(self):
        ask = Asked()
        await learn_handbook(made(QUESTIONS + 50), ask)
        assert len(ask.prompts) == 1 + QUESTIONS
        found, *labelled = ask.prompts
        assert "ada right" in found and not any("ada" in prompt for prompt in labelled)

    async def test_skills_that_say_nothing_are_left_aside(self):
        """All questions under one skill: the depth is 0, and the best worker answers."""
        same = Asked(lambda prompt: FOUND if "Find" in prompt else demand_of("Question: Add"))
        learned = await learn_handbook(made(80), same)
        assert learned.depth == 0

    async def test_a_model_that_names_no_skill_is_refused(self):
        ask = Asked(lambda _: "I cannot say.")
        with pytest.raises(ConfigError, match="named no skill in 3 replies"):
            await learn_handbook(made(20), ask)
        assert len(ask.prompts) == 3

    def test_counts_are_those_of_the_counted_questions(self):
        history = made(8)
        demands = [{"numbers.adding": 1.0}, {"facts.capitals": 0.5, "numbers.adding": 0.5}] * 4
        counted = count_outcomes(history, SKILLS, demands, np.arange(8) < 4)
        assert counted.asked_km[:, 0].tolist() == [4, 0, 2]
        assert counted.right_km[:, 0].tolist() == [2, 0, 0]
        assert counted.right_km[:, 1].tolist() == [2, 0, 2]
        np.testing.assert_allclose(counted.usd_km[0], [0.01, 0.02, 0.001])
        assert np.isnan(counted.usd_km[1]).all()


class TestChoice:
    def test_competence_under_the_skills_decides(self):
        book = handbook()
        assert book.choose({"numbers.adding": 1}, WORKERS, 0) == WORKERS.index(ADA)
        assert book.choose({"facts.capitals": 1}, WORKERS, 0) == WORKERS.index(BOB)
        assert book.choose({"numbers.adding": 0.3, "facts.capitals": 0.7}, WORKERS, 0) == 1

    def test_a_skill_without_outcomes_is_decided_by_its_category(self):
        assert handbook().choose({"numbers.doubling": 1}, WORKERS, 0) == WORKERS.index(ADA)

    def test_equal_workers_are_told_apart_by_cost(self):
        assert handbook(depth=0).choose({"numbers.adding": 1}, WORKERS, 0) == WORKERS.index(EVE)
        assert handbook().choose({}, WORKERS, 0) == WORKERS.index(EVE)

    def test_a_price_sends_questions_to_cheaper_workers(self):
        weights = {"numbers.adding": 1.0}
        chosen = [handbook().choose(weights, WORKERS, price) for price in (0, 10, 100)]
        assert [WORKERS[m] for m in chosen] == [ADA, ADA, EVE]

    def test_unknown_cost_is_no_reason_to_fail(self):
        unknown = handbook(depth=0, usd_km=np.full((3, 3), np.nan))
        assert unknown.choose({}, WORKERS, 5.0) == 0

    def test_only_those_present_are_chosen(self):
        assert handbook().choose({"numbers.adding": 1}, [BOB], 0) == WORKERS.index(BOB)


class TestDemand:
    def test_shares_are_normalised_and_names_are_read_loosely(self):
        reply = (
            'Sure: {"a": 1} {"required_skills": [{"skill_id": "Adding", "percentage": "60%"}, '
            '{"skill_id": "facts.capitals", "percentage": 20}, {"skill_id": "magic"}]}'
        )
        assert read_demand(reply, SKILLS, "") == {"numbers.adding": 0.75, "facts.capitals": 0.25}

    @pytest.mark.parametrize(
        "reply",
        [
            "",
            "{",
            "[1]",
            '{"required_skills": 3}',
            '{"required_skills": [3, null]}',
            '{"required_skills": [{"skill_id": "numbers.adding", "percentage": "nan"}]}',
            '{"required_skills": [{"skill_id": "numbers.adding", "percentage": -5}]}',
            '{"required_skills": ' + "[" * 5000,
        ],
    )
    def test_words_of_the_question_do_where_the_reply_cannot_be_read(self, reply):
        assert read_demand(reply, SKILLS, "Add 1 and 2.") == {"numbers.adding": 1.0}
        assert read_demand(reply, SKILLS, "Which city?") == {}

    def test_malformed_skills_are_left_out(self):
        reply = '{"categories": [3, {"name": "a", "skills": [{"skill_id": ""}, 4]}, {"skills": 1}]}'
        assert read_skills(reply) == ()
        assert read_skills("no JSON") == ()


class TestRun:
    def solver(self, say):
        """Return clients, the context, and the method that asks Eve."""
        pool = Pool(tuple(Worker(id=w, model=w, price=PRICE, strength=0.5) for w in WORKERS))
        clients = {
            w: ScriptedClient(lambda request, w=w: say(w, request), price=PRICE) for w in WORKERS
        }
        context = SolverContext(pool=pool, clients=clients)
        return clients, context, SkillOrchestra(handbook=handbook(), orchestrator=EVE)

    async def test_the_demand_is_paid_as_the_conductors_and_one_worker_answers(self):
        clients, context, solver = self.solver(
            lambda who, request: model(request.messages[0].text) if who == EVE else f"I am {who}."
        )
        run = await solver.answer(Question.of("Which city?"), context, 0)
        assert run.answer == "I am bob." and [step.worker for step in run.steps] == [BOB]
        assert [len(clients[who].requests) for who in WORKERS] == [0, 1, 1]
        assert [m.text for m in clients[BOB].requests[0].messages] == ["Which city?"]
        assert run.usage.calls == 2 and run.cost.usd > 0

    async def test_an_outage_of_the_orchestrator_is_data(self):
        def say(who, _):
            if who == EVE:
                raise ProviderUnreachableError("gone")
            return f"I am {who}."

        _, context, solver = self.solver(say)
        run = await solver.answer(Question.of("Which city?"), context, 0)
        assert run.outcome is Outcome.FALLBACK and run.answer.startswith("I am ")

    @pytest.mark.parametrize("are_models", [True, False])
    async def test_in_a_pool_without_the_orchestrator_its_best_model_names_the_skills(
        self, are_models
    ):
        """As in an evaluation that gives each question some workers at random."""
        clients, context, solver = self.solver(lambda who, _: f"I am {who}.")
        workers = context.pool.workers[:2]
        if not are_models:
            workers = tuple(replace(one, tags=(SEARCH,)) for one in workers)
        run = await solver.answer(
            Question.of("Which city?"), replace(context, pool=Pool(workers)), 0
        )
        assert run.outcome is Outcome.ANSWERED and run.answer.startswith("I am ")
        assert not clients[EVE].requests and run.usage.calls == 1 + are_models


def test_a_record_has_no_model_to_ask(tmp_path):
    rng = Random(0)
    rows = [
        {"question": f"{n}?", "workers": {"a": {"score": rng.random() < 0.5}, "b": {"score": 0}}}
        for n in range(30)
    ]
    path = tmp_path / "o.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    args = ["--tasks", f"recorded:{path}", "--systems", "skillorchestra", "--out", str(tmp_path)]
    done = CliRunner().invoke(evaluate.app, args)
    assert "a record has none" in " ".join(f"{done.stderr}{done.exception}".split())
