"""Small things that a stranger sends to hold the server up, or to get round what it checks."""

from __future__ import annotations

import time
from dataclasses import replace
from decimal import Decimal
from functools import partial
from io import BytesIO
from types import SimpleNamespace

import anyio
import orjson
import pytest

from batuta.clients import ScriptedClient
from batuta.clients.anthropic.stream import parse_message
from batuta.conductors import sequential_chain
from batuta.core import (
    Limits,
    Message,
    Outcome,
    Price,
    Question,
    Reply,
    Request,
    Role,
    Text,
    Tool,
    ToolCall,
    ToolResult,
    WorkerId,
    user_message,
)
from batuta.core.cost_bound import bound_call_cost
from batuta.engine import conduct
from batuta.gateway.access.caller import Authenticator, Caller, CallerRole, set_caller
from batuta.gateway.errors import APIError
from batuta.gateway.http.body import decode_checked
from batuta.gateway.http.connections import ConnectionTable, Wait
from batuta.gateway.http.request_slots import BodyMemory, HeldMemory
from batuta.gateway.http.server_limits import ConnectionLimits
from batuta.gateway.serving.cost_bound import bound_first_calls
from batuta.gateway.serving.tenant_memory import CallMemory
from batuta.guardrails import Guardrail, GuardrailAction, Guardrails, GuardrailStage
from batuta.guardrails.detectors import DetectorOptions, build_detector
from batuta.store.key_hasher import KeyHasher
from batuta.usage import ASSUMED_PRICE, hour_cache_surcharge
from gateway.keyed_server import KeyedServer
from gateway.live_server import HI, Serving, pool_of, scripted_state

pytestmark = pytest.mark.anyio
LATE = 2.0
"""Seconds of the loop's own processor time; what is attacked here took many. A processor that others use
as well needs two or three of its seconds for one."""
SECRET = "AKIA" + "ABCD1234" * 2


# -- small requests that hold the server ------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/models", "/healthz", "/ui/"])
@pytest.mark.parametrize("value", ["\\" * 60_000, "\\a" * 30_000, "\\0" * 30_000])
async def test_a_cookie_of_backslashes_is_read_in_little_time(store, path, value):
    async with KeyedServer(store) as keyed:
        headers = {"cookie": f'batuta_session="{value}"; theme="{value}"'[:63_000]}
        began = time.thread_time()
        async with keyed.serving.http.get(path, headers=headers, allow_redirects=False) as answer:
            assert answer.status < 500
        assert time.thread_time() - began < LATE


@pytest.mark.parametrize("name", ["admin", "x"])
async def test_a_session_without_end_is_nobodys(store, name):
    async with KeyedServer(store) as keyed:
        cookie = {"cookie": f"batuta_session={name}.{'9' * 5000}.x"}
        async with keyed.serving.http.get("/v1/models", headers=cookie) as answer:
            assert answer.status == 401


async def test_a_large_body_to_be_repeated_is_counted_before_it_is_read(store):
    body = BytesIO(b'{"x":[' + b"[]," * 6_000_000 + b"[]]}")
    async with Serving(
        scripted_state({"ada": ScriptedClient(lambda _: "Hi.")}, store=store)
    ) as server:
        headers = {"idempotency-key": "k"}
        began = time.thread_time()
        status, _, said = await server.post(body=body, headers=headers)
        took = time.thread_time() - began
        assert took < LATE
    assert (status, said["error"]["code"]) == (413, "request_too_large")


@pytest.mark.parametrize("text", ["\ufdfa" * 21_000, "\u01d8\u0323" * 10_000, "\u0390" * 30_000])
def test_what_a_text_can_cost_is_known_in_little_time(text):
    pool = pool_of(*(f"w{at}" for at in range(10)))
    began = time.thread_time()
    question = Question(messages=(user_message(text),))
    bound_first_calls(question, pool, Limits(), direct=False, conductor_worker=pool.workers[0])
    assert time.thread_time() - began < LATE / 5


LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def thinking(arguments):
    call = ToolCall(id="c1", name="look", arguments=arguments)
    return ScriptedClient(lambda _: Reply(text="", tool_calls=(call,), reasoning="I must look."))


async def test_what_was_thought_before_deeply_nested_arguments_is_remembered(store):
    deep = f'{{"a": {"[" * 300}{"]" * 300}}}'
    async with KeyedServer(store, ada=thinking(deep)) as keyed:
        key = await keyed.key()
        status, headers, said = await keyed.chat(key, tools=[LOOK])
        assert status == 200, said
        call = said["choices"][0]["message"]["tool_calls"][0]
        turns = [*HI, {"role": "assistant", "tool_calls": [call]}]
        result = {"role": "tool", "tool_call_id": call["id"], "content": "There."}
        status, _, said = await keyed.chat(key, tools=[LOOK], messages=[*turns, result])
        assert status == 200, said
        assert await store.get(headers["x-batuta-run-id"]) is not None, "it was paid for"


