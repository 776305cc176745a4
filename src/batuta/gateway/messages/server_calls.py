"""Tool calls that the server ran, as blocks of Anthropic's Messages API."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from batuta.clients.data_url import split_data_url
from batuta.clients.native_search import USED_UP
from batuta.core import Citation, Image, ServerCall
from batuta.core.server_tools import CODE_INTERPRETER, FILE_SEARCH, WEB_FETCH, WEB_SEARCH
from batuta.gateway.messages.request import own_tool_name

Json = dict[str, Any]
_INPUTS = {WEB_FETCH: "url", CODE_INTERPRETER: "code"}


def call_input(call: ServerCall) -> Json:
    """Return the input of the tool call."""
    return {_INPUTS.get(call.name, "query"): call.query}


def call_block(call: ServerCall, given: Json) -> Json:
    """Return the `server_tool_use` block of a call with that input."""
    name = own_tool_name(call.name)
    return {"type": "server_tool_use", "id": _call_id(call), "name": name, "input": given}


def result_block(call: ServerCall) -> Json:
    """Return the block of a call's result."""
    kind = f"{own_tool_name(call.name)}_tool_result"
    content: Any
    if call.error:
        content = {"type": f"{kind}_error", "error_code": _error_code(call)}
    elif call.name == WEB_SEARCH:
        content = _found_pages(call)
    elif call.name == WEB_FETCH:
        content = _read_page(call)
    elif call.name == FILE_SEARCH:
        content = [_found_passage(page) for page in call.citations]
    else:
        content = _program_result(call)
    return {"type": kind, "tool_use_id": _call_id(call), "content": content}


def _error_code(call: ServerCall) -> str:
    """Return the API's error code; code execution has none for a call beyond `max_uses`."""
    if call.name == CODE_INTERPRETER and call.error == USED_UP:
        return "too_many_requests"
    return call.error


def _found_pages(call: ServerCall) -> list[Json]:
    return [
        {
            "type": "web_search_result",
            "url": page.url,
            "title": page.title,
            "encrypted_content": "",
            "page_age": page.date or None,
        }
        for page in call.citations
    ]


def _found_passage(page: Citation) -> Json:
    """Return a passage as a `search_result` block, the API's form for a custom search."""
    passage = {"type": "text", "text": f"{page.place}\n{page.excerpt}"}
    return {
        "type": "search_result",
        "source": page.file,
        "title": page.title,
        "content": [passage],
        "citations": {"enabled": True},
    }


def _read_page(call: ServerCall) -> Json:
    page = call.citations[0]
    source = {"type": "text", "media_type": "text/plain", "data": call.output}
    document = {"type": "document", "source": source, "title": page.title or None}
    return {
        "type": "web_fetch_result",
        "url": page.url,
        "content": {**document, "citations": None},
        "retrieved_at": None,
    }


def _program_result(call: ServerCall) -> Json:
    return {
        "type": "code_execution_result",
        "stdout": call.output,
        "stderr": call.failure,
        "return_code": 1 if call.failure else 0,
        "content": [{"type": "code_execution_output", "file_id": file.id} for file in call.files],
    }


def image_block(image: Image) -> Json:
    """Return an image block, which the API itself defines for requests only."""
    data = split_data_url(image.url)
    if data is None:
        return {"type": "image", "source": {"type": "url", "url": image.url}}
    source = {"type": "base64", "media_type": data[0], "data": data[1]}
    return {"type": "image", "source": source}


def unkept_pictures(call: ServerCall) -> list[Image]:
    """Return a program's images; none if they are stored as files, which the result names."""
    return [] if call.files else [Image(url=url) for url in call.pictures]


def usage_of_calls(calls: Sequence[ServerCall]) -> Json:
    """Return the field `server_tool_use` of the usage; nothing if the server ran no call.

    It has the numbers of web searches and page fetches.
    """
    if not calls:
        return {}
    names = [call.name for call in calls]
    counts = {f"{name}_requests": names.count(name) for name in (WEB_SEARCH, WEB_FETCH)}
    return {"server_tool_use": counts}


def _call_id(call: ServerCall) -> str:
    """Return the call's id in the form that clients of this API validate."""
    return "srvtoolu_" + re.sub(r"[^A-Za-z0-9_]", "_", call.id)
