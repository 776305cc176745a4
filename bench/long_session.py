"""One session of 5,000 actions through `batuta serve`: what an action takes as the session grows.

    python bench/long_session.py [ACTIONS]

An agent with two tools works on one task: call after call, each with a result of 120 characters. A scripted
provider answers at once, without reading. Twice, in sessions of their own:

- whole: the conversation is sent whole each time. The actions before a measured length are not all sent, as
  that takes hours: the conversation is written as it would be, and the last 20 before it are sent.
- compacted: every action is sent, and each 100 the agent replaces the conversation by a summary, as agents do.

Where 50, 500 and 5,000 actions have been (and ACTIONS where that is another number) 20 requests are sent to
`pattern/escalate`, whose session is conducted, and 20 to `worker/small`, which only passes the same body on. Shown
are the server's CPU milliseconds of a request, the KB of the body, and the server's resident memory. What a
session costs beyond its body is the difference of the two.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import orjson
from aiohttp import web

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from fakes.serving import Server

AT = (50, 500, 5_000)
SAMPLES = 20
SENT = 20
"""Actions that are sent before a length is measured, where not all are."""
COMPACTED = 100
"""Actions after which the conversation is replaced by a summary."""
RESULT = "def area(width, height):\n    return width * height  # line of a file that the tool has read, as it is\n" + "." * 20  # fmt: skip
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("read_file", "edit_file")
]
SETTINGS = """
[[workers]]
id = "small"
provider = "compatible"
model = "small-x"
base_url = "{url}"
key_env = "SCRIPTED_API_KEY"
price = {{ input = 1, cached = 0.1, output = 2 }}
strength = 0.4
context_window = 10_000_000
[[workers]]
id = "big"
provider = "compatible"
model = "big-x"
base_url = "{url}"
key_env = "SCRIPTED_API_KEY"
price = {{ input = 10, cached = 1, output = 20 }}
strength = 0.9
context_window = 10_000_000
[conductor]
worker = "big"
"""


class QuickProvider:
    """Answers every request with a call, without looking at it."""

    def __init__(self) -> None:
        self.count = 0

    async def answer(self, request: web.Request) -> web.Response:
        """A call of a tool whose arguments differ each time."""
        await request.read()
        self.count += 1
        function = {"name": "edit_file", "arguments": f'{{"line": {self.count}}}'}
        message = {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": f"c{self.count}", "type": "function", "function": function}],
        }
        body = {
            "id": "x",
            "object": "chat.completion",
            "created": 1,
            "model": "small-x",
            "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
            "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
        }
        return web.json_response(body)


class LongSession:
    """A conversation that grows by an action a time, as the bytes that are sent."""

    def __init__(self, server: Server, name: str) -> None:
        self.server = server
        self.name = name
        self.model = "pattern/escalate"
        self.actions = 0
        self.begin("Mend every line of the file, one at a time.")

    def begin(self, words: str) -> None:
        """Begin the conversation with these words."""
        self.said = orjson.dumps({"role": "user", "content": words})
        self.length = 0

    def body(self, model: str) -> bytes:
        """The body of the next request."""
        head = orjson.dumps({"model": model, "tools": TOOLS, "store": False})
        return head[:-1] + b',"messages":[' + self.said + b"]}"

    async def act(self) -> None:
        """Send the next request, and add the call with its result."""
        self.add(await self.send(self.model))

    def add(self, message: dict[str, Any]) -> None:
        """Add an action: the message with a call, and its result."""
        self.actions += 1
        self.length += 1
        (call,) = message["tool_calls"]
        result = {"role": "tool", "tool_call_id": call["id"], "content": f"{self.actions} {RESULT}"}
        self.said += b"," + orjson.dumps(message) + b"," + orjson.dumps(result)

    def add_unsent(self) -> None:
        """Add an action as if it had been sent."""
        function = {"name": "edit_file", "arguments": f'{{"line": {self.actions}}}'}
        call = {"id": f"call_{self.actions:024x}_0_0", "type": "function", "function": function}
        self.add({"role": "assistant", "content": None, "refusal": None, "tool_calls": [call]})

    async def send(self, model: str) -> dict[str, Any]:
        """Send the conversation as it stands; return the answer's message."""
        headers = {"content-type": "application/json", "x-session-id": self.name}
        async with self.server.http.post(
            "/v1/chat/completions", data=self.body(model), headers=headers
        ) as response:
            text = await response.read()
            assert response.status == 200, text[-400:]
        return orjson.loads(text)["choices"][0]["message"]


async def grow_whole(session: LongSession, actions: int) -> None:
    """Let the conversation grow to so many actions, of which the last ones are sent."""
    while session.actions < actions - SENT:
        session.add_unsent()
    while session.actions < actions:
        await session.act()


async def grow_compacted(session: LongSession, actions: int) -> None:
    """Send so many actions, with a summary after each hundred."""
    while session.actions < actions:
        if session.length == COMPACTED:
            session.begin(f"Go on from line {session.actions}: all before it are mended.")
        await session.act()


def cpu_seconds(pid: int) -> float:
    """CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    """MB of memory that a process has."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


async def sample(session: LongSession, model: str) -> float:
    """The server's CPU milliseconds of a request as the session stands."""
    pid = session.server.process.pid
    await session.send(model)
    before = cpu_seconds(pid)
    for _ in range(SAMPLES):
        await session.send(model)
    return (cpu_seconds(pid) - before) / SAMPLES * 1000


async def measure(
    session: LongSession, grow: Callable[[LongSession, int], Awaitable[None]], lengths: list[int]
) -> None:
    """Let the session grow, and print what a request takes at each length."""
    print(f"{session.name:10}{'actions':>8}{'body KB':>9}{'conducted ms':>14}{'passed on ms':>14}{'more ms':>9}{'a KB, us':>10}{'MB':>8}")  # fmt: skip
    for at in lengths:
        await grow(session, at)
        size = len(session.body(session.model)) / 1000
        conducted = await sample(session, session.model)
        passed = await sample(session, "worker/small")
        memory = resident_mb(session.server.process.pid)
        print(f"{'':10}{at:>8}{size:>9.0f}{conducted:>14.2f}{passed:>14.2f}{conducted - passed:>9.2f}{conducted / size * 1000:>10.1f}{memory:>8.0f}", flush=True)  # fmt: skip


async def main() -> None:
    """Send the session, and measure on the way."""
    last = int(sys.argv[1]) if len(sys.argv) > 1 else max(AT)
    provider = QuickProvider()
    app = web.Application(client_max_size=64 << 20)
    app.router.add_post("/v1/chat/completions", provider.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    with tempfile.TemporaryDirectory() as place:
        pool = Path(place) / "batuta.toml"
        pool.write_text(SETTINGS.format(url=url))
        async with Server(Path(place), "--pool", str(pool), SCRIPTED_API_KEY="x") as server:
            for name, grow in (("whole", grow_whole), ("compacted", grow_compacted)):
                await measure(LongSession(server, name), grow, sorted({*(n for n in AT if n <= last), last}))  # fmt: skip
    await runner.cleanup()


if __name__ == "__main__":
    anyio.run(main)
