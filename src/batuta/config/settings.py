"""The schema of the settings file (TOML), as frozen models; docs/configuration.md explains it.

Many settings that would have no effect beside the others are refused; the message names one.
"""

from __future__ import annotations

import os
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
    """The questions to which a rule for plans applies; all conditions that are set must hold."""

    tenant: str = ""
    """Empty: all tenants."""
    tag: Annotated[str, AfterValidator(lambda tag: read_tag(tag) if tag else tag)] = ""
    """Empty: any tags or none."""


class PlanRuleSetting(StrictModel):
    """A rule that every workflow must keep; exactly one of its four kinds must be set."""

    name: str = Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")
    when: PlanRuleCondition = PlanRuleCondition()
    says: str = Field(default="", max_length=500)
    """The rule as people read it, which a conductor that breaks the rule is shown too; empty: a
    default sentence."""
    max_parallel: int | None = Field(default=None, ge=1)
    """Maximum number of steps that can run at the same time."""
    no_self_check: bool = False
    """Whether a step that checks, and a last step that reads other steps, must read a step of
    another provider's worker."""
    needs_check: bool = False
    """Whether the last step must check the answer of another worker."""
    forbid_workers: tuple[str, ...] = ()
    """Workers that may not see the question: ids, or `tag:NAME` for all workers with a tag."""

    @model_validator(mode="after")
    def _check_one_kind(self) -> Self:
        kinds = (self.max_parallel, self.no_self_check, self.needs_check, self.forbid_workers)
        if sum(bool(kind) for kind in kinds) != 1:
            raise ValueError(
                f"the rule {self.name} needs exactly one of `max_parallel`, `no_self_check`, "
                "`needs_check` and `forbid_workers`"
            )
        return self


def _check_rule_names(rules: tuple[PlanRuleSetting, ...]) -> tuple[PlanRuleSetting, ...]:
    names = [rule.name for rule in rules]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise ValueError(f"two rules for plans have the name {repeated}")
    return rules


PlanRuleSettings = Annotated[tuple[PlanRuleSetting, ...], AfterValidator(_check_rule_names)]


class ApprovalCondition(PlanRuleCondition):
    """The plans that need a person's approval; all conditions that are set must hold."""

    above_usd: float | None = Field(default=None, ge=0)
    """Only plans that are expected to bring the run's cost above these dollars."""
    changes: bool = False
    """Only plans that may call a tool with side effects: a client's tool, or a worker with the tag
    `changes`."""
    workers: tuple[str, ...] = ()
    """Only plans with one of these workers: ids, or `tag:NAME` for all workers with a tag."""


class WebhookSetting(StrictModel):
    """A program that is notified of plans that wait for approval, and may decide about them."""

    url: str = Field(pattern=r"^https?://")
    secret_env: VariableName = Field(default="BATUTA_WEBHOOK_SECRET", min_length=1)
    """The environment variable with the secret that both sides sign with."""


class ApprovalSetting(StrictModel):
    """Plans that a person must approve before they are run."""

    name: str = Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")
    when: ApprovalCondition = ApprovalCondition()
    expires_s: float = Field(default=900, gt=0, le=7 * 86_400)
    """Seconds after which a plan without a decision counts as refused."""


class PresetLimits(StrictModel):
    """Limits of a preset's runs, at most those of the whole file; a request can lower them.

    None: the limit of the whole file.
    """

    max_steps: int | None = Field(default=None, ge=1, le=MAX_STEPS)
    max_rounds: int | None = Field(default=None, ge=1, le=MAX_ROUNDS)
    max_tokens: int | None = Field(default=None, ge=0)
    max_cost_usd: float | None = Field(default=None, ge=0)
    deadline_s: float | None = Field(default=None, gt=0)


