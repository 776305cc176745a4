"""Finds callable models through keys and addresses in the environment, and on local servers.

Some kinds of servers have functions of their own that list the models or fetch their details.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

import anyio

from batuta.clients.catalog import ListedModel, find_model_facts, known_worker, parameters_in
from batuta.clients.decoding import as_array, as_count, as_object, as_string
from batuta.clients.http_target import NO_KEY, HttpTarget, Secret, url_host
from batuta.clients.providers import (
    PROVIDERS,
    Provider,
    WorkerSpec,
    has_url_override,
    provider_key,
    provider_url,
)
from batuta.clients.transport import HttpTransport
from batuta.core import WorkerId
from batuta.errors import ClientError, ConfigError

PROBE_SECONDS = 0.3
"""Time limit for a server on a common port to list its models."""
NAMED_PROBE_SECONDS = 5.0
"""Time limit for a server at a configured address, which may be far away, to list its models."""
DETAIL_SECONDS = 1.0
"""Time limit for a server to return details of its models; models without details stay listed."""
MAX_MODELS = 16
"""How many of the models that a probed server lists are read; hosted providers have no such
limit."""
_NO_CHAT = ("embed", "rerank", "whisper", "tts", "bge-")
_BILLION = 1e9
_GATEWAYS = {"batuta"}
"""Values of `owned_by` from gateways, which listen on model servers' ports but serve no models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelServer:
    """A model server's address and key."""

    kind: str
    """A name in `PROVIDERS`."""
    base_url: str
    key: Secret = NO_KEY
    named: bool = False
    """Whether the address is configured; at a common port, another program may listen."""

    def api(self, path: str) -> HttpTarget:
        """Return the target for a path under the base URL."""
        return self._target(self.base_url + path)

    def root(self, path: str) -> HttpTarget:
        """Return the target for a path at the server's root, without `/v1`."""
        return self._target(self.base_url.removesuffix("/v1") + path)

    def _target(self, url: str) -> HttpTarget:
        headers = {"Authorization": f"Bearer {self.key.reveal()}"} if self.key else {}
        return HttpTarget(url=url, headers=headers, key=self.key)


async def list_models(http: HttpTransport, server: ModelServer) -> tuple[ListedModel, ...] | None:
    """Return the first `MAX_MODELS` chat models that the server lists.

    Returns None if the server cannot be reached, answers with an error, or takes too long.
    """
    listed: tuple[ListedModel, ...] | None = None
    with anyio.move_on_after(NAMED_PROBE_SECONDS if server.named else PROBE_SECONDS):
        try:
            listed = await _LISTS.get(server.kind, _list_served)(http, server)
        except ClientError:
            return None
    if listed is None:
        return None
    chat = [m for m in listed if not any(word in m.name.lower() for word in _NO_CHAT)]
    known = {model.name: model for model in chat[:MAX_MODELS]}
    if add_details := _DETAILS.get(server.kind):
        with anyio.move_on_after(DETAIL_SECONDS):  # details that arrived in time are kept
            await add_details(http, server, known)
    return tuple(known.values())


async def _list_ollama(http: HttpTransport, server: ModelServer) -> tuple[ListedModel, ...]:
    data = await http.get(server.root("/api/tags"))
    return tuple(
        ListedModel(
            name=name,
            parameters=parameters_in(
                as_string(as_object(as_object(row).get("details")).get("parameter_size"))
            ),
        )
        for row in as_array(as_object(data).get("models"))
        if (name := as_string(as_object(row).get("name")))
    )


async def _list_lmstudio(http: HttpTransport, server: ModelServer) -> tuple[ListedModel, ...]:
    data = await http.get(server.root("/api/v0/models"))
    rows = [as_object(row) for row in as_array(as_object(data).get("data"))]
    return tuple(
        ListedModel(
            name=name,
            context_window=as_count(row.get("max_context_length")) or None,
            parameters=parameters_in(name),
            tags=("vision",) if row.get("type") == "vlm" else None,
        )
        for row in rows
        if (name := as_string(row.get("id"))) and row.get("type") in {"llm", "vlm"}
    )


async def _list_served(http: HttpTransport, server: ModelServer) -> tuple[ListedModel, ...]:
    data = await http.get(server.api("/models"))
    rows = [as_object(row) for row in as_array(as_object(data).get("data"))]
    if not server.named:
        rows = [row for row in rows if row.get("owned_by") == server.kind]
    rows = [row for row in rows if row.get("owned_by") not in _GATEWAYS]
    return tuple(_served_model(row) for row in rows if as_string(row.get("id")))


