"""How sure an answer is, over HTTP."""

import json
from dataclasses import replace

import pytest

from batuta.clients import ScriptedClient
from batuta.conductors import FixedConductor
from batuta.core import Step, WorkerId, Workflow
from batuta.engine.confidence import Calibration, ConfidenceModel, SampleSetting
from batuta.gateway.access.caller import Authenticator
from batuta.store.key_hasher import KeyHasher
from batuta.store.key_permissions import KeyPermissions, permissions_json, read_permissions
from gateway.keyed_server import ADMIN
from gateway.live_server import HI, PRICE, Serving, scripted_state

pytestmark = pytest.mark.anyio
ADA, BOB = map(WorkerId, ("ada", "bob"))
FITTED = Calibration(
    weights={"intercept": 0.0, "worker": 1.0}, workers={ADA: 0.8, BOB: 0.6}, runs=50
)
MODEL = ConfidenceModel(conductors={"hand": FITTED})
CONDUCTOR = FixedConductor("hand", lambda _: Workflow((Step(subtask="", worker=ADA),)))


async def ask(model, name="batuta-ultra", **orchestration):
    clients = {one: ScriptedClient(lambda _: "Answer: 42") for one in ("ada", "bob")}
    state = scripted_state(clients, conductor=CONDUCTOR, confidence=model)
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


async def test_a_least_is_refused_at_an_effort_that_nothing_was_fitted_to():
    clients = {one: ScriptedClient(lambda _: "Answer: 42") for one in ("ada", "bob")}
    body = {
        "model": "batuta-ultra",
        "messages": HI,
        "reasoning_effort": "none",  # the best worker answers, without the conductor
        "orchestration": {"min_confidence": 0.5},
    }
    async with Serving(scripted_state(clients, conductor=CONDUCTOR, confidence=MODEL)) as serving:
        status, _, got = await serving.post("/v1/chat/completions", json=body)
    assert status == 400 and got["error"]["param"] == "orchestration.min_confidence"


@pytest.mark.parametrize(("own", "asked", "outcome"), [(0.95, 0.1, "unsure"), (0.1, 0.95, "unsure"), (0.1, 0.2, "answered")])  # fmt: skip
async def test_the_higher_of_a_models_least_and_a_requests_counts(own, asked, outcome):
    clients = {one: ScriptedClient(lambda _: "Answer: 42") for one in ("ada", "bob")}
    state = scripted_state(clients, conductor=CONDUCTOR, confidence=MODEL)
    models = tuple(replace(each, min_confidence=own) for each in state.catalogue.models)
    state = replace(state, catalogue=replace(state.catalogue, models=models))
    body = {"model": "batuta-ultra", "messages": HI, "orchestration": {"min_confidence": asked}}
    async with Serving(state) as serving:
        _, headers, _ = await serving.post("/v1/chat/completions", json=body)
    assert headers["x-batuta-outcome"] == outcome


SAMPLED = replace(FITTED, sampled=replace(FITTED, weights={"intercept": -2.0, "samples": 4.0}))


@pytest.mark.parametrize(("again", "sure"), [("42", 0.8808), ("41", 0.1192)])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_is_asked_for_again_paid_and_told(store, again, sure, stream):
    replies = iter(["Answer: 42", *[f"So it is. Answer: {again}"] * 2])
    clients = {
        "ada": ScriptedClient(lambda _: next(replies), price=PRICE),
        "bob": ScriptedClient(lambda _: "Answer: 7"),
    }
    model = ConfidenceModel(conductors={"hand": SAMPLED}, samples=SampleSetting(count=2))
    state = scripted_state(clients, conductor=CONDUCTOR, confidence=model, store=store)
    body = {"model": "batuta-ultra", "messages": HI, "stream": stream, "orchestration": {"trace": True}}  # fmt: skip
    async with Serving(state) as serving, serving.http.post("/v1/chat/completions", json=body) as response:  # fmt: skip
        told = await response.text()
        run_id = response.headers["x-batuta-run-id"]
        assert response.status == 200 and f'"confidence":{sure}' in told
        await store.flush()
        page = await serving.http.get(f"/ui/runs/{run_id}")
        shown = await page.text()
    run = await store.get(run_id)
    assert run.confidence == sure and run.usage.calls == 3 and run.answer == "Answer: 42"
    assert run.cost.usd == sum(step.cost.usd for step in run.steps) > run.steps[0].cost.usd
    assert "asks ada again" in told and "Asks ada again" in shown
    if stream:
        texts = [json.loads(line[6:]) for line in told.splitlines() if line.startswith("data: {")]
        words = [c["delta"].get("content") or "" for one in texts for c in one["choices"]]
        assert "".join(words) == "Answer: 42"


