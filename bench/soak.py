"""A server under mixed load with faults for an hour: what grows, with its interval.

    python bench/soak.py [SECONDS] [--store URL] [--pause SECONDS]

`batuta serve` on loopback, its provider (one call in twenty fails: errors, cut streams, silence)
and eight kinds of clients: plain answers, streams, streams that are left, workflows, background
jobs, lists of runs, wrong requests, idle connections. Each of the 18 clients waits up to `--pause`
seconds after each request, so a longer pause is a lighter load.

What a server holds under load says how many requests are under way, which changes with everything
else that the machine does. So every minute the clients end what they do and rest until idle connections
are closed (35 s), and the server's memory, file descriptors, sockets, threads, tasks and its database's
size are read then: what is left is what grows. Pools of threads and connections grow to the most that
was ever wanted at the same time, so before anything else each kind of work is wanted 64 times at the same
time. The first quarter of the readings is left out, in which caches fill. Of the rest the slope by least
squares is printed with its 95 % interval (Student's t) and judged against a twentieth of the level in an
hour: `grows` where the whole interval is above it, `steady` where it is below it, `cannot be said` where
it is on both sides. The database may grow. The most that was held under load is printed beside it.
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
"""Seconds between two readings under load."""
WORK = 60.0
"""Seconds of load before a rest."""
REST = 35.0
"""Seconds without a request before a reading: connections are kept for 30."""
BURST = 64
"""Of each kind of request that are made at the same time before the first reading."""
WARM = 0.25
"""Part of the readings at rest that is left out."""
ALLOWED = 0.05
"""Of its level, what a thing may grow in an hour."""
MAY_GROW = ("database MB", "CPU s")
STUDENT = (
    12.71,
    4.30,
    3.18,
    2.78,
    2.57,
    2.45,
    2.36,
    2.31,
    2.26,
    2.23,
    2.20,
    2.18,
    2.16,
    2.14,
    2.13,
)
"""Student's t for 95 %, from one degree of freedom on; 2.1 after these."""


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
        self.at_work = 0
        self.working = asyncio.Event()
        self.working.set()

    async def run(self, until):
        kinds = [self.plain] * 6 + [self.stream] * 4 + [self.leave] * 2 + [self.workflow] * 2
        kinds += [self.background, self.listing, self.wrong, self.idle]
        await asyncio.gather(*(self.repeat(kind, until) for kind in kinds))

    async def repeat(self, kind, until):
        while time.monotonic() < until:
            await self.working.wait()
            self.at_work += 1
            try:
                found = await kind()
            except (aiohttp.ClientError, TimeoutError) as error:
                found = type(error).__name__
            self.at_work -= 1
            self.met[kind.__name__, str(found)] += 1
            await asyncio.sleep(random.uniform(0, self.pause))

    async def fill(self):
        """Everything at the same time, so that pools have grown to their size."""
        kinds = (self.background, self.plain, self.stream, self.workflow, self.listing)
        for kind in kinds:
            await asyncio.gather(*(kind() for _ in range(BURST)), return_exceptions=True)
        mixed = (kind() for kind in kinds for _ in range(BURST // 2))
        await asyncio.gather(*mixed, return_exceptions=True)

    async def rest(self):
        """Until all have ended what they do, and then until their connections are closed."""
        self.working.clear()
        while self.at_work:
            await asyncio.sleep(0.2)
        await asyncio.sleep(REST)

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


async def until_ready(http, url, process):
    """Until the server can be asked."""
    while process.poll() is None:
        try:
            async with http.get(f"{url}/readyz") as response:
                if response.status == 200:
                    return
        except aiohttp.ClientError:
            pass
        await asyncio.sleep(0.2)
    raise RuntimeError("the server does not start")


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
    free = n - 2
    student = STUDENT[free - 1] if free <= len(STUDENT) else 2.1
    return 3600 * b, 3600 * student * math.sqrt(rest / free / spread)


def verdict(growth, width, level):
    """What may be said of a slope with its interval."""
    allowed = ALLOWED * level
    if growth - width > allowed:
        return "grows"
    return "steady" if growth + width <= allowed else "cannot be said"


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
        loaded, rested = [], []
        try:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as http:
                url = f"http://127.0.0.1:{port}"
                await until_ready(http, url, process)
                clients = Clients(url, http, pause)
                await clients.fill()
                began = time.monotonic()
                load = asyncio.create_task(clients.run(began + seconds))

                async def read():
                    tasks = await read_tasks(http, url)
                    return time.monotonic() - began, {
                        **reading(process.pid, folder),
                        "tasks": tasks,
                    }

                while not load.done():
                    until = time.monotonic() + WORK
                    while not load.done() and time.monotonic() < until:
                        await asyncio.wait({load}, timeout=EVERY)
                        loaded.append(await read())
                    await clients.rest()
                    rested.append(await read())
                    print(f"{rested[-1][0]:6.0f} s, at rest: {rested[-1][1]}", flush=True)
                    clients.working.set()
                await load
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(60)
            server.should_exit = True
            await serving
            if code:
                print((folder / "log").read_text()[-5000:], flush=True)
        return told(clients.met, loaded, rested, code, (folder / "log").read_text())


def told(met, loaded, rested, code, log):
    for kind in sorted({kind for kind, _ in met}):
        print(f"{kind:12}", {what: n for (k, what), n in sorted(met.items()) if k == kind})
    requests = sum(met.values())
    print(
        f"{requests} requests in {rested[-1][0]:.0f} s; the server ended with {code}; its log has {len(log.splitlines())} lines"
    )
    judged = rested[math.ceil(WARM * len(rested)) :]
    if len(judged) < 3:
        print(f"{len(rested)} readings at rest are too few to judge: let it run longer")
        return 1
    grows = [name for name in rested[0][1] if print_growth(name, loaded, rested, judged)]
    first, last = (pair[1]["database MB"] for pair in (rested[0], rested[-1]))
    print(f"database: {first:.1f} MB after the first rest, {last:.1f} at the end")
    if "Traceback" in log:
        print("the server's log has a traceback:", log[-2000:])
    return 1 if grows or code else 0


def print_growth(name, loaded, rested, judged):
    """A line of the table; whether the thing grows and should not."""
    growth, width = slope([t for t, _ in judged], [r[name] for _, r in judged])
    level = sum(r[name] for _, r in judged) / len(judged)
    found = "may grow" if name in MAY_GROW else verdict(growth, width, level)
    most = max((r[name] for _, r in loaded), default=0.0)
    print(
        f"{name:18} at rest first {rested[0][1][name]:8.1f}  last {rested[-1][1][name]:8.1f}  under load at most {most:8.1f}"
        f"  an hour {growth:+9.1f} ± {width:.1f}  {found}"
    )
    return found == "grows"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("seconds", nargs="?", type=float, default=3600)
    parser.add_argument("--store", default="")
    parser.add_argument("--pause", type=float, default=0.2)
    options = parser.parse_args()
    sys.exit(asyncio.run(main(options.seconds, options.store, options.pause)))
