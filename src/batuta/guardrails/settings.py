"""Guardrail policies as the settings file declares them.

[[policies]]
name = "no-keys"
kind = "secrets"                          # secrets, injection, personal, size, schema or grounded
on = ["input", "between", "output"]
action = "redact"                         # redact, block or flag; of grounded: `GroundedAction`
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from batuta.core import Worker, WorkerId
from batuta.errors import ConfigError
from batuta.guardrails.detectors import DetectorOptions, build_detector
from batuta.guardrails.grounded import GROUNDED, GroundedAction, GroundedPolicy
from batuta.guardrails.guardrail import Guardrail, GuardrailAction, Guardrails, GuardrailStage

_KIND_OF_OPTION = {
    "max_characters": "size",
    "countries": "personal",
    "json_schema": "schema",
    "worker": GROUNDED,
}
"""Settings that apply to policies of one kind only, with that kind."""


class GuardrailSetting(BaseModel):
    """One policy."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9._-]+$")
    kind: str
    on: tuple[GuardrailStage, ...] = Field(min_length=1)
    action: GuardrailAction | GroundedAction = GuardrailAction.REDACT
    fail_closed: bool = True
    """Whether a text that could not be checked is blocked."""
    max_characters: int | None = Field(default=None, ge=1)
    """Maximum number of characters of a text, for the kind `size`."""
    countries: tuple[str, ...] = ()
    """Two-letter codes of countries whose telephone numbers are found without a country code, for
    the kind `personal`."""
    json_schema: dict[str, Any] | None = None
    """The schema that a text must fit, for the kind `schema`."""
    worker: str | None = None
    """The id of the worker that checks, for the kind `grounded`."""

    @model_validator(mode="after")
    def _options_of_its_kind(self) -> Self:
        for name, kind in _KIND_OF_OPTION.items():
            if name in self.model_fields_set and self.kind != kind:
                raise ValueError(f"`{name}` is only for policies of kind {kind}, not {self.kind}")
        own: type[GroundedAction | GuardrailAction]
        own = GroundedAction if self.kind == GROUNDED else GuardrailAction
        if self.action not in set(own):
            actions = " or ".join(own)
            raise ValueError(f"the action of a policy of kind {self.kind} must be {actions}")
        if self.kind == GROUNDED and (not self.worker or self.on != (GuardrailStage.OUTPUT,)):
            raise ValueError('a policy of kind grounded needs a worker, and on = ["output"]')
        return self


def build_guardrails(
    settings: Iterable[GuardrailSetting],
    workers: Iterable[Worker] = (),
    bounds_of: Callable[[WorkerId], tuple[str, ...]] = lambda _: (),
) -> Guardrails:
    """Return the policies of the settings, ready to check texts.

    Args:
        settings: the settings of each policy.
        workers: the workers of the pool, among them the checker of a grounded policy.
        bounds_of: returns the JSON-Schema keywords that a worker's provider honours to limit a
            list's length.

    Raises:
        ConfigError: a policy cannot be used, two have the same name, or two are grounded.
    """
    chosen: list[Guardrail] = []
    grounded: GroundedPolicy | None = None
    for one in settings:
        if one.kind == GROUNDED:
            if grounded is not None:
                raise ConfigError("policies: only one policy may be of kind grounded")
            grounded = _grounded_policy(one, workers, bounds_of)
            continue
        options = DetectorOptions(one.max_characters, one.countries, one.json_schema)
        try:
            find = build_detector(one.kind, options)
        except ConfigError as error:
            raise ConfigError(f"policy {one.name}: {error}") from None
        # Names and descriptions of tools cannot match the schema: only the conversation is checked.
        is_schema = one.kind == "schema"
        policy = Guardrail(
            name=one.name,
            detect=find,
            stages=frozenset(one.on),
            action=GuardrailAction(one.action),
            fail_closed=one.fail_closed,
            only_conversation=is_schema,
            needs_thread=is_schema,
        )
        chosen.append(policy)
    try:
        return Guardrails(chosen, grounded)
    except ValueError as error:
        raise ConfigError(f"policies: {error}") from None


def _grounded_policy(
    setting: GuardrailSetting,
    workers: Iterable[Worker],
    bounds_of: Callable[[WorkerId], tuple[str, ...]],
) -> GroundedPolicy:
    worker = next((each for each in workers if each.id == setting.worker and each.is_model), None)
    if worker is None:
        raise ConfigError(f"policy {setting.name}: {setting.worker} is not a model of the pool")
    return GroundedPolicy(
        name=setting.name,
        worker=worker,
        action=GroundedAction(setting.action),
        bounds=bounds_of(worker.id),
        fail_closed=setting.fail_closed,
    )
