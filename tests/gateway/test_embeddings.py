"""POST /v1/embeddings: passed through to workers that embed, with keys and budgets as for others."""

from base64 import b64decode
from decimal import Decimal

import numpy as np
import pytest
from aiohttp import web

from batuta.clients import HttpTransport, ScriptedClient, WorkerSpec, open_client
from batuta.clients.catalog import find_model_facts
from batuta.clients.http_target import Secret
from batuta.clients.resilience import RetryPolicy
from batuta.config.load import load_config
from batuta.core import Limits, Price, Worker, WorkerId
from batuta.errors import ConfigError
from batuta.gateway import served_models
from batuta.gateway.access.caller import Authenticator
from batuta.gateway.serving.models import embedding_models
from batuta.guardrails import Guardrail, Guardrails, GuardrailStage
from batuta.store.key_hasher import KeyHasher
from batuta.store.key_permissions import KeyPermissions
from batuta.store.spend_report import report_spending
from gateway.live_server import HI, Serving, pool_of, server_state

pytestmark = pytest.mark.anyio
PRICE = Price(input=Decimal(1000), output=Decimal(0))  # a thousandth of a dollar a token
VEC = Worker(id=WorkerId("vec"), model="text-embedding-3-small", tags=("embeddings",), price=PRICE)
NAME = "worker/vec"


class FakeEmbedder:
    """A provider's `/v1/embeddings`: a text's vector is its length and its place."""

    def __init__(self, *, lose=0, status=200, vectors=None):
        self.bodies, self.keys = [], []
        self.lose, self.status, self.vectors = lose, status, vectors

    async def __aenter__(self):
        app = web.Application()
        app.add_routes([web.post("/v1/embeddings", self.embed)])
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"
        return self

    async def __aexit__(self, *_):
        await self._runner.cleanup()

    async def embed(self, request):
        body = await request.json()
        self.bodies.append(body)
        self.keys.append(request.headers.get("authorization"))
        if self.status != 200:
            error = {"message": "it broke", "type": "server_error", "code": None, "param": None}
            return web.json_response({"error": error}, status=self.status)
        size = body.get("dimensions", 2)
        rows = [
            {
                "object": "embedding",
                "index": at,
                "embedding": [len(text) + 0.5, *[float(at)] * (size - 1)],
            }
            for at, text in enumerate(body["input"])
        ][self.lose :]
        for row, vector in zip(rows, self.vectors or (), strict=bool(self.vectors)):
            row["embedding"] = vector
        tokens = sum(len(text) for text in body["input"])
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return web.json_response(
            {"object": "list", "data": rows[::-1], "model": "m", "usage": usage}
        )


class Embedding:
    """A gateway with one worker that answers and one that embeds."""

    def __init__(self, *, store=None, lose=0, status=200, vectors=None, **options):
        self.fake = FakeEmbedder(lose=lose, status=status, vectors=vectors)
        self.store, self.options = store, options
        self.ada = ScriptedClient(lambda _: "Hello.")

    async def __aenter__(self):
        await self.fake.__aenter__()
        self.http = HttpTransport()
        await self.http.__aenter__()
        spec = WorkerSpec(worker=VEC, base_url=self.fake.url, key=Secret("sk-embedding-key"))
        client = open_client(spec, self.http, policy=RetryPolicy(attempts=1))
        pool = pool_of("ada")
        models = (*served_models(pool), *embedding_models((VEC,), Limits().unknown))
        clients = {"ada": self.ada, "vec": client}
        state = server_state(pool, clients, models, store=self.store, **self.options)
        self.server = Serving(state)
        await self.server.__aenter__()
        return self

    async def __aexit__(self, *error):
        await self.server.__aexit__(*error)
        await self.http.__aexit__(*error)
        await self.fake.__aexit__(*error)

    async def ask(self, key=None, **body):
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return await self.server.post(
            "/v1/embeddings", json={"model": NAME, **body}, headers=headers
        )


@pytest.mark.parametrize("form", ["float", "base64"])
async def test_the_openai_client_gets_its_vectors_in_order(form):
    async with Embedding() as place:
        got = await place.server.openai.embeddings.create(
            model=NAME, input=["abc", "defgh"], encoding_format=form, dimensions=3
        )
    vectors = [row.embedding for row in got.data]
    if form == "base64":
        vectors = [np.frombuffer(b64decode(text), "<f4").tolist() for text in vectors]  # pyright: ignore[reportArgumentType]
    assert vectors == [[3.5, 0.0, 0.0], [5.5, 1.0, 1.0]]
    assert (got.usage.prompt_tokens, got.usage.total_tokens) == (8, 8)
    assert place.fake.bodies == [
        {
            "model": VEC.model,
            "input": ["abc", "defgh"],
            "encoding_format": "float",
            "dimensions": 3,
        }
    ]
    assert place.fake.keys == ["Bearer sk-embedding-key"]


@pytest.mark.parametrize(
    ("given", "sent"),
    [("abc", ["abc"]), ([1, 2, 3], [[1, 2, 3]]), ([[1], [2, 3]], [[1], [2, 3]])],
)
async def test_every_form_of_input(given, sent):
    async with Embedding() as place:
        status, headers, got = await place.ask(input=given)
    assert (status, len(got["data"])) == (200, len(sent))
    assert headers["x-batuta-run-id"].startswith("run_")
    assert place.fake.bodies[0]["input"] == sent


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": {}}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": ["a", 3]}, "input[1]"),
        ({"input": [1, "a"]}, "input[1]"),
        ({"input": [True]}, "input[0]"),
        ({"input": [-1]}, "input[0]"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "model": "worker/ada"}, "model"),
    ],
)
async def test_what_is_wrong_is_named(body, param):
    async with Embedding() as place:
        status, _, got = await place.ask(**body)
    assert (status, got["error"]["param"]) == (400, param)
    assert place.fake.bodies == []


