"""Several answers and log probabilities: passed on where a worker gives them, and paid."""

from decimal import Decimal

import pytest

from batuta.clients import HttpTransport, ScriptedClient
from batuta.clients.anthropic.client import AnthropicClient
from batuta.clients.gemini.client import GeminiClient
from batuta.clients.http_target import Secret
from batuta.clients.openai.client import DEEPSEEK_DIALECT, OpenAIChatClient
from batuta.clients.scripted_client import split_reply
from batuta.conductors import single_worker
from batuta.core import (
    Client,
    Limits,
    Pool,
    Price,
    Question,
    Reply,
    Request,
    Sampling,
    Step,
    TokenLogprob,
    Usage,
    Worker,
    WorkerId,
    Workflow,
    user_message,
)
from batuta.core.cost_bound import bound_call_cost
from batuta.core.token_estimate import estimate_usage
from batuta.engine import conduct
from batuta.engine.workflow_estimate import estimate_workflow
from batuta.errors import BadRequestError
from batuta.gateway import served_models
from batuta.gateway.serving.baselines import baseline_models
from batuta.guardrails import Guardrail, Guardrails, GuardrailStage
from batuta.store import decode_run, encode_run
from fakes import FakeOpenAI
from fakes.server import KEY
from gateway.live_server import HI, PRICE, Serving, scripted_state, server_state, stored
from gateway.test_complete_answers import Told
from gateway.test_forms import FORM, LOOK
from gateway.test_live_steps import fragments

pytestmark = pytest.mark.anyio
ADA = Worker(id=WorkerId("ada"), model="gpt-4.1-mini", price=PRICE)
ASK = Request(messages=(user_message("hi"),))
TEXT = "Hello from the fake model."


class Worked:
    """A gateway before one real client and a fake provider."""

    def __init__(self, store=None, **options):
        self.fake = FakeOpenAI(TEXT, **options)
        self.store = store

    async def __aenter__(self):
        await self.fake.__aenter__()
        self.http = HttpTransport()
        await self.http.__aenter__()
        client = OpenAIChatClient(ADA, self.http, base_url=self.fake.url, key=Secret(KEY))
        self.serving = Serving(scripted_state({"ada": client}, store=self.store))
        return await self.serving.__aenter__()

    async def __aexit__(self, *error):
        await self.serving.__aexit__(*error)
        await self.http.__aexit__(*error)
        await self.fake.__aexit__(*error)
        assert self.fake.wrong == []


@pytest.mark.parametrize("model", ["worker/ada", "batuta-mini", "batuta-ultra"])
async def test_every_answer_that_is_asked_for_is_given(model, store):
    worked = Worked(store)
    async with worked as server:
        got = await server.openai.chat.completions.create(
            model=model,
            messages=HI,  # pyright: ignore[reportArgumentType]
            n=3,
            logprobs=True,
            top_logprobs=2,
        )
        (row,) = await stored(store)
        run = await store.get(row.id)
    assert [c.index for c in got.choices] == [0, 1, 2]
    assert [c.message.content for c in got.choices] == [TEXT, f"{TEXT} (1)", f"{TEXT} (2)"]
    for choice in got.choices:
        tokens = choice.logprobs.content
        assert "".join(token.token for token in tokens) == choice.message.content
        assert [len(token.top_logprobs) for token in tokens] == [2] * len(tokens)  # pyright: ignore[reportArgumentType]
    assert [r.body.get("n") for r in worked.fake.requests] == [None] * (
        len(worked.fake.requests) - 1
    ) + [3]
    assert len(run.reply.alternatives) == 2
    assert decode_run(encode_run(run)) == run


