"""Policies as the settings file names them.

[[policies]]
name = "no-keys"
kind = "secrets"                          # secrets, injection, personal, size or schema
on = ["input", "between", "output"]
action = "redact"                         # redact, block or flag
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from batuta.errors import ConfigError
from batuta.policies.finders import Options, finder_of
from batuta.policies.policy import Action, Place, Policies, Policy


class PolicySetting(BaseModel):
    """One rule."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9._-]+$")
    kind: str
    on: tuple[Place, ...] = Field(min_length=1)
    action: Action = Action.REDACT
    fail_closed: bool = True
    """Whether a text that could not be looked at is blocked."""
    max_characters: int | None = Field(default=None, ge=1)
    """Of kind `size`: what a text may have."""
    countries: tuple[str, ...] = ()
    """Of kind `personal`: whose telephone numbers are known without their country's prefix."""
    json_schema: dict[str, Any] | None = None
    """Of kind `schema`: what a text must fit."""


def policies_of(settings: Iterable[PolicySetting]) -> Policies:
    """The policies.

    Raises:
        ConfigError: one cannot be used; the sentence names it.
    """
    chosen: list[Policy] = []
    for one in settings:
        options = Options(one.max_characters, one.countries, one.json_schema)
        try:
            find = finder_of(one.kind, options)
        except ConfigError as error:
            raise ConfigError(f"policy {one.name}: {error}") from None
        waits = one.kind == "schema"
        chosen.append(Policy(one.name, find, frozenset(one.on), one.action, one.fail_closed, waits))
    try:
        return Policies(chosen)
    except ValueError as error:
        raise ConfigError(f"policies: {error}") from None
