"""The budget is never passed; what earlier processes have paid counts."""

import sqlite3
from decimal import Decimal

import anyio
import pytest
from hypothesis import given
from hypothesis import settings as rules
from hypothesis import strategies as st

from batuta.clients import ScriptedClient
from batuta.core import Pool, Price, Request, Sampling, Usage, Worker, WorkerId, user_message
from batuta.core.cost_bound import bound_call_cost
from batuta.errors import CircuitOpenError, LimitReachedError, ProviderOverloadedError, StoreError
from batuta.lab.tune.candidate_runner import CallMeter, CandidateRunner
from batuta.lab.tune.library import Candidate, CandidateStep, StepRole
from batuta.lab.tune.spending import Allowance, BudgetedClient, PaidCalls, TuneBudget
from batuta.usage import ASSUMED_PRICE, usage_cost
from lab.tune.worlds import EXPERTS, grade

PRICES = st.none() | st.builds(
    Price, input=st.decimals("0", "20", places=3), output=st.decimals("0", "90", places=3)
)


def request(number=0):
    return Request(
        messages=(user_message(f"Question {number}?"),),
        sampling=Sampling(seed=number, max_tokens=50),
    )


@rules(max_examples=rules().max_examples * 60 // 100, deadline=None)
@given(
    st.lists(PRICES, min_size=2, max_size=3), st.decimals("0", "0.05", places=4), st.integers(1, 40)
)
def test_neither_dollars_nor_calls_are_ever_passed(tmp_path_factory, prices, usd, most):
    """Prices drawn at random, one worker without a price, many calls at the same time."""
    workers = [
        Worker(id=WorkerId(f"w{n}"), model="m", price=price)
        for n, price in enumerate([None, *prices])
    ]
    made = []

    async def main():
        with PaidCalls(tmp_path_factory.mktemp("paid") / "paid.db") as paid:
            budget = TuneBudget(Allowance(usd=usd, calls=most), paid)

            def client(worker):
                def say(asked):  # a letter is a token at most: the cap of the call is obeyed
                    made.append(worker)
                    return "a" * min(250, asked.max_output or 250)

                return BudgetedClient(ScriptedClient(say, price=worker.price), worker, budget)

            async def ask(number):
                try:
                    await client(workers[number % len(workers)]).complete(request(number))
                except LimitReachedError:
                    return

            async with anyio.create_task_group() as group:
                for number in range(60):
                    group.start_soon(ask, number)
            return budget.usd, budget.calls, paid.sum_up()

    spent, calls, (rows, on_disk) = anyio.run(main)
    assert spent <= usd and calls <= most
    assert len(made) == calls == rows and on_disk == spent


async def test_what_was_in_flight_when_a_process_died_counts_with_its_worst_case(tmp_path):
    price = Price(input=Decimal(10), output=Decimal(10))
    worker = Worker(id=WorkerId("w"), model="m", price=price)
    allowance = Allowance(usd=Decimal(1))
    with PaidCalls(tmp_path / "paid.db") as paid:
        hold = await TuneBudget(allowance, paid).reserve(request(), worker)
        worst = hold.usd  # and now the process dies
    with PaidCalls(tmp_path / "paid.db") as paid:
        later = TuneBudget(allowance, paid)
        assert later.usd == worst > 0 and later.calls == 1


async def test_every_attempt_of_a_client_that_tries_again_is_counted(tmp_path):
    worker = Worker(id=WorkerId("w"), model="m", price=Price(input=Decimal(1), output=Decimal(1)))

    class Flaky:
        async def complete(self, request, listener):
            usage = Usage(calls=1, input=1000, output=0)
            from batuta.core import Failure

            await listener.on_failure(
                Failure(
                    code="overloaded",
                    message="busy",
                    usage=usage,
                    cost=usage_cost(usage, worker.price),
                )
            )
            raise ProviderOverloadedError("busy", usage=usage, cost=usage_cost(usage, worker.price))

    with PaidCalls(tmp_path / "paid.db") as paid:
        budget = TuneBudget(Allowance(usd=Decimal(1)), paid)
        with pytest.raises(ProviderOverloadedError):
            await BudgetedClient(Flaky(), worker, budget).complete(request())  # pyright: ignore[reportArgumentType]
        assert budget.calls == 2 and budget.usd == Decimal("0.002")


async def test_time_that_is_up_forbids_a_call(tmp_path):
    now = [0.0]
    worker = Worker(id=WorkerId("w"), model="m")
    with PaidCalls(tmp_path / "paid.db") as paid:
        budget = TuneBudget(Allowance(minutes=1, unknown=ASSUMED_PRICE), paid, clock=lambda: now[0])
        hold = await budget.reserve(request(), worker)
        budget._budget.release(hold)
        now[0] = 60.0
        with pytest.raises(LimitReachedError, match="minutes"):
            await budget.reserve(request(), worker)


def test_a_tuning_without_a_budget_is_refused():
    with pytest.raises(ValueError, match="budget"):
        Allowance()


async def test_a_call_that_was_cut_by_a_kill_counts_once_when_it_is_made_again(tmp_path):
    """So that a killed tuning has the same budget as one that nobody killed."""
    price = Price(input=Decimal(10), output=Decimal(10))
    worker = Worker(id=WorkerId("w"), model="m", price=price)
    probe = bound_call_cost(request(), worker, ASSUMED_PRICE, whole=True).max_usd
    allowance = Allowance(usd=3 * probe, calls=3)
    with PaidCalls(tmp_path / "paid.db") as paid:
        budget = TuneBudget(allowance, paid)
        for number in range(3):
            await budget.reserve(request(number), worker)  # and now the process dies
    client = ScriptedClient(["yes"] * 3, price=price)
    with PaidCalls(tmp_path / "paid.db") as paid:
        budget = TuneBudget(allowance, paid)
        assert budget.calls == 3 and budget.usd > 2 * probe
        replies = [
            await BudgetedClient(client, worker, budget).complete(request(n)) for n in range(3)
        ]
        assert budget.calls == 3 and budget.usd == sum(reply.cost.usd for reply in replies)
        with pytest.raises(LimitReachedError, match="calls"):
            await BudgetedClient(client, worker, budget).complete(request(9))
        assert paid.sum_up() == (3, budget.usd)


async def test_a_call_that_was_interrupted_counts_once_when_it_is_made_again(tmp_path):
    """Ctrl-C and SIGTERM cancel the calls in flight, and the tuning goes on as if it had not."""
    price = Price(input=Decimal(10), output=Decimal(10))
    worker = Worker(id=WorkerId("w"), model="m", price=price)

    class Silent:
        async def complete(self, request, listener):
            await anyio.sleep_forever()

    for _ in range(3):  # interrupted again and again
        with PaidCalls(tmp_path / "paid.db") as paid:
            budget = TuneBudget(Allowance(usd=Decimal(1), calls=2), paid)
            with anyio.move_on_after(0.01):
                await BudgetedClient(Silent(), worker, budget).complete(request())  # pyright: ignore[reportArgumentType]
            worst = bound_call_cost(request(), worker, ASSUMED_PRICE, whole=True).max_usd
            assert paid.sum_up() == (budget.calls, budget.usd) == (1, worst)
    with PaidCalls(tmp_path / "paid.db") as paid:
        budget = TuneBudget(Allowance(usd=Decimal(1), calls=2), paid)
        client = ScriptedClient(["yes"], price=price)
        reply = await BudgetedClient(client, worker, budget).complete(request())
        assert paid.sum_up() == (budget.calls, budget.usd) == (1, reply.cost.usd)


async def test_where_nothing_is_replayed_a_call_that_was_cut_by_a_kill_counts_beside(tmp_path):
    """So that no bill is above the budget: both calls may have been charged for."""
    price = Price(input=Decimal(10), output=Decimal(10))
    worker = Worker(id=WorkerId("w"), model="m", price=price)
    allowance = Allowance(usd=Decimal(1))
    with PaidCalls(tmp_path / "paid.db") as paid:
        hold = await TuneBudget(allowance, paid).reserve(request(), worker)  # and now it dies
    with PaidCalls(tmp_path / "paid.db") as paid:
        budget = TuneBudget(allowance, paid, replays=False)
        client = ScriptedClient(["yes"], price=price)
        reply = await BudgetedClient(client, worker, budget).complete(request())
        assert budget.calls == 2 and budget.usd == hold.usd + reply.cost.usd


async def test_a_call_that_failed_counts_beside_the_one_that_is_made_again(tmp_path):
    worker = Worker(id=WorkerId("w"), model="m", price=Price(input=Decimal(1), output=Decimal(1)))
    usage = Usage(calls=1, input=1000, output=0)
    error = ProviderOverloadedError("busy", usage=usage, cost=usage_cost(usage, worker.price))

    def fail(_):
        raise error

    with PaidCalls(tmp_path / "paid.db") as paid:
        budget = TuneBudget(Allowance(usd=Decimal(1)), paid)
        with pytest.raises(ProviderOverloadedError):
            await BudgetedClient(ScriptedClient(fail), worker, budget).complete(request())
    with PaidCalls(tmp_path / "paid.db") as paid:
        budget = TuneBudget(Allowance(usd=Decimal(1)), paid)
        client = ScriptedClient(["yes"], price=worker.price)
        reply = await BudgetedClient(client, worker, budget).complete(request())
        assert budget.calls == 2 and budget.usd == Decimal("0.001") + reply.cost.usd


async def test_a_call_that_an_open_breaker_kept_back_does_not_count(tmp_path):
    """Else the waits for a worker in an outage would use up the calls of a tuning."""
    worker = Worker(id=WorkerId("w"), model="m", price=Price(input=Decimal(1), output=Decimal(1)))
    kept = CircuitOpenError("w is skipped", retry_after=0.01)
    client = ScriptedClient([kept, kept, kept, "yes"], price=worker.price)
    with PaidCalls(tmp_path / "paid.db") as paid:
        budget = TuneBudget(Allowance(usd=Decimal(1), calls=1), paid)
        for _ in range(3):
            with pytest.raises(CircuitOpenError):
                await BudgetedClient(client, worker, budget).complete(request())
        assert (budget.calls, budget.usd) == (0, 0) and paid.sum_up() == (0, 0)
        reply = await BudgetedClient(client, worker, budget).complete(request())
        assert paid.sum_up() == (budget.calls, budget.usd) == (1, reply.cost.usd)


async def test_a_call_that_was_answered_and_is_made_again_is_paid_again(tmp_path):
    """As where another model stands behind a worker, or no reply is kept."""
    worker = Worker(id=WorkerId("w"), model="m", price=Price(input=Decimal(1), output=Decimal(1)))
    costs = []
    for _ in range(2):
        with PaidCalls(tmp_path / "paid.db") as paid:
            budget = TuneBudget(Allowance(usd=Decimal(1)), paid)
            client = ScriptedClient(["yes"], price=worker.price)
            reply = await BudgetedClient(client, worker, budget).complete(request())
            costs.append(reply.cost.usd)
            assert budget.usd == sum(costs) > 0 and budget.calls == len(costs)


def test_a_list_of_a_version_before_is_taken_over(tmp_path):
    with sqlite3.connect(tmp_path / "paid.db") as old:
        old.execute("CREATE TABLE paid (id INTEGER PRIMARY KEY, usd TEXT NOT NULL)")
        old.execute("INSERT INTO paid (usd) VALUES ('0.25')")
    with PaidCalls(tmp_path / "paid.db") as paid:
        assert paid.sum_up() == (1, Decimal("0.25")) and paid.unfinished_calls() == {}


async def test_only_the_calls_of_unknown_price_count_at_the_assumed_price():
    price = Price(input=Decimal(1), output=Decimal(2))
    pool = Pool(
        tuple(Worker(id=WorkerId(n), model="m", price=p) for n, p in [("a", price), ("b", None)])
    )
    clients = {one.id: ScriptedClient(["42"] * 5, price=one.price) for one in pool}
    meter = CallMeter(ASSUMED_PRICE)
    runner = CandidateRunner(pool, clients, grade, meter, unknown=ASSUMED_PRICE)
    (task,) = EXPERTS.tasks(1)
    both = Candidate(
        (CandidateStep(StepRole.SOLVE, WorkerId("a")), CandidateStep(StepRole.CHECK, WorkerId("b")))
    )
    assert await runner.run_all([(task, both)])
    assert runner.find_result(task, both).usd == meter.usd > 0


async def test_a_disk_that_is_full_ends_a_tuning_with_its_sentence(caplog):
    """It is no fault of a worker, which others would be asked in the place of."""
    asked = 0

    def write_nothing(_):
        nonlocal asked
        asked += 1
        raise StoreError("calls.db cannot be written: database or disk is full")

    clients = {worker.id: ScriptedClient(write_nothing) for worker in EXPERTS.pool}
    runner = CandidateRunner(
        EXPERTS.pool, clients, grade, CallMeter(ASSUMED_PRICE), unknown=ASSUMED_PRICE, concurrency=2
    )
    flow = Candidate((CandidateStep(StepRole.SOLVE, next(iter(clients))),))
    with pytest.raises(StoreError, match="disk is full"):
        await runner.run_all((task, flow) for task in EXPERTS.tasks(30))
    assert asked <= 2 and "Traceback" not in caplog.text
