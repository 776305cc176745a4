"""The gateway's cost for a pass-through request, beside a thin proxy of the same parts, in one run.

Four processes on loopback: an upstream that imitates an OpenAI-compatible server, `batuta serve`
(runs stored), a thin Starlette + aiohttp proxy that parses nothing, and this one, which sends the
load. CPU is of the server's process alone; the proxy and the gateway take turns, for a machine is not
the same from minute to minute. `python bench/gateway.py`

With LITELLM=/path/to/litellm (of an environment of its own, `pip install 'litellm[proxy]' uvloop`) its
proxy is measured in the same run, with one key and without a database.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp
import uvloop

CHUNKS = 22
WARM, REQUESTS = 300, int(os.environ.get("REQUESTS", "2000"))
ROUNDS = int(os.environ.get("ROUNDS", "3"))
TICK = os.sysconf("SC_CLK_TCK")
GAP = 0.005
"""Seconds between the upstream's chunks in the first-token measurement."""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def upstream_app():
    """Answers at once; streams carry the time at which each chunk was sent."""
    usage = {"prompt_tokens": 20, "completion_tokens": 22, "total_tokens": 42}
    plain = json.dumps({"id": "x", "object": "chat.completion", "created": 1, "model": "m", "usage": usage,
                        "choices": [{"index": 0, "message": {"role": "assistant", "content": "word " * 22}, "finish_reason": "stop"}]}).encode()  # fmt: skip

    def chunk(delta, finish=None):
        return b"data: " + json.dumps({"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m",
                                       "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}).encode() + b"\n\n"  # fmt: skip

    async def app(scope, receive, send):
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        stream, slow = b'"stream":true' in body.replace(b" ", b""), b"SLOW" in body
        kind = b"text/event-stream" if stream else b"application/json"
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]}
        )
        if not stream:
            await send({"type": "http.response.body", "body": plain})
            return
        for n in range(CHUNKS):
            if slow:
                await asyncio.sleep(GAP)
            text = f"T{time.perf_counter_ns()} " if slow else "word "
            await send(
                {
                    "type": "http.response.body",
                    "body": chunk(
                        {"content": text} if n else {"role": "assistant", "content": text}
                    ),
                    "more_body": True,
                }
            )
        await send({"type": "http.response.body", "body": chunk({}, "stop"), "more_body": True})
        last = (
            b'data: {"id":"x","object":"chat.completion.chunk","created":1,"model":"m","choices":[],"usage":'
            + json.dumps(usage).encode()
            + b"}\n\ndata: [DONE]\n\n"
        )
        await send({"type": "http.response.body", "body": last})

    return app


def thin_app(target):
    from contextlib import asynccontextmanager

    from starlette.applications import Starlette
    from starlette.responses import Response, StreamingResponse
    from starlette.routing import Route

    sessions = []

    @asynccontextmanager
    async def lifespan(app):
        async with aiohttp.ClientSession() as session:
            sessions.append(session)
            yield

    async def forward(request):
        body = await request.body()
        reply = await sessions[0].post(
            target, data=body, headers={"content-type": "application/json"}
        )
        if "event-stream" in reply.headers["content-type"]:
            return StreamingResponse(reply.content.iter_any(), media_type="text/event-stream")
        return Response(await reply.read(), media_type="application/json")

    return Starlette(
        routes=[Route("/v1/chat/completions", forward, methods=["POST"])], lifespan=lifespan
    )


def serve_role(role, port, target):
    import uvicorn

    app = upstream_app() if role == "upstream" else thin_app(target)
    uvicorn.run(
        app,
        port=port,
        log_level="error",
        access_log=False,
        loop="uvloop",
        http="httptools",
        lifespan="auto" if role == "thin" else "off",
    )


def cpu(pid):
    """Seconds on a core, of all its threads; in nanoseconds where the kernel counts so."""
    threads = list(Path(f"/proc/{pid}/task").glob("*/schedstat"))
    if threads:
        return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def rss_mb(pid):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return None


async def wait_for(url):
    async with aiohttp.ClientSession() as session:
        for _ in range(1200):
            try:
                async with session.get(url):
                    return
            except aiohttp.ClientError:
                await asyncio.sleep(0.05)
    raise SystemExit(f"{url} did not start")


