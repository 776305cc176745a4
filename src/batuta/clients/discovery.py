"""Finds models that can be called from here: by keys in the environment, on local servers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import anyio

from batuta.clients.catalog import ListedModel, find_model_facts, known_worker
from batuta.clients.decoding import as_array, as_count, as_object, as_string
from batuta.clients.http_target import HttpTarget, Secret, url_host
from batuta.clients.providers import (
    PROVIDERS,
    Provider,
    WorkerSpec,
    has_url_override,
    provider_key,
    provider_url,
)
from batuta.clients.servers import ModelServer, list_models
from batuta.clients.transport import HttpTransport
from batuta.errors import ClientError, ConfigError

LIST_SECONDS = 2.5
"""How long a provider may take to list its models; then the names we know are taken."""
_DATE = re.compile(r"-(?:\d{4}-\d{2}-\d{2}|20\d{6})$")
_NUMBER = re.compile(r"v?\d{1,3}")

_Family = tuple[str, ...]
_Version = tuple[int, ...]


async def list_hosted_models(
    http: HttpTransport, provider: Provider, base_url: str, key: Secret
) -> tuple[ListedModel, ...]:
    """Return the models that the provider lists for the key.

    Empty means that it does not tell, or not in time.
    """
    target = _list_target(provider, base_url.rstrip("/"), key)
    with anyio.move_on_after(LIST_SECONDS):
        try:
            listing = as_object(await http.get(target))
        except ClientError:
            return ()
        rows = as_array(listing.get("models" if provider.api == "gemini" else "data"))
        return tuple(model for row in rows if (model := _listed_model(as_object(row))).name)
    return ()


def _list_target(provider: Provider, base: str, key: Secret) -> HttpTarget:
    if provider.api == "gemini":
        headers = {"x-goog-api-key": key.reveal()}
        return HttpTarget(url=f"{base}/models?pageSize=1000", headers=headers, key=key)
    if provider.api == "anthropic":
        headers = {"x-api-key": key.reveal(), "anthropic-version": "2023-06-01"}
        root = base.removesuffix("/v1")
        return HttpTarget(url=f"{root}/v1/models?limit=1000", headers=headers, key=key)
    headers = {"Authorization": f"Bearer {key.reveal()}"}
    return HttpTarget(url=f"{base}/models", headers=headers, key=key)


def _listed_model(row: dict[str, Any]) -> ListedModel:
    windows = (row.get(name) for name in ("max_input_tokens", "inputTokenLimit", "context_length"))
    return ListedModel(
        name=as_string(row.get("id")) or as_string(row.get("name")).removeprefix("models/"),
        context_window=next((count for window in windows if (count := as_count(window))), None),
    )


def choose_models(
    provider: str, names: Sequence[str], listed: Iterable[ListedModel]
) -> tuple[ListedModel, ...]:
    """Return the newest listed model of each name's family, one of known price before others.

    Args:
        provider: a name in `PROVIDERS`.
        names: a model of each family that is wanted; without a version it stands for itself.
        listed: what the key can call; a family that is not among it is left out.

    Returns:
        The models in the order of `names`; `names` themselves where none of them is listed.
    """
    models = {model.name: model for model in listed}
    chosen = dict[str, ListedModel]()
    for name in names:
        family, version = _family_of(name)
        same = [model for model in models.values() if _family_of(model.name)[0] == family]
        if name in models and not version:
            same = [models[name]]
        if same:
            newest = max(same, key=_newness_in(provider))
            chosen.setdefault(newest.name, newest)
    return tuple(chosen.values()) or tuple(ListedModel(name=name) for name in names)


def _family_of(model: str) -> tuple[_Family, _Version]:
    """Return the words of a name, and its version."""
    parts = [part for part in re.split(r"[-.:]", _DATE.sub("", model.lower())) if part]
    words = tuple(part for part in parts if not _NUMBER.fullmatch(part))
    return words, tuple(int(part.lstrip("v")) for part in parts if _NUMBER.fullmatch(part))


def _newness_in(provider: str) -> Callable[[ListedModel], tuple[bool, _Version, int]]:
    """Return the key to sort by: is the price known, the version, names without a date last."""

    def key(model: ListedModel) -> tuple[bool, _Version, int]:
        facts = find_model_facts(provider, model.name)
        priced = facts is not None and facts.price is not None
        return priced, _family_of(model.name)[1], -len(model.name)

    return key


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """The models that can be called from here."""

    specs: tuple[WorkerSpec, ...]
    """Hosted providers first, each provider's models in its own order."""
    silent: tuple[str, ...] = ()
    """Environment variables whose server does not answer."""
    unasked: tuple[WorkerSpec, ...] = ()
    """The workers of `specs` on local servers which nobody named."""


