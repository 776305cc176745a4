"""Over every dialect, whole and streamed: only a complete answer is served, and an empty one is."""

import anyio
import orjson
import pytest

from batuta.clients import ScriptedClient
from batuta.core import Finish, Reply, Usage
from batuta.errors import BadRequestError, ProviderOverloadedError
from batuta.store import Store
from gateway.live_server import HI, Halting, Serving, scripted_state

pytestmark = pytest.mark.anyio

CRITIQUE = "CRITIQUE: this is wrong"
LAST = "Your reply is returned to the user"
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
WAYS = [(dialect, stream) for dialect in PATHS for stream in (False, True)]
each = pytest.mark.parametrize(("dialect", "stream"), WAYS)


class Told:
    """What a reader was told, whatever the dialect."""

    def __init__(self, status, headers, text):
        self.status = status
        self.headers = headers
        self.raw = text
        if "text/event-stream" in headers["content-type"]:
            data = [line[6:] for line in text.splitlines() if line.startswith("data: {")]
            self.objects = [orjson.loads(line) for line in data]
        else:
            self.objects = [orjson.loads(text)]

    def all(self, name):
        """Every value of that name, wherever it stands."""
        return [value for one in self.objects for value in _values(one, name) if value is not None]

    @property
    def text(self):
        for one in reversed(self.objects):
            if (body := one.get("response", one)).get("object") == "response":
                items = [item for item in body["output"] if item["type"] == "message"]
                return "".join(part["text"] for item in items for part in item["content"])
        parts = [part["text"] for part in self.objects[0].get("content") or []]
        for one in self.objects:
            if one.get("delta", {}).get("type") == "text_delta":
                parts.append(one["delta"]["text"])
            said = [c.get("delta") or c.get("message") or {} for c in one.get("choices", ())]
            parts += [each.get("content") for each in said]
        return "".join(part or "" for part in parts)

    @property
    def end(self):
        ends = self.all("finish_reason") + self.all("stop_reason")
        if self.objects[-1].get("object") == "response" or "response" in self.objects[-1]:
            body = self.objects[-1].get("response", self.objects[-1])
            reason = (body["incomplete_details"] or {}).get("reason")
            return reason or body["status"]
        return ends[-1] if ends else None

    @property
    def outcome(self):
        told = self.objects[-1].get("orchestration") or next(iter(self.all("orchestration")), {})
        return told.get("outcome")

    @property
    def error(self):
        errors = [error for error in self.all("error") if error]
        return errors[-1]["code"] if errors else None


