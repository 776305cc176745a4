"""Patterns among a tuning's nominees: run as they are served, nominated where they pay."""

import re
from dataclasses import replace

import pytest

from batuta.clients import ScriptedClient
from batuta.conductors.prompted import ConductorOptions
from batuta.conductors.sessions.review import JUDGE
from batuta.config.conductors import open_conductor
from batuta.config.served_systems import ultra_system
from batuta.core import Limits, Pool, Question
from batuta.engine.solver import SolverContext
from batuta.lab.tune.decision import recommend_systems
from batuta.lab.tune.patterns import open_patterns
from batuta.lab.tune.recommend import write_settings
from batuta.lab.tune.report import describe_tuning, render_markdown
from batuta.lab.tune.stages import TuneStage
from lab.tune.test_tuning import EQUAL, tune, tune_once
from lab.tune.worlds import _ANSWER, _SAID, _TASK, World, truth

pytestmark = pytest.mark.anyio


class Judging(World):
    """A worker that is to judge an answer accepts it."""

    def answer(self, worker, prompt, seed=0):
        return "ACCEPT" if prompt.startswith(JUDGE) else super().answer(worker, prompt, seed)


class Comparing(Judging):
    """Nobody mends anything, and who decides guesses; who compares at length sees who is right."""

    def answer(self, worker, prompt, seed=0):
        order = prompt.rpartition("Your assigned subtask: ")[2]
        seen = [int(n) for text in _SAID.findall(prompt) for n in _ANSWER.findall(text)]
        if order.startswith("Compare the answers"):
            right = truth(_TASK.search(prompt)[1])
            return f"Answer: {right if right in seen else seen[0]}"
        if order.startswith("Write the best answer"):
            return f"Answer: {seen[-1]}"
        if order.startswith("Compare"):
            return f"Answer: {seen[0]}"
        return super().answer(worker, prompt, seed)


COMPARING = Comparing("comparing", {"ada": 0.55, "ben": 0.53, "cleo": 0.5})
RANKED = Pool(
    tuple(replace(worker, strength=0.9 - n / 10) for n, worker in enumerate(COMPARING.pool))
)
NAMES = ["critique", "fusion", "gate"]


def scripted(reply):
    return {worker.id: ScriptedClient(reply) for worker in RANKED}


def asked(clients):
    """Every call: who got which messages."""
    return {name: [request.messages for request in one.requests] for name, one in clients.items()}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("reply", ["REDO: no.", "ACCEPT: 7"])
async def test_a_pattern_is_run_as_it_is_served(name, reply):
    (solver,) = [one for one in open_patterns(RANKED, 5) if one.pattern == name]
    question = Question.of("What is 3 + 4?")
    tuned, served = scripted(lambda _: reply), scripted(lambda _: reply)
    run = await solver.answer(question, SolverContext(pool=COMPARING.pool, clients=tuned), 0)
    conductor = open_conductor(name, RANKED, served, ConductorOptions())
    system = ultra_system(RANKED, conductor, Limits())
    assert (await system.answer(question, served, seed=0)).answer == run.answer
    assert asked(tuned) == asked(served)
    assert 2 <= run.usage.calls <= solver.calls
    assert set(solver.workers) == {name for name, said in asked(tuned).items() if said}


def test_no_pattern_is_longer_than_is_allowed_and_one_model_has_none():
    assert [one.pattern for one in open_patterns(RANKED, 5)] == NAMES
    assert [one.pattern for one in open_patterns(RANKED, 4)] == ["critique", "gate"]
    assert [one.pattern for one in open_patterns(RANKED, 2)] == ["gate"]
    assert open_patterns(RANKED.subset(["ada"]), 5) == ()


@pytest.mark.slow
async def test_where_a_pattern_is_worth_most_it_is_recommended_with_its_workers():
    result, meter, parts, settings = await tune_once(COMPARING, 3000, patterns=True)
    advice = recommend_systems(result)
    assert advice["ultra"] == "pattern/fusion" and meter.calls <= 3000
    reason = advice["why"][0]
    assert re.match(r"batuta-ultra: pattern/fusion of \w+, \w+, \w+; expected to gain", reason)
    found = describe_tuning(result, parts, settings, meter)
    assert found["pattern"] in reason and f"{found['pattern']} was nominated" in render_markdown(
        found
    )
    shares = {one["name"]: one["share"] for one in found["judged"]}
    assert shares["ultra"] > shares["best single"] + 0.15
    assert "pattern/fusion" in {one["name"] for one in found["finalists"]}


async def test_where_no_pattern_pays_none_is_nominated():
    result, meter, *_ = await tune(Judging(EQUAL.name, EQUAL.solve), 1500, patterns=True)
    assert result.pattern is None and meter.calls <= 1500
    assert not {one.name for one in result.finalists} & {f"pattern/{name}" for name in NAMES}
    assert recommend_systems(result)["ultra"] is None


@pytest.mark.slow
async def test_a_limit_on_mean_calls_holds_for_patterns_too():
    result, *_ = await tune(COMPARING, 1500, patterns=True, mean_calls=2.5, last=TuneStage.SELECT)
    assert result.pattern is None


async def test_the_settings_name_the_pattern_and_the_strengths_that_it_was_measured_with():
    result, *_ = await tune_once(COMPARING, 3000, patterns=True)
    assert result.pattern is not None
    text = "".join(f'[[workers]]\nid = "{one.id}"\nstrength = 0.1\n\n' for one in result.pool)
    advice = {"why": [], "best": "ada", "ultra": result.pattern.name, "mini": None}
    written = write_settings(
        text, advice, result.cards, result.grouping.names, rounds=3, pool=result.settings_pool
    )
    assert '[ultra]\nconductor = "fusion"' in written and "max_rounds = 3" in written
    stated = {
        name: float(share)
        for name, share in re.findall(r'id = "(\w+)"\nstrength = ([0-9.]+) ', written)
    }
    assert stated == {one.id: one.strength for one in result.pattern.pool}
