"""Fields that a worker's server wants with every request, such as llama.cpp's adapters."""

import pytest

from batuta.clients.factory import open_client
from batuta.config.settings import ConductorSetting
from batuta.config.worker_settings import WorkerSetting
from batuta.config.workers import worker_spec
from batuta.core import Request, user_message
from batuta.errors import ConfigError
from fakes import FakeOpenAI
from fakes.server import KEY

pytestmark = pytest.mark.anyio
LORA = [{"id": 1, "scale": 1.0}]
ASKED = Request(messages=(user_message("x"),))


async def test_each_worker_of_one_server_sends_its_own_adapter(http):
    async with FakeOpenAI("one", strict_openai=False, check=False) as server:
        common = {
            "provider": "llamacpp", "model": "m", "base_url": server.url, "key_env": "A"
        }  # fmt: skip
        own = WorkerSetting.model_validate({"id": "own", "extra_body": {"lora": LORA}, **common})
        plain = WorkerSetting.model_validate({"id": "plain", **common})
        for setting in (own, plain):
            await open_client(worker_spec(setting, {"A": KEY}), http).complete(ASKED)
    adapted, bare = (request.body for request in server.requests)
    assert adapted["lora"] == LORA
    assert adapted["model"] == "m"
    assert "lora" not in bare


async def test_another_place_of_a_worker_is_sent_the_same(http):
    async with FakeOpenAI("two", strict_openai=False, check=False) as server:
        setting = WorkerSetting.model_validate({
            "id": "own", "provider": "llamacpp", "model": "m", "weight": 0, "key_env": "A",
            "base_url": "http://127.0.0.1:1/v1", "extra_body": {"lora": LORA},
            "deployments": [{"base_url": server.url, "key_env": "A"}],
        })  # fmt: skip
        await open_client(worker_spec(setting, {"A": KEY}), http).complete(ASKED)
    assert server.requests[0].body["lora"] == LORA


@pytest.mark.parametrize("field", ["model", "messages", "stream", "tools"])
@pytest.mark.parametrize("kind", [WorkerSetting, ConductorSetting])
def test_what_a_request_decides_itself_cannot_be_set(field, kind):
    with pytest.raises(ValueError, match=f"{field} is decided by each request"):
        kind.model_validate({"id": "a", "model": "m", "extra_body": {field: "x"}})


def test_other_dialects_refuse_it(http):
    setting = WorkerSetting.model_validate(
        {"id": "a", "provider": "anthropic", "model": "m", "extra_body": {"lora": LORA}}
    )
    spec = worker_spec(setting, {"ANTHROPIC_API_KEY": "sk-ant-0123456789"})
    with pytest.raises(ConfigError, match="worker a: extra_body is for chat completions"):
        open_client(spec, http)
