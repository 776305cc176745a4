"""The settings file: one TOML file becomes frozen settings; docs/configuration.md shows it.

A setting that could have no effect beside the others is refused, by one sentence that names it.
"""

from __future__ import annotations

import re
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from batuta.config.aliases import LONGEST_NAME
from batuta.config.plan_rule_settings import (
    ApprovalSetting,
    PlanRuleSettings,
    WebhookSetting,
)
from batuta.config.preset_settings import PresetSetting
from batuta.config.session_settings import SessionsSetting
from batuta.config.settings_file import StrictModel
from batuta.config.tool_settings import FilesSetting, ToolsSetting
from batuta.config.worker_settings import EffortWord, ExtraBody, PriceSetting, WorkerSetting
from batuta.core import MAX_ROUNDS, MAX_STEPS
from batuta.embedded.policy import is_policy
from batuta.guardrails.settings import GuardrailSetting
from batuta.usage import ASSUMED_PRICE


class LogFormat(StrEnum):
    """The form of a server's log on stderr."""

    QUIET = "quiet"
    """Errors alone, as text."""
    JSON = "json"
    """Errors, and a line for each request, as JSON."""


_OF_ITS_MODEL = ("concurrency", "context_window", "extra_body", "price", "rpm", "tags", "tpm")
"""Settings of [conductor] that mean nothing of a worker, which has its own."""


class ConductorSetting(StrictModel):
    """The conductor, and what it is shown."""

    worker: str | None = None
    """A worker of the pool, a fixed conductor, or the folder of a trained one."""
    model: str = ""
    """A model that conducts and is no worker: then how it is reached, as for a worker."""
    provider: str = "compatible"
    base_url: str = ""
    key_env: str = ""
    price: PriceSetting | None = None
    context_window: int | None = Field(default=None, ge=1)
    tags: tuple[str, ...] = ()
    extra_body: ExtraBody = Field(default={})
    """Further fields of the request's body, for a model that is no worker."""
    concurrency: int = Field(default=32, ge=1)
    rpm: int | None = Field(default=None, ge=1)
    tpm: int | None = Field(default=None, ge=1)
    card: str = ""
    """The folder of a trained conductor that the model serves: it brings its prompt, sampling and
    rounds with it."""
    descriptions: bool = True
    prices: bool = True
    examples: bool = True
    prompt: Literal["auto", "full", "brief"] = "auto"
    """Whether the prompt is long or short; `auto`: short for a model known to be small."""
    structured: bool | Literal["auto"] = "auto"
    """Whether the provider holds the model to the form of a workflow. `auto`: wherever it can, and
    freely where it refuses; true: where it refuses, the form is told in words."""
    temperature: float | None = Field(default=None, ge=0)
    """None: the card's, else 1."""
    max_tokens: int | None = Field(default=None, ge=16)
    """None: the card's, else 1,024, and more for a model that reasons unasked."""
    effort: EffortWord | None = None
    """None: low for a model that reasons unasked."""
    breaker_questions: int = Field(default=3, ge=1)
    """Questions in a row without a workflow after which the model is skipped."""
    breaker_pause_s: float = Field(default=60.0, gt=0, le=300)
    """Seconds of the first pause; each next one is twice as long."""

    @model_validator(mode="before")
    @classmethod
    def _of_a_name(cls, data: Any) -> Any:
        return {"worker": data} if isinstance(data, str) else data

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if self.worker and self.model:
            raise ValueError("there are two conductors: name `worker`, or `provider` and `model`")
        if not self.model and self.model_fields_set & {"provider", "base_url", "key_env", "card"}:
            raise ValueError("a conductor that is not a worker needs a `model`")
        if not self.model:
            self.refuse_settings(_OF_ITS_MODEL, "is of a conductor with a `model` of its own")
        return self


class SystemSetting(StrictModel):
    """The system that answers under a served name."""

    conductor: str | None = None
    """A worker of the pool, a fixed conductor, or the folder of a trained one."""
    selector: str | None = None
    """The folder of a trained selector."""

    @model_validator(mode="before")
    @classmethod
    def _of_a_name(cls, data: Any) -> Any:
        return {"conductor": data} if isinstance(data, str) else data

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if self.conductor and self.selector:
            raise ValueError("name a `conductor` or a `selector`, and not both")
        return self

    @property
    def name(self) -> str | None:
        """Whichever is set."""
        return self.conductor or self.selector


