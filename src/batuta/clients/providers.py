"""The known providers, as data, and the specs and identities of workers that use them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from typing import Any, Literal, Protocol, runtime_checkable

import orjson

from batuta.clients.adaptations import Kind
from batuta.clients.cloud_credentials import Cloud
from batuta.clients.http_target import NO_KEY, Secret
from batuta.clients.openai.client import (
    AZURE_DIALECT,
    COMPATIBLE_DIALECT,
    DEEPSEEK_DIALECT,
    OPENAI_DIALECT,
    OPENROUTER_DIALECT,
    PREFILL_DIALECT,
    ChatDialect,
)
from batuta.clients.openai.models import needs_responses
from batuta.clients.think_tags import ThinkTags
from batuta.core import Client, Worker
from batuta.core.suggestions import suggest_names
from batuta.environment import read_variable
from batuta.errors import ConfigError

PYTHON = "python"
"""The provider whose workers run code in this machine's sandbox."""
SEARCH = "search"
"""The provider whose workers search the web with the configured search engine."""
READER = "reader"
"""The provider whose workers read web pages."""
MCP = "mcp"
"""The provider whose workers call the tool of `[tools.mcp.NAME]`; their `model` is NAME."""
FILES = "files"
"""The provider whose workers search a configured folder."""
TOOL_PROVIDERS = frozenset({SEARCH, READER, MCP, FILES})
"""Providers whose workers are tools instead of models; `config.workers` opens their clients."""
LOCAL = "local"
"""The provider whose models Batuta downloads and serves itself, on this machine."""
COMPATIBLE = "compatible"
"""The provider for any other server with an OpenAI-compatible API."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """A provider: its address, its API and its environment variables."""

    name: str
    base_url: str
    """The default address. Empty: there is none; a worker or a variable of `url_vars` must set it,
    unless the provider's workers are called without a URL, as tools are."""
    api: Literal["chat", "anthropic", "gemini"] = "chat"
    dialect: ChatDialect = COMPATIBLE_DIALECT
    """The details of the API `chat`."""
    key_vars: tuple[str, ...] = ()
    """Environment variables for the key; the first one that is set counts. Empty: the key is only
    in a worker's own settings, if it needs one."""
    url_vars: tuple[str, ...] = ()
    """Environment variables that override `base_url`, some with a host or a region instead of a
    URL; the first one that is set counts."""
    models: tuple[str, ...] = ()
    """The pool that a key alone gives, as of 2026-11-24. If the provider lists models,
    `discovery.choose_models` takes the newest one of each family instead."""
    cloud: Cloud | None = None
    """The cloud whose credentials can replace the key; None: no cloud's credentials can."""
    schema_bounds: tuple[str, ...] = ("minItems", "maxItems", "maxLength")
    """JSON Schema length keywords that its structured outputs support."""
    local: bool = False
    """Whether it runs on the user's own machine; then keys are optional and tokens cost nothing."""
    always_streams: bool = False
    """Whether all replies are streamed, even if nobody reads the deltas; see `StreamedClient`."""


