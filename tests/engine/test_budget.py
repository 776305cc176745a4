"""What a call can cost at most is reserved before it is made; nothing is ever passed."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field, replace
from decimal import Decimal

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batuta.clients import ScriptedClient
from batuta.clients.replay import request_fingerprint
from batuta.conductors import FixedConductor, LLMConductor, best_single_worker
from batuta.conductors.sessions.lead import LeadAndHands
from batuta.core import (
    Cost,
    Finish,
    Limits,
    MalformedPlan,
    Outcome,
    Plan,
    Pool,
    Price,
    Question,
    Reply,
    Request,
    Sampling,
    Step,
    StepStarted,
    Usage,
    Worker,
    WorkerId,
    Workflow,
    user_message,
)
from batuta.core.conductor import NULL_LISTENER
from batuta.core.cost_bound import (
    DEFAULT_OUTPUT_TOKENS,
    DEFAULT_REASONING_OUTPUT_TOKENS,
    IMAGE_TOKENS,
    MIN_OUTPUT_TOKENS,
    bound_call_cost,
    desired_output_tokens,
    max_prompt_tokens,
    max_text_tokens,
)
from batuta.core.message import Image, Message, Role, Thought, Tool
from batuta.core.run import Failure
from batuta.core.token_estimate import estimate_request_tokens, estimate_tokens
from batuta.engine import RunHooks, RunSettings, TimeoutPolicy, conduct
from batuta.engine.budget import Budget
from batuta.errors import LimitReachedError, ProviderOverloadedError, ProviderTimeoutError
from batuta.usage import ASSUMED_PRICE, usage_cost

pytestmark = pytest.mark.anyio
Q = Question.of("What is six times seven?")
PRICE = Price(input=Decimal(3), output=Decimal(15))


@dataclass
class Spender:
    """A worker that costs all it can: every byte of its prompt a token, its whole cap said."""

    worker: Worker
    latency: float = 0.0
    fails: int = 0
    """Attempts that cost as much and break off, each tried again as a retrying client does."""
    requests: list[Request] = field(default_factory=list)
    flying: int = 0

    def price(self, request):
        dear = self.worker.price or ASSUMED_PRICE
        most = max(dear.input, dear.cached or 0, dear.cache_write or 0)
        usage = Usage(
            calls=1,
            input=max_prompt_tokens(request, self.worker),
            output=50_000 if request.max_output is None else request.max_output,
        )
        return usage, usage_cost(usage, Price(input=most, output=dear.output))  # pyright: ignore[reportArgumentType]

    async def complete(self, request, listener=NULL_LISTENER):
        for _ in range(self.fails):
            usage, cost = await self._spent(request)
            error = ProviderOverloadedError("busy", usage=usage, cost=cost)
            await listener.on_failure(Failure.of(error))
        usage, cost = await self._spent(request)
        return Reply(text="42", usage=usage, cost=cost)

    async def _spent(self, request):
        self.requests.append(request)
        await anyio.sleep(self.latency)
        return self.price(request)


class Purse:
    """Money of others, as the store keeps it, without a store."""

    def __init__(self, cap, granted=Decimal(0)):
        self.cap, self.granted, self.grown = cap, granted, 0
        self.counted = Decimal(0)

    def count(self, usd):
        self.counted = usd

    async def raise_to(self, usd, least):
        await anyio.sleep(0)
        self.grown += 1
        if least > self.cap:
            raise LimitReachedError("usd", "too much", "less")
        self.granted = max(self.granted, min(usd, self.cap))
        return self.granted


money = st.decimals(0, 100, places=2)
maybe = st.one_of(st.none(), money)
prices = st.builds(Price, input=money, output=money, cached=maybe, cache_write=maybe)


@st.composite
def workflows(draw):
    steps = []
    for index in range(draw(st.integers(1, 5))):
        access = tuple(i for i in range(index) if draw(st.booleans()))
        steps.append(Step(subtask=draw(st.sampled_from(["", "x" * 300])), worker=WorkerId(f"w{draw(st.integers(0, 2))}"), access=access))  # fmt: skip
    return Workflow(tuple(steps))


@settings(max_examples=settings().max_examples * 150 // 100, deadline=None)
@given(
    st.lists(prices, min_size=3, max_size=3),
    workflows(),
    st.one_of(st.none(), st.decimals(0, 1, places=4)),
    st.one_of(st.none(), st.decimals(0, 1, places=4)),
    st.lists(st.integers(0, 2), min_size=3, max_size=3),
    st.sampled_from([None, 10, 700, 5000]),
)
def test_no_limit_is_ever_passed(costs, workflow, usd, purse, fails, most):
    """Whatever the prices, parallel steps, retries and limits: every worker costs all it can."""
    workers = [
        Worker(id=WorkerId(f"w{n}"), model="m", price=price) for n, price in enumerate(costs)
    ]
    clients = {w.id: Spender(w, fails=f) for w, f in zip(workers, fails, strict=True)}
    funds = None if purse is None else Purse(purse)
    question = replace(Q, sampling=Sampling(max_tokens=most))

    async def run():
        return await conduct(
            question,
            FixedConductor("by-hand", lambda _: workflow),
            Pool(tuple(workers)),
            clients,
            limits=Limits(usd=None if usd is None else float(usd)),
            hooks=RunHooks(funds=funds),
            settings=RunSettings(timeouts=TimeoutPolicy(hedge_seconds=0.001)),
        )

    async def in_time():
        with anyio.fail_after(20):
            return await run()

    found = anyio.run(in_time)
    if usd is not None:
        assert found.cost.usd <= usd
    if funds is not None:
        assert found.cost.usd <= funds.granted <= purse
    if usd is None and purse is None:
        assert found.outcome is not Outcome.LIMITED
        assert all(r.max_output is None for c in clients.values() for r in c.requests)


def pool_of(*prices_, **options):
    return Pool(
        tuple(
            Worker(id=WorkerId(f"w{n}"), model="m", price=p, **options)
            for n, p in enumerate(prices_)
        )
    )


async def run_with_clients(pool, workflow=None, **options):
    clients = {worker.id: Spender(worker, 0.01) for worker in pool}
    workflow = workflow or Workflow((Step(subtask="", worker=pool.workers[0].id),))
    conductor = FixedConductor("by-hand", lambda _: workflow)
    return await conduct(Q, conductor, pool, clients, **options), clients


async def test_what_cannot_be_paid_is_not_asked():
    run, clients = await run_with_clients(pool_of(PRICE), limits=Limits(usd=1e-9))
    assert clients["w0"].requests == []
    assert (run.outcome, run.limit, run.cost.usd) == (Outcome.LIMITED, "usd", 0)


async def test_an_answer_is_shortened_to_what_there_is_and_the_cap_is_sent():
    pool = pool_of(PRICE)
    run, clients = await run_with_clients(pool, limits=Limits(usd=0.02))
    [request] = clients["w0"].requests
    assert MIN_OUTPUT_TOKENS <= request.max_output < DEFAULT_OUTPUT_TOKENS
    assert Decimal("0.0199") < run.cost.usd <= Decimal("0.02")
    assert run.steps[0].request == request  # the trace says so
    run, _ = await run_with_clients(pool, limits=Limits(usd=1.0))
    assert run.steps[0].request.max_output == DEFAULT_OUTPUT_TOKENS
    run, _ = await run_with_clients(pool)
    assert run.steps[0].request.max_output is None


async def test_an_answer_that_was_cut_for_money_says_so():
    cut = ScriptedClient(lambda _: Reply(text="It is forty", finish=Finish.LENGTH), price=PRICE)
    pool = pool_of(PRICE)
    run = await conduct(Q, best_single_worker(), pool, {"w0": cut}, limits=Limits(usd=0.02))  # pyright: ignore[reportArgumentType]
    assert (run.outcome, run.answer, run.limit) == (Outcome.ANSWERED, "It is forty", "usd")
    run = await conduct(Q, best_single_worker(), pool, {"w0": cut})  # pyright: ignore[reportArgumentType]
    assert run.limit is None


async def test_parallel_steps_wait_for_each_other_when_there_is_not_enough_for_both():
    flow = Workflow(
        (
            Step(subtask="", worker=WorkerId("w0")),
            Step(subtask="", worker=WorkerId("w0")),
            Step(subtask="", worker=WorkerId("w0")),
        )
    )
    saying = ScriptedClient(lambda _: "42", latency=0.01, price=PRICE)
    conductor = FixedConductor("by-hand", lambda _: flow)
    run = await conduct(Q, conductor, pool_of(PRICE), {"w0": saying}, limits=Limits(usd=0.07))  # pyright: ignore[reportArgumentType]
    assert run.outcome is Outcome.ANSWERED
    assert len(saying.requests) == 3  # each could have cost $0.063
    assert {request.max_output for request in saying.requests} == {DEFAULT_OUTPUT_TOKENS}


async def test_a_worker_without_a_price_is_reserved_at_the_assumed_one():
    run, clients = await run_with_clients(pool_of(None), limits=Limits(usd=0.01))
    assert run.outcome is Outcome.LIMITED
    assert clients["w0"].requests == []
    cheap = Limits(usd=0.01, unknown=Price(input=Decimal("0.1"), output=Decimal("0.1")))
    run, clients = await run_with_clients(pool_of(None), limits=cheap)
    assert len(clients["w0"].requests) == 1
    assert run.outcome is Outcome.ANSWERED


async def test_a_free_worker_needs_no_cap():
    run, clients = await run_with_clients(
        pool_of(Price(input=Decimal(0), output=Decimal(0))), limits=Limits(usd=0.001)
    )
    assert run.outcome is Outcome.ANSWERED
    assert clients["w0"].requests[0].max_output is None


async def conducted_within(usd: float, *prices: Price | None):
    """A run whose drafts are written by the first worker, and who was asked for answers."""
    pool = pool_of(*prices)
    model = Spender(pool.workers[0])
    conductor = LLMConductor(name="prompted", client=model, worker=pool.workers[0])
    clients = {worker.id: Spender(worker) for worker in pool}
    run = await conduct(Q, conductor, pool, clients, limits=Limits(usd=usd))
    assert model.requests == []
    assert (run.outcome, run.limit) == (Outcome.LIMITED, "usd")
    return run, [name for name, client in clients.items() if client.requests]


async def test_where_a_draft_cannot_be_paid_the_best_worker_that_can_answers_alone():
    cheap = Price(input=Decimal("0.1"), output=Decimal("0.4"))
    for usd, asked in ((0.02, "w0"), (0.004, "w1")):
        run, answered = await conducted_within(usd, PRICE, cheap)
        assert answered == [asked] and run.answer == "42"
        assert 0 < run.cost.usd <= Decimal(str(usd))
        [round_] = run.rounds
        assert isinstance(round_.decision, MalformedPlan)
        begin, end = round_.decision.reason.split("; ")
        assert begin.startswith("the limit on usd was reached: $0, and the next call may cost $0.0")
        assert end == f"{asked} answers alone, the best worker that is affordable"


async def test_where_nobody_can_be_paid_the_error_names_what_the_cheapest_answer_needs():
    cheap = Price(input=Decimal("0.1"), output=Decimal("0.4"))
    run, answered = await conducted_within(0.0001, PRICE, cheap)
    assert not answered and not run.cost.usd
    [least] = re.findall(r"the next call may cost \$(0\.\d+), of", run.error or "")
    assert Decimal("0.0001") < Decimal(least) < Decimal("0.0003")
    run, answered = await conducted_within(float(least), PRICE, cheap)
    assert answered == ["w1"] and run.answer == "42"


async def test_hands_work_without_a_lead_that_cannot_be_paid():
    pool = pool_of(PRICE, Price(input=Decimal("0.1"), output=Decimal("0.4")))
    clients = {worker.id: Spender(worker) for worker in pool}
    conductor = LeadAndHands(clients=clients)
    run = await conduct(Q, conductor, pool, clients, limits=Limits(usd=0.004))
    assert not clients[WorkerId("w0")].requests and run.answer == "42"
    [round_] = run.rounds
    assert isinstance(round_.decision, Plan)
    assert "w0 made no plan: the limit on usd was reached" in round_.decision.reason


async def test_a_step_that_was_cut_before_its_call_holds_no_money():
    async def emit(event):
        if isinstance(event, StepStarted):
            await anyio.sleep_forever()

    [worker] = pool = pool_of(PRICE)
    purse = Purse(Decimal(100))
    run = await conduct(
        Q,
        best_single_worker(),
        pool,
        {worker.id: Spender(worker)},
        limits=Limits(seconds=0.1),
        hooks=RunHooks(emit=emit, funds=purse),
    )
    assert purse.granted > 0 and not purse.counted and not run.usage.calls


@pytest.mark.parametrize("dollars", [1, 0.07])
async def test_finished_turns_stay_reserved_while_the_next_is_tried_again(dollars):
    [worker] = pool = pool_of(PRICE)
    purse, counted = Purse(Decimal(100)), []
    paid = Usage(calls=1, input=20_000)

    class Turns:
        async def complete(self, request, listener):
            counted.append(purse.counted)
            listener.note_turns(paid, usage_cost(paid, PRICE))
            await listener.before_call(request, worker)
            await listener.on_failure(Failure(code="overloaded", message="busy"))
            counted.append(purse.counted)
            return Reply(text="42", usage=paid, cost=usage_cost(paid, PRICE))

    run = await conduct(
        Q,
        best_single_worker(),
        pool,
        {worker.id: Turns()},  # pyright: ignore[reportArgumentType]
        limits=Limits(usd=dollars),
        hooks=RunHooks(funds=purse),
    )
    if dollars == 1:
        assert counted[1] - counted[0] == usage_cost(paid, PRICE).usd and run.answer == "42"
    assert run.cost == usage_cost(paid, PRICE) and purse.counted == run.cost.usd


async def test_a_leads_call_that_was_cut_before_it_was_reserved_costs_nothing():
    class Silent:
        granted = Decimal(0)

        def count(self, usd):
            pass

        async def raise_to(self, usd, least):
            await anyio.sleep_forever()

    pool = pool_of(PRICE, Price(input=Decimal("0.1"), output=Decimal("0.4")))
    clients = {worker.id: Spender(worker) for worker in pool}
    run = await conduct(
        Q,
        LeadAndHands(clients=clients),
        pool,
        clients,
        limits=Limits(seconds=0.1),
        hooks=RunHooks(funds=Silent()),  # pyright: ignore[reportArgumentType]
    )
    assert run.outcome is Outcome.LIMITED and not run.usage.calls and not run.cost.usd


async def test_a_conductors_drafts_and_retries_are_reserved_one_by_one():
    [worker] = pool = pool_of(PRICE)
    for fails in (0, 2):
        model = Spender(worker, fails=fails)  # "42" is no workflow: it is sampled again
        conductor = LLMConductor(name="prompted", client=model, worker=worker)
        run = await conduct(Q, conductor, pool, {"w0": Spender(worker)}, limits=Limits(usd=0.06))  # pyright: ignore[reportArgumentType]
        assert model.requests
        assert 0 < run.cost.usd <= Decimal("0.06")
        assert run.limit == "usd"


async def test_a_hedge_that_cannot_be_paid_is_not_made_and_limits_nobody():
    pool = pool_of(PRICE, PRICE)
    slow = ScriptedClient(lambda _: "slow", latency=0.05, price=PRICE)
    other = ScriptedClient(lambda _: "other", price=PRICE)
    models = {"w0": slow, "w1": other}
    limits, patience = Limits(usd=0.07), TimeoutPolicy(hedge_seconds=0.01)
    run = await conduct(
        Q,
        best_single_worker(),
        pool,
        models,  # pyright: ignore[reportArgumentType]
        limits=limits,
        settings=RunSettings(timeouts=patience),
    )
    assert (run.answer, run.outcome, other.requests) == ("slow", Outcome.ANSWERED, [])


async def test_a_hedge_whose_prompt_does_not_fit_is_not_made():
    pool = pool_of(PRICE, PRICE)
    small = Pool((pool.workers[0], replace(pool.workers[1], context_window=100)))
    other = ScriptedClient(lambda _: "other")
    run = await conduct(
        Question.of("x " * 2000),
        best_single_worker(),
        small,
        {WorkerId("w0"): ScriptedClient(lambda _: "slow", latency=0.05), WorkerId("w1"): other},
        settings=RunSettings(timeouts=TimeoutPolicy(hedge_seconds=0.01)),
    )
    assert (run.answer, other.requests) == ("slow", [])


async def test_a_substitute_is_reserved_beside_what_broke_off():
    pool = pool_of(PRICE, PRICE)
    other = ScriptedClient(lambda _: "other", price=PRICE)
    models = {"w0": Breaking(), "w1": other}
    run = await conduct(Q, best_single_worker(), pool, models, limits=Limits(usd=0.065))  # pyright: ignore[reportArgumentType]
    assert other.requests == []  # what the first one really cost nobody knows: up to $0.0631
    assert run.outcome is Outcome.LIMITED
    run = await conduct(Q, best_single_worker(), pool, models, limits=Limits(usd=0.2))  # pyright: ignore[reportArgumentType]
    assert run.answer == "other"


class Breaking:
    """Its provider took the prompt and gave nothing."""

    async def complete(self, request, listener=NULL_LISTENER):
        usage = Usage(calls=1, input=10, estimated=1)
        raise ProviderTimeoutError("late", usage=usage, cost=Cost(Decimal("0.00003")))


async def test_one_call_needs_the_store_once():
    bound = bound_call_cost(Request(messages=Q.messages), pool_of(PRICE).workers[0], ASSUMED_PRICE)
    funds = Purse(Decimal(1), bound.max_usd)
    await run_with_clients(pool_of(PRICE), hooks=RunHooks(funds=funds))
    assert funds.grown == 0
    three = Workflow(tuple(Step(subtask="", worker=WorkerId("w0")) for _ in range(3)))
    await run_with_clients(pool_of(PRICE), three, hooks=RunHooks(funds=funds))
    assert funds.grown


# -- the bound itself --------------------------------------------------------------------------


@given(st.text())
def test_a_text_has_at_least_a_byte_a_token_in_every_normal_form(text):
    for form in ("NFC", "NFKC"):
        normal = unicodedata.normalize(form, text)
        assert len(normal.encode("utf-8", "surrogatepass")) <= max_text_tokens(text)


@pytest.mark.parametrize("text", ["\ufdfa" * 999, "\U0001d160" * 999, "e\u0323\u0301" * 999])
def test_normal_forms_that_grow_are_bounded_and_marks_do_not_take_their_square(text):
    for form in ("NFC", "NFKC"):
        normal = unicodedata.normalize(form, text)
        assert len(normal.encode()) <= max_text_tokens(text)


def test_a_chinese_character_is_no_quarter_of_a_token():
    text = "\u4f60\u597d\u4e16\u754c" * 5  # 20 characters
    assert estimate_tokens(text) == 20
    assert estimate_request_tokens(Request(messages=(user_message(text),))) == 24  # it was 9
    assert max_text_tokens(text) >= 60
    assert estimate_tokens("word") == 1
    assert estimate_tokens("\u043f\u0440\u0438\u0432\u0435\u0442") == 4


@given(
    prices,
    st.integers(0, 4000),
    st.integers(0, 4000),
    st.integers(0, 100),
    st.integers(0, 100),
)
def test_a_bound_is_the_dearest_way_to_count(price, into, out, cached, written):
    worker = Worker(id=WorkerId("w"), model="m", price=price)
    bound = bound_call_cost(Request(messages=(user_message("x" * 4000),)), worker, ASSUMED_PRICE)
    cached = min(cached, into)
    usage = Usage(
        calls=1, input=into, cached=cached, cache_write=min(written, into - cached), output=out
    )
    assert price.of(usage) <= bound.usd(out)
    fits = bound.affordable_output(Decimal("0.05"))
    assert fits == -1 or bound.usd(fits) <= Decimal("0.05")
    assert fits == bound.desired_output or bound.usd(fits + 1) > Decimal("0.05")


def test_what_else_a_prompt_has_counts():
    worker = pool_of(PRICE).workers[0]
    plain = max_prompt_tokens(Request(messages=(user_message("hi"),)), worker)
    seen = Request(
        messages=(Message(role=Role.USER, parts=(Image(url="data:image/png;base64,AA"),)),)
    )
    assert max_prompt_tokens(seen, worker) >= IMAGE_TOKENS
    small = replace(worker, model="openai/gpt-4o-mini-2024-07-18")
    assert max_prompt_tokens(seen, small) > 48_000
    tool = Tool(
        name="t",
        description="\u4f60" * 100,
        parameters={"type": "object", "properties": {"a": {"enum": ["x" * 500]}}},
    )
    assert (
        max_prompt_tokens(Request(messages=(user_message("hi"),), tools=(tool,)), worker)
        > plain + 300 + 500
    )
    thought = Thought(model="m", signature="s" * 400, redacted="r" * 500)
    thinks = Message(role=Role.ASSISTANT, parts=(), thoughts=(thought,))
    assert max_prompt_tokens(Request(messages=(thinks,)), worker) > plain + 800
    window = replace(worker, context_window=2000)
    assert max_prompt_tokens(Request(messages=(user_message("x" * 9000),)), window) == 2000


def test_how_much_may_be_said():
    plain = Worker(id=WorkerId("w"), model="gpt-4o", price=PRICE)
    assert desired_output_tokens(Request(messages=()), plain) == DEFAULT_OUTPUT_TOKENS
    assert desired_output_tokens(Request(messages=(), sampling=Sampling(max_tokens=9)), plain) == 9
    assert (
        desired_output_tokens(Request(messages=()), replace(plain, model="openai/gpt-5-mini"))
        == DEFAULT_REASONING_OUTPUT_TOKENS
    )
    assert desired_output_tokens(Request(messages=()), replace(plain, context_window=4096)) == 1024
    claude = replace(plain, model="claude-sonnet-4-5")
    thinking = Request(messages=(), sampling=Sampling(max_tokens=1000, effort="high"))
    assert desired_output_tokens(thinking, claude) == 1000 + 16384


def test_a_request_without_a_cap_has_the_fingerprint_of_old():
    request = Request(messages=(user_message("hi"),))
    assert request_fingerprint(request).hex() == OLD
    assert request_fingerprint(replace(request, max_output=9)) != request_fingerprint(request)


OLD = "4f9495c23e641e6da3dd44c4702ad998"


async def test_a_plan_that_is_cut_off_counts_at_what_was_reserved():
    """Of a conductor's call that is cut off nobody knows what its provider bills."""

    async def ask_for_ever(request, listener=NULL_LISTENER):
        await anyio.sleep_forever()

    pool, purse = pool_of(PRICE), Purse(Decimal(100))
    worker = pool.workers[0]
    mind = ScriptedClient([])
    mind.complete = ask_for_ever  # pyright: ignore[reportAttributeAccessIssue]
    run = await conduct(
        Q,
        LLMConductor(name="prompted/mind", client=mind, worker=worker),
        pool,
        {worker.id: ScriptedClient([])},
        limits=Limits(seconds=0.2),
        hooks=RunHooks(funds=purse),
        settings=RunSettings(fallback=False),
    )
    assert run.limit == "seconds"
    assert purse.counted == purse.granted > 0


