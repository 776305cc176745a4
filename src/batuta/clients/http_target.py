"""The address, headers and key of a provider's endpoint."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final
from urllib.parse import urlsplit

from batuta.core.redaction import HIDDEN_KEY, hide_keys
from batuta.errors import ClientError, ConfigError

_SENDABLE = re.compile(r"[!-~]*")


@final
class Secret:
    """A provider's key: `str`, `repr` and `format` give `***`; only `reveal` gives the key."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        """Keeps `value` without the white space around it.

        Raises:
            ConfigError: the key could not be sent in a header.
        """
        self._value = value.strip()
        if not _SENDABLE.fullmatch(self._value):
            raise ConfigError("a provider's key holds a space, a line end or a non-ASCII character")

    def reveal(self) -> str:
        """The key itself; for the header of a request and nothing else."""
        return self._value

    def __repr__(self) -> str:
        return HIDDEN_KEY

    def __bool__(self) -> bool:
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash((Secret, self._value))


NO_KEY = Secret("")


def redact_secrets(text: str, key: Secret = NO_KEY) -> str:
    """`text` without `key`, without anything that looks like a key, and without URL paths."""
    if key:
        text = text.replace(key.reveal(), HIDDEN_KEY)
    return hide_keys(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpTarget:
    """The address of a request, and what it carries besides its body."""

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False, default_factory=dict[str, str])
    key: Secret = NO_KEY
    """Removed from every error."""
    host: str = ""
    """Host and port: in an error's `host`, never in its sentence. Taken from `url` if empty."""

    def __post_init__(self) -> None:
        if not self.host:
            object.__setattr__(self, "host", url_host(self.url))


def url_host(url: str) -> str:
    """Host and port of an `http(s)` URL, without user, path and query.

    Raises:
        ConfigError: not such a URL.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigError("the base URL of a provider must start with http:// or https://")
    return parts.netloc.rpartition("@")[2]


def with_host(target: HttpTarget, error: ClientError) -> ClientError:
    """The error, knowing where it happened."""
    error.host = target.host
    return error