class PresetSetting(StrictModel):
    """A conductor, a workflow or a baseline that is served under a name."""

    conductor: str | None = None
    """A worker of the pool, a fixed conductor, or the path of a trained conductor, a selector or a
    workflow."""
    workflow: str | None = None
    """A workflow file; a relative path starts at the settings file's folder."""
    baseline: str | None = None
    """The name of a published method, without `baseline/`."""
    workers: tuple[str, ...] = ()
    """The workers that may answer; empty: all of the pool."""
    limits: PresetLimits = PresetLimits()
    effort: EffortWord | None = None
    """Default effort of requests; None: each worker's own."""
    min_confidence: float | None = Field(default=None, ge=0, le=1)
    """Minimum probability that an answer is correct; None: no minimum. If the probability is lower
    or unknown, one more worker is asked; if it still is, the answer is `unsure`."""
    description: str = ""

    @model_validator(mode="after")
    def _check_exactly_one(self) -> Self:
        given = [name for name in (self.conductor, self.workflow, self.baseline) if name]
        if len(given) != 1:
            raise ValueError("name exactly one: a `conductor`, a `workflow` or a `baseline`")
        if self.baseline:
            reason = "applies only to a conductor or a workflow"
            self.refuse_settings(("effort", "min_confidence"), reason)
            own = ("max_steps", "max_rounds")
            self.limits.refuse_settings(own, "does not apply to a baseline, which has its own")
        return self


ToolName = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)]


class SessionsSetting(StrictModel):
    """How the sessions of coding agents are served; see docs/sessions.md."""

    conduct_auxiliary: bool = False
    """Whether agents' auxiliary requests, such as for titles, are conducted too."""
    tools: dict[ToolName, ToolClass] = Field(default={})
    """Classes of clients' tools whose names or schemas would be classified incorrectly."""

    worth_usd: Decimal = Field(default=DEFAULT_RULES.worth_usd, ge=0)
    """Value of a solved task, in dollars."""
    margin_usd: Decimal = Field(default=DEFAULT_RULES.margin_usd, ge=0)
    """Dollars that a switch of workers must gain beyond its cost."""
    warm_s: float = Field(default=DEFAULT_RULES.warm_seconds, ge=0)
    """Seconds for which a provider's cache is assumed to keep a prompt."""
    failures: int = Field(default=DEFAULT_RULES.failures, ge=1, le=MOST_ACTIONS)
    """Tool failures within a turn after which `escalate` switches workers."""
    stall_actions: int = Field(default=DEFAULT_RULES.stall_actions, ge=2, lt=MOST_ACTIONS)
    """Consecutive actions without a change after which a task counts as stalled."""
    consultations: int = Field(default=DEFAULT_RULES.consultations, ge=0)
    """Maximum number of calls of the second model, which plans, advises or judges, in a session; 0:
    none."""
    max_cost_usd: Decimal | None = Field(default=None, gt=0)
    """Maximum cost of a session; None: no limit."""
    max_turns: int | None = Field(default=None, ge=1)
    """Maximum number of turns of a session; None: no limit."""
    shadow_share: float = Field(default=DEFAULT_RULES.shadow_share, ge=0, le=1)
    """Share of answers that a judge compares with those of the best single worker."""
    shadow_usd_per_day: Decimal = Field(default=DEFAULT_RULES.shadow_usd_per_day, ge=0)
    """Maximum dollars for these comparisons per day (UTC)."""

    @property
    def rules(self) -> SessionRules:
        """The rules by which sessions are conducted."""
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
    """The format of a server's log on stderr."""

    QUIET = "quiet"
    """Only warnings and errors, as text."""
    JSON = "json"
    """Warnings and errors, and a line for each request, as JSON."""


_EXTERNAL_MODEL_OPTIONS = (
    "concurrency", "context_window", "extra_body", "price", "rpm", "tags", "tpm",
)  # fmt: skip
"""Further settings of [conductor] that apply only to a model that is not a worker."""


