"""Finding workers, opening and checking them."""

from decimal import Decimal

import anyio
import pytest

from batuta import errors
from batuta.clients import (
    PROVIDERS,
    AnthropicClient,
    GeminiClient,
    HttpTransport,
    OpenAIChatClient,
    ScriptedClient,
    Secret,
    WorkerSpec,
    check_worker,
    discover_pool,
    find_model_facts,
    find_provider,
    open_clients,
    open_provider_client,
    provider_key,
    provider_url,
)
from batuta.clients.discovery import DETAIL_SECONDS, MAX_MODELS, PROBE_SECONDS
from batuta.clients.openai.client import TextCallClient
from clients.cases import worker
from fakes import FakeOpenAI, Fault
from fakes.environ import NOWHERE
from fakes.server import KEY

pytestmark = pytest.mark.anyio


async def test_keys_give_workers_with_prices(http):
    environ = {
        **NOWHERE,
        "OPENAI_API_KEY": KEY,
        "ANTHROPIC_API_KEY": KEY,
        "GOOGLE_API_KEY": KEY,
        "OPENROUTER_API_KEY": KEY,
        "DEEPSEEK_API_KEY": KEY,
    }
    found = (await discover_pool(environ, http)).specs
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
        assert spec.worker.price is not None
        assert spec.worker.tags, "its abilities"
        assert spec.key == Secret(KEY)
    assert set(open_clients(found, http)) == {spec.worker.id for spec in found}
    assert (await discover_pool(NOWHERE, http)).specs == ()
    own = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": "https://api.openai.com/v1/"}
    assert {spec.provider for spec in (await discover_pool(NOWHERE | own, http)).specs} == {
        "openai"
    }


async def test_local_servers_are_asked(http):
    async with FakeOpenAI() as server:
        # of many models only the first are asked for details, and those that embed do not count
        server.tags = [*(f"nomic-embed-text:{n}" for n in range(MAX_MODELS)), "llama3:8b"]
        server.models = [{"id": "qwen", "owned_by": "vllm", "max_model_len": 4096}]
        environ = NOWHERE | {"OLLAMA_HOST": server.host, "VLLM_BASE_URL": server.url}
        found = (await discover_pool(environ, http)).specs
    assert [spec.worker.id for spec in found] == ["ollama/llama3:8b", "vllm/qwen"]
    assert found[0].base_url == server.url
    assert found[1].worker.context_window == 4096
    assert found[1].worker.price.output == 0


