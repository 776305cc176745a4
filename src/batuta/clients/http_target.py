"""Where requests to a provider go: URL, headers and key, and the proxy in between."""

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
    """The proxy for a URL."""

    url: URL | None = None
    """None: a direct connection."""
    headers: Mapping[str, str] | None = field(default=None, repr=False)
    """Headers with the proxy's credentials; None if it needs none."""


NO_PROXY = Proxy()


class OutwardRoutes:
    """The proxies and trusted certificates that the environment configures."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        """Read the variables of proxies and certificates.

        Lower-case names of proxy variables take precedence over upper-case ones.

        Raises:
            ConfigError: a proxy's URL is invalid or has another scheme than http or https, or the
                certificates cannot be loaded.
        """
        named = {kind: _read_either(environ, f"{kind}_proxy") for kind in ("http", "https", "all")}
        if "REQUEST_METHOD" in environ and "http_proxy" not in environ:
            named["http"] = ""  # in CGI programs HTTP_PROXY may come from a request header
        if named["http"] and named["https"]:
            named["all"] = ""  # not needed; ALL_PROXY often has a scheme that is unsupported here
        self._proxies = {kind: _parse_proxy(kind, url) for kind, url in named.items() if url}
        self.are_direct = not self._proxies
        """Whether no proxy is configured."""
        self._no_proxy = _read_either(environ, "no_proxy")
        self.certificates = _load_certificates(environ)
        """The context with the trusted certificates; None: the default certificates."""

    def find_proxy(self, url: str) -> Proxy:
        """Return the proxy for `url`; `NO_PROXY` for a direct connection."""
        parts = urlsplit(url)
        proxy = self._proxies.get(parts.scheme) or self._proxies.get("all")
        if proxy is None or self._is_direct(parts.hostname or "", parts.port):
            return NO_PROXY
        return proxy

    def _is_direct(self, host: str, port: int | None) -> bool:
        """Return True if the `NO_PROXY` variable matches the host, or the host is this machine."""
        try:
            address = ip_address(host)
        except ValueError:
            address = None
        if host == "localhost" or (address is not None and address.is_loopback):
            return True
        if not self._no_proxy:
            return False
        authority = f"{host}:{port}" if port else host
        if proxy_bypass_environment(authority, {"no": self._no_proxy}):
            return True
        named = (each.strip() for each in self._no_proxy.split(","))
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
        raise ConfigError(f"{name} must be the URL of a proxy, with http:// or https://")
    if proxy.username is None:
        return Proxy(at)
    login = aiohttp.encode_basic_auth(unquote(proxy.username), unquote(proxy.password or ""))
    return Proxy(at, {"Proxy-Authorization": login})


def _load_certificates(environ: Mapping[str, str]) -> ssl.SSLContext | None:
    file, folder = environ.get("SSL_CERT_FILE", ""), environ.get("SSL_CERT_DIR", "")
    if not file and not folder:
        return None
    if file and not Path(file).is_file():
        raise ConfigError(f"SSL_CERT_FILE names {file}, which is not a file")
    try:
        return _read_certificates(file, folder, Path(file).stat().st_mtime_ns if file else 0)
    except (OSError, ssl.SSLError):
        named = f"SSL_CERT_FILE names {file}" if file else f"SSL_CERT_DIR names {folder}"
        raise ConfigError(f"{named}, which contains no certificates or cannot be read") from None


@lru_cache(maxsize=4)
def _read_certificates(file: str, folder: str, _changed: int) -> ssl.SSLContext:
    """Load the certificates, cached for all connection pools: a system bundle takes 30 ms."""
    return ssl.create_default_context(cafile=file or None, capath=folder or None)


def _holds_address(network: str, address: str) -> bool:
    """Return True if an entry of `NO_PROXY` is a network that contains the address."""
    try:
        return ip_address(address) in ip_network(network, strict=False)
    except ValueError:
        return False


_SENDABLE = re.compile(r"[!-~]*")


@final
class Secret:
    """An API key, or "" for none.

    `str`, `repr` and `format` show `***`; only `reveal` returns the key.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        """Store `value` without surrounding white space.

        Raises:
            ConfigError: the key cannot be sent in a header.
        """
        self._value = value.strip()
        if not _SENDABLE.fullmatch(self._value):
            raise ConfigError(
                "an API key contains white space, a control character or a non-ASCII character"
            )

    def reveal(self) -> str:
        """Return the key itself."""
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
    """Return `text` without `key` and anything like a key; see `core.redaction.hide_keys`."""
    if key:
        text = text.replace(key.reveal(), HIDDEN_KEY)
    return hide_keys(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpTarget:
    """The URL and headers of a request.

    Raises ConfigError if the URL is not http(s) and no `host` is given.
    """

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False, default_factory=dict[str, str])
    key: Secret = NO_KEY
    """The key, which is removed from the provider's text in error messages."""
    host: str = ""
    """Host and port for an error's `host`, never shown in its message; default: those of `url`."""

    def __post_init__(self) -> None:
        if not self.host:
            object.__setattr__(self, "host", url_host(self.url))


def url_host(url: str) -> str:
    """Return host and port of an `http(s)` URL, without user, path and query.

    Raises:
        ConfigError: `url` is not an http(s) URL, or nothing can be sent to it.
    """
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # such as an IPv6 address without its closing bracket, or port 99999
        is_url, parts = False, urlsplit("")
    if not is_url or " " in url or not url.isprintable():
        raise ConfigError(
            "the base URL of a provider must start with http:// or https:// and name a host, "
            "without white space, and with a port of 1 to 65535 if it has one"
        )
    return parts.netloc.rpartition("@")[2]


_MAX_URL_CHARACTERS = 200


def with_host(target: HttpTarget, error: ClientError, *, location: str = "") -> ClientError:
    """Set the error's `host` and return the error.

    Args:
        target: the called target.
        error: the error of the call.
        location: target of a redirect; reported without user and query, which may contain keys.
    """
    error.host = target.host
    if location:
        with suppress(ValueError):
            parts = urlsplit(urljoin(target.url, location))
            where = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
            error.host += f", which points to {where[:_MAX_URL_CHARACTERS]}"
    return error
