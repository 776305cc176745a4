"""What a job holds of a budget is settled before the job has ended, or counts as spent after it."""

from contextlib import contextmanager
from decimal import Decimal
from time import monotonic, time

import anyio
import pytest
from sqlalchemy import Engine, event, select, update

from batuta.clients import ScriptedClient
from batuta.core import Question, RunId
from batuta.errors import StoreError
from batuta.gateway.access.caller import Authenticator, Caller
from batuta.gateway.access.rate_limit import LocalRateLimiter
from batuta.gateway.errors import APIError
from batuta.gateway.responses.background import BackgroundResponses
from batuta.gateway.responses.store import ResponseStore
from batuta.gateway.serving.execute import RunService
from batuta.gateway.serving.parsed_call import ParsedCall
from batuta.gateway.serving.waiting_runs import PendingToolRuns
from batuta.gateway.telemetry.metrics import Metrics
from batuta.jobs import JobState, JobStatus, open_jobs
from batuta.store import Store
from batuta.store.key_hasher import KeyHasher
from batuta.store.key_permissions import KeyPermissions
from batuta.store.ledger import Bucket, utc_day
from batuta.store.models import RESERVATIONS
from batuta.store.responses import response_id
from batuta.store.spend_report import report_spending
from gateway.keyed_server import ADMIN, HELLO
from gateway.live_server import Serving, scripted_state

pytestmark = pytest.mark.anyio
NOW = 1e9


class Kept:
    """Jobs that note what is unwritten at each job's end."""

    def __init__(self, jobs, store):
        self.jobs, self.store = jobs, store
        self.unwritten, self.held = [], []
        self.states = {}

    def __getattr__(self, name):
        return getattr(self.jobs, name)

    async def work(self, perform, gate):
        async def noting(job, checkpoint):
            ending = await perform(job, checkpoint)
            self.unwritten.append(self.store.pending_count)
            self.held.append(len(await self.store.budgets.job_reservations()))
            return ending

        await self.jobs.work(noting, gate)

    async def status(self, job_id, tenant):
        if job_id in self.states:
            state = self.states[job_id]
            return state and JobStatus(id=job_id, state=state, created=0.0)
        return await self.jobs.status(job_id, tenant)


@pytest.fixture
async def store(tmp_path):
    async with Store(tmp_path / "runs.db") as store:
        yield store


@pytest.fixture
async def jobs(store, tmp_path):
    async with open_jobs(tmp_path / "jobs.db") as jobs:
        yield Kept(jobs, store)


async def run_in_background(store, jobs):
    """The ended response of a key with a budget."""
    mint = KeyHasher(b"x" * 32)
    gate = Authenticator(store, mint, ADMIN)
    limits = KeyPermissions(per_day=Decimal(5))
    _, issued = await store.keys.create(mint, "acme", "a key", limits)
    signed = {"headers": {"authorization": f"Bearer {issued.text}"}}
    clients = {"ada": ScriptedClient(lambda _: HELLO)}
    app_state = scripted_state(clients, store=store, authenticator=gate, jobs=jobs)
    async with Serving(app_state) as server:
        asked = {"model": "worker/ada", "input": "hi", "background": True}
        status, _, queued = await server.post("/v1/responses", json=asked, **signed)
        assert status == 200, queued
        with anyio.fail_after(60):
            while True:
                _, body = await server.get(f"/v1/responses/{queued['id']}", **signed)
                if jobs.held:
                    return body
                await anyio.sleep(0.01)


def parts(store, jobs):
    """What executes runs, and what executes them in the background."""
    catalogue = scripted_state({"ada": ScriptedClient(lambda _: HELLO)}).catalogue
    pending = PendingToolRuns(store)
    service = RunService(
        catalogue,
        store=store,
        rate_limiter=LocalRateLimiter(),
        pending_tool_runs=pending,
        metrics=Metrics(dict, dict),
    )
    responses = ResponseStore(store)
    behind = BackgroundResponses(service, responses, jobs, Authenticator(), orphan_seconds=0.05)
    return service, behind


@contextmanager
def refusing_once():
    """Every statement about reservations fails when it comes for the first time; these did."""
    seen = set()

    def refuse(_connection, _cursor, statement, parameters, _context, _many):
        if "reservations" not in statement or statement in seen:
            return statement, parameters
        seen.add(statement)
        return "SELECT refused", ()

    event.listen(Engine, "before_cursor_execute", refuse, retval=True)
    try:
        yield seen
    finally:
        event.remove(Engine, "before_cursor_execute", refuse)


async def test_a_job_ends_only_once_its_run_is_billed(store, jobs):
    body = await run_in_background(store, jobs)
    assert body["status"] == "completed"
    assert (jobs.unwritten, jobs.held) == ([0], [0]), "a process killed now loses no money"