async def test_who_embeds_answers_nothing_and_is_listed():
    async with Embedding() as place:
        status, _, got = await place.server.post(json={"model": NAME, "messages": HI})
        unknown, _, _ = await place.ask(input="a", model="text-embedding-9")
        _, listed = await place.server.get("/v1/models")
    assert (status, got["error"]["param"]) == (400, "model")
    assert unknown == 404
    assert NAME in {model["id"] for model in listed["data"]}


async def test_a_failure_is_an_error_and_so_is_a_vector_too_few():
    async with Embedding(status=500) as place:
        broken, _, _ = await place.ask(input="a")
    async with Embedding(lose=1) as place:
        few, _, got = await place.ask(input=["a", "b"])
    assert (broken, few) == (502, 400)
    assert "1 vectors for 2 texts" in got["error"]["message"]


@pytest.mark.parametrize(
    ("vectors", "status"),
    [
        ([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]], 400),  # the server ignores `dimensions`
        ([[1.0, 2.0], [1.0, 2.0, 3.0]], 502),
        ([[1.0, float("nan")], [1.0, 2.0]], 502),
        ([[1.0, float("inf")], [1.0, 2.0]], 502),
        ([[], []], 502),
        ([[1.0, 2.0], [1.0, 2.0]], 200),
    ],
)
async def test_vectors_that_no_index_can_take_are_an_error(vectors, status):
    async with Embedding(vectors=vectors) as place:
        got = await place.ask(input=["a", "b"], dimensions=2)
    assert got[0] == status
    assert status != 400 or "vectors of 3 dimensions" in got[2]["error"]["message"]


async def test_policies_read_what_is_embedded():
    find = Guardrail(
        name="names",
        detect=lambda text: [(at, at + 5) for at in [text.find("Susan")] if at >= 0],
        stages=frozenset({GuardrailStage.INPUT}),
    )
    async with Embedding(guardrails=Guardrails((find,))) as place:
        status, _, _ = await place.ask(input=["Ask Susan."])
        refused, _, got = await place.ask(input=[1, 2])
    assert status == 200
    assert place.fake.bodies[0]["input"] == ["Ask [removed by names]."]
    assert (refused, got["error"]["param"]) == (400, "input")


async def test_keys_budgets_and_the_ledger_know_it(store):
    hasher = KeyHasher(b"x" * 32)
    async with Embedding(
        store=store, authenticator=Authenticator(store, hasher, "the-admins-own-token")
    ) as place:
        anonymous, _, _ = await place.ask(input="a")

        async def key(**limits):
            permissions = KeyPermissions(**limits)
            return (await store.keys.create(hasher, "acme", "k", permissions))[1].text

        rich, other = await key(per_day=Decimal(1)), await key(models=("batuta-mini",))
        slow = await key(rpm=1)
        poor = await key(per_day=Decimal("0.3"))
        paid, _, _ = await place.ask(rich, input="abcd")
        denied, _, _ = await place.ask(other, input="a")
        dear, _, got = await place.ask(poor, input="a" * 1000)
        first, _, _ = await place.ask(slow, input="a")
        second, headers, _ = await place.ask(slow, input="a")
        await store.flush()
        rows = await store.list(tenant="acme")
        found = await report_spending(store.database, ("worker",))
    assert (anonymous, paid, denied, dear) == (401, 200, 403, 429)
    assert got["error"]["code"] == "budget_exceeded"
    assert (first, second) == (200, 429)
    assert "retry-after" in headers
    assert rows == []  # nothing of the texts is kept
    paid_by = {one.group: one.cost.usd for one in found if one.calls}
    assert paid_by == {("vec",): Decimal("0.005")}  # 5 tokens
    assert len(place.fake.bodies) == 2


FILE = """
[[workers]]
id = "ada"
model = "m"
base_url = "http://127.0.0.1:1/v1"

[[workers]]
id = "vec"
provider = "{provider}"
model = "text-embedding-3-small"
base_url = "http://127.0.0.1:1/v1"
tags = ["embeddings"]
"""


async def test_a_pool_file_names_who_embeds(tmp_path):
    async with HttpTransport() as http:
        file = tmp_path / "batuta.toml"
        file.write_text(FILE.format(provider="compatible"))
        found = await load_config(http, pool=str(file), environ={})
        assert [worker.id for worker in found.pool] == ["ada"]
        assert [worker.id for worker in found.embedders] == ["vec"]
        assert set(found.clients) == {"ada", "vec"}
        file.write_text(FILE.format(provider="anthropic"))
        with pytest.raises(ConfigError, match="vec has the tag 'embeddings'"):
            await load_config(http, pool=str(file), environ={"ANTHROPIC_API_KEY": "sk-a"})
        file.write_text("[[workers]]" + FILE.format(provider="compatible").split("[[workers]]")[2])
        with pytest.raises(ConfigError, match="no worker that can answer"):
            await load_config(http, pool=str(file), environ={})


def test_a_model_that_embeds_has_its_list_price():
    price = find_model_facts("openai", "text-embedding-3-small").price
    assert price is not None
    assert price.input > 0
    assert price.output == 0
