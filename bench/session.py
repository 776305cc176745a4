"""Thirty requests of a session as Claude Code and as Codex send them: what Batuta adds to them.

    python bench/session.py [ROUNDS]
    python bench/session.py killed

The provider is a scripted one on the loopback that takes 20 ms, streams, and bills a prompt that it has
kept at a tenth. The same session is sent to it directly and through `batuta serve`, whose model is
`worker/acting` (alone): seconds in all, dollars at $3 and $15 a million tokens, and the share of the input
that came from the cache. The best of the rounds is shown; each begins with a session of its own, which
also has a word of its own at the beginning of its prompt, so that nothing is kept from the one before.

`killed`: the session goes to two replicas in turn, on one PostgreSQL and one Redis, and one of them is killed
(SIGKILL) in the middle: while it answers a request, or after it has answered one. A request that breaks is sent
again to the other one. Counted are the answers, what the provider was asked and billed, and what the session
and the ledger say. Exit 1 if a turn is lost, or one is paid twice. PostgreSQL: BATUTA_TEST_POSTGRES,
Redis: BATUTA_TEST_REDIS, by default those of the loopback.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from time import perf_counter
from typing import Any
from uuid import uuid4

import aiohttp
import anyio

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "tests")]

from batuta.store import Store
from batuta.store.budgets import LEASE_SECONDS
from batuta.store.spend_report import report_spending
from fakes.caching import CachingAnthropic, dollars
from fakes.openai_responses import FakeOpenAIResponses
from fakes.server import Received, Said
from fakes.serving import Server

Json = dict[str, Any]
REQUESTS = 30
LATENCY = 0.02
MARK = {"type": "ephemeral"}
RULES = "Follow the rules of the house, of style and of tests; say what you did. " * 80
FILE = "def area(width, height):\n    return width * height\n" * 60
ABOUT = "Reads or changes a file of the project, or runs a command, and says what came out. " * 10
SCHEMA = {"type": "object", "properties": {"path": {"type": "string", "description": ABOUT[:160]}}}
TOOLS = 25
SETTINGS = """
[[workers]]
id = "acting"
provider = "{provider}"
model = "{model}"
base_url = "{url}"
key_env = "SCRIPTED_API_KEY"
price = {{ input = 3, cached = 0.3, cache_write = 3.75, output = 15 }}
{more}
[conductor]
worker = "acting"
"""


def scripted(_: Json) -> Said:
    """Every answer is a sentence and a call."""
    return Said("I look at the next file.", calls=(("call_1", "tool_3", {"path": "src/area.py"}),))


class StreamingAnthropic(CachingAnthropic):
    """It bills streams too."""

    def events(self, said: Said, received: Received, *, usage: bool) -> list[bytes]:
        told = self._bill(received.body, said)
        return super().events(replace(said, usage=told), received, usage=usage)


class CachingResponses(FakeOpenAIResponses):
    """It keeps every prompt, and bills what begins like one of them as OpenAI does."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.kept: set[int] = set()
        self.usages: list[dict[str, int]] = []

    def whole(self, said: Said, received: Received, *, usage: bool) -> Json:
        parts = [json.dumps([t.get("name"), t.get("parameters")]) for t in received.body["tools"]]
        parts += [said_by(item) for item in received.body["input"]]
        prefix, total, cached = 0, 0, 0
        for part in parts:
            prefix, total = hash((prefix, part)), total + len(part) // 4
            cached = total if prefix in self.kept else cached
            self.kept.add(prefix)
        out = max(1, len(json.dumps([said.text, said.calls])) // 4)
        self.usages.append(
            {
                "input_tokens": total - cached,
                "cache_read_input_tokens": cached,
                "output_tokens": out,
            }
        )
        told = {
            "input_tokens": total,
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": out,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": total + out,
        }
        return super().whole(replace(said, usage=told), received, usage=usage)


def said_by(item: Json) -> str:
    """What an item says, whatever its ids and the form of its text."""
    content = item.get("content", "")
    text = content if isinstance(content, str) else "".join(part["text"] for part in content)
    rest = [item.get(name, "") for name in ("role", "name", "arguments", "output")]
    return json.dumps([text, *rest])


def claude_body(model: str, word: str, number: int) -> Json:
    """The request of that number, as Claude Code sends it."""
    said = [{"type": "text", "text": f"<system-reminder>\nToday.\n</system-reminder>\n{word}: mend it."}]  # fmt: skip
    messages: list[Json] = [{"role": "user", "content": said}]
    for turn in range(number):
        call = {"type": "tool_use", "id": f"toolu_{turn}", "name": "tool_3", "input": {"path": f"{turn}.py"}}  # fmt: skip
        result = {"type": "tool_result", "tool_use_id": f"toolu_{turn}", "content": f"{turn}\n{FILE}"}  # fmt: skip
        text = {"type": "text", "text": "I look at the next file."}
        messages += [{"role": "assistant", "content": [text, call]}, {"role": "user", "content": [result]}]  # fmt: skip
    last = messages[-1]["content"][-1]
    messages[-1]["content"][-1] = {**last, "cache_control": MARK}
    return {
        "model": model,
        "max_tokens": 32000,
        "stream": True,
        "system": [
            {"type": "text", "text": f"You are an agent. {word}", "cache_control": MARK},
            {"type": "text", "text": RULES, "cache_control": MARK},
        ],
        "tools": [
            {"name": f"tool_{n}", "description": ABOUT, "input_schema": SCHEMA}
            for n in range(TOOLS)
        ],
        "messages": messages,
    }


def codex_body(model: str, word: str, number: int) -> Json:
    """The request of that number, as Codex sends it."""

    def message(role: str, text: str) -> Json:
        kind = "output_text" if role == "assistant" else "input_text"
        return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}

    items = [message("developer", f"{word}. {RULES}"), message("user", "Mend it.")]
    for turn in range(number):
        call = {"type": "function_call", "call_id": f"call_{turn}", "name": "tool_3", "arguments": json.dumps({"path": f"{turn}.py"})}  # fmt: skip
        result = {"type": "function_call_output", "call_id": f"call_{turn}", "output": f"{turn}\n{FILE}"}  # fmt: skip
        items += [message("assistant", "I look at the next file."), call, result]
    return {
        "model": model,
        "stream": True,
        "store": False,
        "prompt_cache_key": word,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [
            {
                "type": "function",
                "name": f"tool_{n}",
                "description": ABOUT,
                "parameters": SCHEMA,
                "strict": False,
            }
            for n in range(TOOLS)
        ],
        "input": items,
    }


