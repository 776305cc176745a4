"""Many streams at once through one core, and memory over many requests.

`batuta serve` is bound to one core; an upstream that imitates an OpenAI-compatible server, and the
readers, share the others. Every chunk carries its number and the time at which it was sent, so that
none is lost unseen. `python bench/serving.py [streams|memory]`
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import aiohttp
import uvloop

import gateway

STREAMS, CHUNKS, EVERY, RAMP = 500, 80, 0.25, 5.0
"""Chunks of each stream, seconds between them, and seconds in which all streams begin."""
FIRST, IN_ALL, SIDE_BY_SIDE = 5_000, 50_000, 16


def paced_app():
    """Streams chunks at a pace; each says which it is and when it was sent."""

    def chunk(delta, finish=None):
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        body = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        return b"data: " + json.dumps({**body, "choices": [choice]}).encode() + b"\n\n"

    async def app(scope, receive, send):
        while (await receive()).get("more_body"):
            pass
        kind = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": kind})
        due = time.perf_counter() + random.random() * EVERY
        for number in range(CHUNKS):
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            due += EVERY
            body = chunk({"content": f"<{number}:{time.perf_counter_ns()}>"})
            await send({"type": "http.response.body", "body": body, "more_body": True})
        usage = b'data: {"id":"x","object":"chat.completion.chunk","created":1,"model":"m","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}\n\n'
        body = chunk({}, "stop") + usage + b"data: [DONE]\n\n"
        await send({"type": "http.response.body", "body": body})

    return app


async def read(session, url, model, delays, wait):
    """One stream: the delay of each chunk; how many did not come, or not in their order."""
    body = {"model": model, "messages": [{"role": "user", "content": "Go."}], "stream": True}
    numbers, done = [], False
    await asyncio.sleep(wait)
    async with session.post(url, json=body) as reply:
        async for line in reply.content:
            now = time.perf_counter_ns()
            done = done or b"[DONE]" in line
            for part in line.split(b"<")[1:]:
                number, _, sent = part.partition(b">")[0].partition(b":")
                numbers.append(int(number))
                delays.append((now - int(sent)) / 1e6)
    wrong = CHUNKS - len(numbers) if numbers == sorted(numbers) else CHUNKS
    return wrong + (not done)


async def streams(url, model, count=STREAMS):
    """Delays of all chunks in ms, sorted, and how many were lost."""
    delays: list[float] = []
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        lost = await asyncio.gather(
            *(read(session, url, model, delays, RAMP * n / count) for n in range(count))
        )
    return sorted(delays), sum(lost)


def pinned(pid, cores):
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(pid, cores)


def measure_streams(base, pid):
    others = set(range(1, os.cpu_count() or 2))
    pinned(pid, {0})
    pinned(0, others)
    for what, url in (
        ("Batuta", f"{base['batuta']}/v1/chat/completions"),
        ("upstream itself", f"{base['paced']}/x"),
    ):
        before = gateway.cpu(pid)
        began = time.perf_counter()
        delays, lost = uvloop.run(streams(url, "worker/paced"))
        took, used = time.perf_counter() - began, gateway.cpu(pid) - before
        at = {q: delays[min(len(delays) - 1, int(len(delays) * q))] for q in (0.5, 0.95, 0.99)}
        share = f"; the server used {used / took:.0%} of its core" if what == "Batuta" else ""
        print(f"{what}: {STREAMS} streams at once, {STREAMS / EVERY:.0f} chunks/s: {len(delays)} chunks, {lost} lost; delay p50 {at[0.5]:.1f} ms, p95 {at[0.95]:.1f}, p99 {at[0.99]:.1f}, most {delays[-1]:.1f}{share}", flush=True)  # fmt: skip
    pinned(pid, {0} | others)
    pinned(0, {0} | others)


async def many(url, count):
    """So many requests, half of them streamed, on a few connections."""
    body = {"model": "worker/up", "messages": [{"role": "user", "content": "What is it?"}]}
    async with aiohttp.ClientSession() as session:

        async def worker(n):
            for turn in range(n):
                async with session.post(url, json={**body, "stream": turn % 2 == 0}) as reply:
                    await reply.read()
                    assert reply.status == 200

        await asyncio.gather(*(worker(count // SIDE_BY_SIDE) for _ in range(SIDE_BY_SIDE)))


def measure_memory(base, pid):
    url = f"{base['batuta']}/v1/chat/completions"
    idle = gateway.rss_mb(pid)
    uvloop.run(many(url, FIRST))
    first = gateway.rss_mb(pid)
    print(f"memory: idle {idle:.1f} MB, after {FIRST} requests {first:.1f} MB", flush=True)
    done = FIRST
    while done < IN_ALL:
        uvloop.run(many(url, min(15_000, IN_ALL - done)))
        done += min(15_000, IN_ALL - done)
        now = gateway.rss_mb(pid)
        print(f"after {done}: {now:.1f} MB ({now / first - 1:+.1%})", flush=True)


def run(*wanted):
    ports = {name: gateway.free_port() for name in ("paced", "up", "batuta")}
    base = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
    with tempfile.TemporaryDirectory() as home:
        file = Path(home) / "batuta.toml"
        file.write_text("".join(
            f'[[workers]]\nid = "{name}"\nprovider = "compatible"\nmodel = "m"\nbase_url = "{base[name]}/v1"\nconcurrency = 1000\nprice = {{ input = 1, output = 2 }}\n\n'
            for name in ("paced", "up")
        ))  # fmt: skip
        here = str(Path(__file__))
        commands = [[sys.executable, here, name, str(ports[name])] for name in ("paced", "up")]
        commands.append(
            [
                sys.executable,
                "-m",
                "batuta",
                "serve",
                "--port",
                str(ports["batuta"]),
                "--pool",
                str(file),
            ]
        )
        environ = {**os.environ, "BATUTA_HOME": home}
        processes = [
            subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL)
            for command in commands
        ]
        try:
            uvloop.run(gateway.wait_for(f"{base['batuta']}/healthz"))
            load = os.getloadavg()[0]
            print(f"load average when it began: {load:.1f} on {os.cpu_count()} cores", flush=True)
            for name, measure in (("streams", measure_streams), ("memory", measure_memory)):
                if not wanted or name in wanted:
                    measure(base, processes[-1].pid)
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait()


def serve(app, port):
    import uvicorn

    uvicorn.run(app, port=port, log_level="error", access_log=False, loop="uvloop", http="httptools", lifespan="off", backlog=2048)  # fmt: skip


if __name__ == "__main__":
    if len(sys.argv) == 3:
        serve(paced_app() if sys.argv[1] == "paced" else gateway.upstream_app(), int(sys.argv[2]))
    else:
        run(*sys.argv[1:])
