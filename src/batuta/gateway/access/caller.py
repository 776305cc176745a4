"""Who asks: what a request is told to belong to, and what it may do."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from starlette.types import Scope

from batuta.store.key_permissions import KeyPermissions

_SCOPE_KEY = "batuta.caller"
_NO_LIMITS = KeyPermissions()


class CallerRole(StrEnum):
    """What somebody is to the server."""

    LOCAL = "local"
    """Anybody, where there are no keys: such a server serves the loopback only."""
    KEY = "key"
    """The holder of a key."""
    ADMIN = "admin"
    """The holder of the admin's token: makes keys and reads all runs, and plays none."""
    NOBODY = "nobody"
    """No key was sent where one is needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The tenant that a request is counted to, and whose runs and responses it may see."""

    tenant: str = "local"
    role: CallerRole = CallerRole.LOCAL
    key: str | None = None
    """The id of the key, or of the user who has made it."""
    user: str | None = None
    """The id of the user's own entry, of somebody who signs in by an identity provider."""
    permissions: KeyPermissions = _NO_LIMITS
    """The key's limits."""
    per_day: Decimal | None = None
    """Dollars a day of the tenant."""
    per_month: Decimal | None = None

    @property
    def visible_tenant(self) -> str | None:
        """The tenant whose runs and responses may be read; None: everybody's."""
        return None if self.role is CallerRole.ADMIN else self.tenant


LOCAL = Caller()
NOBODY = Caller(tenant="", role=CallerRole.NOBODY)
ADMIN = Caller(tenant="", role=CallerRole.ADMIN)


def caller_of(scope: Scope) -> Caller:
    """Who asks; the middleware that checks keys has written it down."""
    found = scope.get(_SCOPE_KEY)
    return found if isinstance(found, Caller) else LOCAL


def set_caller(scope: Scope, caller: Caller) -> None:
    """Writes down who asks, for `caller_of`."""
    scope[_SCOPE_KEY] = caller
