"""A provider that asks to slow down is called more slowly, and is not taken for a broken one."""

from dataclasses import replace
from itertools import pairwise

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.clients import (
    CallLimiter,
    CircuitBreakerClient,
    RateLimitedClient,
    RetryClient,
    RetryPolicy,
    ScriptedClient,
    WorkerHealth,
    WorkerSpec,
    open_client,
)
from batuta.clients.http_target import Secret
from batuta.clients.limits import Throttle
from batuta.clients.providers import DeploymentSpec
from batuta.clients.resilience import BreakerState
from batuta.conductors import FixedConductor
from batuta.core import Outcome, Pool, Question, Step, Worker, WorkerId, Workflow
from batuta.engine import conduct
from batuta.errors import RateLimitError
from clients.cases import RecordingListener
from clients.test_limit import Clock, ask
from fakes.openai import FakeOpenAI
from fakes.server import KEY, Fault

pytestmark = pytest.mark.anyio


def limiter(clock, concurrency=8):
    return CallLimiter(concurrency, clock=clock, sleep=clock.sleep)


@pytest.mark.parametrize("days", [20 / 86_400, 1, 400])
async def test_one_request_s_refusal_holds_up_the_others_for_a_moment(days):
    clock = Clock()
    inner = ScriptedClient([RateLimitError("slow", retry_after=days * 86_400), *["fine"] * 3])
    client = RateLimitedClient(inner, limiter(clock))
    with pytest.raises(RateLimitError):
        await client.complete(ask())
    for _ in range(3):
        assert (await client.complete(ask())).text == "fine"
    assert clock.slept == [
        pytest.approx(2),
        pytest.approx(0.5, abs=0.1),
        pytest.approx(0.5, abs=0.1),
    ]


async def test_a_provider_that_refuses_for_days_is_tried_by_one_call_every_half_minute():
    clock = Clock()
    inner = ScriptedClient(lambda _: RateLimitError("slow", retry_after=4e5))
    client = RateLimitedClient(inner, limiter(clock))
    at = []
    for _ in range(8):
        with pytest.raises(RateLimitError):
            await client.complete(ask())
        at.append(clock.time)
    assert [round(b - a) for a, b in pairwise(at)] == [2, 4, 8, 16, 30, 30, 30]
    listener = RecordingListener(streaming=False)
    clock.time += 15
    with pytest.raises(RateLimitError):
        await client.complete(ask(), listener)
    (told,) = listener.failures
    assert (told.code, told.retry_after, told.usage.calls) == ("rate_limited", pytest.approx(15), 0)


async def test_who_waited_waits_on_if_the_first_to_try_is_refused():
    clock, sleepers = Clock(), []

    async def sleep(seconds):
        sleepers.append((clock.time + seconds, anyio.Event()))
        await sleepers[-1][1].wait()

    inner = ScriptedClient(lambda _: RateLimitError("slow", retry_after=4e5))
    client = RateLimitedClient(inner, CallLimiter(40, clock=clock, sleep=sleep))

    async def call():
        with pytest.raises(RateLimitError):
            await client.complete(ask())

    await call()
    began = clock.time
    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(call)
        await anyio.wait_all_tasks_blocked()
        while sleepers and clock.time < began + 15:  # who wakes first goes first
            sleepers.sort(key=lambda each: each[0])
            clock.time, woken = sleepers.pop(0)
            woken.set()
            await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    # who did not look again would have been sent one after another, twice a second
    assert len(inner.requests) <= 5


async def test_a_deployment_s_refusal_does_not_slow_the_other_one(http):
    slow = {"retry-after": "400000"}
    async with (
        FakeOpenAI("One.", [Fault.RATE_LIMIT], retry_after=slow) as one,
        FakeOpenAI("Two.") as two,
    ):
        worker = Worker(id=WorkerId("ada"), model="m")
        spec, other = (
            WorkerSpec(worker=worker, provider="compatible", base_url=fake.url, key=Secret(KEY))
            for fake in (one, two)
        )
        places = (DeploymentSpec(spec=other, weight=0),)
        client = open_client(replace(spec, deployments=places), http)
        for _ in range(3):
            await client.complete(ask())
    assert len(one.requests) + len(two.requests) == 4 and two.requests


async def test_whoever_can_go_elsewhere_does_not_wait():
    clock = Clock()
    inner = ScriptedClient([*[RateLimitError("slow", retry_after=20)] * 2, "fine"])
    client = RetryClient(RateLimitedClient(inner, limiter(clock)), sleep=clock.sleep)
    for _ in range(2):
        with pytest.raises(RateLimitError):
            await client.complete(ask(), RecordingListener(stop=RateLimitError("elsewhere")))
    with pytest.raises(RateLimitError, match="elsewhere"):
        await client.complete(ask(), RecordingListener(stop=RateLimitError("elsewhere")))
    assert len(inner.requests) == 2 and clock.slept == [pytest.approx(2)]


async def test_a_crowd_waits_in_line_and_none_of_it_is_given_up():
    clock = Clock()
    inner = ScriptedClient([RateLimitError("slow", retry_after=3), *["fine"] * 99])
    client = RetryClient(RateLimitedClient(inner, limiter(clock)), sleep=clock.sleep)
    said = []

    async def call():
        said.append((await client.complete(ask())).text)

    await call()
    async with anyio.create_task_group() as tasks:
        for _ in range(40):
            tasks.start_soon(call)
    assert said == ["fine"] * 41 and len(inner.requests) == 42


