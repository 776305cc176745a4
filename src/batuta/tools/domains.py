"""Rules on the domains that may be searched and read."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainRules:
    """Allowed and denied domains with their subdomains; an entry may add a path prefix."""

    allow: tuple[str, ...] = ()
    """The allowed domains; empty: every domain is allowed."""
    deny: tuple[str, ...] = ()
    """The denied domains, even where they are allowed too."""

    def permit(self, url: str) -> bool:
        """Return True if the URL may be shown and read."""
        try:
            parts = urlsplit(url)
            host = (parts.hostname or "").rstrip(".").lower()
        except ValueError:
            return False
        if not host or any(_holds_host(entry, host, parts.path) for entry in self.deny):
            return False
        return not self.allow or any(_holds_host(entry, host, parts.path) for entry in self.allow)

    @property
    def allowed_hosts(self) -> tuple[str, ...]:
        """The allowed domains without paths, each once, for engines that filter by them."""
        return tuple(dict.fromkeys(_split_entry(entry)[0] for entry in self.allow))

    @property
    def denied_hosts(self) -> tuple[str, ...]:
        """The domains that are denied entirely, without a path."""
        split = map(_split_entry, self.deny)
        return tuple(dict.fromkeys(host for host, path in split if not path))


def _split_entry(entry: str) -> tuple[str, str]:
    """Return an entry's domain and path prefix."""
    bare = entry.strip().lower().partition("://")[2] or entry.strip()
    host, slash, path = bare.partition("/")
    return host.lower().removeprefix("*.").removeprefix("."), slash + path if path else ""


def _holds_host(entry: str, host: str, path: str) -> bool:
    domain, prefix = _split_entry(entry)
    return (host == domain or host.endswith(f".{domain}")) and path.startswith(prefix)


ANY_DOMAIN = DomainRules()
