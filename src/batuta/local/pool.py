"""Workers with the models that were pulled to this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal

from batuta.clients import WorkerSpec
from batuta.clients.discovery import Discovery
from batuta.clients.providers import LOCAL
from batuta.core import Price, Sampling, Worker, WorkerId
from batuta.errors import ConfigError
from batuta.local.catalogue import (
    CONTEXT,
    MAX_ANSWER,
    MODELS,
    cached_models,
    choose_known,
    pulled_file,
)
from batuta.local.llama_backends import ServingOptions

_FREE = Price(input=Decimal(0), output=Decimal(0))


def local_spec(name: str) -> WorkerSpec:
    """Return a worker with a known model, free of charge; the model need not be pulled.

    Raises:
        ConfigError: the model is unknown.
    """
    (model,) = choose_known([name])
    worker = Worker(
        id=WorkerId(name),
        model=name,
        description=model.description,
        tags=("local", f"licence:{model.licence.lower()}"),
        context_window=CONTEXT,
        price=_FREE,
        sampling=Sampling(temperature=0.0, max_tokens=MAX_ANSWER),
        parameters=model.parameters,
    )
    return WorkerSpec(worker=worker, provider=LOCAL, concurrency=ServingOptions().slots)


def pulled_specs(
    names: Sequence[str] = (), environ: Mapping[str, str] = os.environ
) -> tuple[WorkerSpec, ...]:
    """Return workers for the named models; without names, for all models that were pulled.

    Raises:
        ConfigError: a model is unknown or was not pulled, or no model was pulled.
    """
    known = choose_known(names or MODELS)
    here = [model for model in known if pulled_file(model, environ) is not None]
    missing = [model.name for model in known if model not in here]
    if missing and (names or not here):
        if not names:
            raise ConfigError(
                f"no local model was pulled yet: run batuta local pull {missing[0]}, or choose "
                f"another one ({', '.join(MODELS)})"
            )
        raise ConfigError(
            f"these local models were not pulled yet: run batuta local pull {' '.join(missing)}"
        )
    return tuple(local_spec(model.name) for model in here)


def add_pulled(found: Discovery, environ: Mapping[str, str] = os.environ) -> Discovery:
    """Return `found` with workers for the models in the user's cache that no server serves yet.

    They also join `unasked`.
    """
    served = {spec.worker.model for spec in found.specs}
    added = tuple(
        local_spec(model.name) for model in cached_models(environ) if model.name not in served
    )
    return replace(found, specs=(*found.specs, *added), unasked=(*found.unasked, *added))
