"""Pictures that a worker makes: read from each provider's own form, shown in each dialect's own."""

import base64
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any

import orjson
import pytest
from aiohttp import web

from batuta.clients import HttpTransport, ScriptedClient, WorkerSpec
from batuta.clients.factory import open_client
from batuta.clients.http_target import Secret
from batuta.conductors import sequential_chain
from batuta.core import Cost, Image, Pool, Price, Reply, Usage, Worker, WorkerId
from batuta.gateway import served_models
from fakes.sdks import anthropic
from gateway.live_server import Serving, server_state

pytestmark = pytest.mark.anyio
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 3).decode()
JPEG = base64.b64encode(b"\xff\xd8\xff\xe0" + bytes(300)).decode()
URL = f"data:image/png;base64,{PNG}"
PRICE = Price(input=Decimal(1), output=Decimal(10), call=Decimal("0.01"))
COST = Decimal("0.01") + Decimal(100 * 1 + 1000 * 10) / 1_000_000
PART = {"type": "image_url", "index": 0, "image_url": {"url": URL}}
USAGE = {"prompt_tokens": 100, "completion_tokens": 1000, "total_tokens": 1100}
COUNTS = {"promptTokenCount": 100, "candidatesTokenCount": 1000}
INLINE = {"inlineData": {"mimeType": "image/png", "data": PNG}}


def chat(message):
    return {
        "id": "c", "model": "painter", "usage": USAGE,
        "choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}],
    }  # fmt: skip


