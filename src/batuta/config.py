"""One TOML file and the environment become frozen settings, and settings an orchestra.

[[workers]]
id = "sonnet"
provider = "anthropic"          # a name that `batuta pool list` knows, or "compatible"
model = "claude-sonnet-4-5"
base_url = ""                   # for "compatible" and for proxies
key_env = "ANTHROPIC_API_KEY"   # by default the provider's own variable
description = "Strong at code and at following instructions."
tags = ["region:us"]
price = { input = 3, output = 15, cached = 0.3 }    # dollars per million tokens
strength = 0.8                  # share it answers rightly alone, as you believe
sampling = { temperature = 0.2, max_tokens = 4096, effort = "low" }
concurrency = 32

[conductor]
worker = "sonnet"               # whose model writes the workflow; or a fixed one: "vote"

[limits]
max_steps = 5
max_rounds = 1
max_cost_usd = 0.50
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from batuta.clients import Http, WorkerSpec, discover, key_of, open_clients, provider_of, url_of
from batuta.clients.discover import worker_of
from batuta.clients.providers import overridden
from batuta.clients.secret import Secret
from batuta.core import Client, Conductor, Limits, Pool, Price, Sampling, Worker, WorkerId
from batuta.embedded.conductor import is_policy, open_policy
from batuta.errors import ConfigError
from batuta.language import Rendering
from batuta.solvers import Learned, best, plan_solve_verify, single, vote
from batuta.solvers.selector import is_selector, open_selector

FILE = "batuta.toml"
REHEARSAL = "rehearsal"
DISCOVER = "discover"
HAND_WRITTEN = "hand-written"
PROMPTED = "prompted/"
"""What the name of a conductor that is a worker of the pool begins with."""
FIXED = ("best", "plan-solve-verify", "vote")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PriceSetting(_Strict):
    """Dollars per million tokens."""

    input: Decimal = Field(ge=0)
    output: Decimal = Field(ge=0)
    cached: Decimal | None = Field(default=None, ge=0)
    cache_write: Decimal | None = Field(default=None, ge=0)


class SamplingSetting(_Strict):
    """How a worker samples."""

    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1)
    stop: tuple[str, ...] = ()
    seed: int | None = None
    effort: str | None = None


class WorkerSetting(_Strict):
    """A worker and how it is reached."""

    id: str = Field(min_length=1)
    model: str = Field(min_length=1)
    provider: str = "compatible"
    base_url: str = ""
    key_env: str = ""
    description: str = ""
    tags: tuple[str, ...] = ()
    context_window: int | None = Field(default=None, ge=1)
    price: PriceSetting | None = None
    strength: float | None = Field(default=None, ge=0, le=1)
    sampling: SamplingSetting = SamplingSetting()
    concurrency: int = Field(default=32, ge=1)
    rpm: int | None = Field(default=None, ge=1)
    tpm: int | None = Field(default=None, ge=1)


class ConductorSetting(_Strict):
    """Who writes the workflow and what it is shown."""

    worker: str | None = None
    descriptions: bool = True
    prices: bool = False
    examples: bool = True
    temperature: float = Field(default=1.0, ge=0)
    max_tokens: int = Field(default=1024, ge=16)


class LimitsSetting(_Strict):
    """What a run may spend unless a request says less."""

    max_steps: int = Field(default=5, ge=1)
    max_rounds: int = Field(default=1, ge=1)
    max_tokens: int | None = Field(default=None, ge=0)
    max_cost_usd: float | None = Field(default=None, ge=0)
    deadline_s: float | None = Field(default=None, gt=0)


class BaselinesSetting(_Strict):
    """What the baselines of the API learn from."""

    history: str | None = None
    """A file of outcomes, from the settings' folder; see solvers/history.py."""


class Settings(_Strict):
    """The whole file."""

    workers: tuple[WorkerSetting, ...] = ()
    conductor: ConductorSetting = ConductorSetting()
    limits: LimitsSetting = LimitsSetting()
    baselines: BaselinesSetting = BaselinesSetting()


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


def read_settings(path: Path) -> Settings:
    """The settings in a TOML file.

    Raises:
        ConfigError: it cannot be read, is no TOML, or has a setting that cannot be used.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    try:
        return Settings.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{path}: {where}: {first['msg']}") from None


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
    outcomes = settings.baselines.history
    return replace(assembled, history=path.parent / outcomes) if outcomes else assembled


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
    clients = open_clients(specs, http)
    choice = conductor or settings.conductor.worker or pool.ranked()[0].id
    limits = settings.limits
    return Ensemble(
        source,
        pool,
        clients,
        _conductor(choice, pool, clients, settings.conductor),
        Limits(
            limits.max_steps,
            limits.max_rounds,
            limits.max_tokens,
            limits.max_cost_usd,
            limits.deadline_s,
        ),
    )


def rehearsal(
    conductor: str | None = None, time_scale: float | None = None, world: str = ""
) -> Ensemble:
    """The embedded orchestra: simulated workers, offline.

    Raises:
        ConfigError: no such conductor, or no such world.
    """
    from batuta.rehearsal import HandWritten, clients, pool, trained  # noqa: PLC0415 - only when played
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
        chosen = Learned("rehearsal/hand-written", model)
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
    return Learned(name, model, card.rendering, card.sampling)


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
    return Learned(f"{PROMPTED}{worker.id}", clients[worker.id], rendering, sampling)


def describe(orchestra: Ensemble) -> dict[str, Any]:
    """The orchestra in words, for people and for `--json`."""
    return {
        "source": orchestra.source,
        "simulated": orchestra.simulated,
        "conductor": orchestra.conductor.name,
        "workers": [str(worker.id) for worker in orchestra.pool],
    }
