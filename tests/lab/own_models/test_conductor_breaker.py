"""A conductor that writes no workflows is left alone, and what it costs counts before it is spent."""

from dataclasses import dataclass, replace
from decimal import Decimal

import pytest

from batuta.clients import ScriptedClient
from batuta.clients.resilience import BreakerPolicy, WorkerHealth
from batuta.conductors.draft_breaker import MALFORMED, may_draft, note_decision
from batuta.conductors.prompted import ConductorOptions, drafting_sampling, prompted_conductor
from batuta.core import (
    Draft,
    Limits,
    MalformedPlan,
    Outcome,
    PlanningContext,
    Pool,
    Price,
    Question,
    Sampling,
    Worker,
    WorkerId,
)
from batuta.engine import conduct

pytestmark = pytest.mark.anyio
A = WorkerId("a")
POOL = Pool((Worker(id=A, model="m"),))
CLIENTS = {A: ScriptedClient(lambda _: "42")}
FLOW = 'model_id = [0]\nsubtasks = ["Answer it."]\naccess_list = [[]]'


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self):
        return self.now


def conductor(say, clock, worker=Worker(id=WorkerId("c"), model="planner")):  # noqa: B008 - frozen
    client = ScriptedClient(say, price=worker.price)
    health = WorkerHealth(BreakerPolicy(3, 60), clock=clock)
    return prompted_conductor("prompted/c", worker, client, ConductorOptions(health=health)), client


def asked(client):
    return len(client.requests)


async def ask(one, **more):
    return await conduct(Question.of("q"), one, POOL, CLIENTS, **more)


async def test_after_three_questions_without_a_workflow_the_best_worker_answers_at_once():
    clock, said = Clock(), ["I cannot."]
    one, client = conductor(lambda _: said[0], clock)
    for _ in range(2):
        run = await ask(one)
        assert run.outcome is Outcome.FALLBACK and run.answer == "42"
    assert asked(client) == 6, "each was sampled three times"
    await ask(one)
    assert asked(client) == 7, "the third opened it by its first draft"
    run = await ask(one)
    assert asked(client) == 7 and run.outcome is Outcome.FALLBACK and run.answer == "42"
    (round_,) = run.rounds
    assert isinstance(round_.decision, MalformedPlan) and not round_.drafts
    assert "skipped for 60 s" in round_.decision.reason

    clock.now = 61
    said[0] = FLOW
    assert (await ask(one)).outcome is Outcome.ANSWERED, "one question tries it again"
    assert (await ask(one)).outcome is Outcome.ANSWERED and asked(client) == 9


async def test_a_probe_that_fails_costs_one_draft_and_a_longer_pause():
    clock = Clock()
    one, client = conductor(lambda _: "I cannot.", clock)
    for _ in range(3):
        await ask(one)
    clock.now, before = 61, asked(client)
    await ask(one)
    assert asked(client) == before + 1
    clock.now = 61 + 119
    await ask(one)
    assert asked(client) == before + 1, "two minutes now"


async def test_samples_of_one_question_count_once_and_a_workflow_starts_anew():
    said = iter(["no", "no", FLOW] * 6)
    one, client = conductor(lambda _: next(said), Clock())
    for _ in range(6):
        assert (await ask(one)).outcome is Outcome.ANSWERED
    assert asked(client) == 18


async def test_a_conductor_s_call_that_may_cost_more_than_the_limit_is_not_made():
    dear = Worker(
        id=WorkerId("c"), model="planner", price=Price(input=Decimal(10), output=Decimal(30))
    )
    one, client = conductor(lambda _: FLOW, Clock(), dear)
    run = await ask(one, limits=Limits(usd=0.0001))
    assert run.outcome is Outcome.LIMITED and run.cost.usd == 0 and not asked(client)
    run = await ask(one, limits=Limits(usd=1.0))
    assert run.outcome is Outcome.ANSWERED and 0 < run.cost.usd < 1


def test_a_model_that_reasons_gets_room_and_little_effort():
    def sampled(model, window=None, wanted=Sampling()):
        sampling = drafting_sampling(Worker(id=A, model=model, context_window=window), wanted)
        return sampling.temperature, sampling.max_tokens, sampling.effort

    assert sampled("gpt-4.1") == (1.0, 1024, None), "the paper's"
    for model in ("gpt-5.2", "openai/o3", "qwen3:8b", "Qwen/Qwen3-32B", "deepseek-reasoner"):
        assert sampled(model) == (1.0, 8192, "low"), model
    assert sampled("smollm2", 2048) == (1.0, 512, None), "a quarter of a small window"
    wanted = Sampling(temperature=0.0, max_tokens=300, effort="high")
    assert sampled("gpt-5.2", None, wanted) == (0.0, 300, "high")


async def test_a_draft_that_was_cut_says_so():
    from batuta.core import Finish, Reply, Usage

    cut = Reply(text="model_id = [0", usage=Usage(calls=1), finish=Finish.LENGTH)
    one, _ = conductor(lambda _: cut, Clock())
    run = await ask(one)
    assert "was truncated at 1024 tokens" in run.rounds[0].decision.reason


async def test_a_later_draft_of_another_question_does_not_end_the_probe():
    clock = Clock()
    health = WorkerHealth(BreakerPolicy(1, 60), clock=clock)
    first = PlanningContext(question=Question.of("q"), pool=POOL)
    later = replace(first, sample=1)
    nothing = MalformedPlan(draft=Draft(), reason="no workflow")
    health.record_failure(MALFORMED)
    clock.now = 61
    assert may_draft(health, first), "the probe"
    assert may_draft(health, later)
    note_decision(health, later, nothing, 1.0)
    assert not may_draft(health, first), "the probe has not ended"
    note_decision(health, first, nothing, 1.0)
    assert health.wait > 60 - 1
