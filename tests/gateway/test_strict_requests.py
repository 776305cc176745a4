"""Requests that say something twice, misspelt, or beside what is looked at."""

import logging
import stat
import sys
import time
from contextlib import suppress

import anyio
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.clients import ScriptedClient
from batuta.core import Image, Message, Question, Role, Text, ToolCall
from batuta.gateway.errors import APIError
from batuta.gateway.http.body import decode_checked
from batuta.gateway.serving.prepare import check_pictures
from batuta.guardrails import Guardrail, GuardrailAction, Guardrails, GuardrailStage
from batuta.guardrails.detectors import DetectorOptions, build_detector
from batuta.store import Store
from batuta.store.key_hasher import KeyHasher
from gateway.keyed_server import KeyedServer
from gateway.live_server import HI, Serving, scripted_state
from gateway.test_connections import guarded as connected

pytestmark = pytest.mark.anyio
SECRET = "AKIA" + "ABCD1234" * 2
STEP = {"worker": "ada", "subtask": "Do it.", "access": []}


def ask(**fields):
    return {"model": "batuta-ultra", "messages": HI, **fields}


@pytest.mark.parametrize(
    ("workflow", "param"),
    [
        ({"steps": [{**STEP, "acess": [0]}]}, "orchestration.workflow.steps[0].acess"),
        ({"steps": [STEP], "rounds": 2}, "orchestration.workflow.rounds"),
    ],
)
async def test_a_misspelt_field_of_a_workflow_is_refused(workflow, param):
    async with Serving() as server:
        status, _, said = await server.post(json=ask(orchestration={"workflow": workflow}))
    assert (status, said["error"]["code"], said["error"]["param"]) == (400, "unknown_parameter", param)  # fmt: skip


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/v1/chat/completions", ask(user="u", verbosity="low", metadata=None, x=1), "user, verbosity, x"),
        ("/v1/responses", {"model": "batuta-mini", "input": "hi", "user": "u", "include": []}, "user"),
        ("/v1/messages", ask(max_tokens=9, metadata={"user_id": "u"}), "metadata"),
    ],
)  # fmt: skip
async def test_fields_that_are_accepted_and_not_forwarded_are_told(path, body, named):
    async with Serving() as server:
        status, headers, _ = await server.post(path, json=body)
    assert (status, headers["x-batuta-ignored"]) == (200, named)


DOUBLE = [
    b'{"model":"a","model":"b"}',
    b'{"a":{"b":1,"b":2}}',
    b'{"a" :1,"a":2}',
    b'{"a":1,"a" :2}',
    b'{"a":1,"\\u0061":2}',
    b'{"a":"\\u0022:","a":2}',
    b'{"a":[{"x":1},{"y":1,"y":1}]}',
    b'{"a":"\\":","a":2}',
    b'{"a":1,"a"\n:2}',
]
SINGLE = [
    b'{"a":"\\u0022:"}',
    b'{"a" : {"a" : 1}}',
    b'{"a":[{"a":1},{"a":1}]}',
    b'{"a":"b\\":c\\": "}',
    b"[" * 300 + b"]" * 300,
    b"{",
    b"",
]


def check_keys(body):
    """Refuse a body with a key twice; what else may be wrong with the body does not count here."""
    try:
        decode_checked(body)
    except APIError as error:
        if "appears twice" in error.message:
            raise


@pytest.mark.parametrize("body", DOUBLE)
async def test_a_key_that_is_there_twice_is_refused(body):
    with pytest.raises(APIError, match="appears twice"):
        check_keys(body)
    async with Serving() as server:
        status, _, said = await server.post(body=body)
    assert (status, said["error"]["code"]) == (400, "invalid_json")


@pytest.mark.parametrize("body", SINGLE)
def test_keys_that_are_there_once_are_no_fault(body):
    check_keys(body)


