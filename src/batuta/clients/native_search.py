"""Web searches that a provider runs itself, converted to Batuta's own server calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final
from urllib.parse import urlsplit

from batuta.clients.decoding import MAX_TOOL_CALLS, join_halves
from batuta.core import Citation, Delta, NativeSearch, Request, ServerCall, Tool
from batuta.core.server_tools import WEB_SEARCH

_TRACKING_PARAMETERS = ("?utm_source=openai", "&utm_source=openai")
"""The query parameter that OpenAI adds to cited URLs."""
_MAX_SEARCHED = 50_000_000
"""Maximum number of characters of a reply that are searched for cited URLs."""
MAX_QUOTED = 2_000
"""Maximum number of characters stored of all quotes from one page."""
USED_UP = "max_uses_exceeded"
UNAVAILABLE = "unavailable"


def find_native(tools: Iterable[Tool]) -> NativeSearch | None:
    """Return the settings of the provider's own search; None if it is not requested."""
    return next((tool.native for tool in tools if tool.native is not None), None)


def without_native(request: Request) -> Request:
    """Return the request without the provider's own search, for an API that has none."""
    if find_native(request.tools) is None:
        return request
    own = tuple(tool for tool in request.tools if tool.native is None)
    names = {tool.name for tool in own} | {None, "auto", "none", "required"}
    choice = request.tool_choice if own and request.tool_choice in names else None
    return replace(request, tools=own, tool_choice=choice)


def page_address(url: str) -> str:
    """Return the URL without OpenAI's tracking parameter."""
    for mark in _TRACKING_PARAMETERS:
        url = url.removesuffix(mark)
    return url


def search_error_code(code: str) -> str:
    """Return Batuta's error code for a provider's search error."""
    return USED_UP if code == USED_UP else UNAVAILABLE


@final
@dataclass(slots=True, kw_only=True)
class SearchReader:
    """Collects the searches of one reply, and the pages that its text cites."""

    _calls: dict[str, ServerCall] = field(default_factory=dict[str, ServerCall])
    _titles: dict[str, str] = field(default_factory=dict[str, str])
    _quotes: dict[str, str] = field(default_factory=dict[str, str])
    _cited: list[str] = field(default_factory=list[str])
    """URLs cited since the last `end_text`."""
    _left: int = _MAX_SEARCHED
    """The number of characters that may still be searched."""

    def __len__(self) -> int:
        return len(self._calls)

    def __contains__(self, call_id: str) -> bool:
        return call_id in self._calls

    def add_call(
        self,
        call_id: str,
        query: str,
        *,
        at: int,
        name: str = WEB_SEARCH,
        pages: Sequence[Citation] = (),
        error: str = "",
    ) -> Sequence[Delta]:
        """Add a finished search or opened page; return its delta, or no delta if it is known.

        `at` is the number of characters of the reply's text before it.

        Raises:
            ValueError: the reply has too many searches.
        """
        call_id = join_halves(call_id)
        if call_id in self._calls:
            return ()
        if len(self._calls) >= MAX_TOOL_CALLS:
            raise ValueError(f"more than {MAX_TOOL_CALLS:,} searches in one reply")
        once = {page.url: page for page in map(_join_page, pages) if page.url}
        call = ServerCall(
            id=call_id or f"search_{len(self._calls)}",
            name=name,
            query=join_halves(query),
            citations=tuple(once.values()),
            error=error,
            at=at,
        )
        self._calls[call.id] = call
        return (Delta(server_call=call),)

    def cite(self, url: str, title: str = "", quote: str = "") -> None:
        """Add a citation of the current text; a URL that is not http(s) is ignored."""
        url, title, quote = join_halves(page_address(url)), join_halves(title), join_halves(quote)
        if not url.startswith(("http://", "https://")):
            return
        if title:
            self._titles.setdefault(url, title)
        if quote and quote not in (known := self._quotes.get(url, "")):
            self._quotes[url] = "\n".join(filter(None, (known, quote)))[:MAX_QUOTED]
        self._cited.append(url)

    def end_text(self, pieces: Sequence[str]) -> str:
        """End a text; return links to append for pages that it cites but does not link.

        To bound the time, very long text is not searched, so a link may be repeated. A JSON object
        gets no links, as text after it would be invalid.
        """
        cited, self._cited = dict.fromkeys(self._cited), []
        text = "".join(pieces) if cited and self._left > 0 else ""
        self._left -= len(text) + len(pieces) if cited else 0
        if text.lstrip().startswith("{"):
            return ""
        links = [f"[{_host_of(url)}]({url})" for url in cited if not self._is_in(text, url)]
        return f" ({', '.join(links)})" if links else ""

    def _is_in(self, text: str, url: str) -> bool:
        self._left -= len(text)
        return self._left > 0 and url in text

    def calls(self) -> tuple[ServerCall, ...]:
        """Return the calls, with titles and quotes of their pages.

        A cited page with a title or quote that is in no call's results is added to the last search.
        """
        known = {page.url for call in self._calls.values() for page in call.citations}
        more = [Citation(url=url) for url in {**self._titles, **self._quotes} if url not in known]
        calls = [
            replace(call, citations=tuple(map(self._complete, call.citations)))
            for call in self._calls.values()
        ]
        last = next((n for n in reversed(range(len(calls))) if calls[n].name == WEB_SEARCH), None)
        if more and last is not None:
            pages = (*calls[last].citations, *map(self._complete, more))
            calls[last] = replace(calls[last], citations=pages)
        return tuple(calls)

    def _complete(self, page: Citation) -> Citation:
        return replace(
            page,
            title=page.title or self._titles.get(page.url, ""),
            excerpt=page.excerpt or self._quotes.get(page.url, ""),
        )


def _join_page(page: Citation) -> Citation:
    """Join the halves of surrogate pairs in a page's strings, as for all strings of a reply."""
    joined = (join_halves(page.url), join_halves(page.title), join_halves(page.excerpt))
    return replace(page, url=joined[0], title=joined[1], excerpt=joined[2])


def _host_of(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").removeprefix("www.") or "page"
    except ValueError:
        return "page"


def domain_lists(native: NativeSearch) -> Mapping[str, Any]:
    """Return the domain filters in the fields that Anthropic and OpenAI use."""
    lists = {"allowed_domains": list(native.allow), "blocked_domains": list(native.deny)}
    return {name: domains for name, domains in lists.items() if domains}
