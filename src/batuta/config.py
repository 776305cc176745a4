"""Settings and the environment become an orchestra that can be played."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from batuta.clients import (
    BreakerPolicy,
    Health,
    Http,
    WorkerSpec,
    discover,
    key_of,
    open_clients,
    provider_of,
    url_of,
)
from batuta.clients.discover import worker_of
from batuta.clients.providers import overridden
from batuta.clients.secret import Secret
from batuta.core import Client, Conductor, Limits, Pool, Price, Sampling, Worker, WorkerId
from batuta.embedded.conductor import is_policy, open_policy
from batuta.engine import Patience
from batuta.errors import ConfigError
from batuta.language import Rendering
from batuta.policies import Policies
from batuta.policies.settings import policies_of
from batuta.settings import (
    ConductorSetting,
    ServerSetting,
    Settings,
    WorkerSetting,
    read_settings,
)
from batuta.solvers import Learned, best, plan_solve_verify, single, vote
from batuta.solvers.selector import is_selector, open_selector

FILE = "batuta.toml"
REHEARSAL = "rehearsal"
DISCOVER = "discover"
HAND_WRITTEN = "hand-written"
PROMPTED = "prompted/"
"""What the name of a conductor that is a worker of the pool begins with."""
FIXED = ("best", "plan-solve-verify", "vote")


@dataclass(frozen=True, slots=True)
class Ensemble:
    """A pool that can be played and who conducts it."""

    source: str
    """Where it comes from, for people to read."""
    pool: Pool
    clients: Mapping[WorkerId, Client]
    conductor: Conductor
    limits: Limits
    simulated: bool = False
    """True for the rehearsal orchestra: its workers are programs, not language models."""
    history: Path | None = None
    """Outcomes of the workers, for the served baselines that learn."""
    cascade: Path | None = None
    """The folder of the cascade that is served."""
    checker: str | None = None
    """The worker that checks its answers."""
    health: Mapping[WorkerId, Health] = field(default_factory=dict[WorkerId, Health])
    """How each worker does; nobody is watched in the rehearsal."""
    patience: Patience = Patience()
    policies: Policies = field(default_factory=Policies)
    most_rounds: int | None = None
    """Rounds that a caller may ask for; None: the API's own limit."""
    server: ServerSetting = ServerSetting()
    """What a server over it takes on."""


def data_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where runs are stored: BATUTA_HOME, or the user's data folder."""
    if home := environ.get("BATUTA_HOME"):
        return Path(home)
    base = environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "batuta"


def store_target(environ: Mapping[str, str] = os.environ) -> str:
    """The database of runs: BATUTA_STORE (a path or a URL), or a file in the data folder."""
    return environ.get("BATUTA_STORE") or str(data_folder(environ) / "runs.db")


def jobs_target(environ: Mapping[str, str] = os.environ) -> str:
    """The database of background jobs: that of the runs, or beside their file one of its own."""
    store = store_target(environ)
    return store if "://" in store else str(Path(store).with_name("jobs.db"))


async def open_ensemble(
    http: Http,
    *,
    pool: str | None = None,
    conductor: str | None = None,
    environ: Mapping[str, str] = os.environ,
    time_scale: float | None = None,
) -> Ensemble:
    """The orchestra that `pool` names, or the first there is.

    Args:
        http: the session of its clients.
        pool: `rehearsal`, `rehearsal:shifted` (the same after a change of its workers),
            `discover` (keys and local servers), or a TOML file. None: the file BATUTA_CONFIG
            names, else `batuta.toml` here, else the environment's keys, else the rehearsal.
        conductor: overrides the file's: a worker's id, `best`, `vote`, `plan-solve-verify`,
            `single/<id>`, or `hand-written` (rehearsal only).
        environ: where keys and overrides are looked up.
        time_scale: how slow the rehearsal's workers are, 1.0 being a natural pace.

    Raises:
        ConfigError: no such pool, worker or conductor, or a key is missing.
    """
    if pool is None:
        named = environ.get("BATUTA_CONFIG") or (FILE if Path(FILE).is_file() else None)
        keyed = () if named else await discover(environ, http, probe=False)
        if not named:
            if not keyed:
                return rehearsal(conductor, time_scale)
            return _assembled("the environment's keys", keyed, Settings(), conductor, http)
        pool = named
    kind, _, world = pool.partition(":")
    if kind == REHEARSAL:
        return rehearsal(conductor, time_scale, world)
    if pool == DISCOVER:
        found = await discover(environ, http)
        if not found:
            raise ConfigError(
                "no key in the environment and no local server was found; set OPENAI_API_KEY, "
                "ANTHROPIC_API_KEY, GEMINI_API_KEY or OPENROUTER_API_KEY, or start Ollama or vLLM"
            )
        return _assembled("what was found here", found, Settings(), conductor, http)
    return await _from_file(Path(pool), conductor, http, environ)


async def _from_file(
    path: Path, conductor: str | None, http: Http, environ: Mapping[str, str]
) -> Ensemble:
    settings = read_settings(path)
    if settings.workers:
        specs = tuple(_spec(worker, environ) for worker in settings.workers)
    else:
        specs = await discover(environ, http)
    if not specs:
        raise ConfigError(f"{path} names no workers and the environment has no keys")
    assembled = _assembled(str(path), specs, settings, conductor, http)
    known = settings.baselines
    return replace(
        assembled,
        history=path.parent / known.history if known.history else None,
        cascade=path.parent / known.cascade if known.cascade else None,
        checker=known.checker,
    )


