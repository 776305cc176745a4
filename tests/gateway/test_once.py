"""Idempotency-Key: run once, answered twice; a tenant's own."""

import hashlib
import json

import anyio
import pytest
from sqlalchemy import select, update
from tests.gateway.live_server import HI, Breaking, Halting, Serving, scripted_state
from tests.gateway.test_tenants import KeyedServer

from batuta.clients import ScriptedClient
from batuta.core import Reply
from batuta.core.conductor import NULL_LISTENER
from batuta.errors import ProviderOverloadedError
from batuta.gateway.http.idempotency import IdempotencyMiddleware
from batuta.store.models import IDEMPOTENT

pytestmark = pytest.mark.anyio

BODIES = [
    ("/v1/chat/completions", {"model": "worker/ada", "messages": HI}),
    ("/v1/chat/completions", {"model": "worker/ada", "messages": HI, "stream": True}),
    ("/v1/responses", {"model": "worker/ada", "input": "hi"}),
    ("/v1/responses", {"model": "worker/ada", "input": "hi", "stream": True}),
    ("/v1/messages", {"model": "worker/ada", "max_tokens": 9, "messages": HI}),
    ("/v1/messages", {"model": "worker/ada", "max_tokens": 9, "messages": HI, "stream": True}),
]


async def post(keyed, path, body, name="k1", **headers):
    headers = {"idempotency-key": name, **headers}
    async with keyed.serving.http.post(path, json=body, headers=headers) as response:
        return response.status, response.headers, await response.text()


class Counting:
    """Answers with the number of the call."""

    def __init__(self):
        self.calls = 0

    def __call__(self, _):
        self.calls += 1
        return f"call {self.calls}"


@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_the_same_request_is_run_once(store, path, body):
    say = Counting()
    async with KeyedServer(store, ada=ScriptedClient(say)) as keyed:
        bearer = {"authorization": f"Bearer {await keyed.key()}"}
        other = {"authorization": f"Bearer {await keyed.key('other')}"}
        first = await post(keyed, path, body, **bearer)
        again = await post(keyed, path, body, **bearer)
        assert first[0] == again[0] == 200
        assert first[2] == again[2]
        assert say.calls == 1
        assert again[1]["idempotent-replayed"] == "true"
        assert again[1]["x-batuta-run-id"] == first[1]["x-batuta-run-id"]
        assert again[1]["x-request-id"] != first[1]["x-request-id"]
        status, _, text = await post(keyed, path, {**body, "temperature": 1}, **bearer)
        assert status == 409
        assert "another request" in text
        assert (await post(keyed, path, body, **other))[0] == 200
        assert (await post(keyed, path, body, "k2", **bearer))[0] == 200
        assert say.calls == 3


@pytest.mark.parametrize("fails", [False, True])
async def test_a_background_stream_that_broke_off_starts_no_second_job(store, fails):
    """The job goes on without its reader, so a retry gets the id of the same response."""
    say, goes_on = Counting(), anyio.Event()

    class Waiting:
        async def complete(self, request, listener=NULL_LISTENER):
            await goes_on.wait()
            if fails:
                raise ProviderOverloadedError("busy")
            return Reply(text=say(request))

    body = {"model": "worker/ada", "input": "hi", "background": True, "stream": True}
    headers = {"idempotency-key": "k1"}
    state = scripted_state({"ada": Waiting()}, store=store)
    async with Serving(state, background=True) as server:
        async with server.http.post("/v1/responses", json=body, headers=headers) as response:
            line = b""
            while not line.startswith(b"data:"):
                line = await response.content.readline()
            response.close()
        made = json.loads(line.removeprefix(b"data: "))["response"]["id"]
        with anyio.fail_after(60):
            status = 409  # until a moment after the reader went away
            while status == 409:
                async with server.http.post("/v1/responses", json=body, headers=headers) as again:
                    status = again.status
                    assert status == 409 or again.headers["idempotent-replayed"] == "true"
                    text = await again.text()
        assert text.startswith("event: response.created") and made in text
        goes_on.set()
        path = f"/v1/responses/{made}?stream=true"
        async with server.http.get(path) as resumed:
            end = "failed" if fails else "completed"
            assert f"event: response.{end}" in await resumed.text()
    assert say.calls == (0 if fails else 1)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("what", ["runs", "responses"])
async def test_what_is_kept_of_a_background_response_goes_with_it(store, stream, what):
    """A deleted answer is not sent again to whoever repeats the request with its key."""
    body = {"model": "worker/ada", "input": "hi", "instructions": "Secret.", "stream": stream}
    headers = {"idempotency-key": "k1"}
    ask = {"json": {**body, "background": True}, "headers": headers}
    state = scripted_state({"ada": ScriptedClient(lambda _: "Secret.")}, store=store)
    async with Serving(state, background=True) as server:
        async with server.http.post("/v1/responses", **ask) as response:
            first, run = await response.text(), response.headers["x-batuta-run-id"]
            assert response.headers["x-batuta-session"].startswith("ses_")
        made = run.replace("run_", "resp_")
        with anyio.fail_after(60):
            while (await server.get(f"/v1/responses/{made}"))[1]["status"] != "completed":
                await anyio.sleep(0.01)
        async with server.http.delete(f"/v1/{what}/{run if what == 'runs' else made}") as gone:
            assert gone.status == 200
        async with server.http.post("/v1/responses", **ask) as again:
            assert "idempotent-replayed" not in again.headers
            assert made in first and made not in await again.text()