def chunks(*deltas):
    rows = [{"model": "p", "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    return [*rows, end, {"choices": [], "usage": USAGE}]


def candidates(*parts):
    said = {"content": {"role": "model", "parts": list(parts)}, "finishReason": "STOP", "index": 0}
    return {"candidates": [said], "usageMetadata": COUNTS, "modelVersion": "painter"}


FORMS = {
    "openrouter": ("compatible", None, chat({"content": "A fox.", "images": [PART]}),
                   chunks({"content": "A fox."}, {"images": [PART]}, {"images": [PART]})),
    "parts": ("compatible", None, chat({"content": [{"type": "text", "text": "A fox."}, PART]}),
              chunks({"content": [{"type": "text", "text": "A fox."}]}, {"content": [PART]})),
    "gemini": ("gemini", None, candidates({"text": "A fox."}, INLINE),
               [candidates({"text": "A fox."}), candidates(INLINE)]),
    "images": ("compatible", "images", {"created": 1, "output_format": "png", "data": [{"b64_json": PNG}],
               "usage": {"input_tokens": 100, "output_tokens": 1000, "total_tokens": 1100}}, None),
}  # fmt: skip


class Upstream:
    """Answers every request with the same picture, in a provider's form."""

    def __init__(self, whole, streamed=None):
        self.whole, self.streamed, self.bodies = whole, streamed, list[Any]()
        self.paths: list[str] = []

    async def answer(self, request):
        body = await request.json()
        self.bodies.append(body)
        self.paths.append(request.path)
        if self.streamed is None or not (body.get("stream") or "stream" in request.path):
            return web.json_response(self.whole)
        frames = "".join(f"data: {orjson.dumps(each).decode()}\n\n" for each in self.streamed)
        return web.Response(text=frames + "data: [DONE]\n\n" * (request.path[-3:] != "ent"),
                            content_type="text/event-stream")  # fmt: skip

    async def __aenter__(self):
        app = web.Application()
        app.router.add_post("/{path:.*}", self.answer)
        self.runner = web.AppRunner(app)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self.runner.addresses[0][1]}/v1"
        return self

    async def __aexit__(self, *_):
        await self.runner.cleanup()


def painter_of(name="painter", **fields):
    return Worker(id=WorkerId(name), model=name, tags=("image",), price=PRICE, **fields)


@asynccontextmanager
async def serving(form, *others, plan=None, **options):
    """A server whose worker `painter` is an upstream of that form; others are scripted."""
    provider, api, whole, streamed = FORMS[form]
    async with Upstream(whole, streamed) as upstream, HttpTransport() as http:
        spec = WorkerSpec(
            worker=painter_of(), provider=provider, base_url=upstream.url, key=Secret("k" * 20), openai_api=api
        )  # fmt: skip
        workers = [worker for worker, _ in others]
        pool = Pool((*workers, spec.worker))
        clients: dict[str, Any] = {worker.id: client for worker, client in others}
        clients["painter"] = open_client(spec, http)
        conductor = plan or sequential_chain(["Draw."], ["painter"])
        app_state = server_state(pool, clients, served_models(pool, conductor), **options)
        async with Serving(app_state) as server:
            yield server, upstream


async def post(server, path, body):
    async with server.http.post(path, json=body) as response:
        return response.status, orjson.loads(await response.read()), response.headers


ASKED: list[Any] = [{"role": "user", "content": "Draw a fox."}]


@pytest.mark.parametrize("form", FORMS)
async def test_a_picture_in_every_dialect_whole_and_streamed(form):
    text = "" if form == "images" else "A fox."
    async with serving(form) as (server, upstream):
        _, got, headers = await post(
            server, "/v1/chat/completions", {"model": "worker/painter", "messages": ASKED}
        )
        message = got["choices"][0]["message"]
        assert message["images"] == [PART] and message["content"] == text
        assert Decimal(headers["x-batuta-cost-usd"]) == COST
        assert got["usage"]["completion_tokens"] == 1000
        stream: Any = await server.openai.chat.completions.create(
            model="worker/painter", messages=ASKED, stream=True
        )
        deltas: list[Any] = [c.choices[0].delta async for c in stream if c.choices]
        assert [i for d in deltas for i in getattr(d, "images", None) or ()] == [PART]
        assert "".join(d.content or "" for d in deltas) == text
        response: Any = await server.openai.responses.create(
            model="worker/painter", input="Draw a fox."
        )
        (call,) = [each for each in response.output if each.type == "image_generation_call"]
        assert (call.result, call.status, response.output_text) == (PNG, "completed", text)
        assert call.id.startswith("ig_")
        events: Any = await server.openai.responses.create(
            model="worker/painter", input="Draw a fox.", stream=True
        )
        kinds, last = list[str](), response
        async for event in events:
            kinds.append(event.type)
            last = event
        begun = kinds.index("response.image_generation_call.in_progress")
        assert kinds[begun : begun + 3] == [
            f"response.image_generation_call.{phase}" for phase in ("in_progress", "generating", "completed")
        ]  # fmt: skip
        assert [each.result for each in last.response.output if each.type == call.type] == [PNG]
        body: Any = {"model": "worker/painter", "max_tokens": 2000, "messages": ASKED}
        api = anthropic.AsyncAnthropic(base_url=server.url, api_key="any", max_retries=0)
        async with api:
            whole: Any = await api.messages.create(**body)
            async with api.messages.stream(**body) as told:
                streamed: Any = await told.get_final_message()
    for each in (whole, streamed):
        assert each.content[-1].type == "image" and each.content[-1].source["data"] == PNG
        assert "".join(block.text or "" for block in each.content[:-1]) == text
    first = upstream.bodies[0]
    if form == "gemini":
        assert first["generationConfig"]["responseModalities"] == ["TEXT", "IMAGE"]
    elif form == "images":
        assert (first["prompt"], upstream.paths[0]) == ("Draw a fox.", "/v1/images/generations")
    else:
        assert first["modalities"] == ["image", "text"]


def writer(seeing=False):
    worker = Worker(
        id=WorkerId("ada"), model="ada", tags=("vision",) if seeing else (), price=PRICE
    )
    return worker, ScriptedClient(lambda _: Reply(text="Here it is.", usage=Usage(calls=1)))


@pytest.mark.parametrize("seeing", [True, False])
async def test_a_step_that_reads_the_picture_sees_it_if_it_can(seeing, store):
    """The picture of a step before is the answer's too, with every call paid."""
    ada = writer(seeing)
    plan = sequential_chain(["Draw a fox.", "Say what was drawn."], ["painter", "ada"])
    async with serving("images", ada, plan=plan, store=store) as (server, upstream):
        status, got, headers = await post(
            server, "/v1/chat/completions", {"model": "batuta-ultra", "messages": ASKED,
                                             "orchestration": {"trace": True}}
        )  # fmt: skip
        assert status == 200, got
        message = got["choices"][0]["message"]
        assert (message["content"], message["images"]) == ("Here it is.", [PART])
        told = ada[1].requests[-1].messages[-1]
        assert "[1 picture]" in told.text
        assert [image.url for image in told.images] == ([URL] if seeing else [])
        assert seeing or "cannot see" in told.text
        assert upstream.bodies[0]["prompt"] == "Draw a fox."
        assert Decimal(headers["x-batuta-cost-usd"]) >= COST
        steps = got["orchestration"]["rounds"][0]["steps"]
        assert steps[0]["result"]["images"][0]["url"] == URL
        page = f"/ui/runs/{got['orchestration']['header']['id']}"
        async with server.http.get(page) as response:
            html = await response.text()
        assert f'src="{page}/made/answer.0"' in html
        for place, wanted in (("answer.0", 200), ("0.0.0", 200), ("0.1.0", 404), ("9.0.0", 404), ("x", 404),
                              ("answer.-1", 404), ("answer.1", 404)):  # fmt: skip
            async with server.http.get(f"{page}/made/{place}") as response:
                assert response.status == wanted, place
                data = await response.read()
                if wanted == 200:
                    assert response.headers["content-type"] == "image/png"
                    assert base64.b64encode(data).decode() == PNG


async def test_nobody_writes_what_a_worker_was_to_draw(store):
    """Another worker that draws stands in for one that fails; one that writes does not."""
    other = ScriptedClient(lambda _: Reply(text="", images=(Image(url=URL),), usage=Usage(calls=1)))
    ada = writer()
    plan = sequential_chain(["Draw a fox.", "Say what was drawn."], ["painter", "ada"])
    async with serving("images", ada, (painter_of("other"), other), plan=plan) as (
        server,
        upstream,
    ):
        upstream.whole = {"data": [{"b64_json": "%%%"}]}
        _, got, _ = await post(
            server, "/v1/chat/completions", {"model": "batuta-ultra", "messages": ASKED}
        )
        assert got["choices"][0]["message"]["images"] == [PART]
    assert len(other.requests) == 1 and len(ada[1].requests) == 1


async def test_a_picture_of_an_earlier_turn_is_given_back(store):
    """By each dialect's own history; the worker is shown it as a part of what the user says."""
    ada = writer(seeing=True)
    async with serving("images", ada, store=store) as (server, _):
        again = {"role": "user", "content": "What is on it?"}
        await post(server, "/v1/chat/completions", {"model": "worker/ada", "messages": [
            *ASKED, {"role": "assistant", "content": "", "images": [PART]}, again]})  # fmt: skip
        picture = {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png", "data": PNG},
        }
        await post(server, "/v1/messages", {"model": "worker/ada", "max_tokens": 99, "messages": [
            *ASKED, {"role": "assistant", "content": [picture]}, again]})  # fmt: skip
        first: Any = await server.openai.responses.create(
            model="worker/painter", input="Draw a fox."
        )
        for fields in (
            {"input": [*ASKED, *(i.model_dump(exclude_none=True) for i in first.output), again]},
            {"input": "What is on it?", "previous_response_id": first.id},
        ):
            await server.openai.responses.create(model="worker/ada", **fields)  # type: ignore[call-overload]
    assert len(ada[1].requests) == 4
    for request in ada[1].requests:
        assert [image.url for image in request.messages[-1].images] == [URL]
        assert request.messages[-1].text.endswith("What is on it?")
        assert not any(message.images for message in request.messages[:-1])


@pytest.mark.parametrize(
    "wrong",
    [{"data": []}, {"data": [{}]}, {"data": [{"url": "file:///etc/passwd"}]}, {"data": [{"b64_json": "%%%"}]},
     {"data": "none"}, {"data": [{"url": "javascript:alert(1)"}]}],
)  # fmt: skip
async def test_what_is_no_picture_is_no_answer(wrong):
    async with serving("images") as (server, upstream):
        upstream.whole = wrong
        status, got, _ = await post(
            server, "/v1/chat/completions", {"model": "worker/painter", "messages": ASKED}
        )
    assert status == 502 and "an invalid response" in got["error"]["message"]


async def test_without_a_price_a_picture_counts_as_unpriced():
    ada = Worker(id=WorkerId("p"), model="p", tags=("image",))
    drawn = ScriptedClient(
        lambda _: Reply(
            text="", images=(Image(url=URL),), usage=Usage(calls=1), cost=Cost(unpriced_calls=1)
        )
    )
    pool = Pool((ada,))
    models = served_models(pool, sequential_chain(["Draw."], ["p"]))
    async with Serving(server_state(pool, {"p": drawn}, models)) as server:
        _, got, headers = await post(
            server, "/v1/chat/completions", {"model": "worker/p", "messages": ASKED}
        )
    assert got["choices"][0]["message"]["images"] and headers["x-batuta-unpriced-calls"] == "1"