class ConductorSetting(StrictModel):
    """The conductor, and the content of its prompt."""

    worker: str | None = None
    """A worker of the pool, a fixed conductor, or the path of a trained conductor, a selector or a
    workflow. None: `model` or, without one, the best worker."""
    model: str = ""
    """A conducting model that is not a worker; the next settings say how it is reached."""
    provider: str = "compatible"
    base_url: str = ""
    key_env: VariableName = ""
    price: PriceSetting | None = None
    context_window: int | None = Field(default=None, ge=1)
    tags: tuple[str, ...] = ()
    extra_body: ExtraBody = Field(default={})
    """Further fields of the request's body, for a model that is not a worker."""
    concurrency: int = Field(default=32, ge=1)
    rpm: int | None = Field(default=None, ge=1)
    tpm: int | None = Field(default=None, ge=1)
    card: str = ""
    """The folder of the trained conductor that `model` serves; its prompt, sampling and rounds are
    used. Empty: `model` was not trained to conduct."""
    descriptions: bool = True
    """Whether the prompt describes the workers."""
    prices: bool = True
    """Whether the prompt shows the workers' prices."""
    examples: bool = True
    """Whether the prompt has worked examples."""
    prompt: Literal["auto", "full", "brief"] = "auto"
    """The length of the prompt; `auto`: short for a model known to be small."""
    structured: bool | Literal["auto"] = "auto"
    """Whether structured output is requested for workflows. If the provider refuses it, `auto`
    continues without a schema, and true describes the schema in the prompt."""
    temperature: float | None = Field(default=None, ge=0)
    """None: the card's, else 1, or 0.5 with the brief prompt."""
    max_tokens: int | None = Field(default=None, ge=16)
    """None: the card's, else 1,024 (400 with the brief prompt, 8,192 for a model that reasons by
    default), but at most a quarter of the model's context window."""
    effort: EffortWord | None = None
    """None: the card's, else low for a model that reasons by default."""
    breaker_questions: int = Field(default=3, ge=1)
    """Consecutive questions without a workflow after which the model is skipped."""
    breaker_pause_s: float = Field(default=60.0, gt=0, le=300)
    """Seconds of the first pause; each further pause is twice as long, up to 300 s."""

    @model_validator(mode="before")
    @classmethod
    def _accept_plain_name(cls, data: Any) -> Any:
        return {"worker": data} if isinstance(data, str) else data

    @model_validator(mode="after")
    def _check_exclusive(self) -> Self:
        if self.worker and self.model:
            raise ValueError("there are two conductors: name `worker`, or `provider` and `model`")
        if not self.model and self.model_fields_set & {"provider", "base_url", "key_env", "card"}:
            raise ValueError("a conductor that is not a worker needs a `model`")
        if not self.model:
            reason = "applies only to a conductor with a `model`"
            self.refuse_settings(_EXTERNAL_MODEL_OPTIONS, reason)
        return self


class SystemSetting(StrictModel):
    """The system that answers under a served name.

    If nothing is set, batuta-ultra has the conductor of [conductor], and batuta-mini the best
    worker.
    """

    conductor: str | None = None
    """A worker of the pool, a fixed conductor, or the path of a trained conductor, a selector or a
    workflow."""
    selector: str | None = None
    """The folder of a trained selector."""

    @model_validator(mode="before")
    @classmethod
    def _accept_plain_name(cls, data: Any) -> Any:
        return {"conductor": data} if isinstance(data, str) else data

    @model_validator(mode="after")
    def _check_exclusive(self) -> Self:
        if self.conductor and self.selector:
            raise ValueError("name a `conductor` or a `selector`, not both")
        return self

    @property
    def name(self) -> str | None:
        """The conductor or the selector, whichever is set."""
        return self.conductor or self.selector


class ExploreSetting(StrictModel):
    """How often a system explores alternatives to learn which is best, and the budget for that."""

    share: float = Field(gt=0, le=0.5)
    """Share of the requests for which an alternative is drawn by Thompson sampling."""
    usd_per_day: Decimal = Field(ge=0)
    """Maximum cost of all exploring runs per day (UTC)."""


class MiniSetting(SystemSetting):
    """The system that answers as batuta-mini, and whether it explores."""

    explore: ExploreSetting | None = None
    """None: no exploration."""


class LimitsSetting(StrictModel):
    """Limits of a run, unless its request sets lower ones.

    For tokens, dollars and the deadline None means no limit.
    """

    max_steps: int = Field(default=MAX_STEPS, ge=1, le=MAX_STEPS)
    max_rounds: int | None = Field(default=None, ge=1, le=MAX_ROUNDS)
    """None: the rounds that the conductor needs, or more if a request or its effort asks for more.
    """
    max_tokens: int | None = Field(default=None, ge=0)
    max_cost_usd: float | None = Field(default=None, ge=0)
    deadline_s: float | None = Field(default=None, gt=0)
    unknown_price: PriceSetting = PriceSetting(
        input=ASSUMED_PRICE.input, output=ASSUMED_PRICE.output, search=ASSUMED_PRICE.search
    )
    """The price that limits in dollars assume for a call of unknown price."""


