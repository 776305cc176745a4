"""Requests from web pages of other origins, which a setting allows to use the API (CORS)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import final

RawHeaders = list[tuple[bytes, bytes]]
EVERY = "*"
"""The setting that allows any origin, if a key is required."""
_API, _ADMIN = "/v1/", "/v1/admin"
_SHOWN = (
    b"x-request-id, request-id, retry-after, retry-after-ms, x-batuta-run-id, x-batuta-outcome, "
    b"x-batuta-cost-usd, x-batuta-cache, x-batuta-conductor, x-batuta-ignored"
)
_SECONDS = b"600"


@final
class CrossOrigin:
    """The origins whose pages may use the API, without the admin's routes and the server's page."""

    def __init__(self, origins: Collection[str]) -> None:
        self._origins = frozenset(origins)

    def allows(self, path: str, origin: bytes, *, needs_key: bool) -> bool:
        """Tell whether a page of that origin may be answered.

        Args:
            path: what it asks for.
            origin: as the browser tells it.
            needs_key: whether nobody is served without a key: else any page could spend money.
        """
        if not self._origins or not path.startswith(_API) or path.startswith(_ADMIN):
            return False
        if EVERY in self._origins and needs_key:
            return True
        return origin.decode("latin-1").rstrip("/").lower() in self._origins

    @staticmethod
    def answer_headers(origin: bytes) -> RawHeaders:
        """Return the headers of an answer that the page may read; cookies are never read."""
        return [
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", _SHOWN),
            (b"vary", b"origin"),
        ]

    @staticmethod
    def preflight_headers(asked: Mapping[bytes, bytes]) -> RawHeaders:
        """Return the headers that answer a browser's question whether it may send a request."""
        wanted = asked.get(b"access-control-request-headers", b"authorization, content-type")
        return [
            (b"access-control-allow-methods", b"GET, POST, DELETE, OPTIONS"),
            (b"access-control-allow-headers", wanted),
            (b"access-control-max-age", _SECONDS),
        ]


def is_preflight(method: str, headers: Mapping[bytes, bytes]) -> bool:
    """Tell whether a browser asks if it may send a request."""
    return method == "OPTIONS" and b"access-control-request-method" in headers