class ExploreSetting(StrictModel):
    """How much a system may try to learn what is better."""

    share: float = Field(gt=0, le=0.5)
    """Share of the requests on which it explores."""
    usd_per_day: Decimal = Field(ge=0)
    """Dollars of all explored runs of a day (UTC)."""


class MiniSetting(SystemSetting):
    """The system that answers as batuta-mini, and the alternatives that it may try."""

    explore: ExploreSetting | None = None
    """None: nothing is tried."""


class LimitsSetting(StrictModel):
    """Limits of a run, unless its request sets lower ones."""

    max_steps: int = Field(default=MAX_STEPS, ge=1, le=MAX_STEPS)
    max_rounds: int | None = Field(default=None, ge=1, le=MAX_ROUNDS)
    """None: one unasked, and as many as the API's greatest effort wants."""
    max_tokens: int | None = Field(default=None, ge=0)
    max_cost_usd: float | None = Field(default=None, ge=0)
    deadline_s: float | None = Field(default=None, gt=0)
    unknown_price: PriceSetting = PriceSetting(
        input=ASSUMED_PRICE.input, output=ASSUMED_PRICE.output
    )
    """The price that a call without a known price counts as against dollars."""


class BaselinesSetting(StrictModel):
    """The records from which the API's baselines learn."""

    history: str | None = None
    """A file of outcomes, from the settings' folder; see solvers/history.py."""
    cascade: str | None = None
    """A folder of `batuta train selector`, from the settings' folder, whose cascade is served."""
    checker: str | None = None
    """The worker that checks the cascade's answers."""


class ResilienceSetting(StrictModel):
    """How a failing or slow worker is got around."""

    step_timeout_s: float | None = Field(default=None, gt=0)
    hedge_s: float | None = Field(default=None, gt=0)
    breaker_failures: int = Field(default=5, ge=1)
    """Failures in a row after which a worker is skipped."""
    breaker_pause_s: float = Field(default=15.0, gt=0, le=300)
    """Seconds of the first pause; each next one is twice as long."""

    @model_validator(mode="after")
    def _hedge_comes_first(self) -> Self:
        if self.hedge_s and self.step_timeout_s and self.hedge_s >= self.step_timeout_s:
            raise ValueError("`hedge_s` must be less than `step_timeout_s`: no step lasts longer")
        return self


def _check_origin(origin: str) -> str:
    plain = origin.rstrip("/").lower()
    if plain != "*" and not _ORIGIN.fullmatch(plain):
        raise ValueError("an origin is like https://app.example.org, or *")
    return plain


_ORIGIN = re.compile(r"https?://[^/\s?#@]+")
Origin = Annotated[str, AfterValidator(_check_origin)]


class ServerSetting(StrictModel):
    """Settings of `batuta serve`."""

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
    connections: int = Field(default=4096, ge=1)
    """Connections at the same time; fewer if the process may not open that many files."""
    connections_per_address: int | None = Field(default=None, ge=1)
    """Most connections of one address; None for half of all. Behind a proxy all have the proxy's
    address."""
    private_pictures: bool = False
    """Whether addresses of pictures may be of private networks; providers fetch them."""
    cors_origins: tuple[Origin, ...] = ()
    """Origins of web pages that may use the API: https://app.example.org, or * if keys are
    required."""
    redis: str = ""
    """The address of the Redis server (redis://host:6379) at which several replicas or worker
    processes count the rates of keys and the limits of providers."""
    replicas: int = Field(default=1, ge=1)
    """How many there are; each counts its share for itself while Redis cannot be reached."""

    @model_validator(mode="after")
    def _an_address_within_all(self) -> Self:
        if self.connections_per_address and self.connections_per_address > self.connections:
            raise ValueError("`connections_per_address` must be at most `connections`")
        return self


class ModerationSetting(StrictModel):
    """The provider that POST /v1/moderations is passed through to."""

    model: str = Field(min_length=1)
    provider: str = "openai"
    base_url: str = ""
    """None: the provider's own."""
    key_env: str = ""
    """The environment variable with the key; by default the provider's own."""
    tags: tuple[str, ...] = ()
    """Tags like a worker's: a key that may not ask workers of a tag may not ask this model either.
    """


class OidcSetting(StrictModel):
    """The identity provider by which people sign in to the page; see docs/tenants.md."""

    issuer: str = Field(min_length=1)
    client_id: str = Field(min_length=1)
    client_secret_env: str = ""
    """The variable of the client's secret; empty: a public client."""
    redirect_uri: str = Field(min_length=1)
    label: str = "single sign-on"
    scopes: tuple[str, ...] = ("openid", "email", "profile")
    role_claim: str = "groups"
    admins: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    tenant: str = "default"
    limits: dict[str, Any] = Field(default={})
    """Limits of new users, with the fields of a key's limits."""


