"""Web search that a client asks for: read from its body, given to a call, cited in its answer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from batuta.core import Citation, Client, Pool, Reply, WorkerId
from batuta.core.server_tools import SearchWish, ServerTool
from batuta.gateway.errors import unsupported_parameter
from batuta.gateway.http.body import Fields
from batuta.gateway.serving.parsed_call import ParsedCall

MAX_DOMAINS = 100
_MAX_USES = 1_000_000
_KINDS = re.compile(r"web_search(?:_preview)?(?:_\d{4}_?\d{2}_?\d{2})?")
_MARKS = re.compile(r"\[(\d{1,3})\](?![(:])|https?://[^\s<>\"'`\\^{}|\]]+")
_AFTER_ADDRESS = ".,;:!?*_)"


def is_web_search(kind: str | None) -> bool:
    """Return True for the type of a tool that searches the web, in any dialect and version."""
    return kind is not None and _KINDS.fullmatch(kind) is not None


def parse_search_tools(entries: Iterable[Fields]) -> SearchWish | None:
    """Return the wish of the first of these tools that searches the web; None: none does.

    Raises:
        APIError: it is malformed.
    """
    entry = next((each for each in entries if is_web_search(each.text("type"))), None)
    if entry is None:
        return None
    filters = entry.object("filters")
    inner = (filters.texts("allowed_domains", MAX_DOMAINS) if filters else None) or ()
    return SearchWish(
        field=f"tools.{entry.text('type')}",
        max_uses=entry.whole("max_uses", 1, _MAX_USES),
        allow=(*(entry.texts("allowed_domains", MAX_DOMAINS) or ()), *inner),
        deny=(
            *(entry.texts("blocked_domains", MAX_DOMAINS) or ()),
            *((filters.texts("blocked_domains", MAX_DOMAINS) if filters else None) or ()),
        ),
    )


def grant_search(
    call: ParsedCall, clients: Mapping[WorkerId, Client], pool: Pool, search: ServerTool | None
) -> tuple[ParsedCall, Mapping[WorkerId, Client]]:
    """Return the call whose models can search, if it wants so and there is a search here.

    Raises:
        APIError: there is none, and the dialect refuses what it cannot honour.
    """
    wish = call.web_search
    if wish is None:
        return call, clients
    if search is None:
        if wish.is_refused:
            raise unsupported_parameter(wish.field, "there is no web search here.")
        return call, clients
    ignored = tuple(name for name in call.ignored if name != wish.field)
    question = call.question
    if any(tool.name == search.tool.name for tool in question.tools):
        return replace(call, ignored=ignored), clients  # the client searches by itself
    granted = replace(question, tools=(*question.tools, search.tool))
    wrapped = {
        worker.id: search.wrap_client(clients[worker.id], worker, wish)
        for worker in pool
        if worker.is_model and worker.id in clients
    }
    return replace(call, question=granted, ignored=ignored), {**clients, **wrapped}


@dataclass(frozen=True, slots=True)
class CitedPlace:
    """A place of a text that cites a page."""

    start: int
    end: int
    page: Citation


def found_pages(reply: Reply, calls: int | None = None) -> tuple[Citation, ...]:
    """Return the pages that were found for a reply, in the order of their numbers.

    Args:
        reply: an answer.
        calls: only those of so many searches; None: of all.
    """
    return tuple(page for call in reply.server_calls[:calls] for page in call.citations)


def find_citations(text: str, pages: Sequence[Citation]) -> list[CitedPlace]:
    """Return the places of a text that cite one of the pages: by number or by address."""
    if not pages:
        return []
    by_url = {page.url: page for page in pages}
    places: list[CitedPlace] = []
    for mark in _MARKS.finditer(text):
        end = mark.end()
        if mark[1] is not None:
            number = int(mark[1])
            page = pages[number - 1] if 0 < number <= len(pages) else None
        else:
            url = mark[0]
            while url not in by_url and url and url[-1] in _AFTER_ADDRESS:
                url = url[:-1]
            page, end = by_url.get(url), mark.start() + len(url)
        if page is not None:
            places.append(CitedPlace(mark.start(), end, page))
    return places