keys = st.text('ab":\\ \n', max_size=3)
values = st.recursive(
    st.one_of(st.text('ab":\\ \n', max_size=6), st.integers(-9, 9), st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.lists(st.tuples(keys, inner), max_size=4)),
    max_leaves=12,
)  # fmt: skip


def written(value, gap):
    """The value as JSON; a list of pairs is an object, whatever its keys are."""
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        inner = (orjson.dumps(k).decode() + gap + ":" + written(v, gap) for k, v in value)
        return "{" + ",".join(inner) + "}"
    if isinstance(value, list):
        return "[" + ",".join(written(v, gap) for v in value) + "]"  # pyright: ignore[reportArgumentType, reportCallIssue]
    return orjson.dumps(value).decode()


def is_double(value):
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        names = [name for name, _ in value]
        return len(set(names)) < len(names) or any(is_double(inner) for _, inner in value)
    return isinstance(value, list) and any(is_double(inner) for inner in value)


@given(values, st.sampled_from(["", " ", "\n"]))
def test_exactly_the_bodies_with_double_keys_are_refused(value, gap):
    refused = False
    try:
        check_keys(written(value, gap).encode())
    except APIError:
        refused = True
    assert refused == is_double(value)


def test_large_bodies_are_looked_at_in_little_time():
    body = orjson.dumps({str(i): '":' * 20 for i in range(50_000)})
    began = time.process_time()
    check_keys(body)
    assert time.process_time() - began < 2


def pictured(url):
    return Question(messages=(Message(role=Role.USER, parts=(Text("?"), Image(url=url))),))


PRIVATE = [
    "https://127.0.0.1/a",
    "https://localhost/a",
    "https://LOCALHOST./a",
    "https://10.1.2.3/",
    "https://192.168.0.1/x",
    "https://172.16.9.9/",
    "https://169.254.169.254/latest/meta-data",
    "https://[::1]/",
    "https://[fd00::1]/",
    "https://[fe80::1%25eth0]/",
    "https://[::ffff:127.0.0.1]/",
    "https://2130706433/",
    "https://0x7f.1/",
    "https://0177.0.0.1/",
    "https://0/",
    "https://127.1/",
    "https://intranet/a",
    "https://printer.local/",
    "https://db.internal/",
    "https://user@example.com/",
    "https://a:b@127.0.0.1/",
    "https://example.com\\@127.0.0.1/",
    "https://100.64.0.1/",
    "https://224.0.0.1/",
    "https://",
    "https://example.com:x/",
    "https://[1/",
    "https://[2002:7f00:1::]/",
    "https://[::127.0.0.1]/",
    "https://[64:ff9b::7f00:1]/",
    "https://127．0．0.1/",
    "https://①②⑦.⓪.⓪.①/",
    "https://1\u00ad27.0.0.1/",
    "https://127。0。0.1/",
    "https://api.default.svc/",
    "https://vault.service.consul/",
    "https://host.docker.internal/",
    "https://a.localhost/",
    "https://192.0.0.192/opc/v2/instance/",
    "https://168.63.129.16/metadata",
    "https://[::ffff:168.63.129.16]/",
    "https://192.88.99.1/",
]


@pytest.mark.parametrize("url", PRIVATE)
def test_addresses_of_private_networks_are_refused(url):
    with pytest.raises(APIError, match="public"):
        check_pictures(pictured(url))
    check_pictures(pictured(url), private=True)


@pytest.mark.parametrize(
    "url", ["https://example.com/a.png?x=1", "https://93.184.216.34/", "data:image/png;base64,AA=="]
)
def test_public_addresses_and_data_may_be_shown(url):
    check_pictures(pictured(url))


@pytest.mark.parametrize("private", [False, True])
async def test_a_private_address_reaches_no_worker(private):
    url = "https://169.254.169.254/latest/meta-data"
    ada = ScriptedClient(lambda _: "A cat.")
    app_state = scripted_state({"ada": ada}, seeing=("ada",), private_pictures=private)
    forms = [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]}),
        ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]}),
        ("/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": url}}]}]}),
    ]  # fmt: skip
    async with Serving(app_state) as server:
        for path, body in forms:
            status, _, _ = await server.post(path, json={"model": "worker/ada", **body})
            assert status == (200 if private else 400), path