class BaselinesSetting(StrictModel):
    """Data from which served baselines learn, and the cascade's checker.

    Relative paths start at the settings' folder.
    """

    history: str | None = None
    """A file of workers' outcomes."""
    cascade: str | None = None
    """A folder written by `batuta train selector`, whose cascade is served."""
    checker: str | None = None
    """The worker that checks the cascade's answers."""


class ResilienceSetting(StrictModel):
    """Timeouts, hedged calls and the circuit breaker of failing workers."""

    step_timeout_s: float | None = Field(default=None, gt=0)
    """Seconds after which a step's call is cancelled and another worker is asked; None: never."""
    hedge_s: float | None = Field(default=None, gt=0)
    """Seconds without output of the last step's worker after which a second worker is called in
    parallel; None: never."""
    breaker_failures: int = Field(default=5, ge=1)
    """Consecutive failures after which a worker is skipped."""
    breaker_pause_s: float = Field(default=15.0, gt=0, le=300)
    """Seconds of the first pause; each further pause is twice as long, up to 300 s."""

    @model_validator(mode="after")
    def _check_hedge(self) -> Self:
        if self.hedge_s and self.step_timeout_s and self.hedge_s >= self.step_timeout_s:
            raise ValueError("`hedge_s` must be less than `step_timeout_s`: no step lasts longer")
        return self


def _check_origin(origin: str) -> str:
    plain = origin.rstrip("/").lower()
    if plain != "*" and not _ORIGIN.fullmatch(plain):
        raise ValueError("an origin must be like https://app.example.org, or *")
    return plain


_ORIGIN = re.compile(r"https?://[^/\s?#@]+")
Origin = Annotated[str, AfterValidator(_check_origin)]


class ServerSetting(StrictModel):
    """Settings of `batuta serve`."""

    running: int = Field(default=512, ge=1)
    """Maximum number of requests of one process that call models at the same time; background jobs
    do not count."""
    waiting: int = Field(default=1024, ge=0)
    """Maximum number of requests in the queue of one process; further requests are rejected."""
    waiting_jobs_per_tenant: int = Field(default=1000, ge=1)
    """Maximum number of queued background responses of one tenant; further ones are rejected."""
    patience_s: float = Field(default=30.0, ge=0)
    """Maximum seconds that a request waits in the queue."""
    grace_s: float = Field(default=30.0, ge=0)
    """Seconds that running requests may take to finish after the server is asked to stop."""
    keep_days: float | None = Field(default=None, gt=0)
    """Days for which runs, responses and finished jobs are kept; jobs at most 30 days. None: runs
    and responses are kept until they are deleted."""
    connections: int = Field(default=4096, ge=1)
    """Maximum number of open connections of one process; fewer if it may not open so many files."""
    connections_per_address: int | None = Field(default=None, ge=1)
    """Maximum number of these connections from one IPv4 address or IPv6 /64 network; None: half.
    Behind a proxy all connections have the proxy's address."""
    private_pictures: bool = False
    """Whether image URLs may point to private networks; the providers fetch them."""
    cors_origins: tuple[Origin, ...] = ()
    """Origins of pages that may use the API: https://app.example.org, or * if keys are required."""
    redis: str = ""
    """The address of the Redis server (redis://host:6379) where replicas and worker processes
    share the rates of keys and the limits of providers."""
    replicas: int = Field(default=1, ge=1)
    """Number of replicas; each uses an equal share of the limits while Redis is unreachable."""

    @model_validator(mode="after")
    def _check_connection_limits(self) -> Self:
        if self.connections_per_address and self.connections_per_address > self.connections:
            raise ValueError("`connections_per_address` must be at most `connections`")
        return self


class ModerationSetting(StrictModel):
    """The provider to which POST /v1/moderations is passed through."""

    model: str = Field(min_length=1)
    provider: str = "openai"
    base_url: str = ""
    """The URL of the provider's API; empty: the provider's usual one."""
    key_env: VariableName = ""
    """The environment variable with the key; empty: the provider's usual one."""
    tags: tuple[str, ...] = ()
    """Tags like those of a worker: a key that may not use workers with one of them may not use this
    model either."""


