"""Where a provider is asked, and what it means that a connection to it fails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import aiohttp

from batuta.clients.interim_responses import TooManyInterimResponsesError
from batuta.clients.secret import NO_KEY, Secret
from batuta.core.redaction import address_parts, hide_addresses
from batuta.errors import (
    ClientError,
    ConfigError,
    InvalidReplyError,
    ProviderTimeoutError,
    ProviderUnreachableError,
    StreamInterruptedError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpTarget:
    """Where a request goes and what it carries besides its body."""

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


def connection_error(target: HttpTarget, error: Exception, idle: float) -> ClientError:
    """The error for a request that got no answer at all."""
    return with_host(target, _classify_connection_error(error, idle))


def _classify_connection_error(error: Exception, idle: float) -> ClientError:
    if isinstance(error, aiohttp.SocketTimeoutError):
        return ProviderTimeoutError(
            f"the provider took the request and was silent for {idle:g} seconds"
        )
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return ProviderUnreachableError("no connection to the provider could be made in time")
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return ProviderUnreachableError("the provider closed the connection before it answered")
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return ProviderUnreachableError("the provider's certificate is not valid")
    if isinstance(error, TooManyInterimResponsesError):
        return InvalidReplyError("the provider announced a response again and again and sent none")
    if isinstance(error, aiohttp.ClientResponseError):
        return InvalidReplyError("the provider does not answer in HTTP")
    if isinstance(error, TimeoutError):
        return ProviderTimeoutError("the provider was silent for too long")
    return ProviderUnreachableError("no connection to the provider could be made")


def interrupted_body_error(target: HttpTarget, error: Exception) -> ClientError:
    """The error for a body that did not come to its end."""
    if isinstance(error, TimeoutError):
        return with_host(
            target, ProviderTimeoutError("the provider fell silent in the middle of its reply")
        )
    return with_host(
        target, StreamInterruptedError("the provider broke off in the middle of its reply")
    )


def wrong_type_error(target: HttpTarget, found: str, wanted: str) -> ClientError:
    """The error for a reply of another content type."""
    found = hide_addresses(found[:60], address_parts(target.url))
    return with_host(
        target, InvalidReplyError(f"the provider answered with {found} instead of {wanted}")
    )


def too_large_error(target: HttpTarget, limit: int) -> ClientError:
    """The error for a reply that is not read to its end."""
    message = f"the provider answered with more than the allowed {limit} bytes"
    return with_host(target, InvalidReplyError(message))
