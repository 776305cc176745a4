"""Search engines: one class for the requests and responses of each engine, over one transport."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, final
from urllib.parse import urlencode

from batuta.clients import NO_KEY, HttpTransport, Secret
from batuta.clients.decoding import as_array, as_object, as_string
from batuta.clients.http_target import HttpTarget
from batuta.tools.domains import DomainRules

MAX_EXCERPT = 500
"""Maximum number of characters of an excerpt; sent to engines that accept a length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawResult:
    """A result as an engine returned it, untrusted."""

    url: str
    title: str = ""
    excerpt: str = ""
    date: str = ""
    """In the engine's format; empty: unknown."""


class SearchEngine(Protocol):
    """Finds pages.

    A search makes one request. The results are in the engine's order; an invalid response gives a
    `ClientError` or no results.
    """

    async def search(self, query: str, count: int, domains: DomainRules) -> list[RawResult]:
        """Return about `count` results; an engine without such a parameter chooses the number.

        The caller applies the rules on domains that the engine cannot apply.

        Raises:
            ClientError: the search failed.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineAddress:
    """An engine's URL and key, and the transport to reach it."""

    http: HttpTransport
    url: str
    """The base URL, without a slash at the end."""
    key: Secret = NO_KEY

    def target(self, path: str, headers: Mapping[str, str]) -> HttpTarget:
        """Return the target of a request to that path."""
        return HttpTarget(url=self.url + path, headers=headers, key=self.key)


class _AddressedEngine:
    """An engine that keeps its address."""

    def __init__(self, address: EngineAddress) -> None:
        self._address = address


def _find_rows(answer: Any, *path: str) -> list[Mapping[str, Any]]:
    """Return the objects in the list at that path; empty if there is no list."""
    for name in path:
        answer = as_object(answer).get(name)
    return [as_object(row) for row in as_array(answer) if isinstance(row, dict)]


def _read_results(rows: Iterable[Mapping[str, Any]], excerpt: str, *dates: str) -> list[RawResult]:
    """Return results from rows; `excerpt` and `dates` name the fields to read."""
    return [
        RawResult(
            url=_find_text(row, "url"),
            title=_find_text(row, "title"),
            excerpt=_find_text(row, excerpt),
            date=_find_text(row, *dates),
        )
        for row in rows
    ]


def _find_text(row: Mapping[str, Any], *names: str) -> str:
    """Return the first of those fields that is a non-empty string."""
    return next(filter(None, (as_string(row.get(name)) for name in names)), "")


def _with_site(query: str, domains: DomainRules) -> str:
    """Return the query with `site:` if exactly one domain is allowed."""
    hosts = domains.allowed_hosts
    return f"{query} site:{hosts[0]}" if len(hosts) == 1 else query


@final
class SearxngEngine(_AddressedEngine):
    """SearXNG, with `json` among the `formats` of its settings."""

    async def search(self, query: str, count: int, domains: DomainRules) -> list[RawResult]:
        """See `SearchEngine`."""
        parameters = urlencode({"q": _with_site(query, domains), "format": "json"})
        target = self._address.target(f"/search?{parameters}", {})
        answer = await self._address.http.get(target)
        return _read_results(_find_rows(answer, "results"), "content", "publishedDate", "pubdate")


@final
class BraveEngine(_AddressedEngine):
    """The web search API of Brave."""

    async def search(self, query: str, count: int, domains: DomainRules) -> list[RawResult]:
        """See `SearchEngine`."""
        parameters = urlencode({"q": _with_site(query, domains), "count": min(count, 20)})
        headers = {"X-Subscription-Token": self._address.key.reveal()}
        target = self._address.target(f"/res/v1/web/search?{parameters}", headers)
        answer = await self._address.http.get(target)
        return _read_results(_find_rows(answer, "web", "results"), "description", "page_age")


@final
class TavilyEngine(_AddressedEngine):
    """The search API of Tavily."""

    async def search(self, query: str, count: int, domains: DomainRules) -> list[RawResult]:
        """See `SearchEngine`."""
        body: dict[str, Any] = {"query": query, "max_results": min(count, 20)}
        if domains.allow:
            body["include_domains"] = list(domains.allowed_hosts)
        if domains.denied_hosts:
            body["exclude_domains"] = list(domains.denied_hosts)
        headers = {"Authorization": f"Bearer {self._address.key.reveal()}"}
        answer = await self._address.http.post(self._address.target("/search", headers), body)
        return _read_results(_find_rows(answer, "results"), "content", "published_date")


@final
class ExaEngine(_AddressedEngine):
    """The search API of Exa."""

    async def search(self, query: str, count: int, domains: DomainRules) -> list[RawResult]:
        """See `SearchEngine`."""
        body: dict[str, Any] = {
            "query": query,
            "numResults": min(count, 20),
            "contents": {"text": {"maxCharacters": MAX_EXCERPT}},
        }
        if domains.allow:
            body["includeDomains"] = list(domains.allowed_hosts)
        if domains.denied_hosts:
            body["excludeDomains"] = list(domains.denied_hosts)
        headers = {"x-api-key": self._address.key.reveal()}
        answer = await self._address.http.post(self._address.target("/search", headers), body)
        return _read_results(_find_rows(answer, "results"), "text", "publishedDate")


ENGINES: Mapping[str, tuple[Callable[[EngineAddress], SearchEngine], str, str]] = {
    "searxng": (SearxngEngine, "", ""),
    "brave": (BraveEngine, "https://api.search.brave.com", "BRAVE_API_KEY"),
    "tavily": (TavilyEngine, "https://api.tavily.com", "TAVILY_API_KEY"),
    "exa": (ExaEngine, "https://api.exa.ai", "EXA_API_KEY"),
}
"""Each engine's class, its default URL, and the environment variable of its key; empty if none."""
