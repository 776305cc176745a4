"""Addresses of the public internet, told apart from those of this machine and of private networks.

What strangers name may be fetched only there: a page, and a picture that a provider fetches for us.
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

_ODD = re.compile(r"[\x00-\x20\x7f\\]")
"""Signs that programs read differently in an address."""
_UNICAST = IPv6Network("2000::/3")
"""The public addresses of version 6; others hold ones of version 4 or lead nowhere."""
_HOST_NETWORKS = tuple(
    IPv4Network(one) for one in ("192.0.0.0/24", "168.63.129.16/32", "192.88.99.0/24")
)
"""Networks of clouds' hosts and of relays: they look public, and answer within a network only."""
_LOCAL = (
    *(".local", ".localhost", ".localdomain", ".internal", ".intranet", ".private", ".lan"),
    *(".home", ".corp", ".mail", ".home.arpa", ".svc", ".cluster", ".consul", ".docker"),
    *(".test", ".example", ".invalid", ".onion", ".alt"),
)
"""Ends of names that no public tree has."""


def is_public_url(url: str, private_hosts: Collection[str] = ()) -> bool:
    """Return True if the URL's host is a public address, or a name that may have one.

    Names are not looked up: who answers for a name may change from one moment to the next. Whoever
    connects asks `PublicResolver` for the address.

    Args:
        url: of any scheme.
        private_hosts: hosts, or `host:port`, that are allowed wherever they are.
    """
    host = _readable_host(url)
    if host is None:
        return False
    if private_hosts and not private_hosts_of(url).isdisjoint(private_hosts):
        return True
    host = host.rstrip(".").lower()
    try:
        ip_address(host)
    except ValueError:
        return _is_public_name(host)
    return is_public_address(host)


def private_hosts_of(url: str) -> frozenset[str]:
    """Return the forms in which a setting can name the URL's host: alone, and with its port."""
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return frozenset({host, f"{host}:{port}"})


def is_public_address(text: str) -> bool:
    """Return True if the text is an IP address that is reached by the public internet."""
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
    """Return the host as every program reads it; None if programs may differ, or there is none."""
    if _ODD.search(url):
        return None
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return None
    # Readers of letters beyond ASCII differ: to some of them a name of such is an address.
    if not host or not host.isascii() or parts.username is not None or "%" in host:
        return None
    return host


def _is_public_name(host: str) -> bool:
    """Return True for a name of the public tree; 0x7f.1 and 2130706433 are addresses."""
    try:
        socket.inet_aton(host)
    except OSError:
        return "." in host and not host.endswith(_LOCAL)
    return False


class PrivateAddressError(OSError):
    """A name has an address of this machine or of a private network; nothing was sent there."""


@final
class PublicResolver(AbstractResolver):
    """Looks names up for aiohttp, which connects to the very addresses that were checked here.

    A name that answers with one private address among public ones is refused altogether.
    """

    def __init__(
        self, private_hosts: Collection[str] = (), resolver: AbstractResolver | None = None
    ) -> None:
        """Look nothing up yet.

        Args:
            private_hosts: hosts, or `host:port`, that may have private addresses.
            resolver: who is asked; None: the system.
        """
        self._private_hosts = frozenset(private_hosts)
        self._resolver = resolver

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return the host's addresses.

        Raises:
            PrivateAddressError: one of them is not public.
        """
        if self._resolver is None:
            self._resolver = aiohttp.ThreadedResolver()
        found = await self._resolver.resolve(host, port, family)
        named = {host.lower(), f"{host.lower()}:{port}"}
        if named.isdisjoint(self._private_hosts) and not all(
            is_public_address(each["host"]) for each in found
        ):
            raise PrivateAddressError(f"{host} has an address of a private network")
        return found

    async def close(self) -> None:
        """Let go of what looks names up."""
        if self._resolver is not None:
            await self._resolver.close()
