"""Clients of model providers."""

from batuta.clients.anthropic.client import AnthropicClient
from batuta.clients.cache import CallCache, CallCacheClient
from batuta.clients.catalog import find_model_facts
from batuta.clients.decoding import SseParser
from batuta.clients.discovery import discover_pool
from batuta.clients.factory import (
    WorkerCheck,
    check_worker,
    open_client,
    open_clients,
    open_provider_client,
)
from batuta.clients.gemini.client import GeminiClient
from batuta.clients.http_target import NO_KEY, Secret, redact_secrets
from batuta.clients.limits import CallLimiter, RateLimitedClient
from batuta.clients.openai.client import OpenAIChatClient
from batuta.clients.providers import (
    PROVIDERS,
    WorkerSpec,
    find_provider,
    provider_key,
    provider_url,
)
from batuta.clients.redis_connections import RedisConnections
from batuta.clients.replay import RunReplayClient, request_fingerprint
from batuta.clients.resilience import (
    BreakerPolicy,
    CircuitBreakerClient,
    RetryClient,
    RetryPolicy,
    WorkerHealth,
)
from batuta.clients.scripted_client import ScriptedClient
from batuta.clients.transport import HttpTransport

__all__ = [
    "NO_KEY",
    "PROVIDERS",
    "AnthropicClient",
    "BreakerPolicy",
    "CallCache",
    "CallCacheClient",
    "CallLimiter",
    "CircuitBreakerClient",
    "GeminiClient",
    "HttpTransport",
    "OpenAIChatClient",
    "RateLimitedClient",
    "RedisConnections",
    "RetryClient",
    "RetryPolicy",
    "RunReplayClient",
    "ScriptedClient",
    "Secret",
    "SseParser",
    "WorkerCheck",
    "WorkerHealth",
    "WorkerSpec",
    "check_worker",
    "discover_pool",
    "find_model_facts",
    "find_provider",
    "open_client",
    "open_clients",
    "open_provider_client",
    "provider_key",
    "provider_url",
    "redact_secrets",
    "request_fingerprint",
]