async def test_many_calls_after_a_long_question_are_looked_up_in_little_time():
    memory, pool = CallMemory(), pool_of("ada")
    call = ToolCall(id="c1", name="look", arguments="{}")
    said = Reply(text="", tool_calls=(call,), reasoning="I must look.")
    clients = {WorkerId("ada"): ScriptedClient(lambda _: said)}
    asked = Question(messages=(user_message("hi"),), tools=(Tool(name="look"),))
    run = await conduct(asked, sequential_chain(["Look."], ["ada"]), pool, clients)
    memory.note_run(run, "acme", pool)
    assert run.outcome is Outcome.WAITING
    calls = tuple(replace(call, id=f"c{number}") for number in range(500))
    results = tuple(ToolResult(call_id=each.id, content="") for each in calls)
    question = Question(
        messages=(
            user_message("a" * 2_000_000),
            Message(role=Role.ASSISTANT, parts=calls),
            Message(role=Role.TOOL, parts=results),
        )
    )
    began = time.thread_time()
    memory.fill_in(question, "acme")
    assert time.thread_time() - began < 1, "the question is digested once, and not for each call"


# -- what many hold together ------------------------------------------------------------------


async def serve_watched(app, bodies, scope, receive, send):
    """The app, as the layer around the routes calls it."""
    held = HeldMemory.of_request(scope, bodies)
    body = held.watch_large_body(receive, dict(scope["headers"]).get(b"content-length"))
    try:
        await app(scope, receive if body is None else body.receive, send)
    finally:
        held.release()


async def test_large_bodies_have_so_much_room_together():
    inside, leave = anyio.Event(), anyio.Event()

    async def app(scope, receive, send):
        while (await receive())["more_body"]:
            pass
        inside.set()
        await leave.wait()

    def request(size):
        parts = [b"x" * size]

        async def receive():
            return {"type": "http.request", "body": parts.pop() if parts else b"", "more_body": bool(parts)}  # fmt: skip

        headers = [(b"content-length", str(size).encode())]
        return {"type": "http", "path": "/", "headers": headers}, receive, None

    bodies = BodyMemory(1_000_000)
    check = partial(serve_watched, app, bodies)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(check, *request(700_000))
        await inside.wait()
        with pytest.raises(APIError, match="large requests") as refused:
            await check(*request(400_000))
        assert refused.value.status == 503
        tasks.start_soon(check, *request(100_000))  # small ones are served
        await anyio.sleep(0)
        leave.set()
    assert bodies.used == 0


@pytest.mark.parametrize("is_read_from_the_store", [False, True])
async def test_one_tenant_leaves_room_for_others(is_read_from_the_store):
    bodies = BodyMemory(80_000_000)
    requests = []

    async def take(tenant, size):
        scope = {"type": "http", "path": "/", "headers": []}
        set_caller(scope, Caller(tenant=tenant))
        requests.append(held := HeldMemory.of_request(scope, bodies))
        if is_read_from_the_store:
            held.hold(size)
            return

        async def receive():
            return {"type": "http.request", "body": b"x" * size, "more_body": False}

        body = held.watch_large_body(receive, str(size).encode())
        assert body is not None
        await body.receive()

    for _ in range(6):
        await take("greedy", 10_000_000)
    with pytest.raises(APIError) as refused:
        await take("greedy", 10_000_000)
    assert refused.value.status == 503
    requests.pop().release()  # as the refused request ends
    await take("modest", 9_000_000)
    await take("other", 9_000_000)
    with pytest.raises(APIError):  # the whole of it
        await take("third", 9_000_000)
    for held in requests:
        held.release()
    assert bodies.used == 0
    await take("greedy", 10_000_000)


async def test_a_body_of_unknown_length_counts_as_it_comes():
    async def app(scope, receive, send):
        while True:
            await receive()

    async def receive():
        return {"type": "http.request", "body": b"x" * 1_000_000, "more_body": True}

    bodies = BodyMemory()
    with pytest.raises(APIError, match="exceeds"):
        await serve_watched(
            app, bodies, {"type": "http", "path": "/", "headers": []}, receive, None
        )
    assert bodies.used == 0


class Connection:
    """A connection of the table, without a socket."""

    address = "a"

    def __init__(self, drained):
        self.is_drained, self.aborted = drained, False

    def abort(self):
        self.aborted = True


def test_what_is_left_of_an_answer_must_be_read_in_time():
    table = ConnectionTable(ConnectionLimits(total=8))
    read, unread = Connection(drained=True), Connection(drained=False)
    for one in (read, unread):
        assert table.add_connection(one)  # pyright: ignore[reportArgumentType]
        table.set_deadline(one, Wait.LEFTOVER, -1)  # pyright: ignore[reportArgumentType]
    table.close_overdue()
    assert unread.aborted and not read.aborted


class Keys:
    """Keys of a store, and how often one was looked up."""

    def __init__(self, key):
        self.key, self.asked = key, 0

    async def has_keys(self):
        return True

    async def find(self, name):
        self.asked += 1
        return self.key if name == self.key.id else None