async def test_a_dry_run_foretells_the_samples():
    model = ConfidenceModel(conductors={"hand": SAMPLED}, samples=SampleSetting(count=2))
    _, _, plain = await ask(MODEL, dry_run=True)
    _, _, told = await ask(model, dry_run=True)
    once, thrice = (one["orchestration"]["estimate"] for one in (plain, told))
    assert (once["calls"], thrice["calls"]) == (1, 3)
    assert thrice["output_tokens"] == 3 * once["output_tokens"]


DIALECTS = {
    "chat": ("/v1/chat/completions", {"messages": HI}),
    "responses": ("/v1/responses", {"input": "hi"}),
    "messages": ("/v1/messages", {"messages": HI, "max_tokens": 99}),
}


async def tell(dialect, *, stream=False, refuse=False):
    """Status, headers and body of a question that is answered with 0.8 where 0.95 is wanted."""
    path, body = DIALECTS[dialect]
    clients = {one: ScriptedClient(lambda _: "Answer: 42") for one in ("ada", "bob")}
    state = scripted_state(clients, conductor=CONDUCTOR, confidence=MODEL, refuses_unsure=refuse)
    asked = {**body, "model": "batuta-ultra", "stream": stream, "orchestration": {"min_confidence": 0.95}}  # fmt: skip
    async with Serving(state) as serving, serving.http.post(path, json=asked) as response:
        return response.status, response.headers, await response.text()


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_an_unsure_answer_is_marked_in_every_dialect(dialect):
    status, headers, whole = await tell(dialect)
    assert status == 200 and headers["x-batuta-outcome"] == "unsure" and "Answer: 42" in whole
    assert '"outcome":"unsure"' in whole
    status, _, streamed = await tell(dialect, stream=True)
    assert status == 200 and '"outcome":"unsure"' in streamed and "42" in streamed


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_an_unsure_answer_is_refused_by_setting_in_every_dialect(dialect):
    status, headers, whole = await tell(dialect, refuse=True)
    assert status == 422 and headers["x-batuta-outcome"] == "unsure"
    assert headers["x-batuta-confidence"] == "0.6" and headers["x-should-retry"] == "false"
    assert "confidence had to be at least 0.95, but it is 0.6" in whole
    status, _, streamed = await tell(dialect, stream=True, refuse=True)
    assert status == 200 and "confidence had to be at least 0.95" in streamed
    assert "Answer" not in whole and "Answer" not in streamed


async def ask_keyed(store, model, least, name="batuta-ultra", **orchestration):
    """Status, headers and body of a question by a key that has a least."""
    hasher = KeyHasher(b"x" * 32)
    gate = Authenticator(store, hasher, ADMIN)
    clients = {one: ScriptedClient(lambda _: "Answer: 42") for one in ("ada", "bob")}
    state = scripted_state(clients, conductor=CONDUCTOR, confidence=model, store=store, authenticator=gate)  # fmt: skip
    _, issued = await store.keys.create(hasher, "acme", "k", KeyPermissions(min_confidence=least))
    body = {"model": name, "messages": HI, "orchestration": orchestration}
    headers = {"authorization": f"Bearer {issued.text}"}
    async with Serving(state) as serving:
        return await serving.post("/v1/chat/completions", json=body, headers=headers)


@pytest.mark.parametrize(("asked", "outcome"), [({}, "unsure"), ({"min_confidence": 0.1}, "unsure")])  # fmt: skip
async def test_a_keys_least_holds_and_no_request_lowers_it(store, asked, outcome):
    status, headers, _ = await ask_keyed(store, MODEL, 0.95, **asked)
    assert status == 200 and headers["x-batuta-outcome"] == outcome


async def test_a_keys_least_that_is_reached_changes_nothing_but_a_request_may_raise_it(store):
    _, headers, _ = await ask_keyed(store, MODEL, 0.5)
    assert headers["x-batuta-outcome"] == "answered"
    _, headers, _ = await ask_keyed(store, MODEL, 0.5, min_confidence=0.95)
    assert headers["x-batuta-outcome"] == "unsure"


@pytest.mark.parametrize(("model", "name"), [(None, "batuta-ultra"), (MODEL, "worker/bob")])
async def test_a_keys_least_where_nothing_was_fitted_is_refused(store, model, name):
    status, _, got = await ask_keyed(store, model, 0.5, name)
    assert status == 403 and got["error"]["code"] == "permission_denied"
    assert "needs answers with a confidence of at least 0.5" in got["error"]["message"]
    assert "batuta eval --calibrate" in got["error"]["message"]


def test_a_keys_least_is_written_and_read_and_old_replicas_read_keys_without_it():
    limits = KeyPermissions(min_confidence=0.9)
    assert read_permissions(permissions_json(limits)) == limits
    zero = KeyPermissions(min_confidence=0.0)  # unlike None: the confidence must be known
    assert read_permissions(permissions_json(zero)) == zero
    assert "min_confidence" not in permissions_json(KeyPermissions())
    for wrong in (-0.1, 1.5, float("nan"), "0.9", True):
        with pytest.raises(ValueError, match="min_confidence"):
            read_permissions({"min_confidence": wrong})
