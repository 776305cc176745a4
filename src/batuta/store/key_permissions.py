"""Permissions and limits of a key. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from decimal import Decimal, InvalidOperation
from typing import Any, cast

from batuta.core import Worker
from batuta.core.server_tools import CODE_INTERPRETER, FILE_SEARCH, WEB_FETCH, WEB_SEARCH
from batuta.core.suggestions import find_similar
from batuta.language.plan_rules import MAX_TAGS, read_tag
from batuta.store.codec import is_sql_number

TAG_PREFIX = "tag:"
"""Prefix of an entry that matches every worker with a tag."""
_TOOL_NAMES = (WEB_SEARCH, WEB_FETCH, CODE_INTERPRETER, FILE_SEARCH, "none")
_MAX_INTEGER = 2**53
_SHOWN_CHARACTERS = 80
_SHOWN_NAMES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPermissions:
    """The permissions of a key; None and empty mean no limit.

    The constructor raises ValueError for a number out of range, an unknown tool, or wrong tags.
    """

    models: tuple[str, ...] = ()
    """Served models; an entry such as `worker/*` matches all names that begin with `worker/`."""
    max_cost: Decimal | None = None
    """Dollars per request."""
    rpm: int | None = None
    """Requests per minute."""
    tpm: int | None = None
    """Tokens per minute, of all calls of the runs."""
    concurrency: int | None = None
    """Concurrent runs."""
    per_day: Decimal | None = None
    """Dollars per day (UTC)."""
    per_month: Decimal | None = None
    """Dollars per month (UTC)."""
    session_max_cost: Decimal | None = None
    """Dollars per session."""
    session_max_turns: int | None = None
    """Turns per session."""
    workers_allow: tuple[str, ...] = ()
    """Workers that may read this key's requests: ids, or `tag:NAME` for all workers with a tag."""
    workers_deny: tuple[str, ...] = ()
    """Workers that may not read this key's requests; overrides `workers_allow`."""
    tags: tuple[str, ...] = ()
    """Tags that all questions of the key get, for plan rules."""
    tools: tuple[str, ...] = ()
    """Server tools that the key's requests may use, by name; `none` alone: no tools."""
    min_confidence: float | None = None
    """Answers with a lower probability of being correct count as unsure."""

    def __post_init__(self) -> None:
        self._check_names()
        self._check_numbers()

    def _check_names(self) -> None:
        if len(self.tags) > MAX_TAGS:
            raise ValueError(f"tags has {len(self.tags)} entries; it may have at most {MAX_TAGS}")
        for tag in self.tags:
            if read_tag(tag) != tag:
                raise ValueError(f"tags must be in lower case: {tag!r}")
        for tool in self.tools:
            if tool not in _TOOL_NAMES:
                raise ValueError(_describe_unknown("tool", tool, _TOOL_NAMES))

    def _check_numbers(self) -> None:
        for name in ("max_cost", "per_day", "per_month", "session_max_cost"):
            value: Decimal | None = getattr(self, name)
            if value is not None and (not is_sql_number(value) or value < 0):
                raise ValueError(f"{name} is not a number of dollars from 0 up: {value}")
        for name in ("rpm", "tpm", "concurrency", "session_max_turns"):
            number: int | None = getattr(self, name)
            if number is not None and not 1 <= number <= _MAX_INTEGER:
                raise ValueError(f"{name} must be from 1 to {_MAX_INTEGER}: {number}")
        least = self.min_confidence
        if least is not None and not 0 <= least <= 1:
            raise ValueError(f"min_confidence must be from 0 to 1: {least}")

    def allows_model(self, name: str) -> bool:
        """Return True if the key may use that served model."""
        return not self.models or any(_matches_model(name, entry) for entry in self.models)

    def allows_worker(self, worker: Worker) -> bool:
        """Return True if that worker may read the key's requests."""
        if any(_matches_worker(entry, worker) for entry in self.workers_deny):
            return False
        return not self.workers_allow or any(_matches_worker(e, worker) for e in self.workers_allow)

    def allows_tool(self, name: str) -> bool:
        """Return True if the key's requests may use that server tool."""
        return not self.tools or name in self.tools

    @property
    def allows_all_workers(self) -> bool:
        """True if every worker may be used."""
        return not (self.workers_allow or self.workers_deny)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownNames:
    """The models and workers that a key's permissions may name.

    Tags are not checked, as a limit by tag also applies to workers that are added later.
    """

    models: tuple[str, ...]
    """The names of all served models."""
    workers: tuple[str, ...]
    """The ids of all workers."""

    def check_permissions(
        self, permissions: KeyPermissions, before: KeyPermissions | None = None
    ) -> None:
        """Check that each named model and worker exists.

        Args:
            permissions: the new permissions of a key.
            before: the previous permissions; names in these are not checked again. None: none.

        Raises:
            ValueError: a name does not exist; the message suggests a similar name or lists names.
        """
        old = before or KeyPermissions()
        for entry in permissions.models:
            if entry in old.models or any(_matches_model(name, entry) for name in self.models):
                continue
            raise ValueError(_describe_unknown("model", entry, self.models))
        named = (*permissions.workers_allow, *permissions.workers_deny)
        for entry in named:
            is_old = entry in old.workers_allow or entry in old.workers_deny
            if is_old or entry.startswith(TAG_PREFIX) or entry in self.workers:
                continue
            raise ValueError(_describe_unknown("worker", entry, self.workers))