class OidcSetting(StrictModel):
    """The identity provider with which people sign in to the page; see docs/sign-in.md.

    `redirect_uri` is the callback URL as registered with the provider, and `label` the provider's
    name on the sign-in screen. `role_claim` names the claim of the ID token with a person's groups.
    `admins` and `users` list groups or verified e-mail addresses; if `users` is empty, everybody
    whom the provider knows may sign in. All users belong to `tenant`.
    """

    issuer: str = Field(min_length=1)
    client_id: str = Field(min_length=1)
    client_secret_env: VariableName = ""
    """The environment variable with the client secret; empty: a public client."""
    redirect_uri: str = Field(min_length=1)
    label: str = "single sign-on"
    scopes: tuple[str, ...] = ("openid", "email", "profile")
    role_claim: str = "groups"
    admins: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    tenant: str = "default"
    limits: dict[str, Any] = Field(default={})
    """Limits of new users; the same fields as the limits of a key."""


class AnswerCacheSetting(StrictModel):
    """The cache of answers to repeated questions."""

    enabled: bool = False
    ttl_s: float = Field(default=3600.0, gt=0, allow_inf_nan=False)
    """Seconds for which an answer is cached."""
    sampled: bool = False
    """Whether sampled answers (temperature is not 0 and no seed is set) are cached too."""
    redis: bool = False
    """Whether the index is in the server's Redis instead of the runs' database."""
    similarity: float | None = Field(default=None, ge=0.8, le=1.0)
    """Minimum cosine similarity at which a differently worded question gets the cached answer;
    needs the extra `encoder`. None: the wording must be identical."""

    @model_validator(mode="after")
    def _check_enabled(self) -> Self:
        if "enabled" not in self.model_fields_set:
            self.refuse_settings(AnswerCacheSetting.model_fields, "needs `enabled = true`")
        return self


AliasName = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)]


class Settings(StrictModel):
    """The whole settings file."""

    workers: tuple[WorkerSetting, ...] = ()
    conductor: ConductorSetting = ConductorSetting()
    mini: MiniSetting = MiniSetting()
    ultra: SystemSetting = SystemSetting()
    aliases: dict[AliasName, str] = Field(default={})
    """Served models by alias: a name, or a pattern with `*` and `?`."""
    sessions: SessionsSetting = SessionsSetting()
    models: dict[str, PresetSetting] = Field(default={})
    """Presets, by the names under which they are served."""
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
    def _check_tools_used(self) -> Self:
        for name in sorted(self.tools.model_fields_set):
            is_served = name in self.tools.served
            if not is_served and not any(worker.provider == name for worker in self.workers):
                need = " or `server_tool = true`" if name != "mcp" else ""
                raise ValueError(f'[tools.{name}] needs a worker with `provider = "{name}"`{need}')
        return self

    @model_validator(mode="after")
    def _check_confidence_fitted(self) -> Self:
        for name, preset in self.models.items():
            fitted = self.confidence is not None and self.confidence.file is not None
            if preset.min_confidence is not None and not fitted:
                need = "needs `[confidence]` with a `file`: fit one with batuta eval --calibrate"
                raise ValueError(f"models.{name[:100]}.min_confidence {need}")
        return self

    def resolve_folders(self, folder: Path) -> Settings:
        """Return the settings with relative paths of workflows and trained conductors resolved.

        A conductor's name is changed only if it is the path of a trained conductor or selector in
        the folder of the settings file. `workflow` of a preset is always resolved. The selectors of
        [mini] and [ultra] become their `conductor`.
        """

        def resolve(name: str | None) -> str | None:
            path = folder / (name or "")
            exists = os.path.exists(path)  # noqa: PTH110 - False for a name that is too long
            return str(path) if name and exists and is_policy(path) else name

        def resolve_preset(preset: PresetSetting) -> PresetSetting:
            values = {
                "conductor": resolve(preset.conductor),
                "workflow": preset.workflow and str(folder / preset.workflow),
            }
            return preset.model_copy(update=values)

        conductor = self.conductor
        named = {"worker": resolve(conductor.worker), "card": resolve(conductor.card) or ""}
        return self.model_copy(
            update={
                "conductor": conductor.model_copy(update=named),
                "mini": MiniSetting.model_construct(
                    conductor=resolve(self.mini.name), explore=self.mini.explore
                ),
                "models": {name: resolve_preset(each) for name, each in self.models.items()},
                "ultra": SystemSetting.model_construct(conductor=resolve(self.ultra.name)),
            }
        )