def body_of(url, model, stream):
    """The same question in the dialect of the URL."""
    text = "What is the answer to this question?"
    if url.endswith("/responses"):
        return {"model": model, "input": text, "stream": stream}
    turns = {"model": model, "messages": [{"role": "user", "content": text}], "stream": stream}
    return {**turns, "max_tokens": 4096} if url.endswith("/messages") else turns


async def load(url, model, stream, count, headers=None):
    body = body_of(url, model, stream)
    async with aiohttp.ClientSession() as session:

        async def worker(n):
            for _ in range(n):
                async with session.post(url, json=body, headers=headers) as reply:
                    data = await reply.read()
                    assert reply.status == 200 and (not stream or data.count(b"word ") >= CHUNKS), (
                        data[:300]
                    )

        await asyncio.gather(*(worker(count // 8) for _ in range(8)))


async def cpu_ms(url, pid, model, stream, headers=None):
    await load(url, model, stream, WARM, headers)
    await asyncio.sleep(0.3)
    before = cpu(pid)
    await load(url, model, stream, REQUESTS, headers)
    await asyncio.sleep(0.5)  # the store's writer has its share in it
    return (cpu(pid) - before) * 1000 / REQUESTS


@dataclass
class Server:
    """Who is asked, as which model, with which key."""

    url: str
    pid: int
    model: str
    headers: dict[str, str] | None = None

    async def cpu_ms(self, stream):
        return await cpu_ms(self.url, self.pid, self.model, stream, self.headers)


async def beside_thin(thin, server):
    """Both in turn, some rounds: the medians, and the median of the rounds' ratios."""
    result = {"rounds": ROUNDS}
    for kind, stream in (("plain", False), ("stream", True)):
        pairs = [(await thin.cpu_ms(stream), await server.cpu_ms(stream)) for _ in range(ROUNDS)]
        result[kind] = {
            "thin_cpu_ms": round(statistics.median(a for a, _ in pairs), 3),
            "cpu_ms": round(statistics.median(b for _, b in pairs), 3),
            "x_thin": round(statistics.median(b / a for a, b in pairs), 2),
            "x_thin_of_each": [round(b / a, 2) for a, b in pairs],
        }
    return result


async def with_key(server, env):
    """The same with a key that has rates and budgets; the server learns of its first key."""
    make = [sys.executable, "-m", "batuta", "keys", "create", "bench", "--json", "--rpm", "9000000",
            "--tpm", "9000000000", "--per-day", "9000", "--per-month", "9000", "--concurrency", "99"]  # fmt: skip
    made = subprocess.run(make, env=env, capture_output=True, check=True).stdout
    headers = {"authorization": f"Bearer {json.loads(made)['key']}"}
    async with aiohttp.ClientSession() as session:
        for _ in range(300):
            async with session.get(server.url.replace("chat/completions", "models")) as reply:
                if reply.status == 401:
                    break
            await asyncio.sleep(0.1)
    return replace(server, headers=headers)


async def litellm_ms(home, target):
    """LiteLLM's proxy, with its master key; nothing if there is none."""
    program = os.environ.get("LITELLM")
    if not program:
        return {}
    port, key = free_port(), "sk-bench"
    file = Path(home) / "litellm.yaml"
    file.write_text(
        "model_list:\n  - model_name: m\n    litellm_params: {model: openai/m, api_base: "
        f"'{target}', api_key: none}}\ngeneral_settings: {{master_key: {key}}}\n"
        "litellm_settings: {telemetry: false, drop_params: true}\n"
    )
    command = [program, "--config", str(file), "--port", str(port), "--host", "127.0.0.1"]
    env = {
        **os.environ,
        "LITELLM_LOG": "ERROR",
        "LITELLM_MODE": "PRODUCTION",
        "DISABLE_ADMIN_UI": "true",
    }
    process = subprocess.Popen(
        command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        url = f"http://127.0.0.1:{port}"
        await wait_for(f"{url}/health/liveliness")
        url, headers = f"{url}/v1/chat/completions", {"authorization": f"Bearer {key}"}
        plain = await cpu_ms(url, process.pid, "m", False, headers)
        stream = await cpu_ms(url, process.pid, "m", True, headers)
        return {"litellm": {"plain_cpu_ms": round(plain, 2), "stream_cpu_ms": round(stream, 2)}}
    finally:
        process.terminate()
        process.wait(30)


async def dialects_ms(url, pid):
    """The other dialects on the same server; responses are stored, as the API has it."""
    result = {}
    for path in ("responses", "messages"):
        other = url.replace("chat/completions", path)
        result[f"batuta, {path}"] = {
            "plain_cpu_ms": round(await cpu_ms(other, pid, "worker/w", False), 2),
            "stream_cpu_ms": round(await cpu_ms(other, pid, "worker/w", True), 2),
        }
    return result


async def forwarding_ms(url, model):
    """From the upstream's send to the reader's receipt; the clock is shared by processes."""
    first, rest = [], []
    body = {"model": model, "messages": [{"role": "user", "content": "SLOW"}], "stream": True}
    async with aiohttp.ClientSession() as session:
        for _ in range(60):
            seen = 0
            async with session.post(url, json=body) as reply:
                async for line in reply.content:
                    now = time.perf_counter_ns()
                    if b'"content":"T' in line or b'"content": "T' in line:
                        sent = int(line.split(b"T", 1)[1].split(b" ", 1)[0])
                        (rest if seen else first).append((now - sent) / 1e6)
                        seen += 1
    return (
        round(statistics.median(first), 2),
        round(sorted(first)[int(len(first) * 0.95)], 2),
        round(statistics.median(rest), 2),
    )


async def main():
    ports = {name: free_port() for name in ("upstream", "batuta", "thin")}
    target = f"http://127.0.0.1:{ports['upstream']}/v1"
    with tempfile.TemporaryDirectory() as home:
        file = Path(home) / "batuta.toml"
        file.write_text(
            f'[[workers]]\nid = "w"\nmodel = "m"\nbase_url = "{target}"\n'
            "price = { input = 1, output = 2 }\n"
        )
        env = {**os.environ, "BATUTA_HOME": home}
        roles = [
            [sys.executable, __file__, role, str(ports[role]), target + "/chat/completions"]
            for role in ("upstream", "thin")
        ]
        command = [
            sys.executable,
            "-m",
            "batuta",
            "serve",
            "--pool",
            str(file),
            "--port",
            str(ports["batuta"]),
        ]
        processes = [
            subprocess.Popen(c, env=env, stderr=subprocess.DEVNULL) for c in (*roles, command)
        ]
        try:
            await wait_for(f"http://127.0.0.1:{ports['batuta']}/healthz")
            await wait_for(f"http://127.0.0.1:{ports['thin']}/")
            await asyncio.sleep(0.5)
            result = {"idle_rss_mb": round(rss_mb(processes[2].pid), 1)}
            thin, batuta = (
                Server(f"http://127.0.0.1:{ports[name]}/v1/chat/completions", process.pid, model)
                for name, process, model in (
                    ("thin", processes[1], "m"),
                    ("batuta", processes[2], "worker/w"),
                )
            )
            for name, server in (("thin", thin), ("batuta", batuta)):
                first, p95, rest = await forwarding_ms(server.url, server.model)
                result[name] = {
                    "first_token_ms": first,
                    "first_token_p95_ms": p95,
                    "later_token_ms": rest,
                }
            result["without a key"] = await beside_thin(thin, batuta)
            result |= await dialects_ms(batuta.url, batuta.pid)
            keyed = await with_key(batuta, env)
            result["key with rates and budgets"] = await beside_thin(thin, keyed)
            result |= await litellm_ms(home, target)
            result["rss_after_mb"] = round(rss_mb(processes[2].pid), 1)
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait(20)
    return result


def run():
    result = uvloop.run(main())
    print(json.dumps(result, indent=1))
    return result


if __name__ == "__main__":
    if len(sys.argv) > 3:
        serve_role(sys.argv[1], int(sys.argv[2]), sys.argv[3])
    else:
        run()