@pytest.mark.parametrize("model", ["worker/ada", "batuta-ultra"])
async def test_every_answer_is_streamed(model):
    async with Worked() as server:
        stream = await server.openai.chat.completions.create(  # pyright: ignore[reportCallIssue]
            model=model,
            messages=HI,  # pyright: ignore[reportArgumentType]
            n=2,
            logprobs=True,
            stream=True,
        )
        texts, probable, ends, roles = ["", ""], ["", ""], [None, None], set()
        async for chunk in stream:
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                ends[choice.index] = choice.finish_reason or ends[choice.index]
                if choice.delta.role:
                    roles.add(choice.index)
                if choice.logprobs:
                    said = "".join(token.token for token in choice.logprobs.content)
                    probable[choice.index] += said
    assert texts == probable == [TEXT, f"{TEXT} (1)"]
    assert ends == ["stop", "stop"]
    assert roles == {0, 1}


async def test_a_response_tells_log_probabilities():
    for stream in (False, True):
        async with Worked() as server:
            body = {"model": "worker/ada", "input": "hi", "stream": stream, "top_logprobs": 1}
            async with server.http.post("/v1/responses", json=body) as response:
                told = Told(response.status, response.headers, await response.text())
        last = told.objects[-1].get("response", told.objects[-1])
        part = last["output"][-1]["content"][0]
        assert "".join(token["token"] for token in part["logprobs"]) == part["text"] == TEXT
        assert last["top_logprobs"] == 1
        if stream:
            assert len(fragments(told)) > 1


@pytest.mark.parametrize(("field", "value"), [("n", 2), ("logprobs", True)])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_worker_that_ignores_it_is_no_silent_success(field, value, stream):
    worked = Worked()
    worked.fake.ignored = {field}
    async with worked as server:
        body = {"model": "worker/ada", "messages": HI, field: value, "stream": stream}
        async with server.http.post("/v1/chat/completions", json=body) as response:
            told = Told(response.status, response.headers, await response.text())
    assert told.error == "unsupported_parameter"
    assert field in told.all("message")[-1]
    assert told.end is None


@pytest.mark.parametrize("sampling", [Sampling(choices=2), Sampling(logprobs=0)])
async def test_a_dialect_that_has_it_not_refuses_by_name(sampling):
    name = "n" if sampling.choices else "logprobs"
    async with HttpTransport() as http:
        ask = Request(messages=ASK.messages, sampling=sampling)
        clients: list[Client] = [AnthropicClient(ADA, http)]
        if sampling.logprobs is not None:
            clients.append(GeminiClient(ADA, http))
        if sampling.choices:
            clients.append(
                OpenAIChatClient(
                    ADA, http, base_url="http://127.0.0.1:1/v1", dialect=DEEPSEEK_DIALECT
                )
            )
        for client in clients:
            with pytest.raises(BadRequestError, match=f"does not accept {name}"):
                await client.complete(ask)


async def test_of_several_workers_one_that_can_answers_the_last_step():
    reply = Reply(
        text="a", alternatives=(Reply(text="b"),), usage=Usage(calls=1, input=1, output=2)
    )
    one = ScriptedClient(lambda _: Reply(text="only one", usage=Usage(calls=1, input=1, output=1)))
    question = Question(messages=ASK.messages, sampling=Sampling(choices=2))
    pool = Pool((ADA, Worker(id=WorkerId("bob"), model="m")))
    clients = {"ada": one, "bob": ScriptedClient([reply])}
    run = await conduct(question, single_worker("ada"), pool, clients)  # pyright: ignore[reportArgumentType]
    assert [said.text for said in run.reply.choices] == ["a", "b"]
    assert run.steps[-1].worker == "bob"
    assert run.usage.calls == 2  # what the first has cost is counted


