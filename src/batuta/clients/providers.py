"""The providers we know, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from batuta.clients.openai_chat import (
    COMPATIBLE,
    CONTINUING,
    DEEPSEEK,
    OPENAI,
    OPENROUTER,
    Dialect,
)
from batuta.clients.secret import NO_KEY, Secret
from batuta.core import Worker
from batuta.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Provider:
    """Where a provider's models are and how they are spoken to."""

    name: str
    base_url: str
    """Empty: none is known, a worker must name it."""
    api: Literal["chat", "anthropic", "gemini"] = "chat"
    dialect: Dialect = COMPATIBLE
    """Of the api `chat`."""
    key_vars: tuple[str, ...] = ()
    """Environment variables that may hold the key; the first that is set counts."""
    url_vars: tuple[str, ...] = ()
    """Environment variables that override `base_url`."""
    models: tuple[str, ...] = ()
    """The pool that a key alone gives."""
    local: bool = False
    """Runs on one's own machine: no key is needed and tokens cost nothing."""


_ALL = (
    Provider(
        "openai",
        "https://api.openai.com/v1",
        dialect=OPENAI,
        key_vars=("OPENAI_API_KEY",),
        url_vars=("OPENAI_BASE_URL",),
        models=("gpt-5.2", "gpt-5-mini", "gpt-4.1-mini"),
    ),
    Provider(
        "anthropic",
        "https://api.anthropic.com",
        api="anthropic",
        key_vars=("ANTHROPIC_API_KEY",),
        url_vars=("ANTHROPIC_BASE_URL",),
        models=("claude-opus-4-5", "claude-sonnet-4-5", "claude-haiku-4-5"),
    ),
    Provider(
        "gemini",
        "https://generativelanguage.googleapis.com/v1beta",
        api="gemini",
        key_vars=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        url_vars=("GEMINI_BASE_URL",),
        models=("gemini-2.5-pro", "gemini-2.5-flash"),
    ),
    Provider(
        "openrouter",
        "https://openrouter.ai/api/v1",
        dialect=OPENROUTER,
        key_vars=("OPENROUTER_API_KEY",),
        url_vars=("OPENROUTER_BASE_URL",),
        models=("openai/gpt-5-mini", "anthropic/claude-sonnet-4.5", "google/gemini-2.5-pro"),
    ),
    Provider(
        "deepseek",
        "https://api.deepseek.com/v1",
        dialect=DEEPSEEK,
        key_vars=("DEEPSEEK_API_KEY",),
        url_vars=("DEEPSEEK_BASE_URL",),
        models=("deepseek-chat", "deepseek-reasoner"),
    ),
    Provider("ollama", "http://127.0.0.1:11434/v1", url_vars=("OLLAMA_HOST",), local=True),
    Provider(
        "vllm",
        "http://127.0.0.1:8000/v1",
        dialect=CONTINUING,
        key_vars=("VLLM_API_KEY",),
        url_vars=("VLLM_BASE_URL",),
        local=True,
    ),
    Provider(
        "sglang",
        "http://127.0.0.1:30000/v1",
        dialect=CONTINUING,
        url_vars=("SGLANG_BASE_URL",),
        local=True,
    ),
    Provider("llamacpp", "http://127.0.0.1:8080/v1", url_vars=("LLAMACPP_BASE_URL",), local=True),
    Provider("compatible", ""),
)

PROVIDERS: Mapping[str, Provider] = {provider.name: provider for provider in _ALL}
"""By name; `compatible` is any other server that speaks chat completions."""


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """A worker and how it is reached; data only."""

    worker: Worker
    provider: str = "compatible"
    """A name in PROVIDERS."""
    base_url: str = ""
    """Empty: the provider's own."""
    key: Secret = NO_KEY
    concurrency: int = 32
    """Calls at the same time."""
    rpm: int | None = None
    """Calls a minute; None: no limit."""
    tpm: int | None = None
    """Tokens a minute; None: no limit."""


def provider_of(name: str) -> Provider:
    """The provider of that name.

    Raises:
        ConfigError: there is none.
    """
    if name not in PROVIDERS:
        known = ", ".join(sorted(PROVIDERS))
        raise ConfigError(f"the provider {name!r} is not known; known are {known}")
    return PROVIDERS[name]


def key_of(provider: Provider, environ: Mapping[str, str]) -> Secret:
    """The provider's key from the environment; empty if there is none.

    Raises:
        ConfigError: the variable holds what cannot be a key.
    """
    for name in provider.key_vars:
        if environ.get(name, "").strip():
            try:
                return Secret(environ[name])
            except ConfigError as error:
                raise ConfigError(f"{name}: {error}") from None
    return NO_KEY


def url_of(provider: Provider, environ: Mapping[str, str]) -> str:
    """The provider's base URL, as the environment overrides it."""
    for name in provider.url_vars:
        value = environ.get(name, "").strip().rstrip("/")
        if value:
            return _ollama_url(value) if name == "OLLAMA_HOST" else value
    return provider.base_url


def overridden(provider: Provider, environ: Mapping[str, str]) -> bool:
    """Whether the environment names a base URL of its own."""
    return any(environ.get(name, "").strip() for name in provider.url_vars)


def _ollama_url(host: str) -> str:
    """OLLAMA_HOST is a host, a host and port, or a URL; and may be the address to listen on."""
    scheme, _, rest = host.rpartition("://")
    rest = rest.removesuffix("/v1").rstrip("/").replace("0.0.0.0", "127.0.0.1")  # noqa: S104
    if ":" not in rest:
        rest += ":11434"
    return f"{scheme or 'http'}://{rest}/v1"
