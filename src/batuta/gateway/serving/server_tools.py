"""The server's tools in requests: parsing them, granting them to a call, and citing their pages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from batuta.clients.native_search import page_address
from batuta.core import Citation, Client, Pool, Reply, Tool, WorkerId
from batuta.core.server_tools import (
    CODE_INTERPRETER,
    FILE_SEARCH,
    WEB_FETCH,
    WEB_SEARCH,
    RequestedTool,
    ServerTools,
)
from batuta.gateway.errors import missing_parameter, unsupported_parameter
from batuta.gateway.http.body import Fields
from batuta.gateway.serving.parsed_call import ParsedCall

MAX_DOMAINS = 100
"""Maximum number of domains in each list of a tool."""
MAX_FILES = 10_000
"""Maximum number of files that a file search may name."""
MAX_NAMED = 50
"""Maximum number of files that a tool may name for programs."""
_MAX_USES = 1_000_000
_VERSION = r"(?:_\d{4}_?\d{2}_?\d{2})?"
_KINDS = {
    WEB_SEARCH: re.compile(rf"web_search(?:_preview)?{_VERSION}"),
    WEB_FETCH: re.compile(rf"web_fetch{_VERSION}"),
    FILE_SEARCH: re.compile("file_search"),
    CODE_INTERPRETER: re.compile(rf"code_(?:interpreter|execution){_VERSION}"),
}
_WORDS = {
    WEB_SEARCH: "web search",
    FILE_SEARCH: "search in files",
    CODE_INTERPRETER: "code interpreter",
}
_CITED = re.compile(r"\[(\d{1,3})\](?![(:])|https?://[^\s<>\"'`\\^{}|\]]+")
"""A number in brackets that is no Markdown link, or a web URL."""
_AFTER_ADDRESS = ".,;:!?*_)"
"""Punctuation that does not belong to a URL before it."""
_MOST_MARKS = 9


def server_tool_name(kind: str | None) -> str | None:
    """Return the server's tool for a tool type of any dialect and version, if there is one."""
    if kind is None:
        return None
    return next((name for name, form in _KINDS.items() if form.fullmatch(kind)), None)


def parse_requested_tools(
    entries: Iterable[Fields], *, opens_pages: bool = False
) -> tuple[RequestedTool, ...]:
    """Return the server's tools among the entries; of a tool's entries the first counts.

    Args:
        entries: the tools of a body.
        opens_pages: whether a search may also read pages in this dialect.

    Raises:
        APIError: an entry is malformed, or a file search names no files.
    """
    requested_tools: dict[str, RequestedTool] = {}
    for entry in entries:
        name = server_tool_name(entry.text("type"))
        if name is not None and name not in requested_tools:
            requested_tools[name] = _parse_requested_tool(name, entry, opens_pages=opens_pages)
    return tuple(requested_tools.values())


def _parse_requested_tool(name: str, entry: Fields, *, opens_pages: bool) -> RequestedTool:
    filters = entry.object("filters") if name == WEB_SEARCH else None
    inner = (filters.texts("allowed_domains", MAX_DOMAINS) if filters else None) or ()
    return RequestedTool(
        tool=name,
        field=f"tools.{entry.text('type')}",
        opens_pages=opens_pages and name == WEB_SEARCH,
        file_ids=_parse_file_ids(name, entry),
        max_uses=entry.whole("max_uses", 1, _MAX_USES),
        allow=(*(entry.texts("allowed_domains", MAX_DOMAINS) or ()), *inner),
        deny=(
            *(entry.texts("blocked_domains", MAX_DOMAINS) or ()),
            *((filters.texts("blocked_domains", MAX_DOMAINS) if filters else None) or ()),
        ),
    )


def _parse_file_ids(name: str, entry: Fields) -> tuple[str, ...]:
    """Return the ids of the files that a file search searches, or that programs read.

    A file search names its files in `vector_store_ids`, since this server has no vector stores.

    Raises:
        APIError: a file search names no files, or the ids are malformed.
    """
    if name == CODE_INTERPRETER:
        container = entry.object("container") if isinstance(entry.get("container"), dict) else None
        return (container.texts("file_ids", MAX_NAMED) if container else None) or ()
    if name != FILE_SEARCH:
        return ()
    named = entry.texts("vector_store_ids", MAX_FILES) or ()
    if not named:
        raise missing_parameter(entry.path("vector_store_ids"))
    return named


