"""The settings file: one TOML file becomes frozen settings.

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

[resilience]
step_timeout_s = 120            # then another worker takes the step
hedge_s = 20                    # silence of the last step's worker before a second one is asked

[server]
running = 512                   # answers at the same time; more wait, and some are turned away
waiting = 1024

[[policies]]                    # see policies/settings.py
"""

from __future__ import annotations

import tomllib
from decimal import Decimal
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from batuta.core.usage import ASSUMED_PRICE
from batuta.errors import ConfigError
from batuta.policies.settings import PolicySetting


class LogForm(StrEnum):
    """What a server writes to stderr."""

    QUIET = "quiet"
    """What went wrong, as text."""
    JSON = "json"
    """What went wrong, and a line for each request, as JSON."""


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
    max_rounds: int | None = Field(default=None, ge=1)
    """None: one unasked, and as many as the API's greatest effort wants."""
    max_tokens: int | None = Field(default=None, ge=0)
    max_cost_usd: float | None = Field(default=None, ge=0)
    deadline_s: float | None = Field(default=None, gt=0)
    unknown_price: PriceSetting = PriceSetting(
        input=ASSUMED_PRICE.input, output=ASSUMED_PRICE.output
    )
    """What a call without a price counts as against dollars."""


class BaselinesSetting(_Strict):
    """What the baselines of the API learn from."""

    history: str | None = None
    """A file of outcomes, from the settings' folder; see solvers/history.py."""
    cascade: str | None = None
    """A folder of `batuta train selector`, from the settings' folder, whose cascade is served."""
    checker: str | None = None
    """The worker that checks the cascade's answers."""


class ResilienceSetting(_Strict):
    """How a failing or slow worker is got around."""

    step_timeout_s: float | None = Field(default=None, gt=0)
    hedge_s: float | None = Field(default=None, gt=0)
    breaker_failures: int = Field(default=5, ge=1)
    """Failures in a row after which a worker is left alone."""
    breaker_pause_s: float = Field(default=15.0, gt=0, le=300)
    """For how long, the first time; each next time twice as long."""


class ServerSetting(_Strict):
    """What `batuta serve` takes on."""

    running: int = Field(default=512, ge=1)
    """Answers worked on at the same time; jobs in the background apart."""
    waiting: int = Field(default=1024, ge=0)
    """Requests that may wait for one of them to end; the next ones are turned away."""
    patience_s: float = Field(default=30.0, ge=0)
    """How long a request may wait."""
    grace_s: float = Field(default=30.0, ge=0)
    """How long answers may go on once the server was asked to stop."""
    keep_days: float | None = Field(default=None, gt=0)
    """How long runs, responses and jobs are kept; None: until somebody deletes them (ended jobs:
    30 days)."""
    redis: str = ""
    """Where the rates of keys are counted if there are several replicas: redis://host:6379."""
    replicas: int = Field(default=1, ge=1)
    """How many there are; each counts its share for itself while Redis cannot be reached."""


class Settings(_Strict):
    """The whole file."""

    workers: tuple[WorkerSetting, ...] = ()
    conductor: ConductorSetting = ConductorSetting()
    limits: LimitsSetting = LimitsSetting()
    baselines: BaselinesSetting = BaselinesSetting()
    resilience: ResilienceSetting = ResilienceSetting()
    server: ServerSetting = ServerSetting()
    policies: tuple[PolicySetting, ...] = ()


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
