"""The address and headers of a provider's endpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from batuta.clients.secret import NO_KEY, Secret
from batuta.errors import ClientError, ConfigError


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
