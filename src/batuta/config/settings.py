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

from batuta.conductors.sessions.state import DEFAULT_RULES, MOST_ACTIONS, SessionRules
from batuta.config.aliases import LONGEST_NAME
from batuta.config.settings_file import StrictModel, VariableName
from batuta.config.tool_settings import FilesSetting, ToolsSetting
from batuta.config.trust_settings import AuditSetting, ConfidenceSetting
from batuta.config.worker_settings import EffortWord, ExtraBody, PriceSetting, WorkerSetting
from batuta.core import MAX_ROUNDS, MAX_STEPS
from batuta.core.tool_classes import ToolClass, ToolClasses
from batuta.embedded.policy import is_policy
from batuta.guardrails.settings import GuardrailSetting
from batuta.language.plan_rules import read_tag
from batuta.usage import ASSUMED_PRICE


class PlanRuleCondition(StrictModel):
    """The questions that a rule for plans is for; both must hold where both are set."""

    tenant: str = ""
    """Empty: of every tenant."""
    tag: Annotated[str, AfterValidator(lambda tag: read_tag(tag) if tag else tag)] = ""
    """Empty: with any tags or none."""


class PlanRuleSetting(StrictModel):
    """A rule that every workflow must keep; it has exactly one of the four kinds."""

    name: str = Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")
    when: PlanRuleCondition = PlanRuleCondition()
    says: str = Field(default="", max_length=500)
    """The sentence that whoever breaks it is told; empty: a usual one."""
    max_parallel: int | None = Field(default=None, ge=1)
    """The most steps that can run at the same time."""
    no_self_check: bool = False
    """Whether a step that checks must read a step of another provider than its own."""
    needs_check: bool = False
    """Whether the last step must check the answer of another worker."""
    forbid_workers: tuple[str, ...] = ()
    """Workers that may not see the question: ids, or `tag:cloud` for all of a tag."""

    @model_validator(mode="after")
    def _is_of_one_kind(self) -> Self:
        kinds = (self.max_parallel, self.no_self_check, self.needs_check, self.forbid_workers)
        if sum(bool(kind) for kind in kinds) != 1:
            raise ValueError(
                f"the rule {self.name} needs exactly one of `max_parallel`, `no_self_check`, "
                "`needs_check` and `forbid_workers`"
            )
        return self


def _check_rule_names(rules: tuple[PlanRuleSetting, ...]) -> tuple[PlanRuleSetting, ...]:
    names = [rule.name for rule in rules]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"two rules for plans have the name {twice}")
    return rules


PlanRuleSettings = Annotated[tuple[PlanRuleSetting, ...], AfterValidator(_check_rule_names)]


class ApprovalCondition(PlanRuleCondition):
    """The plans that wait for a person; all conditions that are set must hold."""

    above_usd: float | None = Field(default=None, ge=0)
    """Plans after which the run is expected to have cost more."""
    changes: bool = False
    """Whether only plans count that may call a tool which changes something: one of the client's,
    or a worker with the tag `changes`."""
    workers: tuple[str, ...] = ()
    """Plans with one of these workers: ids, or `tag:cloud` for all of a tag."""


class WebhookSetting(StrictModel):
    """A program that is told of plans which wait, and may decide about them."""

    url: str = Field(pattern=r"^https?://")
    secret_env: VariableName = Field(default="BATUTA_WEBHOOK_SECRET", min_length=1)
    """The variable of the secret that both sides sign with."""


class ApprovalSetting(StrictModel):
    """Plans that a person must approve before they are carried out."""

    name: str = Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")
    when: ApprovalCondition = ApprovalCondition()
    expires_s: float = Field(default=900, gt=0, le=7 * 86_400)
    """Seconds after which a plan that nobody has approved counts as refused."""


class PresetLimits(StrictModel):
    """Limits of a preset's runs, within those of the whole file; a request can lower them."""

    max_steps: int | None = Field(default=None, ge=1, le=MAX_STEPS)
    max_rounds: int | None = Field(default=None, ge=1, le=MAX_ROUNDS)
    max_tokens: int | None = Field(default=None, ge=0)
    max_cost_usd: float | None = Field(default=None, ge=0)
    deadline_s: float | None = Field(default=None, gt=0)


