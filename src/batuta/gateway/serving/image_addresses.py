"""Addresses of pictures: nothing is fetched here, but a provider in this network would fetch it."""

from __future__ import annotations

import re
import socket
from ipaddress import IPv4Network, IPv6Network, ip_address
from urllib.parse import urlsplit

from batuta.core import Question
from batuta.gateway.errors import invalid_value

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


def check_pictures(question: Question, *, private: bool = False) -> None:
    """Return if every picture is given with the request or has a public address, else raise.

    Names are not looked up: who answers for a name may change from one moment to the next.

    Args:
        question: what is asked.
        private: whether addresses of private networks are allowed.

    Raises:
        APIError: an address is of this machine or of a private network, or is none.
    """
    for index, message in enumerate(question.messages):
        for image in message.images:
            if image.url.startswith("data:") or private:
                continue
            if not _is_public(image.url):
                reason = "a picture's address must be public; send the picture as a data URL."
                raise invalid_value(f"messages[{index}]", reason)


def _is_public(url: str) -> bool:
    if _ODD.search(url):
        return False
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return False
    # Readers of letters beyond ASCII differ: to some of them a name of such is an address.
    if not host or not host.isascii() or parts.username is not None or "%" in host:
        return False
    host = host.rstrip(".").lower()
    try:
        address = ip_address(host)
    except ValueError:
        return _is_public_name(host)
    if address.version == 6:  # noqa: PLR2004 - the version's own name
        mapped = address.ipv4_mapped or address.sixtofour
        if mapped is None:
            return address in _UNICAST and address.is_global
        address = mapped
    if address.is_multicast or any(address in network for network in _HOST_NETWORKS):
        return False
    return address.is_global


def _is_public_name(host: str) -> bool:
    """Return True for a name of the public tree; 0x7f.1 and 2130706433 are addresses."""
    try:
        socket.inet_aton(host)
    except OSError:
        return "." in host and not host.endswith(_LOCAL)
    return False