def guarded(action=GuardrailAction.BLOCK, kind="secrets"):
    policy = Guardrail(
        name="no-keys",
        detect=build_detector(kind, DetectorOptions()),
        stages=frozenset({GuardrailStage.INPUT}),
        action=action,
    )
    return Guardrails([policy])


def tool(**function):
    return {"tools": [{"type": "function", "function": {"name": "look", **function}}]}


def schema(**fields):
    return {"type": "object", "properties": {"a": {"type": "string", **fields}}}


BESIDE = {
    "tool": tool(description=f"Use {SECRET}."),
    "parameter": tool(parameters=schema(description=SECRET)),
    "enum": tool(parameters=schema(enum=[SECRET])),
    "property": tool(parameters={"type": "object", "properties": {SECRET: {}}}),
    "name": {"tools": [{"type": "function", "function": {"name": SECRET}}]},
    "form": {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema(const=SECRET)}}},
    "stop": {"stop": [SECRET]},
    "author": {"messages": [{"role": "user", "content": "hi", "name": SECRET}]},
    "picture": {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": f"https://example.com/{SECRET}"}}]}]},
    "thought": {"messages": [*HI, {"role": "assistant", "content": "a", "reasoning_content": SECRET}, *HI]},
    "subtask": {"orchestration": {"workflow": {"steps": [{**STEP, "subtask": f"Say {SECRET}."}]}}},
}  # fmt: skip


@pytest.mark.parametrize("name", BESIDE)
async def test_guardrails_look_at_everything_that_is_sent(name):
    ada = ScriptedClient(lambda _: "Fine.")
    app_state = scripted_state({"ada": ada}, seeing=("ada",), guardrails=guarded())
    async with Serving(app_state) as server:
        status, _, said = await server.post(json=ask(**BESIDE[name]))
    assert (status, said["error"]["code"]) == (400, "policy_blocked")


@pytest.mark.parametrize("name", BESIDE)
async def test_what_can_be_redacted_is_and_what_cannot_is_refused(name, store):
    heard = []

    def answer(request):
        heard.append(request)
        return "Fine."

    app_state = scripted_state(
        {"ada": ScriptedClient(answer)},
        seeing=("ada",),
        guardrails=guarded(GuardrailAction.REDACT),
        store=store,
    )
    async with Serving(app_state) as server:
        status, headers, said = await server.post(json=ask(**BESIDE[name]))
        if name in {"tool", "parameter", "thought", "subtask"}:
            assert status == 200
            assert "[removed by no-keys]" in str(heard)
            run = await store.get(headers["x-batuta-run-id"])
            assert [act.policy for act in run.guards], "the run says so"
        else:
            assert said["error"]["code"] == "policy_blocked"
        assert SECRET not in str(heard)


async def test_a_policy_of_a_form_looks_at_the_conversation_alone():
    from batuta.guardrails.settings import GuardrailSetting, build_guardrails

    setting = {"name": "json", "kind": "schema", "on": ["input"], "action": "block", "json_schema": {"type": "object"}}  # fmt: skip
    app_state = scripted_state({"ada": ScriptedClient(lambda _: "Fine.")}, guardrails=build_guardrails([GuardrailSetting.model_validate(setting)]))  # fmt: skip
    body = ask(messages=[{"role": "user", "content": "{}"}], **tool(description="No JSON."))
    async with Serving(app_state) as server:
        assert (await server.post(json=body))[0] == 200


async def test_a_prefill_goes_to_the_last_step_alone():
    heard = []

    def answer(request):
        heard.append(request.messages)
        return "Fine."

    body = ask(messages=[*HI, {"role": "assistant", "content": "The answer is"}])
    async with Serving(ada=ScriptedClient(answer), bob=ScriptedClient(answer)) as server:
        assert (await server.post(json=body))[0] == 200
        direct = {**body, "model": "worker/ada"}
        assert (await server.post(json=direct))[0] == 200
    first, last, alone = ([m.role for m in messages] for messages in heard)
    assert first[-1] is Role.USER
    assert last[-1] is Role.ASSISTANT
    assert alone[-1] is Role.ASSISTANT


