"""Requests under 64 kB that are made to be slow, and how long each holds the event loop.

The longest stretch between two awaits is what nobody else is served in. It is counted in the
processor time of the loop's thread, so a busy machine does not make a quick server look slow.
"""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import Awaitable, Coroutine, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from batuta.core import Delta, Reply, Usage
from batuta.core.conductor import NULL_LISTENER
from batuta.gateway.app import create_app
from gateway.live_server import scripted_state

LARGEST = 64_000
PATHS = ("/v1/chat/completions", "/v1/responses", "/v1/messages")


class Steps:
    """The longest stretch of any task since it was last asked."""

    def __init__(self) -> None:
        self.longest = 0.0
        self.where = ""
        """What the longest stretch so far waited for next, or where its task ended."""

    def note(self, seconds: float, inner: Any, request: str) -> None:
        if seconds > self.longest:
            self.longest, self.where = seconds, f"{request}{_place(inner)}"

    def take(self) -> float:
        longest, self.longest = self.longest, 0.0
        return longest

    def timed(self, inner: Coroutine[Any, Any, Any]) -> Coroutine[Any, Any, Any]:
        async def run() -> Any:
            return await _Timed(inner, self)

        return run()


def _place(task: Any) -> str:
    """The functions of ours that a coroutine is in, from without to within."""
    found = [task.__qualname__]
    while (frame := getattr(task, "cr_frame", None) or getattr(task, "ag_frame", None)) is not None:
        found.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
        task = getattr(task, "cr_await", None) or getattr(task, "ag_await", None)
    return " > ".join(dict.fromkeys(found[-6:]))


def _request_of(task: Any) -> str:
    """The method and path of the request that a task of the server's protocol serves."""
    frame = getattr(task, "cr_frame", None)
    scope = getattr(frame.f_locals.get("self"), "scope", None) if frame is not None else None
    if not isinstance(scope, dict) or "path" not in scope:
        return ""
    return f"{scope.get('method')} {scope['path'][:60]}: "


@dataclass
class _Timed:
    inner: Coroutine[Any, Any, Any]
    steps: Steps

    def __await__(self) -> Generator[Any, Any, Any]:
        send: Any = self.inner.send
        given: Any = None
        request = _request_of(self.inner)
        while True:
            began = time.thread_time()
            try:
                waited = send(given)
            except StopIteration as end:
                return end.value
            finally:
                self.steps.note(time.thread_time() - began, self.inner, request)
            try:
                send, given = self.inner.send, (yield waited)
            except BaseException as error:
                send, given = self.inner.throw, error


@contextmanager
def watched_steps() -> Generator[Steps]:
    """Times each step of every task that is made inside.

    What was there before is no garbage, as in a server: to look through all that a process of tests
    has loaded takes half a second, in whatever step it happens.
    """
    gc.freeze()
    loop, steps = asyncio.get_running_loop(), Steps()
    before = loop.get_task_factory()
    loop.set_task_factory(lambda loop, coro, **more: asyncio.Task(steps.timed(coro), loop=loop, **more))  # pyright: ignore[reportArgumentType]  # fmt: skip
    try:
        yield steps
    finally:
        loop.set_task_factory(before)
        gc.unfreeze()


class Echo:
    """A worker that says again what it was asked, in pieces as a provider sends them."""

    async def complete(self, request: Any, listener: Any = NULL_LISTENER) -> Reply:
        text = request.messages[-1].text[:LARGEST] or "{}"
        for start in range(0, len(text), 500):
            await listener.on_delta(Delta(text=text[start : start + 500]))
            await asyncio.sleep(0)
        return Reply(text=text, usage=Usage(calls=1, input=10, output=10))


