"""Penalties and top_k reach the providers that know them; the others' refusal names the field."""

import pytest

from batuta.clients import PROVIDERS, Secret, WorkerSpec, open_provider_client
from batuta.clients.replay import request_fingerprint
from batuta.core import Request, Sampling, user_message
from batuta.errors import BadRequestError
from clients.cases import worker
from fakes import FakeAnthropic, FakeGemini, FakeOpenAI
from fakes.server import KEY

pytestmark = pytest.mark.anyio
ALL = Sampling(frequency_penalty=0.5, presence_penalty=-1.0, top_k=7)


async def sent(http, server, provider, sampling, model="m"):
    spec = WorkerSpec(
        worker=worker(model=model), provider=provider, base_url=server.url, key=Secret(KEY)
    )
    await open_provider_client(spec, http).complete(
        Request(messages=(user_message("q"),), sampling=sampling)
    )
    return server.requests[0].body


async def test_chat_completions_carry_them(http):
    async with FakeOpenAI(check=False) as server:
        body = await sent(http, server, "vllm", ALL)
    assert (body["frequency_penalty"], body["presence_penalty"], body["top_k"]) == (0.5, -1.0, 7)
    async with FakeOpenAI(check=False) as server:
        body = await sent(http, server, "vllm", Sampling())
    assert not {"frequency_penalty", "presence_penalty", "top_k"} & body.keys()


async def test_gemini_carries_them_in_its_own_words(http):
    async with FakeGemini(check=False) as server:
        config = (await sent(http, server, "gemini", ALL))["generationConfig"]
    assert (config["topK"], config["frequencyPenalty"], config["presencePenalty"]) == (7, 0.5, -1)


async def test_anthropic_knows_top_k(http):
    async with FakeAnthropic(check=False) as server:
        assert (await sent(http, server, "anthropic", Sampling(top_k=7)))["top_k"] == 7


@pytest.mark.parametrize(
    ("provider", "model", "sampling", "name"),
    [
        ("openai", "gpt-4.1", Sampling(top_k=7), "top_k"),
        ("openai", "gpt-5", Sampling(frequency_penalty=1.0), "frequency_penalty"),
        ("anthropic", "claude", Sampling(presence_penalty=1.0), "presence_penalty"),
        ("deepseek", "deepseek-chat", Sampling(top_k=7), "top_k"),
    ],
)
async def test_a_field_that_the_provider_does_not_know_is_named_and_nothing_is_sent(
    http, provider, model, sampling, name
):
    fake = FakeAnthropic if PROVIDERS[provider].api == "anthropic" else FakeOpenAI
    async with fake(check=False) as server:
        with pytest.raises(BadRequestError, match=f"{model} does not accept {name}"):
            await sent(http, server, provider, sampling, model)
        assert not server.requests


def test_what_was_recorded_before_they_could_be_said_is_found_again():
    old = request_fingerprint(
        Request(messages=(user_message("q"),), sampling=Sampling(temperature=0.2, seed=3))
    )
    assert old.hex() == "36fbcf7d56c928f1a10fedd5e093c238"
    capped = request_fingerprint(
        Request(messages=(user_message("q"),), sampling=Sampling(), max_output=7)
    )
    assert capped.hex() == "235c48f319391be31b2b146d5ce59eba"
    assert request_fingerprint(
        Request(messages=(user_message("q"),), sampling=Sampling(top_k=7))
    ) != request_fingerprint(Request(messages=(user_message("q"),), sampling=Sampling()))


def test_what_was_chosen_goes_before_the_default():
    assert Sampling(top_k=3).with_defaults(ALL).top_k == 3
    assert Sampling(presence_penalty=0.0).with_defaults(ALL) == Sampling(
        frequency_penalty=0.5, presence_penalty=0.0, top_k=7
    )