def _values(value, name):
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == name:
                yield inner
            yield from _values(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from _values(inner, name)


async def ask(server, dialect, stream, model="batuta-ultra", **fields):
    body = {"model": model, "stream": stream, **fields}
    if dialect == "responses":
        body["input"] = "hi"
    else:
        body["messages"] = HI
    if dialect == "messages":
        body["max_tokens"] = 50
    async with server.http.post(PATHS[dialect], json=body) as response:
        return Told(response.status, response.headers, await response.text())


def worker(last, whole="Hello there.", latency=0.0):
    """An earlier step is criticised; a last one and a whole question get what is given."""

    def reply(request):
        text = request.messages[0].text
        if LAST in text:
            return last
        return CRITIQUE if "assigned subtask" in text else whole

    return ScriptedClient(reply, latency=latency)


def empty(finish=Finish.STOP):
    return Reply(text="", usage=Usage(calls=1, input=9, output=2), finish=finish)


@each
async def test_the_fallback_answers_where_the_last_step_fails(dialect, stream):
    down = worker(BadRequestError("dead"))
    async with Serving(ada=down, bob=down) as server:
        got = await ask(server, dialect, stream)
    assert (got.status, got.text, got.outcome) == (200, "Hello there.", "degraded")
    assert got.end in {"stop", "completed", "end_turn"} and got.error is None
    assert stream or got.headers["x-batuta-outcome"] == "degraded"
    assert "CRITIQUE" not in got.raw


@each
async def test_a_substitute_is_told(dialect, stream):
    async with Serving(ada=worker("Hello."), bob=worker(ProviderOverloadedError("down"))) as server:
        got = await ask(server, dialect, stream)
        plain = await ask(server, dialect, stream, model="worker/ada")
    assert (got.status, got.text, got.outcome) == (200, "Hello.", "degraded")
    assert (plain.status, plain.outcome) == (200, None)


@each
async def test_nobody_answers_then(dialect, stream):
    down = worker(BadRequestError("dead"), BadRequestError("dead"))  # pyright: ignore[reportArgumentType]
    async with Serving(ada=down, bob=down) as server:
        got = await ask(server, dialect, stream)
    assert (got.status, got.error) == (200 if stream else 502, "upstream_error")
    assert "CRITIQUE" not in got.raw and got.text == ""


@each
@pytest.mark.parametrize(
    ("wishes", "status", "code"),
    [
        ({"max_tokens": 1}, 429, "budget_exceeded"),
        ({"max_cost_usd": 0.000_000_1}, 429, "budget_exceeded"),
        ({"deadline_s": 0.2}, 504, "deadline_exceeded"),
    ],
)
async def test_a_limit_serves_no_critique(dialect, stream, wishes, status, code):
    async with Serving(ada=worker("x"), bob=Halting()) as server:
        got = await ask(server, dialect, stream, orchestration=wishes)
    assert (got.status, got.error) == (200 if stream else status, code)
    assert "CRITIQUE" not in got.raw and got.text == ""


async def test_nor_does_a_response_in_the_background(tmp_path):
    down = worker(BadRequestError("dead"), BadRequestError("dead"))  # pyright: ignore[reportArgumentType]
    async with Store.open(f"sqlite:///{tmp_path}/runs.db") as store:
        for workers, status in (({"ada": down, "bob": down}, "failed"),
                                ({"ada": worker(BadRequestError("dead"))}, "completed")):  # fmt: skip
            async with Serving(scripted_state(workers, store=store), background=True) as server:
                asked = {"model": "batuta-ultra", "input": "hi", "background": True}
                _, _, got = await server.post("/v1/responses", json=asked)
                with anyio.fail_after(60):
                    while got["status"] in {"queued", "in_progress"}:
                        await anyio.sleep(0.01)
                        _, got = await server.get(f"/v1/responses/{got['id']}")
            assert got["status"] == status and "CRITIQUE" not in str(got)
            if status == "completed":
                assert got["orchestration"]["outcome"] == "degraded"


@each
@pytest.mark.parametrize("model", ["worker/ada", "batuta-mini"])
@pytest.mark.parametrize("finish", [Finish.STOP, Finish.LENGTH])
async def test_an_empty_answer_is_an_answer(dialect, stream, model, finish):
    ada = worker("x", empty(finish))  # pyright: ignore[reportArgumentType]
    async with Serving(ada=ada) as server:
        got = await ask(server, dialect, stream, model=model)
    assert (got.status, got.text, got.error, len(ada.requests)) == (200, "", None, 1)
    ends = {"length", "max_output_tokens", "max_tokens"}
    ends = ends if finish is Finish.LENGTH else {"stop", "completed", "end_turn"}
    assert got.end in ends
    if dialect == "chat" and not stream:
        assert got.objects[0]["choices"][0]["message"]["content"] == ""
        assert got.objects[0]["usage"]["completion_tokens"] == 2


@each
async def test_so_is_one_of_a_workflow_that_says_why(dialect, stream):
    bob = worker(empty(Finish.LENGTH))
    async with Serving(ada=worker("x"), bob=bob) as server:
        got = await ask(server, dialect, stream)
    assert (got.status, got.text, got.outcome) == (200, "", None)
    assert got.end in {"length", "max_output_tokens", "max_tokens"}


@pytest.mark.parametrize("dialect", PATHS)
async def test_an_empty_answer_can_be_sent_back(dialect):
    ada = ScriptedClient(lambda _: empty())
    turns = {
        "chat": {"role": "assistant", "content": ""},
        "responses": {"role": "assistant", "content": [{"type": "output_text", "text": ""}]},
        "messages": {"role": "assistant", "content": []},
    }
    past = [*HI, turns[dialect], {"role": "user", "content": "go on"}]
    body = {"model": "worker/ada", "max_tokens": 9}
    if dialect == "responses":
        body = {"model": "worker/ada", "input": past}
    else:
        body["messages"] = past
    async with Serving(ada=ada) as server:
        status, _, got = await server.post(PATHS[dialect], json=body)
    assert status == 200, got