_KNOWN_PROVIDERS = (
    Provider(
        name="openai",
        base_url="https://api.openai.com/v1",
        dialect=OPENAI_DIALECT,
        key_vars=("OPENAI_API_KEY",),
        url_vars=("OPENAI_BASE_URL",),
        models=("gpt-6.1-sol", "gpt-6.1-terra", "gpt-6-luna"),
        schema_bounds=("minItems", "maxItems"),
    ),
    Provider(
        name="anthropic",
        base_url="https://api.anthropic.com",
        api="anthropic",
        key_vars=("ANTHROPIC_API_KEY",),
        url_vars=("ANTHROPIC_BASE_URL",),
        models=("claude-opus-5-5", "claude-sonnet-5-5", "claude-haiku-5-5"),
        schema_bounds=("minItems",),
    ),
    Provider(
        name="gemini",
        base_url="https://generativelanguage.googleapis.com/v1beta",
        api="gemini",
        key_vars=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        url_vars=("GEMINI_BASE_URL",),
        models=("gemini-4-argon", "gemini-3.8-flash", "gemini-3.5-flash-lite"),
    ),
    Provider(
        name="openrouter",
        base_url="https://openrouter.ai/api/v1",
        dialect=OPENROUTER_DIALECT,
        key_vars=("OPENROUTER_API_KEY",),
        url_vars=("OPENROUTER_BASE_URL",),
        models=(
            "anthropic/claude-opus-5.5",
            "openai/gpt-6.1-sol",
            "google/gemini-3.8-flash",
            "deepseek/deepseek-v4.1-flash",
        ),
        schema_bounds=("minItems",),
    ),
    Provider(
        name="deepseek",
        base_url="https://api.deepseek.com/v1",
        dialect=DEEPSEEK_DIALECT,
        key_vars=("DEEPSEEK_API_KEY",),
        url_vars=("DEEPSEEK_BASE_URL",),
        models=("deepseek-v4-pro", "deepseek-flash"),
    ),
    Provider(
        name="azure",
        base_url="",
        dialect=AZURE_DIALECT,
        cloud="azure",
        key_vars=("AZURE_OPENAI_API_KEY",),
        url_vars=("AZURE_OPENAI_ENDPOINT",),
        schema_bounds=("minItems", "maxItems"),
    ),
    Provider(
        name="bedrock",
        base_url="",
        cloud="aws",
        key_vars=("AWS_BEARER_TOKEN_BEDROCK",),
        url_vars=("AWS_REGION", "AWS_DEFAULT_REGION"),
    ),
    Provider(
        name="vertex",
        base_url="",
        api="gemini",
        cloud="google",
        key_vars=("VERTEX_API_KEY",),
        url_vars=("VERTEX_BASE_URL",),
    ),
    Provider(
        name="ollama", base_url="http://127.0.0.1:11434/v1", url_vars=("OLLAMA_HOST",), local=True
    ),
    Provider(
        name="vllm",
        base_url="http://127.0.0.1:8000/v1",
        dialect=PREFILL_DIALECT,
        key_vars=("VLLM_API_KEY",),
        url_vars=("VLLM_BASE_URL",),
        local=True,
    ),
    Provider(
        name="sglang",
        base_url="http://127.0.0.1:30000/v1",
        dialect=PREFILL_DIALECT,
        url_vars=("SGLANG_BASE_URL",),
        local=True,
    ),
    Provider(
        name="llamacpp",
        base_url="http://127.0.0.1:8080/v1",
        url_vars=("LLAMACPP_BASE_URL",),
        local=True,
        always_streams=True,
    ),
    Provider(
        name="lmstudio",
        base_url="http://127.0.0.1:1234/v1",
        url_vars=("LMSTUDIO_BASE_URL",),
        local=True,
    ),
    Provider(name=PYTHON, base_url="", local=True),
    Provider(name=SEARCH, base_url=""),
    Provider(name=READER, base_url=""),
    Provider(name=MCP, base_url=""),
    Provider(name=FILES, base_url=""),
    Provider(name=LOCAL, base_url="", local=True),
    Provider(name=COMPATIBLE, base_url=""),
)

PROVIDERS: Mapping[str, Provider] = {provider.name: provider for provider in _KNOWN_PROVIDERS}
"""Providers by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """A worker and how it is reached; data only."""

    worker: Worker
    provider: str = COMPATIBLE
    """A name in PROVIDERS."""
    base_url: str = ""
    """Empty: the provider's `base_url`."""
    key: Secret = NO_KEY
    concurrency: int = 32
    """Maximum number of concurrent calls."""
    rpm: int | None = None
    """Maximum number of calls per minute; None: no limit."""
    tpm: int | None = None
    """Maximum number of tokens per minute; None: no limit."""
    deployments: tuple[DeploymentSpec, ...] = ()
    """Further deployments of the model, besides the address above."""
    weight: float = 1.0
    """Share of the calls for the address above, relative to the weights of `deployments`; 0: it is
    called only if the others fail."""
    extra_body: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Additional fields of every request; for the API `chat` only, without embeddings."""
    adapt: tuple[Kind, ...] = ()
    """Adaptations applied from the first request on; not used for embeddings and pictures."""
    field_names: Mapping[str, str] = field(default_factory=dict[str, str])
    """Maps fields of the body to the server's names for them; a field that is mapped to an empty
    name is not sent. Not used for embeddings and pictures."""
    think_tags: ThinkTags = "off"
    """How reasoning is marked in the text of its answers; for chat completions only."""
    openai_api: Literal["chat", "responses", "images"] | None = None
    """Which of OpenAI's APIs is called; None: the Responses API if OpenAI's model needs it, else
    chat completions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentSpec:
    """Another deployment of a worker's model, with its share of the calls."""

    spec: WorkerSpec
    weight: float = 1.0
    """Relative to the other weights; 0: it is called only if the others fail."""


def find_provider(name: str) -> Provider:
    """Return the provider of that name.

    Raises:
        ConfigError: the name is unknown.
    """
    if name not in PROVIDERS:
        known = suggest_names(name, sorted(PROVIDERS))
        raise ConfigError(f"there is no provider {name!r}; {known}")
    return PROVIDERS[name]


def asks_by_responses(spec: WorkerSpec) -> bool:
    """Return True if the worker is called, or first tried, through OpenAI's Responses API."""
    if spec.openai_api is not None:
        return spec.openai_api == "responses"
    return find_provider(spec.provider).dialect.responses and needs_responses(spec.worker.model)


