"""The identity of a worker: its model, its address and its options, which decide its replies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from hashlib import blake2b
from typing import Any, Protocol, runtime_checkable

import orjson

from batuta.clients.providers import WorkerSpec, find_provider
from batuta.core import Client

Identity = Mapping[str, str]
"""Facts by their names in the settings; one that may hold a secret is given as a digest."""


@runtime_checkable
class IdentifiedClient(Protocol):
    """A client that knows the identity of its worker."""

    @property
    def identity(self) -> Identity:
        """The facts; equal ones mean that equal requests may be answered from one journal."""
        ...


def client_identity(client: Client) -> Identity:
    """Return the facts of a client, or none if it does not know them."""
    return client.identity if isinstance(client, IdentifiedClient) else {}


def spec_identity(spec: WorkerSpec) -> Identity:
    """Return the facts of a worker, without those that say nothing."""
    url = spec.base_url or find_provider(spec.provider).base_url
    chosen = {name: value for name, value in asdict(spec.worker.sampling).items() if value}
    places = [dict(spec_identity(place.spec)) for place in spec.deployments]
    return {
        "model": spec.worker.model,
        "provider": spec.provider,
        "base_url": _digest_value(url),
        **({"sampling": _digest_value(chosen)} if chosen else {}),
        **({"extra_body": _digest_value(spec.extra_body)} if spec.extra_body else {}),
        **({"deployments": _digest_value(places)} if places else {}),
    }


def identity_digest(identity: Identity) -> str:
    """Return a short name of all facts."""
    return _digest_value(dict(identity))


def _digest_value(value: Any) -> str:
    text = orjson.dumps(value, default=str, option=orjson.OPT_SORT_KEYS)
    return blake2b(text, digest_size=8).hexdigest()