class WaitingPurse(Purse):
    """One that has money for one call at once, and lets whoever asks for more wait."""

    async def raise_to(self, usd, least):
        if self.granted:
            await anyio.sleep_forever()
        return await super().raise_to(usd, least)


async def test_what_is_only_asked_for_counts_in_no_budget():
    """A call whose money is not there yet was not sent, whatever ends its run meanwhile."""
    purse = WaitingPurse(Decimal(100))
    budget = Budget(Limits(), purse)
    request, worker = Request(messages=(user_message("hi"),)), pool_of(PRICE).workers[0]
    hold = await budget.reserve(request, worker)
    assert purse.counted == purse.granted == hold.usd
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(budget.reserve, request, worker)
        await anyio.wait_all_tasks_blocked()
        budget.lower_hold(hold, hold.usd / 2)
        assert purse.counted == hold.usd
        tasks.cancel_scope.cancel()
    assert purse.counted == hold.usd


async def test_reservations_of_one_call_are_joined_and_lowered():
    budget = Budget(Limits(usd=1.0))
    request, worker = Request(messages=(user_message("hi"),)), Worker(id=WorkerId("w"), model="m", price=Price(input=Decimal(1), output=Decimal(2)))  # fmt: skip
    first = await budget.reserve(request, worker)
    budget.lower_hold(first, Decimal("0.0001"))
    assert budget.reserved == first.usd == Decimal("0.0001")
    second = await budget.reserve(request, worker, waits=False)
    whole = budget.reserved
    budget.join_holds(first, second)
    assert budget.reserved == whole == first.usd and not second.usd
    budget.charge(Usage(calls=2, input=10), Cost(Decimal("0.0002")), first)
    assert not budget.reserved and budget.usd == Decimal("0.0002")
    with anyio.fail_after(60):  # nobody waits for a reservation that is gone
        await budget.reserve(request, worker)


async def test_what_calls_in_flight_hold_is_named_where_a_call_does_not_fit():
    worker = Worker(id=WorkerId("w"), model="m", price=PRICE)
    budget = Budget(Limits(usd=0.1))
    request = Request(messages=Q.messages, sampling=Sampling(max_tokens=4000))
    hold = await budget.reserve(request, worker)
    with pytest.raises(LimitReachedError, match=r"reached: \$0, \$0\.\d+ more are reserved, and"):
        await budget.reserve(request, worker, whole=True, waits=False)
    budget.release(hold)
    await budget.reserve(request, worker, whole=True, waits=False)
