"""How sure an answer is, over HTTP."""

import pytest

from batuta.clients import ScriptedClient
from batuta.conductors import FixedConductor
from batuta.core import Step, WorkerId, Workflow
from batuta.engine.confidence import Calibration, ConfidenceModel
from gateway.live_server import HI, Serving, orchestra

pytestmark = pytest.mark.anyio
ADA, BOB = map(WorkerId, ("ada", "bob"))
FITTED = Calibration(
    weights={"intercept": 0.0, "worker": 1.0}, workers={ADA: 0.8, BOB: 0.6}, runs=50
)
MODEL = ConfidenceModel(conductors={"hand": FITTED})
CONDUCTOR = FixedConductor("hand", lambda _: Workflow((Step(subtask="", worker=ADA),)))


async def ask(model, name="batuta-ultra", **orchestration):
    clients = {one: ScriptedClient(lambda _: "Answer: 42") for one in ("ada", "bob")}
    state = orchestra(clients, conductor=CONDUCTOR, confidence=model)
    body = {"model": name, "messages": HI, "orchestration": orchestration}
    async with Serving(state) as serving:
        return await serving.post("/v1/chat/completions", json=body)


async def test_a_fitted_probability_is_in_the_header_and_the_body():
    status, headers, got = await ask(MODEL)
    assert status == 200 and headers["x-batuta-confidence"] == "0.8"
    assert got["orchestration"]["confidence"] == 0.8


async def test_without_one_nothing_is_told():
    status, headers, got = await ask(None)
    assert status == 200 and "x-batuta-confidence" not in headers
    assert "orchestration" not in got


async def test_a_request_that_needs_a_surer_answer_is_told_that_it_is_not():
    status, headers, got = await ask(MODEL, min_confidence=0.95)
    assert status == 200 and headers["x-batuta-outcome"] == "unsure"
    assert got["orchestration"]["outcome"] == "unsure"
    assert got["choices"][0]["message"]["content"] == "Answer: 42"


@pytest.mark.parametrize(("model", "name"), [(None, "batuta-ultra"), (MODEL, "worker/bob")])
async def test_a_least_where_nothing_was_fitted_is_refused(model, name):
    status, _, got = await ask(model, name, min_confidence=0.5)
    assert status == 400 and got["error"]["param"] == "orchestration.min_confidence"
    assert "batuta eval --calibrate" in got["error"]["message"]