async def test_a_slowed_worker_is_left_out_by_runs_that_may_choose():
    clock = Clock()
    ids = [WorkerId("ada"), WorkerId("bob")]
    pool = Pool(tuple(Worker(id=w, model="m", strength=0.5) for w in ids))
    inner = ScriptedClient(lambda _: RateLimitError("slow", retry_after=20))
    ada = RetryClient(RateLimitedClient(inner, limiter(clock)), sleep=clock.sleep)
    workers = {ids[0]: ada, ids[1]: ScriptedClient(lambda _: "bob")}
    conductor = FixedConductor("one", lambda _: Workflow((Step(subtask="", worker=ids[0]),)))
    for _ in range(5):
        run = await conduct(Question.of("x"), conductor, pool, workers)
        assert run.answer == "bob"
    assert len(inner.requests) == 2 and clock.slept == [pytest.approx(2)]


async def test_afterwards_calls_drip_and_answers_make_them_faster():
    clock = Clock()
    inner = ScriptedClient([*["fine"] * 40, RateLimitError("slow", retry_after=1), *["fine"] * 400])
    shared = limiter(clock)
    client = RateLimitedClient(inner, shared)
    for _ in range(40):
        await client.complete(ask())
        clock.time += 0.25
    with pytest.raises(RateLimitError):
        await client.complete(ask())
    assert shared.throttle.rate == pytest.approx(2, rel=0.1)  # half of four a second
    began = clock.time
    for _ in range(3):
        await client.complete(ask())
    assert 1.7 < clock.time - began < 2.1
    for _ in range(60):
        await client.complete(ask())
    assert shared.throttle.rate == float("inf")


@given(
    steps=st.lists(
        st.tuples(
            st.floats(0, 5), st.sampled_from(["take", "slow", "ease"]), st.none() | st.floats(0, 60)
        ),
        max_size=40,
    )
)
def test_no_turn_comes_before_the_pause_is_over(steps):
    clock = Clock()
    throttle = Throttle(clock=clock)
    until, last = 0.0, float("-inf")
    for passed, act, wait in steps:
        clock.time += passed
        if act == "slow":
            throttle.record_rate_limit(clock.time, wait)
            until = max(until, clock.time + (1.0 if wait is None else min(wait, 2.0)))
        elif act == "ease":
            throttle.record_success()
        else:
            turn = clock.time + throttle.reserve_slot()
            assert turn >= until - 1e-6 and turn >= last - 1e-6
            last = turn
        assert throttle.rate >= 2 and throttle.remaining_wait() <= 60 + 40 / 2


async def test_many_refusals_open_no_breaker():
    health = WorkerHealth()
    inner = ScriptedClient(lambda _: RateLimitError("slow", retry_after=0.0))
    clock = Clock()
    client = CircuitBreakerClient(RateLimitedClient(inner, limiter(clock)), health, "ada")
    for _ in range(20):
        with pytest.raises(RateLimitError):
            await client.complete(ask())
        clock.time += 60
    assert (health.state, health.opened, health.failures) == (BreakerState.CLOSED, 0, 0)
    assert len(inner.requests) == 20


async def test_calls_that_were_on_their_way_together_slow_it_once():
    clock = Clock()
    throttle = Throttle(clock=clock)
    for _ in range(100):
        throttle.reserve_slot()
    began = clock.time
    clock.time += 1
    for _ in range(50):
        throttle.record_rate_limit(began, 1.0)
    assert throttle.rate == pytest.approx(50)


async def test_a_real_provider_is_left_in_peace(http):
    worker = Worker(id=WorkerId("ada"), model="m")
    health = WorkerHealth()
    async with FakeOpenAI(faults=[Fault.RATE_LIMIT] * 3) as fake:
        spec = WorkerSpec(worker=worker, provider="compatible", base_url=fake.url, key=Secret(KEY))
        client = open_client(spec, http, health=health, policy=RetryPolicy(base=0.01))
        outcomes = []

        async def call():
            try:
                outcomes.append((await client.complete(ask())).text)
            except RateLimitError:
                outcomes.append("429")

        async with anyio.create_task_group() as tasks:
            for _ in range(6):
                tasks.start_soon(call)
    assert len(outcomes) == 6 and health.opened == 0


async def test_a_step_goes_to_another_worker_and_a_short_pause_is_waited_for():
    ids = [WorkerId("ada"), WorkerId("bob")]
    pool = Pool(tuple(Worker(id=w, model="m", strength=0.5) for w in ids))
    flow = Workflow((Step(subtask="", worker=ids[0]),))
    slept = []

    async def sleep(seconds):
        slept.append(seconds)

    def run_question(pause, pool=pool):
        ada = RetryClient(
            ScriptedClient([RateLimitError("slow", retry_after=pause), "ada"]), sleep=sleep
        )
        workers = {ids[0]: ada, ids[1]: ScriptedClient(["bob"])}
        conductor = FixedConductor("one", lambda _: flow)
        return conduct(Question.of("x"), conductor, pool, workers)

    run = await run_question(20)
    assert (run.answer, run.outcome, slept) == ("bob", Outcome.DEGRADED, [])
    (attempt,) = run.steps[0].attempts
    assert (attempt.failure.code, attempt.failure.retry_after) == ("rate_limited", 20)
    run = await run_question(0.5)
    assert (run.answer, run.outcome, len(slept)) == ("ada", Outcome.ANSWERED, 1)
    run = await run_question(20, pool.subset((ids[0],)))
    assert run.answer == "ada" and slept[-1] >= 20
