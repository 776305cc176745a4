"""What is set wrongly is told in one sentence that says what to do, and nothing is called."""

import pytest

from batuta.clients import HttpTransport
from batuta.conductors import single_worker
from batuta.config.load import load_config
from batuta.core import Outcome, Question
from batuta.embedded.policy import ConductorCard
from batuta.engine import conduct
from batuta.errors import ConfigError
from batuta.gateway import served_models
from batuta.language import PromptOptions
from fakes import FakeOpenAI, Fault
from gateway.live_server import HI, Serving, server_state

pytestmark = pytest.mark.anyio
WORKER = "[[workers]]\nid = 'a'\nmodel = 'm'\nbase_url = '{url}'\nkey_env = 'KEY'\n"
NOWHERE = "http://127.0.0.1:9/v1"
WRONG = {
    "an unknown provider": (WORKER + "provider = 'opneai'\n", "did you mean openai?"),
    "a worker without a model": ("[[workers]]\nid = 'a'\n", 'in [[workers]] "a": model is missing'),
    "two conductors": (
        WORKER + "[conductor]\nworker = 'a'\nmodel = 'x'\n",
        "there are two conductors: name `worker`, or `provider` and `model`",
    ),
    "a conductor that is not there": (WORKER + "[conductor]\nworker = 'z'\n", "no conductor 'z'"),
    "a conductor of an unknown provider": (
        WORKER + "[conductor]\nmodel = 'm'\nprovider = 'opneai'\n",
        "did you mean openai?",
    ),
    "one table for all workers": ("[workers]\nid = 'a'\n", "list of tables: write [[workers]]"),
    "an address that is none": (
        "[[workers]]\nid = 'a'\nmodel = 'm'\nbase_url = '127.0.0.1:8000'\n",
        "worker a: the base URL of a provider must start with http",
    ),
    "a worker without an address": ("[[workers]]\nid = 'a'\nmodel = 'm'\n", "needs a base_url"),
}


@pytest.mark.parametrize("case", WRONG)
async def test_it_is_one_sentence(tmp_path, case):
    text, said = WRONG[case]
    file = tmp_path / "batuta.toml"
    file.write_text(text.format(url=NOWHERE))
    async with HttpTransport() as http:
        with pytest.raises(ConfigError) as caught:
            await load_config(http, pool=str(file), environ={"KEY": "sk-a-key-that-is-wrong"})
    message = str(caught.value)
    assert said in message
    assert "\n" not in message
    assert len(message) < 400
    assert "sk-a-key" not in message


async def test_a_card_of_another_pool_is_refused():
    card = ConductorCard(name="c", rendering=PromptOptions(compact=True), workers=("x", "y"))
    with pytest.raises(ConfigError) as caught:
        card.check_pool(["a"])
    assert "\n" not in str(caught.value)


async def test_a_refused_key_is_one_sentence_without_the_key(tmp_path):
    key = "sk-a-key-that-is-wrong"
    async with FakeOpenAI(faults=[Fault.UNAUTHORISED] * 9, check=False, key=key) as fake:
        file = tmp_path / "batuta.toml"
        file.write_text(WORKER.format(url=fake.url))
        async with HttpTransport() as http:
            found = await load_config(http, pool=str(file), environ={"KEY": key}, conductor="best")
            run = await conduct(Question.of("q"), found.conductor, found.pool, found.clients)
            calls = len(fake.requests)
            state = server_state(found.pool, found.clients, served_models(found.pool))
            async with Serving(state) as server:
                status, _, got = await server.post(json={"model": "worker/a", "messages": HI})
    assert run.outcome is Outcome.FAILED
    assert "401" in run.error or "key" in run.error
    assert calls == 1  # it is not tried again
    assert status == 502
    for text in (run.error, got["error"]["message"]):
        assert key not in text
        assert "\n" not in text
    assert "key" in got["error"]["message"] or "credential" in got["error"]["message"]


async def test_an_address_without_its_path_is_told_from_a_model_that_is_not_there(tmp_path):
    async with FakeOpenAI("ok", [Fault.NOT_FOUND], check=False) as fake:
        said = []
        for url in (fake.url, fake.origin):  # the second lacks /v1
            file = tmp_path / "batuta.toml"
            file.write_text(WORKER.format(url=url))
            async with HttpTransport() as http:
                found = await load_config(http, pool=str(file), environ={"KEY": "k" * 20})
                run = await conduct(Question.of("q"), single_worker("a"), found.pool, found.clients)
            said.append(run.error)
    assert "does not have this model (404): no such model" in said[0]
    assert "its base_url may be wrong (404)" in said[1]