class PresetSetting(StrictModel):
    """A preset serves a conductor, a workflow or a baseline under a name."""

    conductor: str | None = None
    """It names a worker, a fixed conductor or the folder of a trained one."""
    workflow: str | None = None
    """A file with a workflow, as a conductor writes it; from the settings' folder."""
    baseline: str | None = None
    """The name of a published method, without `baseline/`."""
    workers: tuple[str, ...] = ()
    """The workers that may answer; empty: all of the pool."""
    limits: PresetLimits = PresetLimits()
    effort: EffortWord | None = None
    """The effort of a request that names none."""
    min_confidence: float | None = Field(default=None, ge=0, le=1)
    """Answers below this probability are marked `unsure`, after one more worker was asked."""
    description: str = ""

    @model_validator(mode="after")
    def _one_of_three(self) -> Self:
        given = [one for one in (self.conductor, self.workflow, self.baseline) if one]
        if len(given) != 1:
            raise ValueError("name a `conductor`, a `workflow` or a `baseline`, and one alone")
        if self.baseline:
            self.refuse_settings(("effort", "min_confidence"), "is of a conductor or a workflow")
            own = ("max_steps", "max_rounds")
            self.limits.refuse_settings(own, "is not of a baseline, which has its own")
        return self


ToolName = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)]


class SessionsSetting(StrictModel):
    """How the sessions of coding agents are served; see docs/sessions.md."""

    conduct_auxiliary: bool = False
    """Whether also what agents ask for themselves, such as titles, is conducted."""
    tools: dict[ToolName, ToolClass] = Field(default={})
    """The classes of clients' tools where they are not what name and schema say."""

    worth_usd: Decimal = Field(default=DEFAULT_RULES.worth_usd, ge=0)
    """Dollars that a solved task is worth."""
    margin_usd: Decimal = Field(default=DEFAULT_RULES.margin_usd, ge=0)
    """Dollars that a switch of workers must gain beyond what it costs."""
    warm_s: float = Field(default=DEFAULT_RULES.warm_seconds, ge=0)
    """Seconds for which a provider's cache is taken to hold a prompt."""
    failures: int = Field(default=DEFAULT_RULES.failures, ge=1, le=MOST_ACTIONS)
    """Failures of tools within a task after which `escalate` hands over."""
    stall_actions: int = Field(default=DEFAULT_RULES.stall_actions, ge=2, lt=MOST_ACTIONS)
    """Actions in a row without a change after which a task has stalled."""
    consultations: int = Field(default=DEFAULT_RULES.consultations, ge=0)
    """How often a session's second model plans, advises or judges, at most."""
    max_cost_usd: Decimal | None = Field(default=None, gt=0)
    """Dollars that a session may cost; None: any."""
    max_turns: int | None = Field(default=None, ge=1)
    """Turns that a session may have; None: any number."""
    shadow_share: float = Field(default=DEFAULT_RULES.shadow_share, ge=0, le=1)
    """Share of answers for which the best single worker is asked too, and a judge compares."""
    shadow_usd_per_day: Decimal = Field(default=DEFAULT_RULES.shadow_usd_per_day, ge=0)
    """Dollars that comparing may cost in a day."""

    @property
    def rules(self) -> SessionRules:
        """Return the rules by which sessions are conducted."""
        return SessionRules(
            tool_classes=ToolClasses(self.tools),
            worth_usd=self.worth_usd,
            margin_usd=self.margin_usd,
            warm_seconds=self.warm_s,
            failures=self.failures,
            stall_actions=self.stall_actions,
            consultations=self.consultations,
            max_cost_usd=self.max_cost_usd,
            max_turns=self.max_turns,
            shadow_share=self.shadow_share,
            shadow_usd_per_day=self.shadow_usd_per_day,
        )


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
    key_env: VariableName = ""
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
    """The share of requests and the money by which a system may learn what is better."""

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
        input=ASSUMED_PRICE.input, output=ASSUMED_PRICE.output, search=ASSUMED_PRICE.search
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
    waiting_jobs_per_tenant: int = Field(default=1000, ge=1)
    """Background responses of one tenant that may wait; the next ones are turned away."""
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
    key_env: VariableName = ""
    """The environment variable with the key; by default the provider's own."""
    tags: tuple[str, ...] = ()
    """Tags like a worker's: a key that may not ask workers of a tag may not ask this model either.
    """


class OidcSetting(StrictModel):
    """The identity provider by which people sign in to the page; see docs/tenants.md."""

    issuer: str = Field(min_length=1)
    client_id: str = Field(min_length=1)
    client_secret_env: VariableName = ""
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
    """Settings by which the same question twice is answered once."""

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
            fitted = self.confidence is not None and self.confidence.file is not None
            if preset.min_confidence is not None and not fitted:
                need = "needs `[confidence]` with a `file`: fit one with batuta eval --calibrate"
                raise ValueError(f"models.{name[:100]}.min_confidence {need}")
        return self

    def resolve_folders(self, folder: Path) -> Settings:
        """Return the same with workflows and trained conductors and selectors as seen from here.

        Args:
            folder: where the file lies; a folder that is not below it is looked for from here.
        """

        def seen(name: str | None) -> str | None:
            there = folder / name if name else None
            return str(there) if there and there.exists() and is_policy(there) else name

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
