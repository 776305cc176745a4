"""Which models of a hosted provider a key can call: the newest of each family we name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import anyio

from batuta.clients.catalog import ListedModel, find_model_facts
from batuta.clients.decoding import as_array, as_count, as_object, as_string
from batuta.clients.http_target import HttpTarget, Secret
from batuta.clients.providers import Provider
from batuta.clients.transport import HttpTransport
from batuta.errors import ClientError

LIST_SECONDS = 2.5
"""How long a provider may take to list its models; then the names we know are taken."""
_DATE = re.compile(r"-(?:\d{4}-\d{2}-\d{2}|20\d{6})$")
_NUMBER = re.compile(r"v?\d{1,3}")

_Family = tuple[str, ...]
_Version = tuple[int, ...]


async def list_hosted_models(
    http: HttpTransport, provider: Provider, base_url: str, key: Secret
) -> tuple[ListedModel, ...]:
    """The models that the provider lists for the key; empty: it does not tell, or not in time."""
    target = _list_target(provider, base_url.rstrip("/"), key)
    with anyio.move_on_after(LIST_SECONDS):
        try:
            told = as_object(await http.get(target))
        except ClientError:
            return ()
        rows = as_array(told.get("models" if provider.api == "gemini" else "data"))
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
        context_window=next((count for told in windows if (count := as_count(told))), None),
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
    """The words of a name, and its version."""
    parts = [part for part in re.split(r"[-.:]", _DATE.sub("", model.lower())) if part]
    words = tuple(part for part in parts if not _NUMBER.fullmatch(part))
    return words, tuple(int(part.lstrip("v")) for part in parts if _NUMBER.fullmatch(part))


def _newness_in(provider: str) -> Callable[[ListedModel], tuple[bool, _Version, int]]:
    """Sorts by: whether the price is known, the version, and names without a date last."""

    def key(model: ListedModel) -> tuple[bool, _Version, int]:
        facts = find_model_facts(provider, model.name)
        priced = facts is not None and facts.price is not None
        return priced, _family_of(model.name)[1], -len(model.name)

    return key