def _spec(setting: WorkerSetting, environ: Mapping[str, str]) -> WorkerSpec:
    """A worker of the file, completed by what is known of its provider and model."""
    provider = provider_of(setting.provider)
    known = worker_of(setting.provider, setting.model)
    price = Price(**setting.price.model_dump()) if setting.price else known.price
    worker = Worker(
        WorkerId(setting.id),
        setting.model,
        setting.description or known.description,
        tuple(dict.fromkeys((*known.tags, *setting.tags))),
        setting.context_window or known.context_window,
        price,
        Sampling(**setting.sampling.model_dump()),
        setting.strength,
    )
    key = key_of(provider, environ)
    if setting.key_env:
        if not environ.get(setting.key_env):
            raise ConfigError(f"worker {setting.id} needs the variable {setting.key_env}")
        key = Secret(environ[setting.key_env])
    own = url_of(provider, environ) if overridden(provider, environ) else ""
    url = setting.base_url.rstrip("/") or own
    return WorkerSpec(
        worker, setting.provider, url, key, setting.concurrency, setting.rpm, setting.tpm
    )


def _assembled(
    source: str,
    specs: tuple[WorkerSpec, ...],
    settings: Settings,
    conductor: str | None,
    http: Http,
) -> Ensemble:
    try:
        pool = Pool(tuple(spec.worker for spec in specs))
    except ValueError as error:
        raise ConfigError(f"{source}: {error}") from None
    resilience = settings.resilience
    breaking = BreakerPolicy(resilience.breaker_failures, resilience.breaker_pause_s)
    health = {worker.id: Health(breaking) for worker in pool}
    clients = open_clients(specs, http, health)
    choice = conductor or settings.conductor.worker or pool.ranked()[0].id
    limits = settings.limits
    return Ensemble(
        source,
        pool,
        clients,
        _conductor(choice, pool, clients, settings.conductor),
        Limits(
            limits.max_steps,
            limits.max_rounds or 1,
            limits.max_tokens,
            limits.max_cost_usd,
            limits.deadline_s,
            Price(**limits.unknown_price.model_dump()),
        ),
        health=health,
        patience=Patience(resilience.step_timeout_s, resilience.hedge_s),
        policies=policies_of(settings.policies),
        most_rounds=limits.max_rounds,
        server=settings.server,
    )


def rehearsal(
    conductor: str | None = None, time_scale: float | None = None, world: str = ""
) -> Ensemble:
    """The embedded orchestra: simulated workers, offline.

    Raises:
        ConfigError: no such conductor, or no such world.
    """
    from batuta.rehearsal import CONDUCTOR_WORKER, HandWritten, clients, pool, trained  # noqa: PLC0415 - only when played
    from batuta.rehearsal.orchestra import WORLDS  # noqa: PLC0415 - same

    if world not in WORLDS:
        known = ", ".join(f"{REHEARSAL}:{name}" if name else REHEARSAL for name in WORLDS)
        raise ConfigError(f"there is no pool {REHEARSAL}:{world}; choose one of: {known}")
    players = clients(time_scale=1.0 if time_scale is None else time_scale, world=world)
    workers = pool(world)
    if conductor is None:
        chosen: Conductor = learned_from(trained())
    elif conductor == HAND_WRITTEN:
        model = HandWritten() if time_scale is None else HandWritten(time_scale)
        chosen = Learned("rehearsal/hand-written", model, worker=CONDUCTOR_WORKER)
    else:
        chosen = _conductor(str(conductor), workers, players, ConductorSetting())
    after = " after the shift" if world else ""
    source = f"the rehearsal orchestra{after} (simulated workers)"
    return Ensemble(source, workers, players, chosen, Limits(), simulated=True)


def learned_from(folder: Path) -> Learned:
    """The conductor that was trained into that folder.

    Raises:
        ConfigError: the folder cannot be used.
    """
    model, card, name = open_policy(folder)
    return Learned(name, model, card.rendering, card.sampling, card.rounds)


def _conductor(
    name: str, pool: Pool, clients: Mapping[WorkerId, Client], setting: ConductorSetting
) -> Conductor:
    """The conductor of that name, or of that folder."""
    if is_selector(Path(name)):
        return open_selector(Path(name))
    if is_policy(Path(name)):
        return learned_from(Path(name))
    if name in FIXED:
        return {"best": best, "plan-solve-verify": plan_solve_verify, "vote": vote}[name]()
    if name.startswith("single/") and name.removeprefix("single/") in pool:
        return single(name.removeprefix("single/"))
    if name not in pool:
        known = ", ".join((*FIXED, *(f"{worker.id}" for worker in pool)))
        raise ConfigError(
            f"no conductor {name!r}; choose the folder of a trained policy, or one of: {known}"
        )
    rendering = Rendering(setting.descriptions, setting.prices, setting.examples)
    sampling = Sampling(temperature=setting.temperature, max_tokens=setting.max_tokens)
    worker = pool[name]
    name = f"{PROMPTED}{worker.id}"
    return Learned(name, clients[worker.id], rendering, sampling, worker=worker)


def describe(orchestra: Ensemble) -> dict[str, Any]:
    """The orchestra in words, for people and for `--json`."""
    return {
        "source": orchestra.source,
        "simulated": orchestra.simulated,
        "conductor": orchestra.conductor.name,
        "workers": [str(worker.id) for worker in orchestra.pool],
    }
