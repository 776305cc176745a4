"""Limits on the connections and requests of one server, on each caller's, and on their time."""

from __future__ import annotations

import logging
import resource
from dataclasses import dataclass
from ipaddress import ip_address

_LOG = logging.getLogger(__name__)
_SPARE = 128
"""File descriptors that are left for the database, the log and the listening socket."""
_PER_CONNECTION = 2
"""File descriptors of a connection that is answered: its own, and one to a provider."""
_LEAST = 8
_NETWORK = 64
"""Bits of an address of version 6 that name one customer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Limits of one server's connections."""

    total: int = 4096
    """Connections at the same time; fewer if the process may not open that many files."""
    per_address: int | None = None
    """Limit of one address (of version 6: one network of 64 bits); None for half of the total."""
    header_s: float = 10.0
    """Seconds in which a request's headers must have arrived, from their first byte on (of the
    first request: from the connection on)."""
    body_s: float = 60.0
    """Seconds in which the rest of a body must have arrived that was answered early."""
    write_s: float = 60.0
    """Seconds for which a reader may leave what was written unread."""
    header_bytes: int = 80 * 1024
    """Bytes of a request's line and headers, as far as they come in several pieces; the app
    itself takes 64 KB of headers."""

    def __post_init__(self) -> None:
        if self.total < 1 or (self.per_address is not None and self.per_address < 1):
            raise ValueError("at least one connection is possible")
        if min(self.header_s, self.body_s, self.write_s) <= 0 or self.header_bytes < 1:
            raise ValueError("headers, bodies and readers need some time and room")


@dataclass(frozen=True, slots=True)
class ConcurrencyLimits:
    """Limits of one process's requests."""

    max_running: int = 512
    """Answers that are worked on at the same time."""
    max_waiting: int = 1024
    """Requests that may wait for one of them to end."""
    queue_timeout: float = 30.0
    """Seconds that a request may wait."""

    def __post_init__(self) -> None:
        if self.max_running < 1 or self.max_waiting < 0 or self.queue_timeout < 0:
            raise ValueError("at least one answer runs, and nobody waits less than no time")


def openable_connection_count(wanted: int) -> int:
    """Return how many of the wanted connections this process may open files for.

    It raises its own limit as far as it is allowed and needs to.
    """
    files = wanted * _PER_CONNECTION + _SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= files:
        return wanted
    allowed = files if hard == resource.RLIM_INFINITY else min(files, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    except (OSError, ValueError) as error:
        _LOG.warning("the limit of open files stays at %d: %s", soft, error)
        allowed = soft
    return max(_LEAST, min(wanted, (allowed - _SPARE) // _PER_CONNECTION))


def customer_of(host: str) -> str:
    """Return who counts as one caller: an address of version 4, a network of version 6."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if address.version == 4:  # noqa: PLR2004 - the version's own name
        return host
    mapped = address.ipv4_mapped
    return str(mapped) if mapped else f"{int(address) >> _NETWORK:x}"
