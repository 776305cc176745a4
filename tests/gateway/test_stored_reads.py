"""What is stored is read in bounds: bytes of a request, memory of the server, bytes a minute."""

import orjson
import pytest

from batuta.clients import ScriptedClient
from batuta.core import Reply
from batuta.gateway.access.caller import Caller, set_caller
from batuta.gateway.access.rate_limit import LocalRateLimiter
from batuta.gateway.errors import APIError
from batuta.gateway.http.request_slots import BodyMemory, HeldMemory
from batuta.gateway.responses import store as reads
from batuta.gateway.responses.request import HistoryReferences
from batuta.gateway.responses.store import ResponseStore
from batuta.store import Store
from batuta.store.responses import StoredResponse
from gateway.live_server import Serving, scripted_state

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


def scope_of(memory):
    scope = {"type": "http"}
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
    responses = ResponseStore(store, LocalRateLimiter())
    allowed = reads.MAX_READ_BYTES // (17 * MEBIBYTE)
    for _ in range(allowed):
        await responses.find("resp_d", scope_of(BodyMemory())[0], ("input",))
    reading = (responses.find("resp_d", scope_of(BodyMemory())[0], ("input",)) for _ in range(9))
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