async def test_a_model_that_a_key_may_not_use_does_not_exist_for_it(store):
    async with KeyedServer(store) as keyed:
        key = await keyed.key(models=("worker/ada",))
        assert (await keyed.ask(key, "/v1/models/worker/ada", "GET"))[0] == 200
        for name in ("worker/bob", "batuta-ultra", "nobody"):
            status, _, said = await keyed.ask(key, f"/v1/models/{name}", "GET")
            assert (status, said["error"]["code"]) == (404, "model_not_found")


async def test_what_is_kept_can_be_read_by_this_user_alone(tmp_path):
    folder = tmp_path / "home"
    async with Store(folder / "runs.db") as store:
        await store.keys.create(KeyHasher(b"x" * 32), "acme", "a key")
        await store.flush()
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert modes and set(modes.values()) == {0o600}, modes
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


async def test_opening_a_database_twice_gives_up_no_lock(tmp_path):
    path = tmp_path / "runs.db"
    other = "import sys, anyio\nfrom batuta.store import Store\nasync def main():\n async with Store(sys.argv[1]) as store: await store.keys.has_keys()\nanyio.run(main)"
    async with Store(path) as store, Store(path):
        await store.keys.create(KeyHasher(b"x" * 32), "acme", "a key")
        done = await anyio.run_process([sys.executable, "-c", other, str(path)], check=False)
        assert done.returncode == 0
        assert (tmp_path / "runs.db-wal").exists(), "it was not the last one to close"
        await store.keys.create(KeyHasher(b"x" * 32), "acme", "another key")
        assert len(await store.keys.list()) == 2


async def test_nothing_is_logged_of_what_was_refused(caplog):
    with caplog.at_level(logging.DEBUG):
        async with Serving(scripted_state({"ada": ScriptedClient(lambda _: "x")}, guardrails=guarded())) as server:  # fmt: skip
            await server.post(json=ask(**BESIDE["subtask"]))
    assert SECRET not in caplog.text


async def say_raw(port, head, body=b""):
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(b"\r\n".join((*head, b"Connection: close", b"", body)))
        said = b""
        with anyio.fail_after(60), suppress(anyio.EndOfStream):
            while True:
                said += await stream.receive()
        return said


TWICE = {
    "host": (b"Host: localhost", b"Host: 127.0.0.1"),
    "the same host": (b"Host: localhost", b"Host: localhost"),
    "authorization": (b"Host: localhost", b"Authorization: Bearer a", b"Authorization: Bearer b"),
    "x-api-key": (b"Host: localhost", b"x-api-key: a", b"x-api-key: b"),
    "idempotency-key": (b"Host: localhost", b"Idempotency-Key: a", b"Idempotency-Key: b"),
    "content-type": (b"Host: localhost", b"Content-Type: text/plain", b"Content-Type: application/json"),
    "content-encoding": (b"Host: localhost", b"Content-Encoding: gzip", b"Content-Encoding: identity"),
    "content-length": (b"Host: localhost", b"Content-Length: 2", b"Content-Length: 2"),
    "other lengths": (b"Host: localhost", b"Content-Length: 2", b"Content-Length: 30"),
    "length and chunks": (b"Host: localhost", b"Content-Length: 2", b"Transfer-Encoding: chunked"),
    "origin": (b"Host: localhost", b"Origin: http://localhost", b"Origin: http://evil.example"),
}  # fmt: skip


