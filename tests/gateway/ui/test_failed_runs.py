"""A run that failed shows what failed: the step, its cause, and where planning was cut."""

import re
from dataclasses import replace
from typing import Any, cast

import aiohttp
import anyio
import pytest

from batuta.clients import BreakerPolicy, CircuitBreakerClient, WorkerHealth
from batuta.conductors import FixedConductor
from batuta.core import (
    Delta,
    Draft,
    Outcome,
    Plan,
    Pool,
    Round,
    RoundPlanned,
    Step,
    StepDelta,
    StepRetried,
    StepStarted,
    Worker,
    WorkerId,
    Workflow,
)
from batuta.core.conductor import NULL_LISTENER
from batuta.core.run import Attempt, Failure
from batuta.errors import ProviderOverloadedError, ProviderUnreachableError
from batuta.gateway.access.caller import Authenticator
from batuta.gateway.ui.run_stream import PageStreamRenderer
from batuta.store import Store
from batuta.store.key_hasher import KeyHasher
from gateway.live_server import HI, Serving, scripted_state
from store.strategies import make_run

ADMIN = "an-admin-token-of-the-tests"
CAUSE = "CUDA out of memory"


class Flaky:
    """Fails as its server does."""

    def __init__(self, error=None):
        self.error = error or ProviderOverloadedError(CAUSE)

    async def complete(self, request, listener=None):
        raise self.error


class Slow:
    async def complete(self, request, listener=None):
        await anyio.sleep_forever()


def two_steps(_):
    steps = [
        Step(subtask="first", worker=WorkerId("flaky")),
        Step(subtask="then", worker=WorkerId("flaky"), access=(0,)),
    ]
    return Workflow(tuple(steps))


def flaky_house(client=None, **options):
    health = WorkerHealth(BreakerPolicy(failures=2))
    clients = {"flaky": CircuitBreakerClient(client or Flaky(), health, "flaky")}
    return scripted_state(
        clients, conductor=FixedConductor("two", two_steps), health={"flaky": health}, **options
    )


async def ask(server, headers=None, **more):
    body = {"model": "batuta-ultra", "messages": HI, **more}
    async with server.http.post("/v1/chat/completions", json=body, headers=headers) as response:
        return response.headers["x-batuta-run-id"]


async def page_of(server, run_id, http=None):
    async with (http or server.http).get(f"/ui/runs/{run_id}") as response:
        assert response.status == 200
        return await response.text()


async def test_the_step_that_failed_first_is_open_and_named(tmp_path):
    async with Store(tmp_path / "runs.db") as store, Serving(flaky_house(store=store)) as server:
        text = await page_of(server, await ask(server))
    assert 'data-opens="0.0"' in text
    assert re.search(r'data-goto="0.0">Step 1</a> failed first: flaky\.', text)


async def test_a_limited_run_opens_what_was_run(tmp_path):
    async with (
        Store(tmp_path / "runs.db") as store,
        Serving(flaky_house(Slow(), store=store)) as server,
    ):
        run_id = await ask(server, orchestration={"deadline_s": 0.2})
        assert (await store.summary(run_id)).outcome is Outcome.LIMITED
        text = await page_of(server, run_id)
    assert 'data-opens="0.0"' in text
    assert re.search(r"the limit on seconds was reached: 2\d\d ms of 200 ms", text)


@pytest.mark.parametrize("whose", ["operator", "admin", "tenant"])
async def test_the_cause_behind_an_open_breaker_is_told_to_the_operator(tmp_path, whose):
    """What a provider said may repeat another caller's words: tenants see the code alone."""
    hasher = KeyHasher(b"x" * 32)
    async with Store(tmp_path / "runs.db") as store:
        options, headers = {}, {}
        if whose != "operator":
            _, issued = await store.keys.create(hasher, "acme", "tests")
            options["authenticator"] = Authenticator(store, hasher, ADMIN)
            headers = {"authorization": f"Bearer {issued.text}"}
        async with Serving(flaky_house(store=store, **options)) as server:
            for _ in range(3):
                run_id = await ask(server, headers)
            run = await store.get(run_id)
            failures = [one.result for one in run.steps]
            assert "failed 2 times in a row, the last time overloaded, and is skipped" in str(
                failures
            )
            jar = aiohttp.CookieJar(unsafe=True)
            async with aiohttp.ClientSession(server.url, cookie_jar=jar) as http:
                if whose != "operator":
                    key = ADMIN if whose == "admin" else issued.text
                    async with http.get("/ui/sign-in") as response:
                        token = re.search(r'name="token" value="([^"]+)', await response.text())[1]
                    async with http.post(
                        "/ui/sign-in", data={"key": key, "token": token}
                    ) as response:
                        assert response.status == 200
                text = await page_of(server, run_id, http)
    told = f"Latest failure of flaky: <code>overloaded</code> {CAUSE}"
    assert (told in text) == (whose != "tenant")


class SlowConductor:
    """Never finishes its draft."""

    name = "slow"

    async def plan(self, context, listener=NULL_LISTENER):
        await anyio.sleep_forever()


async def test_a_plan_that_was_cut_off_is_not_called_out_of_reach(tmp_path):
    state = scripted_state({"flaky": Flaky()}, conductor=SlowConductor())
    async with Store(tmp_path / "runs.db") as store:
        async with Serving(replace(state, store=store)) as server:
            text = await page_of(server, await ask(server, orchestration={"deadline_s": 0.2}))
    assert "The conductor did not finish its workflow: planning was cancelled" in text
    assert "could not be reached" not in text
    assert 'aria-label="Steps"' not in text and 'data-opens=""' in text


async def test_who_cannot_be_reached_is_looked_for_by_a_command(tmp_path):
    app_state = {
        "client": Flaky(ProviderUnreachableError("no connection to the provider could be made"))
    }
    async with (
        Store(tmp_path / "runs.db") as store,
        Serving(flaky_house(store=store, **app_state)) as server,
    ):
        assert "batuta pool check" in await page_of(server, await ask(server))


@pytest.mark.parametrize(("retried", "goes_on"), [(0, True), (1, False)])
async def test_a_retry_of_an_earlier_step_keeps_the_answer_that_is_shown(retried, goes_on):
    class Written:
        def __init__(self):
            self.frames = []

        async def write(self, frame):
            self.frames.append(frame.decode())

    writer, worker = Written(), WorkerId("ada")
    renderer = PageStreamRenderer(cast("Any", writer))
    flow = Workflow(tuple(Step(subtask="Do it.", worker=worker) for _ in range(2)))
    pool = Pool((Worker(id=worker, model="m"),))
    await renderer.show(replace(make_run(1).header, pool=pool))
    await renderer.show(RoundPlanned(0, Round(decision=Plan(flow, Draft()), workflow=flow)))
    for index, text in enumerate(("Notes.", "Half ")):
        await renderer.show(StepStarted(0, index, worker))
        await renderer.show(StepDelta(round=0, index=index, worker=worker, delta=Delta(text=text)))
    failure = Failure(code="overloaded", message="busy")
    await renderer.show(StepRetried(0, retried, Attempt(worker, failure, 1.0)))
    await anyio.sleep(0.3)  # updates of the answer are at least this far apart
    await renderer.show(StepDelta(round=0, index=1, worker=worker, delta=Delta(text="an answer")))
    (shown,) = [frame for frame in writer.frames if "event: answering" in frame][-1:]
    assert ("Half an answer" in shown) is goes_on and "an answer" in shown
