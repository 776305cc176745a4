"""Finding workers, opening and checking them."""

from decimal import Decimal

import pytest

from batuta import errors
from batuta.clients import (
    PROVIDERS,
    Anthropic,
    Gemini,
    OpenAIChat,
    Scripted,
    Secret,
    WorkerSpec,
    bare_client,
    check,
    discover,
    facts_of,
    key_of,
    lookup,
    open_clients,
    provider_of,
    url_of,
)
from clients.cases import worker
from fakes import FakeOpenAI, Fault
from fakes.server import KEY

pytestmark = pytest.mark.anyio
NOWHERE = {  # ports that nothing listens on
    "OLLAMA_HOST": "127.0.0.1:9",
    "VLLM_BASE_URL": "http://127.0.0.1:9/v1",
    "SGLANG_BASE_URL": "http://127.0.0.1:9/v1",
    "LLAMACPP_BASE_URL": "http://127.0.0.1:9/v1",
}


async def test_keys_give_workers_with_prices(http):
    environ = {
        **NOWHERE,
        "OPENAI_API_KEY": KEY,
        "ANTHROPIC_API_KEY": KEY,
        "GOOGLE_API_KEY": KEY,
        "OPENROUTER_API_KEY": KEY,
        "DEEPSEEK_API_KEY": KEY,
    }
    found = await discover(environ, http)
    assert {spec.provider for spec in found} == {
        "openai",
        "anthropic",
        "gemini",
        "openrouter",
        "deepseek",
    }
    assert len({spec.worker.id for spec in found}) == len(found)
    assert KEY not in repr(found)
    for spec in found:
        assert (spec.worker.price is not None) == (spec.provider != "openrouter")
        assert spec.key == Secret(KEY)
    assert set(open_clients(found, http)) == {spec.worker.id for spec in found}
    assert await discover(environ, http, probe=False) == found
    assert await discover(NOWHERE, http) == ()
    own = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": "https://api.openai.com/v1/"}
    assert {spec.provider for spec in await discover(NOWHERE | own, http)} == {"openai"}


async def test_local_servers_are_asked(http):
    async with FakeOpenAI() as server:
        server.tags = ["llama3:8b", "nomic-embed-text:latest"]
        server.models = [{"id": "qwen", "owned_by": "vllm", "max_model_len": 4096}]
        environ = NOWHERE | {"OLLAMA_HOST": server.host, "VLLM_BASE_URL": server.url}
        found = await discover(environ, http)
        quiet = await discover(environ, http, probe=False)
    assert [spec.worker.id for spec in found] == ["ollama/llama3:8b", "vllm/qwen"]
    assert found[0].base_url == server.url
    assert found[1].worker.context_window == 4096
    assert found[1].worker.price.output == 0
    assert quiet == ()


async def test_another_server_behind_openai_s_variable_is_asked_for_its_models(http):
    async with FakeOpenAI(strict_openai=False) as server:
        server.models = [{"id": "their-model"}]
        environ = NOWHERE | {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": server.url + "/"}
        (spec,) = await discover(environ, http)
        assert (await check(bare_client(spec, http))).error is None
    assert spec.provider == "compatible"
    assert not server.wrong


async def test_a_key_that_is_none_names_its_variable(http):
    with pytest.raises(errors.ConfigError, match="OPENAI_API_KEY"):
        key_of(PROVIDERS["openai"], {"OPENAI_API_KEY": "two words"})
    with pytest.raises(errors.ConfigError, match="OPENAI_API_KEY"):
        await discover(NOWHERE | {"OPENAI_API_KEY": "two words"}, http)
    with pytest.raises(errors.ConfigError, match="VLLM_BASE_URL"):
        await discover(NOWHERE | {"VLLM_BASE_URL": "localhost"}, http)


@pytest.mark.parametrize(
    ("value", "url"),
    [
        ("0.0.0.0:11434", "http://127.0.0.1:11434/v1"),
        ("box:1234", "http://box:1234/v1"),
        ("https://box:1234/", "https://box:1234/v1"),
    ],
)
def test_ollama_s_host_in_all_its_forms(value, url):
    assert url_of(PROVIDERS["ollama"], {"OLLAMA_HOST": value}) == url


def test_the_catalogue_knows_what_it_knows():
    assert lookup("openai", "gpt-5-mini-2025-08-07").output == Decimal(2)
    assert lookup("anthropic", "claude-sonnet-4-5-20250929").input == Decimal(3)
    assert lookup("gemini", "models/gemini-2.5-pro").cached == Decimal("0.125")
    assert lookup("openai", "gpt-99") is None
    assert facts_of("nobody", "gpt-5") is None
    assert "vision" in facts_of("openai", "gpt-5").tags
    for provider in ("openai", "anthropic", "gemini", "deepseek"):
        assert all(facts_of(provider, model) for model in PROVIDERS[provider].models)


async def test_each_api_has_its_client(http):
    def client(provider, **more):
        return bare_client(WorkerSpec(worker(), provider, **more), http)

    assert isinstance(client("openai", key=Secret(KEY)), OpenAIChat)
    assert isinstance(client("anthropic", key=Secret(KEY)), Anthropic)
    assert isinstance(client("gemini", key=Secret(KEY)), Gemini)
    assert isinstance(client("ollama"), OpenAIChat)
    with pytest.raises(errors.ConfigError, match="OPENAI_API_KEY"):
        client("openai")
    with pytest.raises(errors.ConfigError, match="base_url"):
        client("compatible")
    with pytest.raises(errors.ConfigError, match="not known"):
        provider_of("nobody")
    with pytest.raises(errors.ConfigError, match="http"):
        client("openai", base_url="localhost:8000")


async def test_check_tells_how_long_or_what_went_wrong(http):
    async with FakeOpenAI("ok", [None, Fault.UNAUTHORISED]) as server:
        spec = WorkerSpec(worker(), "openai", server.url, Secret(KEY))
        well = await check(bare_client(spec, http))
        ill = await check(bare_client(spec, http))
    assert well.error is None
    assert well.seconds > 0
    assert isinstance(ill.error, errors.Unauthorised)
    assert (await check(Scripted(["ok"]))).error is None