async def discover_workers(
    environ: Mapping[str, str], http: HttpTransport, *, probe: bool = True
) -> tuple[WorkerSpec, ...]:
    """Return the workers that the environment's keys and this machine's servers give.

    Args:
        environ: usually `os.environ`.
        http: the session to probe with.
        probe: whether to ask servers which models they have. Without it local servers, and
            servers named by an override such as OPENAI_BASE_URL, give no workers, and a hosted
            provider gives the models that we know.

    Returns:
        Hosted providers first, each provider's models in its own order.

    Raises:
        ConfigError: a variable holds a key or a URL that cannot be used.
    """
    return (await discover_pool(environ, http, probe=probe)).specs


async def discover_pool(
    environ: Mapping[str, str], http: HttpTransport, *, probe: bool = True
) -> Discovery:
    """Return the same, and which named servers do not answer.

    Arguments and errors are those of `discover`.
    """
    found: dict[str, tuple[WorkerSpec, ...]] = {}
    silent: list[str] = []
    hosted, to_probe = _list_providers(environ)
    named = {server.provider.name for server in to_probe if server.has_own_url}

    async def ask_server(server: _ProviderAccess) -> None:
        specs = await _probe_server(server, http)
        if specs is not None:
            found[server.provider.name] = specs
        elif server.has_own_url:
            silent.append(server.provider.url_vars[0])

    async def ask_hosted(server: _ProviderAccess) -> None:
        listed = await list_hosted_models(http, server.provider, server.base_url, server.key)
        found[server.provider.name] = _hosted_workers(server, listed)

    if probe:
        # Nothing that may raise runs in the group: it would wrap the error in an ExceptionGroup.
        async with anyio.create_task_group() as group:
            for server in to_probe:
                group.start_soon(ask_server, server)
            for server in hosted:
                group.start_soon(ask_hosted, server)
    else:
        found = {server.provider.name: _hosted_workers(server, ()) for server in hosted}
    return Discovery(
        specs=tuple(spec for name in PROVIDERS for spec in found.get(name, ())),
        silent=tuple(sorted(silent)),
        unasked=tuple(
            spec
            for provider in PROVIDERS.values()
            if provider.local and provider.name not in named
            for spec in found.get(provider.name, ())
        ),
    )


def _list_providers(
    environ: Mapping[str, str],
) -> tuple[list[_ProviderAccess], list[_ProviderAccess]]:
    """Return the hosted providers that have a key, and the servers that may be somewhere."""
    hosted: list[_ProviderAccess] = []
    servers: list[_ProviderAccess] = []
    for provider in filter(_is_findable, PROVIDERS.values()):
        access = _provider_access(provider, environ)
        if provider.api == "chat" and (provider.local or access.has_own_url):
            servers.append(access)
        elif access.key:
            hosted.append(access)
    return hosted, servers


def _is_findable(provider: Provider) -> bool:
    """Return True if keys and addresses alone tell the provider's models."""
    return bool(provider.base_url)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ProviderAccess:
    """A provider as this environment has it."""

    provider: Provider
    base_url: str
    key: Secret
    has_own_url: bool
    """Whether the environment names a base URL that is not the hosted provider's own."""


def _provider_access(provider: Provider, environ: Mapping[str, str]) -> _ProviderAccess:
    base_url = provider_url(provider, environ)
    if base_url:
        try:
            url_host(base_url)
        except ConfigError as error:
            raise ConfigError(f"{' or '.join(provider.url_vars)}: {error}") from None
    named = has_url_override(provider, environ) and (
        provider.local or base_url != provider.base_url
    )
    return _ProviderAccess(
        provider=provider, base_url=base_url, key=provider_key(provider, environ), has_own_url=named
    )


def _hosted_workers(
    server: _ProviderAccess, listed: tuple[ListedModel, ...]
) -> tuple[WorkerSpec, ...]:
    """Return the server's workers; `listed` holds the models that the key can call, if known."""
    name, base_url = server.provider.name, server.base_url if server.has_own_url else ""
    models = choose_models(name, server.provider.models, listed)
    workers = (known_worker(name, model) for model in models)
    return tuple(
        WorkerSpec(worker=worker, provider=name, base_url=base_url, key=server.key)
        for worker in workers
    )


async def _probe_server(
    server: _ProviderAccess, http: HttpTransport
) -> tuple[WorkerSpec, ...] | None:
    """Return the server's workers; None: it does not answer."""
    provider = server.provider
    address = ModelServer(
        kind=provider.name, base_url=server.base_url, key=server.key, named=server.has_own_url
    )
    models = await list_models(http, address)
    if models is None:
        return None
    # A server behind OPENAI_BASE_URL is most often not OpenAI: plain chat suits it best.
    name = provider.name if provider.local else "compatible"
    return tuple(
        WorkerSpec(
            worker=known_worker(name, model, server.base_url),
            provider=name,
            base_url=server.base_url,
            key=server.key,
            adapt=("no_effort",) if model.thinks is False else (),
        )
        for model in models
    )
