"""Rules on the domains that may be searched and read."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import unquote

from yarl import URL

_SCHEME = re.compile(r"^[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_SLASHES = re.compile("/{2,}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainRules:
    """Allowed and denied domains with their subdomains; an entry may add a path prefix."""

    allow: tuple[str, ...] = ()
    """The allowed domains; empty: every domain is allowed."""
    deny: tuple[str, ...] = ()
    """The denied domains, even where they are allowed too."""

    def permit(self, url: str) -> bool:
        """Return True if the URL may be shown and read.

        Its path is compared as it is requested: without escapes, `..` and repeated slashes.
        """
        try:
            parts = URL(url)
        except ValueError:
            return False
        host, path = (parts.raw_host or "").rstrip(".").lower(), _SLASHES.sub("/", parts.path)
        if not host or "/../" in f"{path}/":  # an escaped slash, which servers read in two ways
            return False
        if any(_holds_host(entry, host, path) for entry in self.deny):
            return False
        return not self.allow or any(_holds_host(entry, host, path) for entry in self.allow)

    @property
    def allowed_hosts(self) -> tuple[str, ...]:
        """The domains of the allowed entries, each once, for engines that filter by domain."""
        return tuple(dict.fromkeys(split_entry(entry)[0] for entry in self.allow))

    @property
    def denied_hosts(self) -> tuple[str, ...]:
        """The domains of the denied entries without a path, each once."""
        split = map(split_entry, self.deny)
        return tuple(dict.fromkeys(host for host, path in split if not path))


@lru_cache(maxsize=4096)
def split_entry(entry: str) -> tuple[str, str]:
    """Return an entry's ASCII domain in lower case, and its path prefix as `permit` reads it."""
    host, slash, path = _SCHEME.sub("", entry.strip()).partition("/")
    host = host.lower().removeprefix("*.").removeprefix(".")
    if not host.isascii():
        with suppress(ValueError):  # no URL has such a host
            host = URL(f"https://{host}").raw_host or host
    return host, _SLASHES.sub("/", slash + unquote(path)) if path else ""


def _holds_host(entry: str, host: str, path: str) -> bool:
    domain, prefix = split_entry(entry)
    return (host == domain or host.endswith(f".{domain}")) and path.startswith(prefix)


ANY_DOMAIN = DomainRules()
