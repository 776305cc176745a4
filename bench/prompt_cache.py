"""What a coding session of ten turns costs through the gateway, over a provider that bills caches.

    .venv/bin/python bench/prompt_cache.py

The provider is a fake on the loopback with Anthropic's rules: what is marked is written for a
quarter more and read for a tenth. The session is a coding agent's: a long system prompt, twelve
tools, files that are read, marks on the system prompt and on the last turn. Its bill is set
against the bill of the same session sent to the provider directly.
"""

from __future__ import annotations

import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import aiohttp
import anyio

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "tests")]

from batuta.clients import HttpTransport
from batuta.clients.anthropic.client import AnthropicClient
from batuta.clients.http_target import Secret
from batuta.conductors import sequential_chain
from batuta.core import Pool, Price, Worker, WorkerId
from batuta.gateway import served_models
from fakes.caching import CachingAnthropic, dollars
from gateway.live_server import Serving, server_state

TURNS = 10
MARK = {"type": "ephemeral"}
SYSTEM = "You are a careful engineer. " + "Follow the house's rules of style and of tests. " * 400
FILE = "def area(width, height):\n    return width * height\n" * 120
TOOLS = [
    {
        "name": f"tool_{number}",
        "description": "Reads or changes a file of the project, and says what it did. " * 8,
        "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}},
    }
    for number in range(12)
]
PRICE = Price(
    input=Decimal(3), output=Decimal(15), cached=Decimal("0.3"), cache_write=Decimal("3.75")
)


async def run_session(url: str, model: str, key: str, *, marks: bool = True) -> dict[str, int]:
    """Ten turns of a coding agent; what the answers say that was used."""
    told = {"turns": 0, "input": 0, "cached": 0}
    messages: list[dict[str, Any]] = []
    headers = {"x-api-key": key, "anthropic-version": "2023-06-01"}
    async with aiohttp.ClientSession(headers=headers) as http:
        for turn in range(TURNS):
            text = f"Look at file {turn}:\n{FILE}" if turn % 2 == 0 else "Now change it."
            messages.append({"role": "user", "content": [{"type": "text", "text": text}]})
            body = {
                "model": model,
                "max_tokens": 1000,
                "tools": TOOLS,
                "system": [
                    {"type": "text", "text": SYSTEM} | ({"cache_control": MARK} if marks else {})
                ],
                "messages": _marked(messages) if marks else messages,
            }
            async with http.post(url, json=body) as response:
                answer = await response.json()
                assert response.status == 200, answer
            messages.append({"role": "assistant", "content": answer["content"]})
            usage = answer["usage"]
            cached, written = usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]
            told["turns"] += 1
            told["cached"] += cached
            told["input"] += usage["input_tokens"] + cached + written
    return told


def _marked(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The turns with a mark on the last one."""
    *before, last = messages
    *blocks, end = last["content"]
    return [*before, {**last, "content": [*blocks, {**end, "cache_control": MARK}]}]


async def measure(model: str | None, workers: int = 3) -> tuple[float, float]:
    """Dollars of the session, and the share of its input that was read from the cache."""
    key = "sk-bench-anthropic"
    async with CachingAnthropic(
        "I have read it, and this is what I would do.", key=key
    ) as provider:
        if model is None:
            await run_session(f"{provider.url}/v1/messages", "claude-x", key)
        else:
            async with HttpTransport() as http:
                await _through(http, provider, model, workers)
        assert not provider.wrong, provider.wrong
        read = sum(usage["cache_read_input_tokens"] for usage in provider.usages)
        every = sum(sum(usage.values()) - usage["output_tokens"] for usage in provider.usages)
        return dollars(provider.usages), read / every


async def _through(
    http: HttpTransport, provider: CachingAnthropic, model: str, workers: int
) -> None:
    names = [WorkerId(name) for name in ("ada", "bob", "cyd")][:workers]
    pool = Pool(
        tuple(Worker(id=name, model=f"claude-{name}", price=PRICE, strength=0.9) for name in names)
    )
    clients = {
        worker.id: AnthropicClient(worker, http, base_url=provider.url, key=Secret(provider.key))
        for worker in pool
    }
    planned = sequential_chain(["Plan it.", "Do it.", "Check it."], names)
    app_state = server_state(pool, clients, served_models(pool, planned))
    async with Serving(app_state) as server:
        await run_session(f"{server.url}/v1/messages", model, "any")


async def main() -> None:
    direct, share = await measure(None)
    print(f"{'':14}{'dollars':>10}{'x direct':>10}{'cached':>9}")
    print(f"{'direct':14}{direct:>10.4f}{1:>10.2f}{share:>9.0%}")
    for model in ("worker/ada", "batuta-mini", "batuta-ultra"):
        paid, share = await measure(model)
        print(f"{model:14}{paid:>10.4f}{paid / direct:>10.2f}{share:>9.0%}")


if __name__ == "__main__":
    anyio.run(main)
