"""Where requests to a provider go: its address, headers and key, and the proxy on the way there."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import final
from urllib.parse import unquote, urljoin, urlsplit
from urllib.request import (
    proxy_bypass_environment,  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]
)

import aiohttp
from yarl import URL

from batuta.core.redaction import HIDDEN_KEY, hide_keys
from batuta.errors import ClientError, ConfigError


@dataclass(frozen=True, slots=True)
class Proxy:
    """The proxy through which a URL is reached."""

    url: URL | None = None
    """None: a direct connection."""
    headers: Mapping[str, str] | None = field(default=None, repr=False)
    """Headers with the login, if there is one."""


NO_PROXY = Proxy()


class OutwardRoutes:
    """The proxies of URLs, and the certificates that are trusted."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Read the variables; the lower case of a name counts before the upper one.

        Raises:
            ConfigError: a proxy is of a kind that cannot be used, or there are no certificates
                where the variables say.
        """
        named = {kind: _read_either(environ, f"{kind}_proxy") for kind in ("http", "https", "all")}
        if "REQUEST_METHOD" in environ and "http_proxy" not in environ:
            named["http"] = ""  # a CGI program's HTTP_PROXY is a caller's header
        self._proxies = {kind: _parse_proxy(kind, url) for kind, url in named.items() if url}
        self.are_direct = not self._proxies
        """Whether no proxy is named at all."""
        self._without = _read_either(environ, "no_proxy")
        self.certificates = _load_certificates(environ)
        """None: the default ones."""

    def find_proxy(self, url: str) -> Proxy:
        """Find the proxy of a request for that URL."""
        parts = urlsplit(url)
        found = self._proxies.get(parts.scheme) or self._proxies.get("all")
        if found is None or self._is_direct(parts.hostname or "", parts.port):
            return NO_PROXY
        return found

    def _is_direct(self, host: str, port: int | None) -> bool:
        """Tell whether `NO_PROXY` names the host; this machine's own servers need no proxy."""
        try:
            address = ip_address(host)
        except ValueError:
            address = None
        if host == "localhost" or (address is not None and address.is_loopback):
            return True
        if not self._without:
            return False
        place = f"{host}:{port}" if port else host
        if proxy_bypass_environment(place, {"no": self._without}):
            return True
        named = (each.strip() for each in self._without.split(","))
        return address is not None and any(_holds_address(each, str(address)) for each in named)


def _read_either(environ: Mapping[str, str], name: str) -> str:
    return (environ.get(name) or environ.get(name.upper(), "")).strip()


def _parse_proxy(kind: str, given: str) -> Proxy:
    try:
        proxy = urlsplit(given if "://" in given else f"http://{given}")
        known = proxy.scheme in {"http", "https"} and bool(proxy.hostname)
        at = URL(proxy._replace(netloc=proxy.netloc.rpartition("@")[2]).geturl())
    except ValueError:
        known, at, proxy = False, URL(), urlsplit("")
    if not known:
        name = f"{kind.upper()}_PROXY"
        raise ConfigError(f"{name} must be the address of a proxy, with http:// or https://")
    if proxy.username is None:
        return Proxy(at)
    login = aiohttp.encode_basic_auth(unquote(proxy.username), unquote(proxy.password or ""))
    return Proxy(at, {"Proxy-Authorization": login})


def _load_certificates(environ: Mapping[str, str]) -> ssl.SSLContext | None:
    file, folder = environ.get("SSL_CERT_FILE", ""), environ.get("SSL_CERT_DIR", "")
    if not file and not folder:
        return None
    if file and not Path(file).is_file():
        raise ConfigError(f"SSL_CERT_FILE names {file}, which is no file")
    try:
        return _read_certificates(file, folder, Path(file).stat().st_mtime_ns if file else 0)
    except (OSError, ssl.SSLError):
        raise ConfigError(f"SSL_CERT_FILE names {file}, which holds no certificates") from None


@lru_cache(maxsize=4)
def _read_certificates(file: str, folder: str, _changed: int) -> ssl.SSLContext:
    """Read once what each pool of connections needs: a system's bundle takes 30 ms."""
    return ssl.create_default_context(cafile=file or None, capath=folder or None)


def _holds_address(network: str, address: str) -> bool:
    """Tell whether an entry of `NO_PROXY` is a network with the address in it."""
    try:
        return ip_address(address) in ip_network(network, strict=False)
    except ValueError:
        return False


_SENDABLE = re.compile(r"[!-~]*")


@final
class Secret:
    """A provider's key: `str`, `repr` and `format` give `***`; only `reveal` gives the key."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        """Keep `value` without the white space around it.

        Raises:
            ConfigError: the key could not be sent in a header.
        """
        self._value = value.strip()
        if not _SENDABLE.fullmatch(self._value):
            raise ConfigError("a provider's key holds a space, a line end or a non-ASCII character")

    def reveal(self) -> str:
        """Return the key itself; for the header of a request and nothing else."""
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
    """Return `text` without `key`, anything that looks like a key, and URL paths."""
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
    """Return host and port of an `http(s)` URL, without user, path and query.

    Raises:
        ConfigError: not such a URL.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigError("the base URL of a provider must start with http:// or https://")
    return parts.netloc.rpartition("@")[2]


_MOST_OF_ADDRESS = 200


def with_host(target: HttpTarget, error: ClientError, *, location: str = "") -> ClientError:
    """Return the error, knowing where it happened.

    Args:
        target: what was called.
        error: what came of it.
        location: where a redirect points; told without users and queries, which may have keys.
    """
    error.host = target.host
    if location:
        with suppress(ValueError):
            place = urlsplit(urljoin(target.url, location))
            where = f"{place.scheme}://{place.netloc.rpartition('@')[2]}{place.path}"
            error.host += f", which points to {where[:_MOST_OF_ADDRESS]}"
    return error
