"""A provider that asks to slow down is called more slowly, and is not taken for a broken one."""

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
from batuta.clients.limits import Throttle
from batuta.clients.resilience import BreakerState
from batuta.clients.secret import Secret
from batuta.core import Outcome, Pool, Question, Step, Worker, WorkerId, Workflow
from batuta.engine import conduct
from batuta.errors import RateLimitError
from batuta.solvers import FixedConductor
from clients.cases import RecordingListener
from clients.test_limit import Clock, ask
from fakes.openai import FakeOpenAI
from fakes.server import KEY, Fault

pytestmark = pytest.mark.anyio


def limiter(clock, concurrency=8):
    return CallLimiter(concurrency, clock=clock, sleep=clock.sleep)


async def test_nothing_is_sent_while_the_provider_wants_peace():
    clock = Clock()
    inner = ScriptedClient([RateLimitError("slow", retry_after=40), "fine"])
    client = RateLimitedClient(inner, limiter(clock))
    with pytest.raises(RateLimitError):
        await client.complete(ask())
    with pytest.raises(RateLimitError, match="nothing was sent") as caught:
        await client.complete(ask())
    assert caught.value.retry_after == pytest.approx(40) and len(inner.requests) == 1
    clock.time += 25
    ear = RecordingListener(streaming=False)
    assert (await client.complete(ask(), ear)).text == "fine"
    assert clock.slept == [pytest.approx(15)]
    (told,) = ear.failures
    assert (told.code, told.retry_after, told.usage.calls) == ("rate_limited", pytest.approx(15), 0)


async def test_whoever_can_go_elsewhere_does_not_wait():
    clock = Clock()
    inner = ScriptedClient([RateLimitError("slow", retry_after=20), "fine"])
    client = RetryClient(RateLimitedClient(inner, limiter(clock)), sleep=clock.sleep)
    with pytest.raises(RateLimitError):
        await client.complete(ask(), RecordingListener(stop=RateLimitError("elsewhere")))
    with pytest.raises(RateLimitError, match="elsewhere"):
        await client.complete(ask(), RecordingListener(stop=RateLimitError("elsewhere")))
    assert len(inner.requests) == 1 and clock.slept == []


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
    assert len(inner.requests) == 1 and clock.slept == []


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
            until = max(until, clock.time + (1.0 if wait is None else wait))
        elif act == "ease":
            throttle.record_success()
        else:
            turn = clock.time + throttle.next_turn()
            assert turn >= until - 1e-6 and turn >= last - 1e-6
            last = turn
        assert throttle.rate >= 2 and throttle.wait() <= 60 + 40 / 2


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
        throttle.next_turn()
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
