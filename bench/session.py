"""Thirty requests of a session as Claude Code and as Codex send them: what Batuta adds to them.

    python bench/session.py [ROUNDS]

The provider is a scripted one on the loopback that takes 20 ms, streams, and bills a prompt that it has
kept at a tenth. The same session is sent to it directly and through `batuta serve`, whose model is
`worker/acting` (alone): seconds in all, dollars at $3 and $15 a million tokens, and the share of the input
that came from the cache. The best of the rounds is shown; each begins with a session of its own, which
also has a word of its own at the beginning of its prompt, so that nothing is kept from the one before.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import aiohttp
import anyio

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "tests")]

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


async def run_session(
    url: str, key: str, model: str, word: str, make: Callable[..., Json]
) -> float:
    """Send the session; return its seconds."""
    headers = {"x-api-key": key, "anthropic-version": "2023-06-01"}
    if make is codex_body:
        headers = {"authorization": f"Bearer {key}"}
    bodies = [json.dumps(make(model, word, number)).encode() for number in range(REQUESTS)]
    async with aiohttp.ClientSession(headers={**headers, "content-type": "application/json"}) as http:  # fmt: skip
        begun = perf_counter()
        for body in bodies:
            async with http.post(url, data=body) as response:
                told = await response.read()
                assert response.status == 200 and b"error" not in told[-400:], told[-400:]
        return perf_counter() - begun


async def measure(name: str, make: Callable[..., Json], rounds: int) -> None:
    """Print both rows of a client."""
    is_claude = make is claude_body
    kind: Any = StreamingAnthropic if is_claude else CachingResponses
    provider_name, model, path = ("anthropic", "claude-x", "/v1/messages") if is_claude else ("openai", "gpt-x", "/v1/responses")  # fmt: skip
    async with kind(scripted, latency=LATENCY, chunk=1000) as provider:
        with tempfile.TemporaryDirectory() as place:
            pool = Path(place) / "batuta.toml"
            more = "" if is_claude else 'openai_api = "responses"\n'
            pool.write_text(SETTINGS.format(provider=provider_name, model=model, url=provider.url, more=more))  # fmt: skip
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


async def main() -> None:
    """Measure both clients."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    print(
        f"{REQUESTS} requests; {'client':7}{'seconds':>9}{'added':>9}{'dollars':>10}{'x':>9}{'cached':>9}"
    )
    await measure("Claude Code", claude_body, rounds)
    await measure("Codex", codex_body, rounds)


if __name__ == "__main__":
    anyio.run(main)