def headers_of(key: str, make: Callable[..., Json]) -> dict[str, str]:
    """The headers of a request, as the client sends them."""
    own = {"x-api-key": key, "anthropic-version": "2023-06-01"}
    if make is codex_body:
        own = {"authorization": f"Bearer {key}"}
    return {**own, "content-type": "application/json"}


async def run_session(
    url: str, key: str, model: str, word: str, make: Callable[..., Json]
) -> float:
    """Send the session; return its seconds."""
    bodies = [json.dumps(make(model, word, number)).encode() for number in range(REQUESTS)]
    async with aiohttp.ClientSession(headers=headers_of(key, make)) as http:
        begun = perf_counter()
        for body in bodies:
            async with http.post(url, data=body) as response:
                told = await response.read()
                assert response.status == 200 and b"error" not in told[-400:], told[-400:]
        return perf_counter() - begun


def provider_of(make: Callable[..., Json]) -> Any:
    """The scripted provider that such requests reach."""
    kind: Any = StreamingAnthropic if make is claude_body else CachingResponses
    return kind(scripted, latency=LATENCY, chunk=1000)


def settings_for(make: Callable[..., Json], url: str) -> str:
    """The settings of a server before that provider."""
    if make is claude_body:
        return SETTINGS.format(provider="anthropic", model="claude-x", url=url, more="")
    more = 'openai_api = "responses"\n'
    return SETTINGS.format(provider="openai", model="gpt-x", url=url, more=more)


