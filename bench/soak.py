"""A server under mixed load with faults for an hour: what grows, with its interval.

    python bench/soak.py [SECONDS] [--store URL] [--pause SECONDS]

`batuta serve` on loopback, its provider (one call in twenty fails: errors, cut streams, silence)
and eight kinds of clients: plain answers, streams, streams that are left, workflows, background
jobs, lists of runs, wrong requests, idle connections. Every five seconds the server's memory, file
descriptors, threads, sockets, tasks, and its database's size are read; the slope of each over the second
half, by least squares, is printed with its 95 % interval. A thing grows where the interval excludes
zero and the growth in an hour is more than a twentieth of its level; the database may. Each of the 18
clients waits up to `--pause` seconds after each request, so a longer pause is a lighter load.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import aiohttp
import uvicorn

USAGE = {"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150}
FAULTS = 0.05
EVERY = 5.0


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


async def whole_body(receive):
    raw = b""
    while True:
        message = await receive()
        raw += message.get("body", b"")
        if not message.get("more_body"):
            return json.loads(raw)


async def provider(scope, receive, send):
    """OpenAI's chat completions; one call in twenty goes wrong."""
    if scope["type"] != "http":
        return
    body = await whole_body(receive)
    fault = random.choice(("500", "cut", "slow")) if random.random() < FAULTS else None
    if fault == "500":
        await send(
            {
                "type": "http.response.start",
                "status": 500,
                "headers": [(b"content-type", b"application/json")],
            }
        )
        await send({"type": "http.response.body", "body": b'{"error": {"message": "down"}}'})
        return
    await asyncio.sleep(2.0 if fault == "slow" else 0.05)
    stream = bool(body.get("stream"))
    kind = b"text/event-stream" if stream else b"application/json"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
    frame = {"id": "x", "created": 1, "model": "m"}
    if not stream:
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": "It is 42.\nAnswer: 42"},
            "finish_reason": "stop",
        }
        whole = json.dumps(
            {**frame, "object": "chat.completion", "choices": [choice], "usage": USAGE}
        ).encode()
        await send(
            {
                "type": "http.response.body",
                "body": whole[: len(whole) // 2] if fault == "cut" else whole,
            }
        )
        return
    frame["object"] = "chat.completion.chunk"
    for n in range(20):
        if fault == "cut" and n == 10:
            raise ConnectionResetError  # uvicorn closes without an end
        choice = {
            "index": 0,
            "delta": {"role": "assistant", "content": "word "},
            "finish_reason": None,
        }
        await send(
            {
                "type": "http.response.body",
                "body": b"data: " + json.dumps({**frame, "choices": [choice]}).encode() + b"\n\n",
                "more_body": True,
            }
        )
        await asyncio.sleep(0.01)
    last = {"index": 0, "delta": {}, "finish_reason": "stop"}
    for event in ({**frame, "choices": [last]}, {**frame, "choices": [], "usage": USAGE}):
        await send(
            {
                "type": "http.response.body",
                "body": b"data: " + json.dumps(event).encode() + b"\n\n",
                "more_body": True,
            }
        )
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


class Clients:
    """What the clients do, and what they met."""

    def __init__(self, url, http, pause):
        self.url, self.http, self.pause = url, http, pause
        self.met = Counter()

    async def run(self, until):
        kinds = [self.plain] * 6 + [self.stream] * 4 + [self.leave] * 2 + [self.workflow] * 2
        kinds += [self.background, self.listing, self.wrong, self.idle]
        await asyncio.gather(*(self.repeat(kind, until) for kind in kinds))

    async def repeat(self, kind, until):
        while time.monotonic() < until:
            try:
                found = await kind()
            except (aiohttp.ClientError, TimeoutError) as error:
                found = type(error).__name__
            self.met[kind.__name__, str(found)] += 1
            await asyncio.sleep(random.uniform(0, self.pause))

    async def ask(self, model, **more):
        body = {
            "model": model,
            "messages": [{"role": "user", "content": f"question {random.random()}"}],
            **more,
        }
        async with self.http.post(f"{self.url}/v1/chat/completions", json=body) as response:
            await response.read()
            return response.status

    async def plain(self):
        return await self.ask("worker/a")

    async def stream(self):
        return await self.ask("worker/a", stream=True)

    async def leave(self):
        body = {
            "model": "worker/a",
            "stream": True,
            "messages": [{"role": "user", "content": "leave"}],
        }
        response = await self.http.post(f"{self.url}/v1/chat/completions", json=body)
        await response.content.readany()
        response.close()
        return "left"

    async def workflow(self):
        return await self.ask("batuta-ultra")

    async def background(self):
        body = {"model": "batuta-ultra", "input": f"job {random.random()}", "background": True}
        async with self.http.post(f"{self.url}/v1/responses", json=body) as response:
            return (await response.json()).get("status")

    async def listing(self):
        async with self.http.get(f"{self.url}/v1/models") as response:
            await response.read()
            return response.status

    async def wrong(self):
        return await self.ask("no-such-model")

    async def idle(self):
        _, writer = await asyncio.open_connection("127.0.0.1", int(self.url.rpartition(":")[2]))
        await asyncio.sleep(1)
        writer.close()
        return "closed"


async def read_tasks(http, url):
    """Tasks of the server's event loop."""
    async with http.get(f"{url}/metrics") as response:
        text = await response.text()
    return float(text.partition("\nbatuta_tasks ")[2].partition("\n")[0])


def reading(pid, folder):
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    handles = [str(n.readlink()) for n in Path(f"/proc/{pid}/fd").iterdir() if n.is_symlink()]
    return {
        "memory MB": int(status["VmRSS"].split()[0]) / 1024,
        "file descriptors": len(handles),
        "sockets": sum(h.startswith("socket:") for h in handles),
        "threads": int(status["Threads"]),
        "CPU s": sum(map(int, stat[11:13])) / os.sysconf("SC_CLK_TCK"),
        "database MB": sum(p.stat().st_size for p in folder.rglob("*.db*")) / 2**20,
    }


def slope(times, values):
    """Growth an hour and half of its 95 % interval."""
    n, mean_t, mean_v = len(times), sum(times) / len(times), sum(values) / len(values)
    spread = sum((t - mean_t) ** 2 for t in times)
    b = sum((t - mean_t) * (v - mean_v) for t, v in zip(times, values, strict=True)) / spread
    rest = sum((v - mean_v - b * (t - mean_t)) ** 2 for t, v in zip(times, values, strict=True))
    return 3600 * b, 3600 * 2 * math.sqrt(rest / max(n - 2, 1) / spread)


async def main(seconds, store, pause):
    with tempfile.TemporaryDirectory() as name:
        folder, port, upstream = Path(name), free_port(), free_port()
        (folder / "batuta.toml").write_text(
            "".join(
                f'[[workers]]\nid = "{w}"\nmodel = "m"\nprovider = "compatible"\nbase_url = "http://127.0.0.1:{upstream}/v1"\nprice = {{ input = 1, output = 2 }}\n'
                for w in "ab"
            )
            + '[conductor]\nworker = "plan-solve-verify"\n[server]\nkeep_days = 30\n'
        )
        server = uvicorn.Server(
            uvicorn.Config(provider, port=upstream, log_level="critical", lifespan="off")
        )
        serving = asyncio.create_task(server.serve())
        env = {**os.environ, "BATUTA_HOME": name, **({"BATUTA_STORE": store} if store else {})}
        log = (folder / "log").open("wb")
        process = subprocess.Popen(
            [sys.executable, "-m", "batuta", "serve", "--port", str(port)],
            cwd=name,
            env=env,
            stderr=log,
        )
        times, readings = [], []
        try:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http:
                url = f"http://127.0.0.1:{port}"
                for _ in range(300):
                    try:
                        async with http.get(f"{url}/readyz") as response:
                            if response.status == 200:
                                break
                    except aiohttp.ClientError:
                        pass
                    await asyncio.sleep(0.2)
                clients, began = Clients(url, http, pause), time.monotonic()
                load = asyncio.create_task(clients.run(began + seconds))
                while not load.done():
                    await asyncio.wait({load}, timeout=EVERY)
                    times.append(time.monotonic() - began)
                    tasks = await read_tasks(http, url)
                    readings.append({**reading(process.pid, folder), "tasks": tasks})
                await load
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(60)
            server.should_exit = True
            await serving
        return told(clients.met, times, readings, code, (folder / "log").read_text())


def told(met, times, readings, code, log):
    kinds = sorted({kind for kind, _ in met})
    for kind in kinds:
        print(f"{kind:12}", {what: n for (k, what), n in sorted(met.items()) if k == kind})
    requests = sum(met.values())
    print(
        f"{requests} requests in {times[-1]:.0f} s; the server ended with {code}; its log has {len(log.splitlines())} lines"
    )
    half = len(times) // 2
    grows = []
    for name in readings[0]:
        values = [r[name] for r in readings]
        growth, width = slope(times[half:], values[half:])
        level = sum(values[half:]) / len(values[half:])
        proven = growth - width > 0.05 * level and name not in {"database MB", "CPU s"}
        grows += [name] if proven else []
        print(
            f"{name:18} first {values[0]:8.1f}  last {values[-1]:8.1f}  an hour {growth:+9.1f} ± {width:.1f}{'  GROWS' if proven else ''}"
        )
    print(
        f"database: {(readings[-1]['database MB'] - readings[0]['database MB']) / requests * 1024:.2f} kB a request"
    )
    if "Traceback" in log:
        print("the server's log has a traceback:", log[-2000:])
    return 1 if grows or code else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("seconds", nargs="?", type=float, default=3600)
    parser.add_argument("--store", default="")
    parser.add_argument("--pause", type=float, default=0.2)
    options = parser.parse_args()
    sys.exit(asyncio.run(main(options.seconds, options.store, options.pause)))