async def test_what_cannot_be_honoured_is_refused_by_name():
    app_state = scripted_state(
        {"ada": ScriptedClient(lambda _: "x"), "bob": ScriptedClient(lambda _: "x")}
    )
    methods = baseline_models(app_state.catalogue.pool, Limits())
    solver = next(model for model in methods if model.name == "baseline/moa")
    served = (*served_models(app_state.catalogue.pool), solver)
    async with Serving(
        server_state(app_state.catalogue.pool, app_state.catalogue.clients, served)
    ) as server:
        for body, param in (
            ({"model": solver.name, "n": 2}, "n"),
            ({"model": solver.name, "logprobs": True}, "logprobs"),
            ({"model": "batuta-mini", "n": 2, "tools": [LOOK]}, "n"),
            ({"model": "batuta-mini", "top_logprobs": 2}, "top_logprobs"),
            ({"model": "batuta-mini", "n": 0}, "n"),
            ({"model": "batuta-mini", "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ):
            status, _, got = await server.post(json={"messages": HI, **body})
            assert (status, got["error"]["param"]) == (400, param), body


def policy():
    return Guardrails(
        (
            Guardrail(
                name="names",
                detect=lambda text: [(at, at + 5) for at in [text.find("Susan")] if at >= 0],
                stages=frozenset({GuardrailStage.OUTPUT}),
            ),
        )
    )


async def test_a_policy_reads_every_answer():
    reply = Reply(text="Bob.", alternatives=(Reply(text="Susan."),))
    app_state = scripted_state({"ada": ScriptedClient(lambda _: reply)}, guardrails=policy())
    async with Serving(app_state) as server:
        status, _, got = await server.post(json={"model": "worker/ada", "messages": HI, "n": 2})
        refused, _, error = await server.post(
            json={"model": "worker/ada", "messages": HI, "logprobs": True}
        )
    assert status == 200
    assert [c["message"]["content"] for c in got["choices"]] == ["Bob.", "[removed by names]."]
    assert (refused, error["error"]["param"]) == (400, "logprobs")


async def test_every_answer_has_the_form():
    bad = Reply(text='{"n": 1}', alternatives=(Reply(text="prose"),))
    good = Reply(text='{"n": 1}', alternatives=(Reply(text='```json\n{"n": 2}\n```'),))
    for stream in (False, True):
        ada = ScriptedClient([bad, good])
        async with Serving(ada=ada) as server:
            body = {"model": "worker/ada", "messages": HI, "n": 2, "response_format": FORM}
            async with server.http.post(
                "/v1/chat/completions", json={**body, "stream": stream}
            ) as response:
                told = Told(response.status, response.headers, await response.text())
        assert told.error is None
        assert told.text == '{"n": 1}{"n": 2}'
        assert len(ada.requests) == 2


def test_money_counts_every_answer():
    three = Request(messages=ASK.messages, sampling=Sampling(choices=3, max_tokens=100))
    one = Request(messages=ASK.messages, sampling=Sampling(max_tokens=100))
    price = Price(input=Decimal(0), output=Decimal(1))
    worker = Worker(id=WorkerId("w"), model="m", price=price)
    assert (
        bound_call_cost(three, worker, price).max_usd
        == 3 * bound_call_cost(one, worker, price).max_usd
    )
    said = Reply(text="a" * 40, alternatives=(Reply(text="b" * 40), Reply(text="c" * 40)))
    assert estimate_usage(one, said).output == 30
    flow = Workflow(
        (Step(subtask="x", worker=WorkerId("w")), Step(subtask="y", worker=WorkerId("w")))
    )
    question = Question(messages=ASK.messages, sampling=Sampling(choices=3))
    steps = estimate_workflow(question, flow, Pool((worker,))).steps
    assert [usage.output for usage in steps] == [400, 1200]


async def test_a_limit_in_dollars_counts_every_answer():
    ada = ScriptedClient(lambda r: Reply(text="x", alternatives=(Reply(text="y"),) * 9))
    async with Serving(ada=ada) as server:
        body = {"model": "worker/ada", "messages": HI, "max_tokens": 256}
        limit = {"orchestration": {"max_cost_usd": 0.0015}}
        first, _, _ = await server.post(json={**body, **limit})
        second, _, error = await server.post(json={**body, **limit, "n": 10})
    assert (first, second, error["error"]["code"]) == (200, 429, "budget_exceeded")
    assert len(ada.requests) == 1


def test_a_recorded_reply_is_told_again_whole():
    token = TokenLogprob(token="a", logprob=-1.0, utf8=(97,))
    reply = Reply(text="a", logprobs=(token,), alternatives=(Reply(text="bcd"),))
    told = split_reply(reply, 2)
    assert [(d.choice, d.text) for d in told] == [(0, "a"), (1, "bc"), (1, "d")]
    assert told[0].logprobs == (token,)