def grant_tools(
    call: ParsedCall,
    clients: Mapping[WorkerId, Client],
    pool: Pool,
    *,
    offered: ServerTools | None,
) -> tuple[ParsedCall, Mapping[WorkerId, Client]]:
    """Return the call with those of its requested tools that this server offers, and the clients.

    Models' clients are wrapped, so that they run the tools. A tool with the name of one of the
    client's own tools is left out.

    Raises:
        APIError: a tool is not offered, and the dialect does not ignore missing tools.
    """
    available: Mapping[str, Tool] = offered.tools if offered is not None else {}
    if offered is not None and offered.native_only:
        native = {name for worker in pool for name in worker.native_tools}
        missing = offered.native_only - native
        available = {name: tool for name, tool in available.items() if name not in missing}
    for requested in call.server_tools:
        if requested.is_refused and requested.tool not in available:
            raise unsupported_parameter(
                requested.field, f"there is no {_WORDS[requested.tool]} here."
            )
    requested_tools = [requested for requested in call.server_tools if requested.tool in available]
    if offered is None or not requested_tools:
        return call, clients
    fields = {requested.field for requested in requested_tools}
    call = replace(call, ignored=tuple(name for name in call.ignored if name not in fields))
    own = {tool.name for tool in call.question.tools}  # the client's tools
    granted = tuple(
        requested
        for requested in _with_pages(requested_tools, available)
        if requested.tool not in own
    )
    tools = tuple(
        _describe_files(available[requested.tool], requested.file_names) for requested in granted
    )
    question = replace(call.question, tools=(*call.question.tools, *tools))
    wrapped = {
        worker.id: offered.wrap_client(clients[worker.id], worker, granted)
        for worker in pool
        if granted and worker.is_model and worker.id in clients
    }
    return replace(call, question=question), {**clients, **wrapped}


def _describe_files(tool: Tool, names: tuple[str, ...]) -> Tool:
    """Return the tool with the files of its programs named in its description."""
    if not names:
        return tool
    description = f"{tool.description} These files are in its working folder: {', '.join(names)}."
    return replace(tool, description=description)


def _with_pages(
    requested_tools: list[RequestedTool], available: Mapping[str, object]
) -> list[RequestedTool]:
    """Return the tools; if a search may read pages, add the tool that fetches them."""
    search = next((requested for requested in requested_tools if requested.opens_pages), None)
    if search is None or WEB_FETCH not in available:
        return requested_tools
    if any(requested.tool == WEB_FETCH for requested in requested_tools):
        return requested_tools
    return [*requested_tools, replace(search, tool=WEB_FETCH, is_forced=False, opens_pages=False)]


@dataclass(frozen=True, slots=True)
class CitedPlace:
    """A span of a text that cites a page; `end` is exclusive."""

    start: int
    end: int
    page: Citation


def found_pages(reply: Reply, calls: int | None = None) -> tuple[Citation, ...]:
    """Return the pages found for a reply, in the order of their numbers.

    Args:
        reply: an answer.
        calls: the number of calls, from the first, whose pages to return; None: all.
    """
    return tuple(page for call in reply.server_calls[:calls] for page in call.citations)


def find_citations(text: str, pages: Sequence[Citation]) -> list[CitedPlace]:
    """Return the spans of a text that cite one of the pages, by number or by URL."""
    if not pages:
        return []
    by_url = {page.url: page for page in pages if page.url}
    spans: list[CitedPlace] = []
    for mark in _CITED.finditer(text):
        end = mark.end()
        if mark[1] is not None:
            number = int(mark[1])
            page = pages[number - 1] if 0 < number <= len(pages) else None
        else:
            page, length = _find_page(mark[0], by_url)
            end = mark.start() + length
        if page is not None:
            spans.append(CitedPlace(mark.start(), end, page))
    return spans


def _find_page(address: str, by_url: Mapping[str, Citation]) -> tuple[Citation | None, int]:
    """Return the page at a URL, and the URL's length without punctuation; None if no page matches.

    At most `_MOST_MARKS` punctuation marks are removed, since each try costs a lookup.
    """
    marks = len(address) - len(address.rstrip(_AFTER_ADDRESS))
    for removed in range(min(marks, _MOST_MARKS) + 1):
        url = address[: len(address) - removed]
        if page := by_url.get(url) or by_url.get(page_address(url)):
            return page, len(url)
    return None, len(address)
