"""Rules for plans as the settings file has them: [[plan_rules]]; docs/policies.md."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from batuta.config.settings_file import StrictModel
from batuta.language.plan_rules import read_tag


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
    """Whether only plans count that may call a client's tool which changes something."""
    workers: tuple[str, ...] = ()
    """Plans with one of these workers: ids, or `tag:cloud` for all of a tag."""


class WebhookSetting(StrictModel):
    """A program that is told of plans which wait, and may decide about them."""

    url: str = Field(pattern=r"^https?://")
    secret_env: str = Field(default="BATUTA_WEBHOOK_SECRET", min_length=1)
    """The variable of the secret that both sides sign with."""


class ApprovalSetting(StrictModel):
    """Plans that a person must approve before they are carried out."""

    name: str = Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")
    when: ApprovalCondition = ApprovalCondition()
    expires_s: float = Field(default=900, gt=0, le=7 * 86_400)
    """Seconds after which a plan that nobody has approved counts as refused."""