async def measure(name: str, make: Callable[..., Json], rounds: int) -> None:
    """Print both rows of a client."""
    is_claude = make is claude_body
    model, path = ("claude-x", "/v1/messages") if is_claude else ("gpt-x", "/v1/responses")
    async with provider_of(make) as provider:
        with tempfile.TemporaryDirectory() as place:
            pool = Path(place) / "batuta.toml"
            pool.write_text(settings_for(make, provider.url))
            async with Server(Path(place), "--pool", str(pool), SCRIPTED_API_KEY=provider.key) as server:  # fmt: skip
                through = str(server.http._base_url).rstrip("/") + path
                direct = provider.origin + path
                rows: dict[str, list[tuple[float, float, float]]] = {"direct": [], "alone": []}
                for number in range(rounds):
                    for way, url in (("direct", direct), ("alone", through)):
                        provider.usages.clear()
                        word = f"{way} {number}"
                        provider.check = way != "direct" or is_claude
                        seconds = await run_session(url, provider.key, model if way == "direct" else "worker/acting", word, make)  # fmt: skip
                        assert not provider.wrong, provider.wrong
                        assert len(provider.usages) == REQUESTS
                        read = sum(one["cache_read_input_tokens"] for one in provider.usages)
                        every = sum(sum(one.values()) - one["output_tokens"] for one in provider.usages)  # fmt: skip
                        rows[way].append((seconds, dollars(provider.usages), read / every))
    for way, found in rows.items():
        seconds, paid, share = min(found)
        added = seconds - min(rows["direct"])[0]
        print(f"{name:12}{way:8}{seconds:9.3f}{added:9.3f}{paid:10.4f}{paid / min(rows['direct'])[1]:9.3f}{share:9.1%}")  # fmt: skip


POSTGRES = os.environ.get("BATUTA_TEST_POSTGRES", "postgresql://postgres@127.0.0.1:5432/postgres")
REDIS = os.environ.get("BATUTA_TEST_REDIS", "redis://127.0.0.1:6379")
ADMIN = {"authorization": "Bearer the-admins-own-token"}


@dataclass(frozen=True, kw_only=True)
class KilledSession:
    """The outcome of a session of which a replica was killed."""

    answered: int
    """Requests that got a whole answer."""
    asked: int
    """Requests that reached the provider."""
    billed: int
    """Answers that the provider billed."""
    provider_usd: float
    session_usd: float
    """Return the session's cost as the last answer states it, with its own."""
    written: int
    """Calls in the ledger with their cost."""
    ledger_usd: float
    lost: int
    """Lines of the ledger for what was lost with the replica, whose cost is not known."""
    turned: int
    """Answers that the replica gave which was not killed."""

    def is_whole(self) -> bool:
        """Return whether no turn was lost and none was paid twice.

        What a killed replica had answered and not yet written is in the ledger as lost, and in the
        session's own cost. A call that it was making is made again: the provider may bill it twice.
        """
        unwritten = self.billed - self.written
        is_known = unwritten == 0 or (unwritten > 0 and self.lost > 0)
        per_call = self.provider_usd / self.billed
        unpaid = self.provider_usd - self.session_usd
        is_counted = -1e-9 < unpaid < 2 * per_call * (self.billed - REQUESTS) + 1e-9
        return self.answered == REQUESTS and self.asked <= REQUESTS + 1 and is_known and is_counted


@asynccontextmanager
async def new_database() -> AsyncGenerator[str]:
    """The URL of an empty database of the PostgreSQL server."""
    import asyncpg

    name = f"batuta_bench_{uuid4().hex[:12]}"
    connection = await asyncpg.connect(POSTGRES, timeout=5)
    try:
        await connection.execute(f"CREATE DATABASE {name}")
        try:
            yield f"{POSTGRES.rpartition('/')[0]}/{name}"
        finally:
            await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
    finally:
        await connection.close()


async def kill_in_session(make: Callable[..., Json], moment: str) -> KilledSession:
    """Run a session over two replicas, the first of which is killed in the middle.

    Args:
        make: makes the client's bodies.
        moment: `in a call`: while it answers a request; `between`: when it has answered one.
    """
    async with provider_of(make) as provider, new_database() as url:
        with tempfile.TemporaryDirectory() as place:
            pool = Path(place) / "batuta.toml"
            pool.write_text(settings_for(make, provider.url))
            environ = {
                "BATUTA_STORE": url,
                "BATUTA_REDIS": REDIS,
                "BATUTA_SECRET": "s" * 32,
                "BATUTA_ADMIN_TOKEN": "the-admins-own-token",
                "SCRIPTED_API_KEY": provider.key,
            }
            first, second = (Server(Path(place) / name, "--pool", str(pool), **environ) for name in ("one", "two"))  # fmt: skip
            async with first, second, Store(url) as store:
                tenant = f"t-{uuid4().hex[:8]}"
                body = {"name": "k", "tenant": tenant, "limits": {"per_day": "50"}}
                async with first.http.post("/v1/admin/keys", json=body, headers=ADMIN) as response:
                    key = (await response.json())["key"]
                sent = SentSession(provider, [first, second], make, moment)
                session_usd = await sent.run(key)
                await second.end(signal.SIGTERM)
                now = time.monotonic()
                await store.budgets.reap(now)
                await store.budgets.reap(now + LEASE_SECONDS)
                kinds = {one.group[0]: one for one in await report_spending(store.database, ("kind",))}  # fmt: skip
    assert not provider.wrong, provider.wrong
    worker, lost = kinds.get("worker"), kinds.get("lost")
    return KilledSession(
        answered=sent.answered,
        asked=len(provider.requests),
        billed=len(provider.usages),
        provider_usd=dollars(provider.usages),
        session_usd=float(session_usd),
        written=worker.calls if worker else 0,
        ledger_usd=float(worker.cost.usd) if worker else 0.0,
        lost=lost.cost.unpriced_calls if lost else 0,
        turned=sent.turned,
    )