class LoopbackApp:
    """A server without sockets, whose workers say again what they are asked."""

    def __init__(self, **options: Any) -> None:
        self.app_state = scripted_state({"ada": Echo(), "bob": Echo()}, seeing=("ada", "bob"), **options)  # fmt: skip
        self.app = create_app(self.app_state)

    async def ask(self, path: str, body: bytes) -> int:
        """The status."""
        status = 0
        parts = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            if parts:
                return parts.pop()
            return await asyncio.Event().wait()

        async def send(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)

        headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
        scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http", "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "state": {}}  # fmt: skip
        await self.app(scope, receive, send)
        return status


async def hold(
    loopback: LoopbackApp, steps: Steps, path: str, body: bytes, tries: int = 3
) -> tuple[float, int]:
    """Seconds of the longest step, the least of some tries, and the status."""
    least, status = float("inf"), 0
    for _ in range(tries):
        steps.take()
        work: Awaitable[int] = asyncio.ensure_future(loopback.ask(path, body))
        status = await work
        least = min(least, steps.take())
        if least < 0.03:
            break
    return least, status


# -- what is asked ----------------------------------------------------------------------------

ATOMS = [
    *("a", "1", " ", "\n", "[", "]", "{", "}", "(", ")", '"', "'", "\\", "$", "*", "_", "`", "<", ">"),
    *("|", "-", "#", "&", "a.", "a ", "漢", "é", "👩", "\ud7ff", "://", "http://", "a@b.", "model_id=["),
    *("subtasks", "access_list", "<think>", "</think>", "\\frac{", "```", "<|im_start|>", "[[", "]]", "'a',"),
    *("-----BEGIN PRIVATE KEY-----", "ignore all previous ", "DE12 ", "+49 30 1", "sk-", "data:image/png;base64,"),
    *("model_id = [0]\nsubtasks = ['a']\naccess_list = [[]]\n", '{"a":', "&amp;", "\\u0000", "\t"),
]  # fmt: skip


