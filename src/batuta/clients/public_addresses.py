"""Distinguishes public internet addresses from those of this machine and of private networks.

URLs from untrusted sources may be fetched only from public addresses: web pages, and images that a
provider fetches for us.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Collection
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import final
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

_AMBIGUOUS = re.compile(r"[\x00-\x20\x7f\\]")
"""Characters in a URL that programs interpret differently."""
_UNICAST = IPv6Network("2000::/3")
"""The public IPv6 addresses; others embed IPv4 addresses or are not routed."""
_HOST_NETWORKS = tuple(
    IPv4Network(one) for one in ("192.0.0.0/24", "168.63.129.16/32", "192.88.99.0/24")
)
"""Networks of cloud hosts and relays that look public but are reachable only locally."""
_LOCAL = (
    *(".local", ".localhost", ".localdomain", ".internal", ".intranet", ".private", ".lan"),
    *(".home", ".corp", ".mail", ".home.arpa", ".svc", ".cluster", ".consul", ".docker"),
    *(".test", ".example", ".invalid", ".onion", ".alt"),
)
"""Suffixes of names that are not in the public DNS."""


def is_public_url(url: str, private_hosts: Collection[str] = ()) -> bool:
    """Return True if the URL's host is a public address, or a name that may have one.

    URLs with a user name, or that programs may interpret differently, are refused. Names are not
    resolved here, because the result could change before the connection is made. The
    connection must use `PublicResolver`.

    Args:
        url: a URL of any scheme.
        private_hosts: hosts, or `host:port`, in lower case, that are allowed nevertheless.
    """
    host = _readable_host(url)
    if host is None:
        return False
    if private_hosts and not _host_forms(url).isdisjoint(private_hosts):
        return True
    host = host.rstrip(".").lower()
    try:
        ip_address(host)
    except ValueError:
        return _is_public_name(host)
    return is_public_address(host)


def _host_forms(url: str) -> frozenset[str]:
    """Return the URL's host alone and as `host:port`, the two forms that settings may use."""
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return frozenset({host, f"{host}:{port}"})


def is_public_address(text: str) -> bool:
    """Return True if the text is a public IP address."""
    try:
        address = ip_address(text)
    except ValueError:
        return False
    if address.version == 6:  # noqa: PLR2004 - the version's own name
        mapped = address.ipv4_mapped or address.sixtofour
        if mapped is None:
            return address in _UNICAST and address.is_global
        address = mapped
    if address.is_multicast or any(address in network for network in _HOST_NETWORKS):
        return False
    return address.is_global


def _readable_host(url: str) -> str | None:
    """Return the URL's host; None if there is none or programs may interpret it differently."""
    if _AMBIGUOUS.search(url):
        return None
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return None
    # Programs normalize non-ASCII characters differently; some then read the name as an address.
    if not host or not host.isascii() or parts.username is not None or "%" in host:
        return None
    return host


def _is_public_name(host: str) -> bool:
    """Return True for a name that may be public; not for addresses like 0x7f.1 or 2130706433."""
    try:
        socket.inet_aton(host)
    except OSError:
        return "." in host and not host.endswith(_LOCAL)
    return False


class PrivateAddressError(OSError):
    """A name resolves to this machine or a private network; nothing was sent there."""


@final
class PublicResolver(AbstractResolver):
    """Resolves names for aiohttp, which then connects to exactly the addresses checked here.

    A name is refused if one of its addresses is private.
    """

    def __init__(
        self, private_hosts: Collection[str] = (), resolver: AbstractResolver | None = None
    ) -> None:
        """Create the resolver; nothing is resolved yet.

        Args:
            private_hosts: hosts, or `host:port`, in lower case, that may have private addresses.
            resolver: the underlying resolver; None: the system's.
        """
        self._private_hosts = frozenset(private_hosts)
        self._resolver = resolver

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return the host's addresses.

        Raises:
            PrivateAddressError: one of them is not public, and the host is not in `private_hosts`.
            OSError: the host cannot be resolved.
        """
        if self._resolver is None:
            self._resolver = aiohttp.ThreadedResolver()
        addresses = await self._resolver.resolve(host, port, family)
        named = {host.lower(), f"{host.lower()}:{port}"}
        if named.isdisjoint(self._private_hosts) and not all(
            is_public_address(each["host"]) for each in addresses
        ):
            raise PrivateAddressError(
                f"{host} resolves to an address of this machine or of a private network"
            )
        return addresses

    async def close(self) -> None:
        """Close the underlying resolver."""
        if self._resolver is not None:
            await self._resolver.close()