@pytest.mark.parametrize("name", TWICE)
async def test_a_header_that_decides_and_came_twice_is_refused(name):
    async with connected() as port:
        said = await say_raw(port, (b"POST /v1/chat/completions HTTP/1.1", *TWICE[name]), b"{}")
        assert said.startswith(b"HTTP/1.1 400 "), said
        assert said.count(b"HTTP/1.1 ") == 1
        # How long the body is decides the parser, before anything of ours.
        assert b"came more than once" in said or b"Invalid HTTP request" in said, said


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        (b"http://localhost/healthz", b"localhost", 200),
        (b"http://evil.example/healthz", b"localhost", 400),
        (b"http://localhost:81/healthz", b"localhost", 400),
        (b"http://localhost/healthz", b"evil.example", 400),
        (b"http://evil.example/healthz", b"evil.example", 403),
        (b"/healthz?at=http://evil.example/", b"localhost", 200),
    ],
)
async def test_a_target_of_another_host_is_refused(target, host, status):
    async with connected() as port:
        said = await say_raw(port, (b"GET %s HTTP/1.1" % target, b"Host: " + host))
        assert said.startswith(b"HTTP/1.1 %d " % status), said


CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
CLIENTS = {
    "LM Studio's no limit": {"max_tokens": -1},
    "no limit, newer": {"max_completion_tokens": -1},
    "vLLM's all tokens": {"top_k": -1},
    "llama.cpp's all tokens": {"top_k": 0},
    "an assistant's turn of nothing": {"messages": [*HI, {"role": "assistant", "content": None}, *HI]},
    "Ollama's arguments, a tool that gave null": {
        "messages": [*HI, {"role": "assistant", "content": None, "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "c1", "content": None}],
    },
    "an assistant and a tool that said no parts": {
        "messages": [*HI, {"role": "assistant", "content": [], "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "c1", "content": []}],
    },
    "Responses' parts": {"messages": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}]},
}  # fmt: skip


@pytest.mark.parametrize("fields", CLIENTS.values(), ids=CLIENTS)
async def test_what_local_servers_clients_send_is_taken(fields):
    ada = ScriptedClient(lambda _: "Hello.")
    async with Serving(ada=ada) as server:
        status, _, said = await server.post(json={"model": "worker/ada", "messages": HI, **fields})
    assert status == 200, said
    sampling = ada.requests[0].sampling
    assert sampling.max_tokens is None and sampling.top_k is None
    parts = [part for message in ada.requests[0].messages for part in message.parts]
    calls = [part for part in parts if isinstance(part, ToolCall)]
    assert [call.arguments for call in calls] in ([], ['{"a":1}'])


async def test_a_schema_beside_json_object_binds_as_one():
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    ada = ScriptedClient(lambda _: '{"n": 1}')
    async with Serving(ada=ada) as server:
        form = {"type": "json_object", "schema": schema}  # Together, Fireworks, llama.cpp
        body = {"model": "worker/ada", "messages": HI, "response_format": form}
        status, _, said = await server.post(json=body)
    assert status == 200, said
    assert ada.requests[0].response_format.schema == schema


@pytest.mark.parametrize("name", ["prefix", "partial"])
async def test_an_answer_that_was_begun_by_a_client_is_not_dropped_in_silence(name):
    begun = {"role": "assistant", "content": "Sure", name: True}  # DeepSeek, Mistral; Moonshot
    async with Serving(ada=ScriptedClient(lambda _: "Hello.")) as server:
        body = {"model": "worker/ada", "messages": [*HI, begun]}
        status, _, said = await server.post(json=body)
        assert (status, said["error"]["param"]) == (400, f"messages[1].{name}")
        begun[name] = False
        status, _, said = await server.post(json=body)
        assert status == 200


@pytest.mark.parametrize(
    "fields", [{"max_tokens": -2}, {"max_tokens": 0}, {"top_k": -2}, {"top_k": False}]
)
async def test_no_other_number_sets_no_limit(fields):
    async with Serving(ada=ScriptedClient(lambda _: "Hello.")) as server:
        status, _, _ = await server.post(json={"model": "worker/ada", "messages": HI, **fields})
    assert status == 400
