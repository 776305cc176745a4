"""Builds the rules for plans and approvals from the settings, over the existing workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal

from batuta.clients import WorkerSpec
from batuta.config.settings import ApprovalSetting, PlanRuleSetting
from batuta.core import Worker, WorkerId
from batuta.errors import ConfigError
from batuta.language.approval_rules import ApprovalRule
from batuta.language.plan_rules import PlanRule, PlanRules
from batuta.store.key_permissions import TAG_PREFIX, KeyPermissions, KnownNames

_PROVIDER_TAG = "provider:"
"""Prefix of the worker tag that names the model's provider."""


def build_plan_rules(
    settings: Iterable[PlanRuleSetting], workers: Iterable[Worker], specs: Iterable[WorkerSpec]
) -> PlanRules:
    """Return the rules, with the ids of the workers that they forbid.

    Args:
        settings: the rules of the settings file.
        workers: all models that may receive a question, including conductors and moderation.
        specs: the specs of the pool's workers, which name their providers.

    Raises:
        ConfigError: a rule names a worker that does not exist, or a tag that no worker has.
    """
    known = tuple({worker.id: worker for worker in workers}.values())
    rules = tuple(_build_rule(setting, known) for setting in settings)
    return PlanRules(rules, _find_providers(specs))


def build_approvals(
    settings: Iterable[ApprovalSetting], workers: Iterable[Worker]
) -> tuple[ApprovalRule, ...]:
    """Return the rules that select the plans that need a person's approval.

    Raises:
        ConfigError: a rule names a worker that does not exist, or a tag that no worker has.
    """
    known = tuple(workers)
    return tuple(
        ApprovalRule(
            name=setting.name,
            tenant=setting.when.tenant,
            tag=setting.when.tag,
            workers=frozenset(
                _find_named(f"approvals {setting.name}", setting.when.workers, known)
            ),
            above_usd=None
            if setting.when.above_usd is None
            else Decimal(str(setting.when.above_usd)),
            changes=setting.when.changes,
            expires_s=setting.expires_s,
        )
        for setting in settings
    )


def _build_rule(setting: PlanRuleSetting, known: tuple[Worker, ...]) -> PlanRule:
    where = f"plan_rules {setting.name}"
    forbidden = _find_named(where, setting.forbid_workers, known)
    return PlanRule(
        name=setting.name,
        says=setting.says,
        tenant=setting.when.tenant,
        tag=setting.when.tag,
        max_parallel=setting.max_parallel,
        no_self_check=setting.no_self_check,
        needs_check=setting.needs_check,
        forbidden=forbidden,
    )


def _find_named(
    where: str, names: tuple[str, ...], known: tuple[Worker, ...]
) -> tuple[WorkerId, ...]:
    """Return the ids of the workers that the names (ids, or `tag:NAME`) select.

    Raises:
        ConfigError: no worker has one of the ids or tags.
    """
    named = KeyPermissions(workers_deny=names)
    try:
        KnownNames(models=(), workers=tuple(w.id for w in known)).check_permissions(named)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None
    tags = {tag for worker in known for tag in worker.tags}
    for name in names:
        tag = name.removeprefix(TAG_PREFIX)
        if tag != name and tag not in tags:
            raise ConfigError(f"{where}: no worker has the tag {tag!r}")
    return tuple(worker.id for worker in known if not named.allows_worker(worker))


def _find_providers(specs: Iterable[WorkerSpec]) -> Mapping[WorkerId, str]:
    """Return the name of each worker's provider.

    It is the worker's `provider:` tag, or else the provider and the base URL of its settings.
    """
    providers: dict[WorkerId, str] = {}
    for spec in specs:
        tags = (tag for tag in spec.worker.tags if tag.startswith(_PROVIDER_TAG))
        address = f"{spec.provider} {spec.base_url}".strip()
        providers[spec.worker.id] = next(tags, address)
    return providers
