"""Asking a server which models it has, and what they can do: one function a kind of server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

import anyio

from batuta.clients.catalog import ListedModel, parameters_in
from batuta.clients.decoding import as_array, as_count, as_object, as_string
from batuta.clients.http_target import NO_KEY, HttpTarget, Secret
from batuta.clients.transport import HttpTransport
from batuta.errors import ClientError

PROBE_SECONDS = 0.3
"""How long a server may take to list its models."""
DETAIL_SECONDS = 1.0
"""How long it may then take to tell more of them; without that they are listed all the same."""
MODELS_AT_MOST = 16
"""Most models of one server."""
_NO_CHAT = ("embed", "rerank", "whisper", "tts", "bge-")
_BILLION = 1e9
_GATEWAYS = {"batuta"}
"""Programs that listen on common ports and are no servers of models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelServer:
    """The address of a server of models."""

    kind: str
    """A name in `PROVIDERS`."""
    base_url: str
    key: Secret = NO_KEY
    named: bool = False
    """Whether somebody named this address; on a common port anything may listen."""

    def api(self, path: str) -> HttpTarget:
        """Return an address under the base URL."""
        return self._target(self.base_url + path)

    def root(self, path: str) -> HttpTarget:
        """Return an address of the server itself, beside its `/v1`."""
        return self._target(self.base_url.removesuffix("/v1") + path)

    def _target(self, url: str) -> HttpTarget:
        headers = {"Authorization": f"Bearer {self.key.reveal()}"} if self.key else {}
        return HttpTarget(url=url, headers=headers, key=self.key)


async def list_models(http: HttpTransport, server: ModelServer) -> tuple[ListedModel, ...] | None:
    """Return the models that can chat, at most `MODELS_AT_MOST`.

    None means that the server does not answer.
    """
    found: tuple[ListedModel, ...] | None = None
    with anyio.move_on_after(PROBE_SECONDS):
        try:
            found = await _LISTS.get(server.kind, _list_served)(http, server)
        except ClientError:
            return None
    if found is None:
        return None
    known = found[:MODELS_AT_MOST]
    with anyio.move_on_after(DETAIL_SECONDS):
        known = await _DETAILS.get(server.kind, _no_details)(http, server, known)
    return tuple(m for m in known if not any(word in m.name.lower() for word in _NO_CHAT))


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
        tags=_told_abilities(row),
    )


def _count_billions(count: object) -> float | None:
    """Return a number of parameters in billions; None: it is none."""
    if isinstance(count, bool) or not isinstance(count, int) or count <= 0:
        return None
    return count / _BILLION


def _told_abilities(row: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the abilities that OpenRouter and its like tell; None if this server tells none."""
    reads, takes = (
        as_object(row.get("architecture")).get("input_modalities"),
        row.get("supported_parameters"),
    )
    if not isinstance(reads, list) or not isinstance(takes, list):
        return None
    able = (("vision", "image" in reads), ("tools", "tools" in takes))
    return tuple(tag for tag, is_able in able if is_able)


Found = tuple[ListedModel, ...]


async def _no_details(_http: HttpTransport, _server: ModelServer, found: Found) -> Found:
    return found


async def _ollama_details(http: HttpTransport, server: ModelServer, found: Found) -> Found:
    details: dict[str, ListedModel | None] = {model.name: model for model in found}

    async def ask_about(model: ListedModel) -> None:
        try:
            shown = as_object(await http.post(server.root("/api/show"), {"model": model.name}))
        except ClientError:
            return
        able = {as_string(each) for each in as_array(shown.get("capabilities"))}
        info = as_object(shown.get("model_info"))
        window = next((as_count(info[key]) for key in info if key.endswith(".context_length")), 0)
        tags = tuple(tag for tag in ("tools", "vision") if tag in able) if able else None
        thinks = "thinking" in able if able else None
        known = replace(model, context_window=window or None, tags=tags, thinks=thinks)
        details[model.name] = None if able and "completion" not in able else known

    with anyio.move_on_after(DETAIL_SECONDS):
        async with anyio.create_task_group() as group:
            for model in found:
                group.start_soon(ask_about, model)
    return tuple(model for model in details.values() if model is not None)


async def _llamacpp_details(http: HttpTransport, server: ModelServer, found: Found) -> Found:
    return tuple([await _llamacpp_model(http, server, model) for model in found])


async def _llamacpp_model(
    http: HttpTransport, server: ModelServer, model: ListedModel
) -> ListedModel:
    """Ask about one model: a server of several tells of the one that the query names."""
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
_DETAILS: dict[str, Callable[[HttpTransport, ModelServer, Found], Awaitable[Found]]] = {
    "ollama": _ollama_details,
    "llamacpp": _llamacpp_details,
}