@st.composite
def long_texts(draw: Any, most: int = 50_000) -> str:
    """A few atoms, repeated."""
    atoms = "".join(draw(st.lists(st.sampled_from(ATOMS), min_size=1, max_size=3)))
    size = draw(st.sampled_from([10, 1_000, 10_000, most]))
    middle = draw(st.sampled_from(ATOMS))
    return (draw(st.sampled_from(["", *ATOMS])) + atoms * (size // len(atoms)) + middle)[:most]


@st.composite
def schemas(draw: Any) -> Any:
    """Schemas that refer to each other, deep or wide."""
    width, depth = draw(st.integers(1, 40)), draw(st.integers(0, 12))
    keyword = draw(st.sampled_from(["allOf", "anyOf", "oneOf", "items", "properties", "not", "prefixItems", "dependentSchemas", "patternProperties", "if"]))  # fmt: skip
    target = draw(st.sampled_from(["#/$defs/d{}", "#", "#/$defs/d0", "#a", "https://x/y"]))
    leaf = draw(st.sampled_from([{"type": "string"}, {"pattern": "^(a+)+\\1$"}, {"pattern": "(a{99}){99}"}, {"uniqueItems": True}, {"enum": list(range(300))}, {"multipleOf": 1e-300}, {"unevaluatedProperties": False}, {"const": "a"}, True, 7]))  # fmt: skip

    def many(inner: Any) -> Any:
        if keyword in {"properties", "dependentSchemas", "patternProperties"}:
            return {keyword: {f"a{at}": inner for at in range(width)}}
        return {keyword: [inner] * width if keyword not in {"not", "if"} else inner}

    definitions = {f"d{at}": many({"$ref": target.format(at + 1)}) for at in range(depth)}
    definitions[f"d{depth}"] = leaf
    schema = {"$defs": definitions, **many({"$ref": "#/$defs/d0"})}
    for _ in range(draw(st.sampled_from([0, 0, 5, 60, 200]))):
        schema = {keyword if keyword in {"items", "not"} else "items": schema}
    wide = draw(st.sampled_from([0, 0, 10, 1_000, 4_000]))
    return (
        {**schema, "properties": {f"p{at}": {"type": "string"} for at in range(wide)}}
        if wide
        else schema
    )


@st.composite
def values(draw: Any) -> Any:
    """JSON of a hostile shape."""
    kind = draw(st.sampled_from(["deep", "wide", "keys", "number", "text"]))
    size = draw(st.sampled_from([10, 100, 300, 5_000]))
    inner: Any = draw(st.sampled_from([1, "a", None, {}, []]))
    if kind == "deep":
        for _ in range(min(size, 300)):
            inner = draw(st.sampled_from([[inner], {"a": inner}])) if size < 50 else [inner]
        return inner
    if kind == "wide":
        return [inner] * size
    if kind == "keys":
        return {str(at): inner for at in range(size)}
    return 10**300 if kind == "number" else draw(long_texts(most=10_000))


def _some(draw: Any, name: str, strategy: Any, body: dict[str, Any]) -> None:
    if draw(st.integers(0, 3)) == 0:
        body[name] = draw(strategy)


@st.composite
def attacks(draw: Any) -> tuple[str, bytes]:
    """A path and a body of at most 64 kB."""
    path = draw(st.sampled_from(PATHS))
    text = draw(long_texts() | schemas().map(json.dumps) | values().map(json.dumps))
    model = draw(st.sampled_from(["worker/ada", "batuta-ultra", "batuta-mini"]))
    copies = draw(st.sampled_from([1, 1, 20, 400]))
    turns = [{"role": draw(st.sampled_from(["user", "assistant", "system"])), "content": text[: LARGEST // copies]}] * copies  # fmt: skip
    body: dict[str, Any] = {"model": model, "stream": draw(st.booleans())}
    wished = draw(st.sampled_from(["none", "schema", "object", "tools", "odd"]))
    schema = draw(schemas()) if wished in {"schema", "tools"} else {}
    form = (
        {"type": "json_object"}
        if wished == "object"
        else {"type": "json_schema", "name": "n", "schema": schema}
    )
    tool = {"name": "f", "parameters": schema, "input_schema": schema}
    if path == "/v1/responses":
        body |= {"input": turns if draw(st.booleans()) else text}
        shown: dict[str, Any] = {"text": {"format": form}}
        tools = [{"type": "function", **tool}]
    elif path == "/v1/messages":
        body |= {"messages": turns, "max_tokens": 9, "system": text[:100]}
        shown, tools = {"output_config": {"format": form}}, [tool]
    else:
        body |= {"messages": turns}
        shown = {
            "response_format": {"type": "json_schema", "json_schema": form}
            if wished == "schema"
            else form
        }
        tools = [{"type": "function", "function": tool}]
    if wished in {"schema", "object"}:
        body |= shown
    elif wished == "tools":
        body["tools"] = tools * draw(st.sampled_from([1, 1, 60]))
    elif wished == "odd":
        body[draw(st.sampled_from(["metadata", "stop", "orchestration", "tools", "user", "tool_choice", "input", "x"]))] = draw(values())  # fmt: skip
    _some(draw, "stop", st.lists(long_texts(most=1_000), max_size=16), body)
    _some(draw, "orchestration", workflows(), body)
    encoded = json.dumps(body, ensure_ascii=draw(st.booleans())).encode("utf-8", "replace")
    return path, encoded if len(encoded) <= LARGEST else encoded[:LARGEST]


@st.composite
def workflows(draw: Any) -> Any:
    """Workflows by hand, long and wide."""
    count = draw(st.sampled_from([1, 5, 20, 500]))
    word = draw(long_texts(most=2_000))
    access = draw(st.sampled_from([[], "all", list(range(3)), list(range(400)), [-1]]))
    steps = [{"worker": "ada", "subtask": word[: 40_000 // count], "access": access}] * count
    return {
        "workflow": {"steps": steps},
        "trace": draw(st.booleans()),
        "max_steps": draw(st.sampled_from([1, 5, 500])),
    }
