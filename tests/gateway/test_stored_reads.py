"""What is stored is read in bounds: bytes of a request, memory of the server, bytes a minute."""

from dataclasses import replace

import orjson
import pytest

from batuta.clients import ScriptedClient
from batuta.core import Message, Question, Reply, Role, Text
from batuta.gateway.access.caller import Caller, set_caller
from batuta.gateway.access.rate_limit import LocalRateLimiter
from batuta.gateway.errors import APIError
from batuta.gateway.http import stored_reads as reads
from batuta.gateway.http.request_slots import BodyMemory, HeldMemory
from batuta.gateway.responses.request import HistoryReferences
from batuta.gateway.responses.store import ResponseStore
from batuta.store import Store
from batuta.store.responses import StoredResponse
from gateway.live_server import Serving, scripted_state
from store.strategies import make_run

pytestmark = pytest.mark.anyio
MEBIBYTE = 1 << 20
TENANT = "local"


@pytest.fixture
async def store(anyio_backend, tmp_path):
    async with Store(tmp_path / "runs.db") as opened:
        yield opened


async def put(store, name, size=0, *, previous=None, items=1):
    """A response that was answered, with so many bytes put in."""
    put_in = [
        {"type": "message", "role": "user", "id": f"msg_{name}_in{at}",
         "content": [{"type": "input_text", "text": "x" * (size // items)}]}
        for at in range(items)
    ]  # fmt: skip
    output = [
        {"type": "message", "role": "assistant", "id": f"msg_{name}_0",
         "content": [{"type": "output_text", "text": f"said {name}"}]}
    ]  # fmt: skip
    body = {"id": f"resp_{name}", "object": "response", "status": "completed", "output": output,
            "background": False}  # fmt: skip
    row = StoredResponse(
        id=f"resp_{name}",
        tenant=TENANT,
        created=1.0,
        status="completed",
        previous=previous and f"resp_{previous}",
        body=orjson.dumps(body),
        input=orjson.dumps(put_in),
        events=b"e" * size,
    )
    await store.responses.put(row)


def references(*names):
    return [{"type": "item_reference", "id": name} for name in names]


def scope_of(memory, rates=None):
    scope = {"type": "http"}
    reads.give_limiter(scope, rates or LocalRateLimiter())
    set_caller(scope, Caller(tenant=TENANT))
    return scope, HeldMemory.of_request(scope, memory)


async def ask(server, body):
    async with server.http.post("/v1/responses", json={"model": "batuta-mini", **body}) as got:
        return got.status, await got.json()


async def test_what_a_request_names_of_the_past_is_bounded(store):
    for at in range(30):
        await put(store, f"a{at}", MEBIBYTE, previous=f"a{at - 1}" if at else None)
    ada = ScriptedClient([Reply(text="x")] * 4)
    async with Serving(scripted_state({"ada": ada}, store=store)) as server:
        named = references(*(f"msg_a{at}_in0" for at in range(30)))
        status, told = await ask(server, {"input": named})
        assert (status, told["error"]["code"]) == (413, "request_too_large")
        again = {"input": "go on", "previous_response_id": "resp_a29"}
        status, told = await ask(server, again)
        assert (status, told["error"]["code"]) == (413, "request_too_large")
        half = {"input": references("msg_a20_in0"), "previous_response_id": "resp_a9"}
        assert (await ask(server, half))[0] == 200
        # Of the answers only the answers are read, however much was put in.
        said = references(*(f"msg_a{at}_0" for at in range(30)))
        status, told = await ask(server, {"input": said})
    assert status == 200
    assert "said a29" in ada.requests[-1].messages[-1].text


async def test_many_small_values_are_bounded(store):
    for at in range(3):
        await put(store, f"b{at}", items=40_000, previous=f"b{at - 1}" if at else None)
    async with Serving(scripted_state({"ada": ScriptedClient([])}, store=store)) as server:
        status, told = await ask(server, {"input": "x", "previous_response_id": "resp_b2"})
    assert (status, told["error"]["code"]) == (413, "request_too_large")


async def test_what_is_read_counts_in_the_memory_of_bodies(store):
    await put(store, "c", 3 * MEBIBYTE)
    memory = BodyMemory(5 * MEBIBYTE)
    responses = ResponseStore(store)
    first, held = scope_of(memory)
    await responses.find("resp_c", first, ("input",))
    second, other = scope_of(memory)
    wanted = HistoryReferences("resp_c", ())
    with pytest.raises(APIError) as refused:
        await responses.load_history(wanted, second)
    assert refused.value.status == 503
    other.release()
    held.release()
    assert memory.used == 0
    third, last = scope_of(memory)
    assert len((await responses.load_history(wanted, third)).items) == 2
    last.release()
    assert memory.used == 0


async def test_a_key_reads_so_much_a_minute(store):
    await put(store, "d", 16 * MEBIBYTE)
    responses, rates = ResponseStore(store), LocalRateLimiter()
    allowed = reads.MAX_READ_BYTES // (17 * MEBIBYTE)
    for _ in range(allowed):
        await responses.find("resp_d", scope_of(BodyMemory(), rates)[0], ("input",))
    reading = (
        responses.find("resp_d", scope_of(BodyMemory(), rates)[0], ("input",)) for _ in range(9)
    )
    with pytest.raises(APIError) as refused:
        await all_of(reading)
    assert refused.value.status == 429 and "retry-after" in refused.value.headers


async def all_of(work):
    for one in work:
        await one


async def test_only_what_is_asked_for_is_read(store):
    await put(store, "e", 1000)
    for part in ("body", "input", "events"):
        row = await store.responses.get("resp_e", TENANT, (part,))
        kept = {name for name in ("body", "input", "events") if getattr(row, name)}
        assert kept == {part}
    row = await store.responses.get("resp_e", TENANT, ())
    assert not (row.body or row.input or row.events)
    size = await store.responses.measure(("resp_e",), TENANT, ("input",))
    assert size == len((await store.responses.get("resp_e", TENANT)).input)


def large_run():
    run = make_run(3)
    message = Message(role=Role.USER, parts=(Text("x" * 3 * MEBIBYTE),))
    return replace(run, header=replace(run.header, question=Question(messages=(message,))))


@pytest.mark.parametrize("path", ["/v1/runs/{}", "/ui/runs/{}", "/ui/runs/{}/export.json", "/ui/?again={}", "/ui/compare?a={}"])  # fmt: skip
async def test_a_run_counts_like_other_reads(store, path):
    run = large_run()
    await store.append(run, TENANT)
    await store.flush()
    rates, ada = LocalRateLimiter(), ScriptedClient([])
    async with Serving(scripted_state({"ada": ada}, store=store, rate_limiter=rates)) as server:
        async with server.http.get(path.format(run.header.id)) as got:
            assert got.status == 200
            await got.read()
        window = await rates.take("bytes", f"tenant {TENANT}", reads.MAX_READ_BYTES, 0)
        assert window.cap - window.remaining > 3 * MEBIBYTE
        await rates.add("bytes", f"tenant {TENANT}", window.cap, window.remaining)
        async with server.http.get(path.format(run.header.id)) as got:
            assert got.status == 429


async def test_a_run_counts_in_the_memory_of_bodies(store):
    run = large_run()
    await store.append(run, TENANT)
    await store.flush()
    memory = BodyMemory(5 * MEBIBYTE)
    scope, held = scope_of(memory)
    encoded = await reads.read_stored_run(store, run.header.id, TENANT, scope)
    assert memory.used == len(encoded or b"") > 3 * MEBIBYTE
    with pytest.raises(APIError) as refused:
        await reads.read_stored_run(store, run.header.id, TENANT, scope_of(memory)[0])
    assert refused.value.status == 503
    held.release()


async def test_an_item_is_named_once(store):
    await put(store, "f", 1000)
    async with Serving(scripted_state({"ada": ScriptedClient([])}, store=store)) as server:
        twice = {"input": references("msg_f_in0", "msg_f_in0")}
        for path in ("/v1/responses", "/v1/responses/compact"):
            body = {"model": "batuta-mini", **twice}
            async with server.http.post(path, json=body) as got:
                told = await got.json()
            assert (got.status, told["error"]["param"]) == (400, "input")


async def test_a_read_that_is_refused_for_memory_does_not_count():
    rates, memory = LocalRateLimiter(), BodyMemory(most=MEBIBYTE)
    scope, held = scope_of(memory, rates)
    with pytest.raises(APIError) as refused:
        await reads.make_room(scope, 2 * MEBIBYTE)
    held.release()
    assert refused.value.status == 503
    window = await rates.take("bytes", f"tenant {TENANT}", reads.MAX_READ_BYTES, 0)
    assert window.remaining == reads.MAX_READ_BYTES and not memory.used