class AnswerCacheSetting(StrictModel):
    """Whether the same question twice is answered once."""

    enabled: bool = False
    ttl_s: float = Field(default=3600.0, gt=0, allow_inf_nan=False)
    """Seconds for which an answer is given again."""
    sampled: bool = False
    """Whether also answers that were sampled: of another temperature than 0 and without a seed."""
    redis: bool = False
    """Whether the index is in the Redis of the server, and not in the database of the runs."""
    similarity: float | None = Field(default=None, ge=0.8, le=1.0)
    """The cosine from which the same question in other words is answered by the same answer; None:
    the words must be the same. It needs the extra `encoder`."""

    @model_validator(mode="after")
    def _is_switched(self) -> Self:
        if "enabled" not in self.model_fields_set:
            self.refuse_settings(AnswerCacheSetting.model_fields, "needs `enabled = true`")
        return self


AliasName = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)]


class AuditSetting(StrictModel):
    """The audit trail of what administrators did."""

    kept_days: float | None = Field(default=None, gt=0)
    """How long its records are kept; None: for ever."""


class ConfidenceSetting(StrictModel):
    """How sure answers are."""

    file: str
    """What `batuta eval --calibrate` wrote, from the settings' folder."""


class Settings(StrictModel):
    """The whole file."""

    workers: tuple[WorkerSetting, ...] = ()
    conductor: ConductorSetting = ConductorSetting()
    mini: MiniSetting = MiniSetting()
    ultra: SystemSetting = SystemSetting()
    aliases: dict[AliasName, str] = Field(default={})
    """Served models by the names, or patterns with `*` and `?`, that stand for them."""
    sessions: SessionsSetting = SessionsSetting()
    models: dict[str, PresetSetting] = Field(default={})
    """Models of one's own, by their names."""
    limits: LimitsSetting = LimitsSetting()
    baselines: BaselinesSetting = BaselinesSetting()
    resilience: ResilienceSetting = ResilienceSetting()
    server: ServerSetting = ServerSetting()
    answer_cache: AnswerCacheSetting = AnswerCacheSetting()
    moderation: ModerationSetting | None = None
    oidc: OidcSetting | None = None
    policies: tuple[GuardrailSetting, ...] = ()
    plan_rules: PlanRuleSettings = ()
    audit: AuditSetting = AuditSetting()
    confidence: ConfidenceSetting | None = None
    approvals: tuple[ApprovalSetting, ...] = ()
    approval_webhook: WebhookSetting | None = None
    tools: ToolsSetting = ToolsSetting()
    files: FilesSetting | None = None

    @model_validator(mode="after")
    def _tools_are_used(self) -> Self:
        for name in sorted(self.tools.model_fields_set):
            is_served = name in self.tools.served
            if not is_served and not any(worker.provider == name for worker in self.workers):
                need = " or `server_tool = true`" if name != "mcp" else ""
                raise ValueError(f'[tools.{name}] needs a worker with `provider = "{name}"`{need}')
        return self

    @model_validator(mode="after")
    def _confidence_is_fitted(self) -> Self:
        for name, preset in self.models.items():
            if preset.min_confidence is not None and self.confidence is None:
                need = "needs `[confidence]`: fit one with batuta eval --calibrate"
                raise ValueError(f"models.{name[:100]}.min_confidence {need}")
        return self

    def resolve_folders(self, folder: Path) -> Settings:
        """The same with workflows and trained conductors and selectors as seen from here.

        Args:
            folder: where the file lies; a folder that is not below it is looked for from here.
        """

        def seen(name: str | None) -> str | None:
            there = folder / name if name else None
            return str(there) if there and is_policy(there) else name

        def placed(preset: PresetSetting) -> PresetSetting:
            flow = preset.workflow and str(folder / preset.workflow)
            return preset.model_copy(update={"conductor": seen(preset.conductor), "workflow": flow})

        conductor = self.conductor
        named = {"worker": seen(conductor.worker), "card": seen(conductor.card) or ""}
        return self.model_copy(
            update={
                "conductor": conductor.model_copy(update=named),
                "mini": MiniSetting.model_construct(
                    conductor=seen(self.mini.name), explore=self.mini.explore
                ),
                "models": {name: placed(each) for name, each in self.models.items()},
                "ultra": SystemSetting.model_construct(conductor=seen(self.ultra.name)),
            }
        )