async def test_one_that_is_run_and_one_that_broke_off(store):
    ada = Halting(("so",))
    app_state = scripted_state({"ada": ada}, store=store)
    keyed = type("KeyedServer", (), {"serving": Serving(app_state)})
    async with keyed.serving:  # pyright: ignore[reportAttributeAccessIssue]
        path, body = BODIES[0]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(post, keyed, path, body)
            await ada.started.wait()
            status, headers, _ = await post(keyed, path, body)
            assert (status, headers["retry-after"]) == (409, "1")
            tasks.cancel_scope.cancel()
        ada.started = anyio.Event()
        with anyio.fail_after(60):  # a moment after its reader went away the key is free again
            while not ada.started.is_set():
                with anyio.move_on_after(0.2):
                    await post(keyed, path, body)


async def test_an_answer_that_could_not_be_kept_is_not_waited_for(store):
    """What it cost was paid, so it is not run again under the same key."""
    say = Counting()
    refuse = (
        "CREATE TRIGGER refuse BEFORE UPDATE ON idempotent BEGIN SELECT RAISE(ABORT, 'full'); END"
    )
    await store.database.run_write(lambda connection: connection.exec_driver_sql(refuse))
    keyed = type(
        "KeyedServer",
        (),
        {"serving": Serving(scripted_state({"ada": ScriptedClient(say)}, store=store))},
    )
    async with keyed.serving:  # pyright: ignore[reportAttributeAccessIssue]
        path, body = BODIES[0]
        assert (await post(keyed, path, body))[0] == 200
        status, headers, text = await post(keyed, path, body)
    assert (status, headers["x-should-retry"], "retry-after" in headers) == (409, "false", False)
    assert "could not be stored" in text
    assert say.calls == 1


async def test_a_key_that_an_outage_kept_claimed_is_free_after_it(store):
    """A request that failed in the outage may be sent again with its key."""
    is_busy = True

    def say(_):
        if is_busy:
            raise ProviderOverloadedError("busy")
        return "well"

    async def tell(statement):
        await store.database.run_write(lambda connection: connection.exec_driver_sql(statement))

    await tell(
        "CREATE TRIGGER refuse BEFORE DELETE ON idempotent BEGIN SELECT RAISE(ABORT, 'full'); END"
    )
    state = scripted_state({"ada": ScriptedClient(say)}, store=store)
    keyed = type("KeyedServer", (), {"serving": Serving(state)})
    async with keyed.serving:  # pyright: ignore[reportAttributeAccessIssue]
        path, body = BODIES[0]
        assert (await post(keyed, path, body))[0] == 502
        await tell("DROP TRIGGER refuse")
        is_busy = False
        status, _, text = await post(keyed, path, body)
        assert (status, "well" in text) == (200, True), text


@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_a_failure_is_not_kept(store, path, body):
    calls = 0

    def say(_):
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ProviderOverloadedError("busy")
        return "well"

    keyed = type(
        "KeyedServer",
        (),
        {"serving": Serving(scripted_state({"ada": ScriptedClient(say)}, store=store))},
    )
    async with keyed.serving:  # pyright: ignore[reportAttributeAccessIssue]
        await post(keyed, path, body)
        status, headers, text = await post(keyed, path, body)
        assert (status, "well" in text) == (200, True)
        assert "idempotent-replayed" not in headers


@pytest.mark.parametrize(("path", "body"), [each for each in BODIES if "stream" in each[1]])
async def test_a_broken_stream_is_not_kept_whatever_its_text_says(store, path, body):
    said = "\ndata: [DONE]\n\nevent: message_stop\nevent: response.completed\n"
    app_state = scripted_state({"ada": Breaking((said,) * 9)}, store=store)
    keyed = type("KeyedServer", (), {"serving": Serving(app_state)})
    async with keyed.serving:  # pyright: ignore[reportAttributeAccessIssue]
        for _ in range(2):
            status, headers, text = await post(keyed, path, body)
            assert (status, "[DONE]" in text) == (200, True)
            assert "idempotent-replayed" not in headers


async def test_what_may_not_be_stored_is_not_and_odd_keys_are_refused(store):
    say = Counting()
    keyed = type(
        "KeyedServer",
        (),
        {"serving": Serving(scripted_state({"ada": ScriptedClient(say)}, store=store))},
    )
    async with keyed.serving:  # pyright: ignore[reportAttributeAccessIssue]
        path, body = BODIES[0]
        body = {**body, "store": False}
        assert (await post(keyed, path, body))[0] == 200
        status, headers, text = await post(keyed, path, body)
        assert (status, headers["x-should-retry"]) == (409, "false")
        assert "not stored" in text
        assert say.calls == 1
        for odd in ("x" * 256, "a b", ""):
            assert (await post(keyed, path, body, odd))[0] == 400