class SentSession:
    """A client that asks two replicas in turn, and again where one breaks."""

    def __init__(
        self, provider: Any, servers: list[Server], make: Callable[..., Json], moment: str
    ) -> None:
        self.provider, self.servers, self.make, self.moment = provider, servers, make, moment
        self.answered = self.turned = 0
        self.path = "/v1/messages" if make is claude_body else "/v1/responses"
        self.word = f"session {uuid4().hex[:8]}"

    async def run(self, key: str) -> Decimal:
        """Send the session; return what it has cost at last."""
        alive, told, broken = list(self.servers), Decimal(0), None
        headers = {**headers_of(key, self.make), "x-session-id": self.word}
        for number in range(REQUESTS):
            body = self.make("worker/acting", self.word, number)
            body["stream"] = number < REQUESTS - 1  # a whole answer says what it cost itself
            server, middle = alive[number % len(alive)], number == REQUESTS // 2
            if middle and self.moment == "in a call":
                server = self.servers[0]
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._kill_in_call, len(self.provider.requests))
                    broken = await self._send(server, body, headers)
                assert broken is None, "it was killed before it could answer"
                alive = alive[1:]
                server = alive[0]
            found = await self._send(server, body, headers)
            assert found is not None, f"request {number} was lost"
            told = found
            self.answered += 1
            self.turned += server is self.servers[1]
            if middle and self.moment == "between":
                self.servers[0].process.send_signal(signal.SIGKILL)
                await self.servers[0].process.wait()
                alive = alive[1:]
        return told

    async def _kill_in_call(self, before: int) -> None:
        """Kill the first replica as soon as the provider has its request."""
        while len(self.provider.requests) == before:
            await anyio.sleep(0.001)
        self.servers[0].process.send_signal(signal.SIGKILL)
        await self.servers[0].process.wait()

    async def _send(self, server: Server, body: Json, headers: dict[str, str]) -> Decimal | None:
        """Send a request; return what its session has cost, or None if the connection broke."""
        try:
            async with server.http.post(self.path, json=body, headers=headers) as response:
                text = await response.read()
                assert response.status == 200 and b"error" not in text[-400:], text[-400:]
                return Decimal(response.headers["x-batuta-session-cost"])
        except (aiohttp.ClientError, OSError):
            return None


async def report_killed() -> bool:
    """Print what became of each session; return whether all are whole."""
    print(f"{REQUESTS} requests; {'client':14}{'killed':>10}{'answered':>10}{'asked':>7}{'billed':>8}{'$ billed':>10}{'$ session':>11}{'written':>9}{'$ written':>11}{'lost':>6}")  # fmt: skip
    whole = True
    for name, make in (("Claude Code", claude_body), ("Codex", codex_body)):
        for moment in ("in a call", "between"):
            one = await kill_in_session(make, moment)
            whole = whole and one.is_whole()
            print(f"{name:26}{moment:>10}{one.answered:>10}{one.asked:>7}{one.billed:>8}{one.provider_usd:>10.4f}{one.session_usd:>11.4f}{one.written:>9}{one.ledger_usd:>11.4f}{one.lost:>6}")  # fmt: skip
    return whole


async def main() -> None:
    """Measure both clients."""
    if sys.argv[1:] == ["killed"]:
        sys.exit(not await report_killed())
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    print(
        f"{REQUESTS} requests; {'client':7}{'seconds':>9}{'added':>9}{'dollars':>10}{'x':>9}{'cached':>9}"
    )
    await measure("Claude Code", claude_body, rounds)
    await measure("Codex", codex_body, rounds)


if __name__ == "__main__":
    anyio.run(main)