def _served_model(row: Mapping[str, Any]) -> ListedModel:
    meta, name = as_object(row.get("meta")), as_string(row.get("id"))
    size = _count_billions(meta.get("n_params"))
    window = as_count(row.get("max_model_len")) or as_count(row.get("context_length"))
    return ListedModel(
        name=name,
        context_window=window or as_count(meta.get("n_ctx")) or None,
        parameters=size or parameters_in(name),
        tags=_listed_abilities(row),
    )


def _count_billions(count: object) -> float | None:
    """Return a number of parameters in billions; None if `count` is not a positive integer."""
    if isinstance(count, bool) or not isinstance(count, int) or count <= 0:
        return None
    return count / _BILLION


def _listed_abilities(row: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the abilities in the fields that OpenRouter sends; None if the row lacks them."""
    reads, takes = (
        as_object(row.get("architecture")).get("input_modalities"),
        row.get("supported_parameters"),
    )
    if not isinstance(reads, list) or not isinstance(takes, list):
        return None
    able = (("vision", "image" in reads), ("tools", "tools" in takes))
    return tuple(tag for tag, is_able in able if is_able)


Found = tuple[ListedModel, ...]
Known = dict[str, ListedModel]
"""A server's models by name. Details are added in place; models that do not chat are removed."""


async def _add_ollama_details(http: HttpTransport, server: ModelServer, known: Known) -> None:
    async def add_details(model: ListedModel) -> None:
        try:
            shown = as_object(await http.post(server.root("/api/show"), {"model": model.name}))
        except ClientError:
            return
        able = {as_string(each) for each in as_array(shown.get("capabilities"))}
        info = as_object(shown.get("model_info"))
        window = next((as_count(info[key]) for key in info if key.endswith(".context_length")), 0)
        tags = tuple(tag for tag in ("tools", "vision") if tag in able) if able else None
        thinks = "thinking" in able if able else None
        if able and "completion" not in able:
            del known[model.name]
        else:
            known[model.name] = replace(
                model, context_window=window or None, tags=tags, thinks=thinks
            )

    async with anyio.create_task_group() as group:
        for model in known.values():
            group.start_soon(add_details, model)


async def _add_llamacpp_details(http: HttpTransport, server: ModelServer, known: Known) -> None:
    for name, model in known.items():
        known[name] = await _llamacpp_model(http, server, model)


async def _llamacpp_model(
    http: HttpTransport, server: ModelServer, model: ListedModel
) -> ListedModel:
    """Return the model with its properties; a server of several models needs the model's name."""
    query = urlencode({"model": model.name})
    try:
        props = as_object(await http.get(server.root(f"/props?{query}")))
    except ClientError:
        return model
    window = as_count(as_object(props.get("default_generation_settings")).get("n_ctx"))
    sees, able = as_object(props.get("modalities")), as_object(props.get("chat_template_caps"))
    abilities = (
        ("vision", sees.get("vision") is True),
        ("tools", able.get("supports_tools") is True),
    )
    tags = tuple(tag for tag, is_able in abilities if is_able)
    return replace(model, context_window=window or model.context_window, tags=tags)


_LISTS: dict[str, Callable[[HttpTransport, ModelServer], Awaitable[Found]]] = {
    "ollama": _list_ollama,
    "lmstudio": _list_lmstudio,
}
_DETAILS: dict[str, Callable[[HttpTransport, ModelServer, Known], Awaitable[None]]] = {
    "ollama": _add_ollama_details,
    "llamacpp": _add_llamacpp_details,
}


LIST_SECONDS = 2.5
"""Time limit for a provider to list its models; then the names in `Provider.models` are used."""
_DATE = re.compile(r"-(?:\d{4}-\d{2}-\d{2}|20\d{6})$")
_NUMBER = re.compile(r"v?\d{1,3}")

_Family = tuple[str, ...]
_Version = tuple[int, ...]


async def list_hosted_models(
    http: HttpTransport, provider: Provider, base_url: str, key: Secret
) -> tuple[ListedModel, ...]:
    """Return the models on the first page of the provider's list for the key.

    The result is empty if the request fails or takes too long.
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
    """Return the newest listed model of each name's family, preferring models of known price.

    Args:
        provider: a name in `PROVIDERS`.
        names: one model of each requested family; a listed name without a version means only the
            model of that name.
        listed: the models that the key can call; families without a listed model are left out.

    Returns:
        The models in the order of `names`; `names` themselves if no family has a listed model.
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
    """Return the words of a model's name and the numbers of its version, without its date."""
    parts = [part for part in re.split(r"[-.:]", _DATE.sub("", model.lower())) if part]
    words = tuple(part for part in parts if not _NUMBER.fullmatch(part))
    return words, tuple(int(part.lstrip("v")) for part in parts if _NUMBER.fullmatch(part))


def _newness_in(provider: str) -> Callable[[ListedModel], tuple[bool, _Version, int]]:
    """Return a sort key: a known price first, then the version, then the shorter name."""

    def key(model: ListedModel) -> tuple[bool, _Version, int]:
        facts = find_model_facts(provider, model.name)
        priced = facts is not None and facts.price is not None
        return priced, _family_of(model.name)[1], -len(model.name)

    return key


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """The callable models that were found."""

    specs: tuple[WorkerSpec, ...]
    """In the order of `PROVIDERS`; a server's models in the order of its list, a hosted provider's
    in that of `Provider.models`. If two servers at configured addresses list a worker of the same
    id, the first is kept."""
    silent: tuple[str, ...] = ()
    """Environment variables with the address of a server whose models could not be listed."""
    unasked: tuple[WorkerSpec, ...] = ()
    """The workers of `specs` on local servers that are not configured, and of pulled models."""


async def discover_pool(environ: Mapping[str, str], http: HttpTransport) -> Discovery:
    """Return the models found through keys and addresses in `environ`, and on local servers.

    Args:
        environ: usually `os.environ`.
        http: the transport with which servers' models are listed.

    Raises:
        ConfigError: a variable contains an invalid key or URL, or names a key file that is empty or
            cannot be read.
    """
    by_provider: dict[str, tuple[WorkerSpec, ...]] = {}
    silent: list[str] = []
    hosted, to_probe = _list_providers(environ)
    named = {server.provider.name for server in to_probe if server.has_own_url}

    async def ask_server(server: _ProviderAccess) -> None:
        specs = await _probe_server(server, http)
        if specs is not None:
            by_provider[server.provider.name] = specs
        elif server.has_own_url:
            silent.append(server.provider.url_vars[0])

    async def ask_hosted(server: _ProviderAccess) -> None:
        listed = await list_hosted_models(http, server.provider, server.base_url, server.key)
        by_provider[server.provider.name] = _hosted_workers(server, listed)

    # These tasks do not raise: the group would wrap the error in an ExceptionGroup.
    async with anyio.create_task_group() as group:
        for server in to_probe:
            group.start_soon(ask_server, server)
        for server in hosted:
            group.start_soon(ask_hosted, server)
    by_id: dict[WorkerId, WorkerSpec] = {}
    for spec in (spec for name in PROVIDERS for spec in by_provider.get(name, ())):
        by_id.setdefault(spec.worker.id, spec)
    return Discovery(
        specs=tuple(by_id.values()),
        silent=tuple(sorted(silent)),
        unasked=tuple(
            spec
            for provider in PROVIDERS.values()
            if provider.local and provider.name not in named
            for spec in by_provider.get(provider.name, ())
        ),
    )


def _list_providers(
    environ: Mapping[str, str],
) -> tuple[list[_ProviderAccess], list[_ProviderAccess]]:
    """Return the hosted providers that have a key, and the servers to probe."""
    hosted: list[_ProviderAccess] = []
    servers: list[_ProviderAccess] = []
    for provider in PROVIDERS.values():
        if not provider.base_url:
            continue  # a key or an address alone does not suffice to find its models
        access = _provider_access(provider, environ)
        if provider.api == "chat" and (provider.local or access.has_own_url):
            servers.append(access)
        elif access.key:
            hosted.append(access)
    return hosted, servers


@dataclass(frozen=True, slots=True, kw_only=True)
class _ProviderAccess:
    """A provider with its URL and key in this environment."""

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
    """Return a hosted provider's workers; `listed` is empty if its models could not be listed."""
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
    """Return the server's workers; None if its models could not be listed."""
    provider = server.provider
    address = ModelServer(
        kind=provider.name, base_url=server.base_url, key=server.key, named=server.has_own_url
    )
    models = await list_models(http, address)
    if models is None:
        return None
    # A server at OPENAI_BASE_URL is usually not OpenAI's, so plain chat completions are used.
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