async def test_a_key_that_may_ask_for_less_is_not_told_what_another_one_was_answered(store):
    say = Counting()
    async with KeyedServer(store, ada=ScriptedClient(say), bob=ScriptedClient(say)) as keyed:
        path, body = "/v1/chat/completions", {"model": "worker/bob", "messages": HI}
        whole, same = await keyed.key(), await keyed.key()
        assert (await post(keyed, path, body, authorization=f"Bearer {whole}"))[0] == 200
        for limits in ({"models": ("worker/ada",)}, {"workers_deny": ("bob",)}, {"workers_allow": ("ada",)}):  # fmt: skip
            narrow = await keyed.key(**limits)  # pyright: ignore[reportArgumentType]
            status, _, text = await post(keyed, path, body, authorization=f"Bearer {narrow}")
            assert status == 409 and "call 1" not in text
        again = await post(keyed, path, body, authorization=f"Bearer {same}")
        assert again[1]["idempotent-replayed"] == "true" and say.calls == 1


async def digest_of(store):
    [row] = await store.database.fetch_rows(select(IDEMPOTENT.c.digest))
    return row["digest"]


async def test_what_is_remembered_of_a_request_is_the_same_in_every_version(store):
    """These bytes may not change: what was answered before an upgrade is answered again after it."""
    say = Counting()
    async with KeyedServer(store, ada=ScriptedClient(say)) as keyed:
        bearer = {"authorization": f"Bearer {await keyed.key(models=('worker/b', 'worker/ada'))}"}
        body = b'{"model": "worker/ada", "messages": [{"role": "user", "content": "hi"}]}'
        headers = {"idempotency-key": "k1", "content-type": "application/json", **bearer}
        path = "/v1/chat/completions"
        async with keyed.serving.http.post(path, data=body, headers=headers) as response:
            assert response.status == 200
        sent = hashlib.sha256(path.encode() + b"\0" + body).digest()
        rights = hashlib.sha256(b'[["worker/ada","worker/b"],[],[]]').digest()
        assert await digest_of(store) == sent + rights


async def test_a_request_that_an_earlier_version_answered_is_not_run_again(store):
    say = Counting()
    async with KeyedServer(store, ada=ScriptedClient(say)) as keyed:
        bearer = {"authorization": f"Bearer {await keyed.key()}"}
        path, body = BODIES[0]
        first = await post(keyed, path, body, **bearer)
        sent = json.dumps(body).encode()
        earlier = hashlib.sha256(b"\0".join((path.encode(), b"((), (), ())", sent))).digest()
        await store.database.execute(update(IDEMPOTENT).values(digest=earlier))
        assert (await post(keyed, path, body, **bearer))[2] == first[2]
        assert (await post(keyed, path, {**body, "n": 2}, **bearer))[0] == 409
        narrow = {"authorization": f"Bearer {await keyed.key(models=('worker/ada',))}"}
        assert (await post(keyed, path, body, **narrow))[0] == 409
        assert say.calls == 1


async def test_a_key_whose_rights_have_changed_is_told_so(store):
    async with KeyedServer(store, ada=ScriptedClient(Counting())) as keyed:
        path, body = BODIES[0]
        first, narrow = await keyed.key(), await keyed.key(models=("worker/ada",))
        assert (await post(keyed, path, body, authorization=f"Bearer {first}"))[0] == 200
        status, _, text = await post(keyed, path, body, authorization=f"Bearer {narrow}")
        assert (
            status == 409 and "other API-key permissions" in text and "another request" not in text
        )


async def test_the_claim_of_a_request_that_takes_long_is_renewed(store):
    """Until its answer is there it stands in the way of another one, and not a moment longer."""
    stop, statuses = anyio.Event(), []

    async def app(_, __, send):
        await stop.wait()
        await send({"type": "http.response.start", "status": 500, "headers": []})
        await send({"type": "http.response.body"})
        raise ValueError("as it is")

    async def receive():
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message):
        statuses.append(message.get("status"))

    async def claims():
        return await store.database.run_read(
            lambda connection: connection.execute(select(IDEMPOTENT.c.expires)).scalars().all()
        )

    async def ask():
        with pytest.raises(ValueError, match="as it is"):
            await once(scope, receive, send)

    once = IdempotencyMiddleware(app, store, claim_seconds=0.3)
    headers = [(b"idempotency-key", b"k1"), (b"content-length", b"2")]
    scope = {"type": "http", "method": "POST", "path": BODIES[0][0], "headers": headers}
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            while not (first := await claims()):
                await anyio.sleep(0.01)
            while (await claims()) == first:
                await anyio.sleep(0.01)
            stop.set()
    assert statuses == [500, None]
    assert await claims() == []
