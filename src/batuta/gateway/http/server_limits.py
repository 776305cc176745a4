"""Limits on the connections and concurrent requests of one server, and their timeouts."""

from __future__ import annotations

import logging
import resource
from dataclasses import dataclass
from ipaddress import ip_address

_LOG = logging.getLogger(__name__)
_SPARE = 128
"""File descriptors reserved for the database, the log and the listening socket."""
_PER_CONNECTION = 2
"""File descriptors of a connection being answered: its own, and one to a provider."""
_LEAST = 8
"""Number of connections that are accepted even if the limit of open files is lower."""
_NETWORK = 64
"""Host bits of an IPv6 address; the rest is the network of one customer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Limits of one server's connections."""

    total: int = 4096
    """Maximum number of open connections; lowered if the process may not open that many files."""
    per_address: int | None = None
    """Maximum number of open connections of one IPv4 address or IPv6 /64 network; None: half of
    the total."""
    header_s: float = 10.0
    """Seconds within which a request's headers must arrive, counted from their first byte (for
    the first request: from the connection)."""
    body_s: float = 60.0
    """Seconds within which the rest of a body must arrive if its request was answered early."""
    write_s: float = 60.0
    """Seconds for which a client may leave written data unread."""
    header_bytes: int = 80 * 1024
    """Maximum number of bytes of a request line and headers that arrive in several pieces (the app
    accepts 64 KiB of headers), and of chunk framing and trailers without data between them."""

    def __post_init__(self) -> None:
        if self.total < 1 or (self.per_address is not None and self.per_address < 1):
            raise ValueError("total and per_address must be at least 1")
        if min(self.header_s, self.body_s, self.write_s) <= 0 or self.header_bytes < 1:
            raise ValueError("the timeouts and header_bytes must be positive")


@dataclass(frozen=True, slots=True)
class ConcurrencyLimits:
    """Limits of one process's requests that call models."""

    max_running: int = 512
    """Maximum number of requests that run concurrently."""
    max_waiting: int = 1024
    """Maximum number of queued requests."""
    queue_timeout: float = 30.0
    """Seconds that a request may wait in the queue."""

    def __post_init__(self) -> None:
        if self.max_running < 1 or self.max_waiting < 0 or self.queue_timeout < 0:
            raise ValueError("max_running must be at least 1, the other limits at least 0")


def openable_connection_count(most: int) -> int:
    """Return `most`, or the lower number of connections that the limit of open files permits.

    If needed, this raises the soft limit of the process, as far as the hard limit allows.
    """
    files = most * _PER_CONNECTION + _SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= files:
        return most
    allowed = files if hard == resource.RLIM_INFINITY else min(files, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    except (OSError, ValueError) as error:
        _LOG.warning("cannot raise the limit of open files from %d: %s", soft, error)
        allowed = soft
    return min(most, max(_LEAST, (allowed - _SPARE) // _PER_CONNECTION))


def customer_of(host: str) -> str:
    """Return the IPv4 address, or the IPv6 /64 network in hexadecimal: usually one customer's.

    A host that is not an address is returned unchanged.
    """
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if address.version == 4:  # noqa: PLR2004 - IPv4
        return host
    mapped = address.ipv4_mapped
    return str(mapped) if mapped else f"{int(address) >> _NETWORK:x}"
