"""The only package that opens sockets to models."""

from batuta.clients.anthropic import Anthropic, Thinking
from batuta.clients.breaker import Breaker, BreakerPolicy, BreakerState, Health
from batuta.clients.catalog import ModelFacts, facts_of, lookup
from batuta.clients.discover import discover, worker_of
from batuta.clients.gemini import Gemini
from batuta.clients.journal import Journal, Journaled
from batuta.clients.limit import Limit, Limiter
from batuta.clients.open import Check, bare_client, check, open_client, open_clients
from batuta.clients.openai_chat import Dialect, OpenAIChat
from batuta.clients.providers import PROVIDERS, Provider, WorkerSpec, key_of, provider_of, url_of
from batuta.clients.replay import Replay, fingerprint
from batuta.clients.retry import Retry, RetryPolicy
from batuta.clients.scripted import Scripted
from batuta.clients.secret import NO_KEY, Secret, redact
from batuta.clients.session import Http
from batuta.clients.sse import SseParser
from batuta.core.estimate import estimated, tokens_in, tokens_of

__all__ = [
    "NO_KEY",
    "PROVIDERS",
    "Anthropic",
    "Breaker",
    "BreakerPolicy",
    "BreakerState",
    "Check",
    "Dialect",
    "Gemini",
    "Health",
    "Http",
    "Journal",
    "Journaled",
    "Limit",
    "Limiter",
    "ModelFacts",
    "OpenAIChat",
    "Provider",
    "Replay",
    "Retry",
    "RetryPolicy",
    "Scripted",
    "Secret",
    "SseParser",
    "Thinking",
    "WorkerSpec",
    "bare_client",
    "check",
    "discover",
    "estimated",
    "facts_of",
    "fingerprint",
    "key_of",
    "lookup",
    "open_client",
    "open_clients",
    "provider_of",
    "redact",
    "tokens_in",
    "tokens_of",
    "url_of",
    "worker_of",
]