async def test_another_server_behind_openai_s_variable_is_asked_for_its_models(http):
    async with FakeOpenAI(strict_openai=False) as server:
        server.models = [{"id": "their-model"}]
        environ = NOWHERE | {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": server.url + "/"}
        (spec,) = (await discover_pool(environ, http)).specs
        assert (await check_worker(open_provider_client(spec, http), spec.worker)).error is None
    assert spec.provider == "compatible"
    assert not server.wrong


async def test_a_model_that_two_variables_name_the_server_of_is_one_worker(http):
    async with FakeOpenAI() as one, FakeOpenAI() as other:
        one.models, other.models = [{"id": "both"}], [{"id": "both"}, {"id": "its-own"}]
        urls = {"OPENAI_BASE_URL": one.url, "OPENROUTER_BASE_URL": other.url}
        found = (await discover_pool(NOWHERE | urls, http)).specs
    assert [spec.worker.id for spec in found] == ["compatible/both", "compatible/its-own"]
    assert found[0].base_url == one.url


async def test_an_address_that_is_named_is_waited_for():
    """It may be far away; only what may listen on a common port is given a moment."""

    class Far(FakeOpenAI):
        async def _models(self, request):
            await anyio.sleep(2 * PROBE_SECONDS)
            return await super()._models(request)

    async with Far(strict_openai=False) as server, HttpTransport() as http:
        server.models = [{"id": "their-model"}]
        for variables in (
            {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": server.url},
            {"VLLM_BASE_URL": server.url},
        ):
            (spec,) = (await discover_pool(NOWHERE | variables, http)).specs
            assert spec.worker.model == "their-model"


async def test_details_that_arrive_in_time_are_kept():
    """Ollama is asked about each model, and a slow answer costs the others nothing."""

    class Slow(FakeOpenAI):
        async def _show(self, request):
            if (await request.json())["model"] == "slow":
                await anyio.sleep(2 * DETAIL_SECONDS)
            return await super()._show(request)

    async with Slow() as server, HttpTransport() as http:
        server.tags = ["slow", "quick"]
        server.shown = {
            "quick": {"capabilities": ["completion"], "model_info": {"a.context_length": 5000}}
        }
        found = (await discover_pool(NOWHERE | {"OLLAMA_HOST": server.host}, http)).specs
    windows = {spec.worker.model: spec.worker.context_window for spec in found}
    assert windows["quick"] == 5000 and "slow" in windows


async def test_a_key_that_is_none_names_its_variable(http):
    with pytest.raises(errors.ConfigError, match="OPENAI_API_KEY"):
        provider_key(PROVIDERS["openai"], {"OPENAI_API_KEY": "two words"})
    with pytest.raises(errors.ConfigError, match="OPENAI_API_KEY"):
        await discover_pool(NOWHERE | {"OPENAI_API_KEY": "two words"}, http)
    with pytest.raises(errors.ConfigError, match="VLLM_BASE_URL"):
        await discover_pool(NOWHERE | {"VLLM_BASE_URL": "localhost"}, http)


@pytest.mark.parametrize(
    ("value", "url"),
    [
        ("0.0.0.0:11434", "http://127.0.0.1:11434/v1"),
        ("box:1234", "http://box:1234/v1"),
        ("https://box:1234/", "https://box:1234/v1"),
        ("box", "http://box:11434/v1"),
        (":11435", "http://127.0.0.1:11435/v1"),
        ("0.0.0.0", "http://127.0.0.1:11434/v1"),
        ("http://0.0.0.0:8080", "http://127.0.0.1:8080/v1"),
        ("10.0.0.0", "http://10.0.0.0:11434/v1"),
        ("node-10.0.0.0.example.org", "http://node-10.0.0.0.example.org:11434/v1"),
        ("https://ollama.example.org", "https://ollama.example.org:443/v1"),
        ("https://example.org/ollama/", "https://example.org:443/ollama/v1"),
        ("http://example.org:8080/a/b/v1", "http://example.org:8080/a/b/v1"),
        ("https://ann:secret@box", "https://ann:secret@box:443/v1"),
        ("[::1]:1234", "http://[::1]:1234/v1"),
        ("[::1]", "http://[::1]:11434/v1"),
        ("::1", "http://[::1]:11434/v1"),
        ("[::]:11434", "http://[::1]:11434/v1"),
        ("::", "http://[::1]:11434/v1"),
        ("fe80::1", "http://[fe80::1]:11434/v1"),
        ("HTTPS://box", "https://box:443/v1"),
        ('"box:1234"', "http://box:1234/v1"),
    ],
)
def test_ollama_s_host_in_all_its_forms(value, url):
    assert provider_url(PROVIDERS["ollama"], {"OLLAMA_HOST": value}) == url


def test_the_catalogue_knows_what_it_knows():
    assert find_model_facts("openai", "gpt-5-mini-2025-08-07").price.output == Decimal(2)
    assert find_model_facts("anthropic", "claude-sonnet-4-5-20250929").price.input == Decimal(3)
    assert find_model_facts("gemini", "models/gemini-2.5-pro").price.cached == Decimal("0.125")
    assert find_model_facts("openai", "gpt-99") is None
    assert find_model_facts("nobody", "gpt-5").price is None
    assert find_model_facts("nobody", "what-is-it") is None
    assert find_model_facts("ollama", "gpt-oss:20b").price is None, "what it costs elsewhere"
    assert find_model_facts("compatible", "mistral-large-latest", "https://api.mistral.ai/v1").price
    assert find_model_facts("compatible", "gpt-5", "http://127.0.0.1:8000/v1").price is None
    assert "vision" in find_model_facts("openai", "gpt-5").tags
    for provider in ("openai", "anthropic", "gemini", "deepseek"):
        assert all(find_model_facts(provider, model) for model in PROVIDERS[provider].models)


async def test_each_api_has_its_client(http):
    def client(provider, **more):
        return open_provider_client(WorkerSpec(worker=worker(), provider=provider, **more), http)

    assert isinstance(client("openai", key=Secret(KEY)), OpenAIChatClient)
    assert isinstance(client("anthropic", key=Secret(KEY)), AnthropicClient)
    assert isinstance(client("gemini", key=Secret(KEY)), GeminiClient)
    local = client("ollama")
    assert isinstance(local, TextCallClient) and isinstance(local.inner, OpenAIChatClient)
    with pytest.raises(errors.ConfigError, match="OPENAI_API_KEY"):
        client("openai")
    with pytest.raises(errors.ConfigError, match="base_url"):
        client("compatible")
    with pytest.raises(errors.ConfigError, match="there is no provider 'nobody'"):
        find_provider("nobody")
    with pytest.raises(errors.ConfigError, match="http"):
        client("openai", base_url="localhost:8000")


async def test_check_tells_how_long_or_what_went_wrong(http):
    async with FakeOpenAI("ok", [None, Fault.UNAUTHORISED]) as server:
        spec = WorkerSpec(worker=worker(), provider="openai", base_url=server.url, key=Secret(KEY))
        well = await check_worker(open_provider_client(spec, http), spec.worker)
        ill = await check_worker(open_provider_client(spec, http), spec.worker)
    assert well.error is None
    assert well.seconds > 0
    assert isinstance(ill.error, errors.ProviderAuthError)
    assert (await check_worker(ScriptedClient(["ok"]), worker())).error is None
