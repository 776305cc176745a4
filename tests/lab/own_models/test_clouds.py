"""Azure OpenAI and Bedrock by their own variables: address, key and header."""

from importlib.util import find_spec

import pytest

from batuta.clients import PROVIDERS, HttpTransport, provider_url
from batuta.config.load import load_config
from batuta.core import Outcome, Question
from batuta.engine import conduct
from batuta.errors import ConfigError
from fakes import FakeOpenAI
from fakes.server import KEY

pytestmark = pytest.mark.anyio
AZURE = "[[workers]]\nid = 'a'\nprovider = 'azure'\nmodel = 'gpt-5-mini'\n"
BEDROCK = "[[workers]]\nid = 'b'\nprovider = 'bedrock'\nmodel = 'openai.gpt-oss-120b-1:0'\n"


async def opened(tmp_path, text, environ):
    (tmp_path / "batuta.toml").write_text(text)
    async with HttpTransport() as http:
        found = await load_config(
            http, pool=str(tmp_path / "batuta.toml"), environ=environ, conductor="best"
        )
        run = await conduct(Question.of("q"), found.conductor, found.pool, found.clients)
    return found, run


async def test_azure_is_reached_at_its_v1_api_with_its_own_header(tmp_path):
    async with FakeOpenAI("Hello.", check=False) as server:
        environ = {
            "AZURE_OPENAI_API_KEY": KEY,
            "AZURE_OPENAI_ENDPOINT": f"{server.origin}/v1",
        }
        found, run = await opened(tmp_path, AZURE, environ)
        (received,) = server.requests
    assert run.outcome is Outcome.ANSWERED
    assert received.headers["api-key"] == KEY and "authorization" not in received.headers
    assert received.body["model"] == "gpt-5-mini"
    assert run.cost.usd > 0 and found.pool.workers[0].price is not None


async def test_bedrock_is_reached_with_its_bearer_key(tmp_path):
    async with FakeOpenAI("Hello.", check=False) as server:
        text = BEDROCK + f"base_url = '{server.url}'\n"
        _, run = await opened(tmp_path, text, {"AWS_BEARER_TOKEN_BEDROCK": KEY})
        (received,) = server.requests
    assert run.outcome is Outcome.ANSWERED
    assert received.headers["authorization"] == f"Bearer {KEY}"
    assert received.body["model"] == "openai.gpt-oss-120b-1:0"


def test_their_addresses_follow_from_their_variables():
    azure, bedrock = PROVIDERS["azure"], PROVIDERS["bedrock"]
    endpoint = {"AZURE_OPENAI_ENDPOINT": "https://me.openai.azure.com/"}
    assert provider_url(azure, endpoint) == "https://me.openai.azure.com/openai/v1"
    at = "https://bedrock-runtime.eu-west-1.amazonaws.com/openai/v1"
    assert provider_url(bedrock, {"AWS_REGION": "eu-west-1"}) == at
    assert provider_url(bedrock, {"AWS_DEFAULT_REGION": "eu-west-1"}) == at


@pytest.mark.parametrize(
    ("text", "environ", "said"),
    [
        (AZURE, {"AZURE_OPENAI_API_KEY": KEY}, "or set AZURE_OPENAI_ENDPOINT"),
        (AZURE, {"AZURE_OPENAI_ENDPOINT": "https://h"}, "set AZURE_OPENAI_API_KEY"),
        (BEDROCK, {"AWS_REGION": "eu-west-1"}, "set AWS_BEARER_TOKEN_BEDROCK"),
        (BEDROCK, {"AWS_BEARER_TOKEN_BEDROCK": KEY}, "or set AWS_REGION or AWS_DEFAULT_REGION"),
    ],
)
async def test_what_is_missing_is_named(tmp_path, text, environ, said):
    library = {"AZURE_OPENAI_API_KEY": "azure.identity", "AWS_BEARER_TOKEN_BEDROCK": "botocore"}
    other_way = library.get(said.removeprefix("set "))
    if other_way and find_spec(other_way.partition(".")[0]):
        pytest.skip(f"{other_way} is installed, so a key is not the only way")
    with pytest.raises(ConfigError, match=said):
        await opened(tmp_path, text, environ)
