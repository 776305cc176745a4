"""Finds sampling settings that have no effect on a model, by comparing its requests."""

from __future__ import annotations

from dataclasses import fields, replace

from batuta.clients.anthropic.client import AnthropicAdapter
from batuta.clients.call import ProviderAdapter
from batuta.clients.gemini.client import GeminiAdapter
from batuta.clients.openai.client import OpenAIChatAdapter
from batuta.clients.openai.responses import OpenAIResponsesAdapter
from batuta.clients.providers import WorkerSpec, asks_by_responses, find_provider
from batuta.core import Request, Sampling, user_message
from batuta.core.worker import EMBEDDINGS
from batuta.errors import UnsupportedFieldError


def idle_sampling(spec: WorkerSpec, sampling: Sampling) -> tuple[str, ...]:
    """Return the names of settings that are not sent to the model, or that its API refuses.

    The worker's `adapt` and `field_names` are not considered, and a worker that draws by the images
    API is compared like one of chat completions.

    Args:
        spec: the worker.
        sampling: the sampling settings, without `dimensions`; a setting that is not sent beside
            another one is returned too.
    """
    unset = Sampling()
    chosen = [f.name for f in fields(unset) if getattr(sampling, f.name) != getattr(unset, f.name)]
    if EMBEDDINGS in spec.worker.tags:
        return tuple(chosen)
    adapter = _provider_adapter(spec)
    return tuple(name for name in chosen if _is_idle(adapter, sampling, name))


def _is_idle(adapter: ProviderAdapter, sampling: Sampling, name: str) -> bool:
    unset = Sampling()
    alone = replace(unset, **{name: getattr(sampling, name)})
    without = replace(sampling, **{name: getattr(unset, name)})
    try:
        adapter.build_body(_request_of(alone), stream=False)
    except UnsupportedFieldError:
        return True
    try:
        body = adapter.build_body(_request_of(sampling), stream=False)
        return body == adapter.build_body(_request_of(without), stream=False)
    except UnsupportedFieldError:
        return False  # another setting is refused, and is reported instead


def _request_of(sampling: Sampling) -> Request:
    return Request(messages=(user_message("?"),), sampling=sampling)


def _provider_adapter(spec: WorkerSpec) -> ProviderAdapter:
    provider, model = find_provider(spec.provider), spec.worker.model
    if provider.api == "anthropic":
        return AnthropicAdapter(model)
    if provider.api == "gemini":
        return GeminiAdapter(model.removeprefix("models/"))
    if asks_by_responses(spec):
        return OpenAIResponsesAdapter(model, provider.dialect)
    return OpenAIChatAdapter(model, provider.dialect)