def provider_key(provider: Provider, environ: Mapping[str, str]) -> Secret:
    """Return the provider's key from the environment, or from a file named there; else `NO_KEY`.

    Raises:
        ConfigError: the variable's value is not a valid key, or its file cannot be read or is
            empty.
    """
    for name in provider.key_vars:
        if value := read_variable(environ, name):
            try:
                return Secret(value)
            except ConfigError as error:
                raise ConfigError(f"{name}: {error}") from None
    return NO_KEY


def provider_url(provider: Provider, environ: Mapping[str, str]) -> str:
    """Return the provider's base URL, from the environment if it is set there; it may be empty."""
    for name in provider.url_vars:
        value = environ.get(name, "").strip().rstrip("/")
        if value:
            return _URL_FORMS.get(name, str)(value)
    return provider.base_url


def has_url_override(provider: Provider, environ: Mapping[str, str]) -> bool:
    """Return True if the environment overrides the provider's base URL."""
    return any(environ.get(name, "").strip() for name in provider.url_vars)


def _ollama_url(host: str) -> str:
    """Return the base URL for a value of OLLAMA_HOST: a host, a port, both, or a URL."""
    scheme, _, rest = host.strip("\"' ").rpartition("://")
    address, slash, path = rest.partition("/")
    user, at, address = address.rpartition("@")
    if address.count(":") > 1 and not address.startswith("["):
        address = f"[{address}]"  # a bare IPv6 address
    name, port = address, ""
    if ":" in address.rpartition("]")[2]:
        name, _, port = address.rpartition(":")
    name = _LISTENING.get(name, name)
    port = port or ("443" if scheme.lower() == "https" else "11434")
    path = (slash + path).rstrip("/").removesuffix("/v1")
    return f"{scheme.lower() or 'http'}://{user}{at}{name}:{port}{path}/v1"


_LISTENING = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "[::]": "[::1]", "*": "127.0.0.1"}  # noqa: S104
"""Maps addresses that a server can only listen on to those that a client can connect to."""


def _azure_url(endpoint: str) -> str:
    """Return the URL of a resource's v1 API; Azure's portal shows the endpoint without a path."""
    return endpoint if endpoint.endswith("/v1") else f"{endpoint}/openai/v1"


def _bedrock_url(region: str) -> str:
    return f"https://bedrock-runtime.{region}.amazonaws.com/openai/v1"


_URL_FORMS: Mapping[str, Callable[[str], str]] = {
    "OLLAMA_HOST": _ollama_url,
    "AZURE_OPENAI_ENDPOINT": _azure_url,
    "AWS_REGION": _bedrock_url,
    "AWS_DEFAULT_REGION": _bedrock_url,
}
"""Functions that make a base URL of the values of variables that are not base URLs."""


Identity = Mapping[str, str]
"""Named settings by which a journal tells workers apart; values that may be secret are digests.

The key, `adapt` and `field_names` are not among them.
"""


@runtime_checkable
class IdentifiedClient(Protocol):
    """A client that can return the identity of its worker."""

    @property
    def identity(self) -> Identity:
        """The worker's identity; workers with equal identities can share a call journal."""
        ...


def client_identity(client: Client) -> Identity:
    """Return the identity of a client's worker; empty if the client has none."""
    return client.identity if isinstance(client, IdentifiedClient) else {}


def spec_identity(spec: WorkerSpec) -> Identity:
    """Return the identity of a worker, without settings that have their default, are empty or 0.

    A temperature of 0 is left out too, but the requests in a journal state it.
    """
    url = spec.base_url or find_provider(spec.provider).base_url
    chosen = {name: value for name, value in asdict(spec.worker.sampling).items() if value}
    deployments = [dict(spec_identity(each.spec)) for each in spec.deployments]
    return {
        "model": spec.worker.model,
        "provider": spec.provider,
        "base_url": _digest_value(url),
        **({"sampling": _digest_value(chosen)} if chosen else {}),
        **({"extra_body": _digest_value(spec.extra_body)} if spec.extra_body else {}),
        **({"deployments": _digest_value(deployments)} if deployments else {}),
        **({"openai_api": spec.openai_api} if spec.openai_api else {}),
        **({"think_tags": spec.think_tags} if spec.think_tags != "off" else {}),
    }


def identity_digest(identity: Identity) -> str:
    """Return a short digest of an identity."""
    return _digest_value(dict(identity))


def _digest_value(value: Any) -> str:
    text = orjson.dumps(value, default=str, option=orjson.OPT_SORT_KEYS)
    return blake2b(text, digest_size=8).hexdigest()