async def test_a_job_that_is_refused_holds_nothing(store, jobs):
    service, _ = parts(store, jobs)
    limits = KeyPermissions(per_day=Decimal(5))
    caller = Caller(tenant="acme", key="k", permissions=limits)
    call = ParsedCall(question=Question.of("hi"), model="worker/ada")

    async def refused():
        async with service.prepare_call(call, caller, run_id=RunId("run_1"), durable=True):
            assert len(await store.budgets.job_reservations()) == 1
            raise APIError(400, "policy_blocked", "no")

    with pytest.raises(APIError):
        await refused()
    assert await store.budgets.job_reservations() == []


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_job_whose_run_cannot_be_written_is_run_again(tmp_path, key):
    """Also on a server without keys: else the run and its cost would be lost."""
    caller = Caller(tenant="acme", key=key)
    call = ParsedCall(question=Question.of("hi"), model="worker/ada")
    async with Store(tmp_path / "runs.db") as closed:
        service, _ = parts(closed, None)
    with pytest.raises(StoreError):
        async with service.prepare_call(
            call, caller, run_id=RunId("run_1"), durable=True
        ) as prepared:
            await service.execute(prepared)


async def test_what_is_held_for_jobs_that_are_over_counts_as_spent(store, jobs):
    bucket = Bucket("key:k", utc_day(NOW), 100)
    states = {
        "over": JobState.CANCELLED,
        "gone": None,
        "waiting": JobState.QUEUED,
        "running": JobState.IN_PROGRESS,
    }
    for name, state in states.items():
        run = RunId(f"run_{name}")
        jobs.states[response_id(run)] = state
        await store.budgets.reserve(run, 10, (bucket,), key="k", for_job=True, at=NOW)
    _, responses = parts(store, jobs)
    _, orphans = await responses.sort_reservations(store.budgets)
    held = {one.id: one.run_id for one in await store.budgets.job_reservations()}
    assert {held[one] for one in orphans} == {"run_over", "run_gone"}
    assert await store.budgets.end_job_reservations(orphans) == 2
    [full] = await store.budgets.budget_status([bucket])
    assert (full.spent, full.reserved) == (20, 20), "they may have called somebody"
    [lost] = await report_spending(store.database, ("kind",))
    assert (lost.group[0], lost.cost.unpriced_calls) == ("lost", 2)
    assert await store.budgets.reap(monotonic(), time() + 100) == 0, (
        "the others still wait for their jobs"
    )


async def test_orphans_are_ended_at_the_second_look(store, jobs):
    await store.budgets.reserve(
        RunId("run_gone"), 10, (Bucket("key:k", "2026-11-22", 100),), for_job=True
    )
    _, responses = parts(store, jobs)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(responses.work)
        with anyio.fail_after(60):
            while await store.budgets.job_reservations():
                await anyio.sleep(0.02)
        tasks.cancel_scope.cancel()


async def test_what_a_job_holds_that_waits_for_days_is_held_as_long(store, jobs):
    run, bucket = RunId("run_waiting"), Bucket("key:k", utc_day(time()), 100)
    jobs.states[response_id(run)] = JobState.IN_PROGRESS  # for somebody's approval
    held = await store.budgets.reserve(run, 10, (bucket,), key="k", for_job=True)
    mine = update(RESERVATIONS).where(RESERVATIONS.c.id == held.id)
    await store.database.run_write(lambda one: one.execute(mine.values(expires=time() + 60)))
    _, responses = parts(store, jobs)

    async def ends():
        [row] = await store.database.fetch_rows(select(RESERVATIONS.c.expires))
        return row["expires"]

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(responses.work)
        with anyio.fail_after(60):
            while await ends() < time() + 3600:
                await anyio.sleep(0.02)
        tasks.cancel_scope.cancel()
    assert await store.budgets.reap(monotonic(), time() + 3600) == 0
    grown = await store.budgets.grow(held, 5, 5)
    assert grown.nano == 15
    assert await store.budgets.reap(monotonic(), time() + 2 * 86_400) == 1, "nobody renews it now"


async def test_a_look_may_fail_at_each_of_its_questions(store, jobs):
    """What is waited for is done all the same, and the server goes on."""
    run, bucket = RunId("run_waiting"), Bucket("key:k", utc_day(time()), 100)
    jobs.states[response_id(run)] = JobState.IN_PROGRESS
    held = await store.budgets.reserve(run, 10, (bucket,), key="k", for_job=True)
    mine = update(RESERVATIONS).where(RESERVATIONS.c.id == held.id)
    await store.database.run_write(lambda one: one.execute(mine.values(expires=time() + 60)))
    _, responses = parts(store, jobs)
    later = select(RESERVATIONS.c.id).where(RESERVATIONS.c.expires > time() + 3600)
    with refusing_once() as refused:
        with pytest.raises(StoreError, match="refused"):
            await store.database.fetch_rows(later)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(responses.work)
            with anyio.fail_after(60):
                while not await store.database.fetch_rows(later):
                    await anyio.sleep(0.02)
            tasks.cancel_scope.cancel()
    assert len(refused) >= 4, "this one's, the list, the search and the renewal"
