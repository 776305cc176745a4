"""Translates errors of a provider's connection."""

from __future__ import annotations

import aiohttp

from batuta.clients.bounded_response import TooManyInterimResponsesError
from batuta.clients.http_target import HttpTarget, with_host
from batuta.core.redaction import address_parts, hide_addresses
from batuta.errors import (
    ClientError,
    InvalidReplyError,
    ProviderTimeoutError,
    ProviderUnreachableError,
    StreamInterruptedError,
)


def connection_error(target: HttpTarget, error: Exception, idle: float) -> ClientError:
    """The error for a request that got no answer at all."""
    if isinstance(error, aiohttp.ClientProxyConnectionError):
        failure = ProviderUnreachableError("no connection to the proxy could be made")
    elif isinstance(error, aiohttp.ClientHttpProxyError):
        told = f"the proxy refused the connection ({error.status})"
        failure = ProviderUnreachableError(told)
    else:
        failure = _classify_connection_error(error, idle)
    return with_host(target, failure)


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
    found = hide_addresses(found, address_parts(target.url))[:60]
    return with_host(
        target, InvalidReplyError(f"the provider answered with {found} instead of {wanted}")
    )


def too_large_error(target: HttpTarget, limit: int) -> ClientError:
    """The error for a reply that is not read to its end."""
    message = f"the provider answered with more than the allowed {limit} bytes"
    return with_host(target, InvalidReplyError(message))
