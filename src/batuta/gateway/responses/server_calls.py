"""Tool calls that the server ran, as items and events of the Responses API."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from batuta.clients.data_url import split_data_url
from batuta.core import Citation, Image, ServerCall, WrittenFile
from batuta.core.server_tools import CODE_INTERPRETER, FILE_SEARCH, WEB_FETCH

Json = dict[str, Any]
ITEM_IDS = {
    "web_search_call": "ws",
    "code_interpreter_call": "ci",
    "file_search_call": "fs",
    "image_generation_call": "ig",
}
"""Prefixes of the items' ids, by item type."""


def call_item(call: ServerCall, response: str) -> Json:
    """Return the item of a call that has ended.

    Args:
        call: the call.
        response: the id of the response, whose programs share one container.
    """
    status = "failed" if call.error else "completed"
    if call.name == CODE_INTERPRETER:
        return {
            "type": "code_interpreter_call",
            "status": status,
            "code": call.query,
            "container_id": container_id(response),
            "outputs": _program_outputs(call),
        }
    if call.name == FILE_SEARCH:
        found = [_passage_object(page) for page in call.citations]
        queries = [call.query]
        return {"type": "file_search_call", "status": status, "queries": queries, "results": found}
    if call.name == WEB_FETCH:
        action: Json = {"type": "open_page", "url": call.query}
    else:
        sources = [{"type": "url", "url": page.url} for page in call.citations]
        query = {"query": call.query, "queries": [call.query]}
        action = {"type": "search", **query, "sources": sources}
    return {"type": "web_search_call", "status": status, "action": action}


def image_item(image: Image) -> Json:
    """Return the item of an image that a model generated.

    The result is the image as Base64, or its URL if the model gave only that.
    """
    data = split_data_url(image.url)
    fields: Json = {"type": "image_generation_call", "status": "completed"}
    if data is None:
        return {**fields, "result": image.url}
    return {**fields, "output_format": data[0].partition("/")[2], "result": data[1]}


def container_id(response: str) -> str:
    """Return the id of the container that a response's programs share."""
    return "cntr_" + response.partition("_")[2]


def file_annotations(text: str, files: Sequence[WrittenFile], response: str) -> list[Json]:
    """Return the citations of files that programs wrote.

    A citation marks the first mention of the file's name, or the end of a text without a mention.
    """
    cited: list[Json] = []
    for file in files:
        start = text.find(file.name)
        span = (start, start + len(file.name)) if start >= 0 else (len(text), len(text))
        cited.append(
            {
                "type": "container_file_citation",
                "container_id": container_id(response),
                "file_id": file.id,
                "filename": file.name,
                "start_index": span[0],
                "end_index": span[1],
            }
        )
    return cited


def _passage_object(page: Citation) -> Json:
    text = f"{page.place}\n{page.excerpt}"
    return {"file_id": page.file, "filename": page.title, "text": text, "attributes": {}}


def _program_outputs(call: ServerCall) -> list[Json]:
    printed = "\n".join(filter(None, (call.output.rstrip("\n"), call.failure)))
    logs = [{"type": "logs", "logs": printed}] if printed else []
    return [*logs, *({"type": "image", "url": url} for url in call.pictures)]


def started_item(item: Json) -> Json:
    """Return the item of a finished call without its result, as when the call began."""
    if item["type"] == "code_interpreter_call":
        return {**item, "code": "", "outputs": None}
    if item["type"] == "file_search_call":
        return {**item, "results": None}
    if item["type"] == "image_generation_call":
        return {**item, "result": None}
    action = item["action"]
    return {**item, "action": {**action, "sources": []} if "sources" in action else action}


def call_phases(item: Json) -> Iterator[tuple[str, Json]]:
    """Yield the name (without `response.`) and the fields of each event of a call's phases."""
    kind = item["type"]
    yield f"{kind}.in_progress", {}
    if kind == "code_interpreter_call":
        yield f"{kind}_code.delta", {"delta": item["code"]}
        yield f"{kind}_code.done", {"code": item["code"]}
        yield f"{kind}.interpreting", {}
    elif kind == "image_generation_call":
        yield f"{kind}.generating", {}
    else:
        yield f"{kind}.searching", {}
    yield f"{kind}.completed", {}