async def test_guesses_do_not_push_out_keys_that_are_good(store):
    hasher = KeyHasher(b"x" * 32)
    key, issued = await store.keys.create(hasher, "acme", "a key")
    keys = Keys(key)
    gate = Authenticator(SimpleNamespace(keys=keys), hasher)  # pyright: ignore[reportArgumentType]
    assert (await gate.authenticate(issued.text)).role is CallerRole.KEY
    head, name, _ = issued.text.split("_", 2)
    for number in range(10_001):
        with pytest.raises(APIError):
            await gate.authenticate(f"{head}_{name}_{number:043d}")
    before = keys.asked
    assert (await gate.authenticate(issued.text)).role is CallerRole.KEY
    assert keys.asked == before


# -- what is checked, and read differently by others ------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        rb'{"model":"a","model":"b","user":"\u003ax"}',
        rb'{"model":"a","model":"b","user":"x\"\u003A"}',
        rb'{"model":"a","model":"b","user":"x\u0022:"}',
        rb'{"model":"a","model" :"b"}',
        rb'{"model":"a","mod\u0065l":"b","user":"\u003a"}',
    ],
)
def test_no_escape_hides_a_second_key(body):
    with pytest.raises(APIError, match="twice"):
        decode_checked(body)


def guarded(action=GuardrailAction.REDACT):
    policy = Guardrail(
        name="no-keys",
        detect=build_detector("secrets", DetectorOptions()),
        stages=frozenset({GuardrailStage.INPUT}),
        action=action,
    )
    return Guardrails([policy])


def parts(*texts):
    return Message(role=Role.USER, parts=tuple(Text(text) for text in texts))


def called(arguments):
    call = ToolCall(id="c", name="f", arguments=arguments)
    return Message(role=Role.ASSISTANT, parts=(call,))


HIDDEN = {
    "in two parts": parts("My key is AKIAABCD", "1234ABCD1234, keep it."),
    "in three parts": parts("My key is AKIA", "ABCD1234ABCD", "1234, keep it."),
    "by escapes in arguments": called('{"key": "\\u0041KIA' + SECRET[4:] + '"}'),
}


@pytest.mark.parametrize("name", HIDDEN)
async def test_what_is_cut_up_or_escaped_is_seen_all_the_same(name):
    question = Question(messages=(HIDDEN[name],))
    _, acts, blocked = await guarded(GuardrailAction.BLOCK).check_question(question)
    assert blocked == "no-keys" and acts
    clean, acts, blocked = await guarded().check_question(question)
    assert not blocked and acts
    [message] = clean.messages
    told = "".join(part.text if isinstance(part, Text) else part.arguments for part in message.parts)  # fmt: skip  # pyright: ignore[reportAttributeAccessIssue]
    assert "no-keys" in told and "1234" not in told


async def test_parts_that_hide_nothing_stay_apart():
    question = Question(messages=(parts("One.", "Two."),))
    clean, acts, blocked = await guarded().check_question(question)
    assert clean == question and not acts and not blocked


@pytest.mark.parametrize(
    "part",
    [
        ToolCall(id=SECRET, name="f", arguments="{}"),
        ToolResult(call_id=SECRET, content="sunny"),
    ],
)
async def test_ids_of_calls_are_looked_at_too(part):
    role = Role.ASSISTANT if isinstance(part, ToolCall) else Role.TOOL
    question = Question(messages=(Message(role=role, parts=(part,)),))
    assert (await guarded().check_question(question))[2] == "no-keys"


# -- money ------------------------------------------------------------------------------------


def test_what_is_cached_for_an_hour_is_reserved_and_counted_at_its_price():
    price = Price(input=Decimal(3), output=Decimal(15), cache_write=Decimal("3.75"))
    [worker] = pool_of("ada").workers
    worker = type(worker)(id=worker.id, model="claude-x", price=price)

    def asked(mark):
        message = Message(role=Role.USER, parts=(Text("x" * 10_000, cache=mark),))
        return bound_call_cost(Request(messages=(message,)), worker, ASSUMED_PRICE).input_usd

    assert asked("1h") / asked("5m") == Decimal("1.6")
    usage = {
        "input_tokens": 10,
        "output_tokens": 1,
        "cache_creation_input_tokens": 1000,
        "cache_creation": {"ephemeral_1h_input_tokens": 800, "ephemeral_5m_input_tokens": 200},
    }
    told = parse_message({"type": "message", "content": [], "usage": usage})
    assert told.hour_cache_write == 800
    assert hour_cache_surcharge(price, 800) == 800 * Decimal("2.25") / 1_000_000


async def test_a_workflow_of_ones_own_is_run_as_the_policies_let_it(store):
    heard = []

    def answer(request):
        heard.append(request.messages)
        return "Fine."

    app_state = scripted_state({"ada": ScriptedClient(answer)}, store=store, guardrails=guarded())
    step = {"worker": "ada", "subtask": f"Say {SECRET}.", "access": []}
    body = {"model": "batuta-ultra", "messages": HI, "orchestration": {"workflow": {"steps": [step]}}}  # fmt: skip
    async with Serving(app_state) as server:
        status, _, said = await server.post(json=body)
    assert status == 200, said
    assert SECRET not in str(heard) and "removed by no-keys" in str(heard)
    assert SECRET not in orjson.dumps(said).decode()