def _describe_unknown(kind: str, entry: str, known: tuple[str, ...]) -> str:
    """Return a message, without a full stop, that the name does not exist, and suggest others."""
    message = f"there is no {kind} {entry[:_SHOWN_CHARACTERS]!r}"
    near = find_similar(entry[:_SHOWN_CHARACTERS], known)
    if near is None and (bare := entry.rpartition("/")[2]):
        near = next((name for name in known if name.rpartition("/")[2] == bare), None)
    if near is not None:
        return f"{message}: you may mean {near!r}"
    folders = {f"{name.partition('/')[0]}/*" for name in known if "/" in name}
    names = [*(name for name in known if "/" not in name), *sorted(folders)]
    more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    return f"{message}: there are {', '.join(names[:_SHOWN_NAMES])}{more}" if names else message


def permissions_json(permissions: KeyPermissions) -> dict[str, Any]:
    """Return the permissions as JSON values, with money as strings.

    Fields of later versions are left out if empty, so that replicas of older versions can read
    the rest.
    """
    names = (field.name for field in fields(permissions))
    values = {name: _json_value(getattr(permissions, name)) for name in names}
    return {
        name: one for name, one in values.items() if one not in (None, []) or name not in _LATER
    }


def read_permissions(values: Mapping[str, Any]) -> KeyPermissions:
    """Read permissions that `permissions_json` wrote or a user entered.

    Raises:
        ValueError: a name is unknown or a value cannot be used; the message names it.
    """
    known = {field.name for field in fields(KeyPermissions)}
    for name in values:
        if name not in known:
            raise ValueError(
                f"{name} is not a limit of a key; the limits are {', '.join(sorted(known))}"
            )
    return KeyPermissions(**{name: _READERS[name](name, value) for name, value in values.items()})


def _json_value(value: object) -> Any:
    if isinstance(value, Decimal):
        return f"{value:f}"
    return list(cast("tuple[str, ...]", value)) if isinstance(value, tuple) else value


def _matches_model(name: str, entry: str) -> bool:
    return name.startswith(entry[:-1]) if entry.endswith("*") else name == entry


def _matches_worker(entry: str, worker: Worker) -> bool:
    if entry.startswith(TAG_PREFIX):
        return entry.removeprefix(TAG_PREFIX) in worker.tags
    return entry == worker.id


def _read_usd(name: str, value: object) -> Decimal | None:
    if value is None:
        return None
    try:
        if isinstance(value, (str, int, float, Decimal)) and not isinstance(value, bool):
            return Decimal(str(value))
    except InvalidOperation:
        pass
    raise ValueError(f"{name} is not a number of dollars: {value!r}")


def _read_integer(name: str, value: object) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise ValueError(f"{name} must be a whole number: {value!r}")


def _read_names(name: str, value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    entries: Iterable[object] = (
        cast("list[object]", value) if isinstance(value, (list, tuple)) else [0]
    )
    texts = tuple(entry for entry in entries if isinstance(entry, str) and entry)
    if len(texts) != len(list(entries)):
        raise ValueError(f"{name} must be a list of names: {value!r}")
    return texts


def _read_probability(name: str, value: object) -> float | None:
    if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        return value
    raise ValueError(f"{name} must be a number from 0 to 1: {value!r}")


_LATER = frozenset({"tags", "tools", "session_max_cost", "session_max_turns", "min_confidence"})
_READERS: dict[str, Callable[[str, Any], Any]] = {
    "models": _read_names,
    "max_cost": _read_usd,
    "rpm": _read_integer,
    "tpm": _read_integer,
    "concurrency": _read_integer,
    "per_day": _read_usd,
    "per_month": _read_usd,
    "session_max_cost": _read_usd,
    "session_max_turns": _read_integer,
    "workers_allow": _read_names,
    "workers_deny": _read_names,
    "tools": _read_names,
    "min_confidence": _read_probability,
    "tags": lambda name, value: tuple(tag.lower() for tag in _read_names(name, value)),
}
