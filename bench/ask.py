"""What `batuta ask` costs beside its calls: two loopback workers. `python bench/ask.py`

A draft and two steps are three calls of loopback servers that answer at once. The same three calls
made by a bare script with aiohttp, and by one with the standard library, are what they are
compared with: CPU and wall seconds of the whole process, medians, and their ratios.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

TIMES = 7
DRAFT = "model_id = [0, 1]\nsubtasks = ['Think.', 'Answer.']\naccess_list = [[], [0]]"
BARE = """
import asyncio, sys, aiohttp
async def main():
    async with aiohttp.ClientSession() as session:
        for _ in range(3):
            body = {"model": "m", "messages": [{"role": "user", "content": "Say hello."}]}
            async with session.post(sys.argv[1] + "/chat/completions", json=body) as response:
                await response.json()
asyncio.run(main())
"""
PLAIN = """
import json, sys, urllib.request
for _ in range(3):
    body = {"model": "m", "messages": [{"role": "user", "content": "Say hello."}]}
    asked = urllib.request.Request(sys.argv[1] + "/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    json.load(urllib.request.urlopen(asked))
"""


class Worker(BaseHTTPRequestHandler):
    """Answers a conductor's prompt with a workflow and any other with a word."""

    calls = 0

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        Worker.calls += 1
        text = DRAFT if "model_id" in json.dumps(asked["messages"]) else "Hello."
        usage = {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18}
        if asked.get("stream"):
            chunk = {
                "model": "m",
                "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": "stop"}],
                "usage": usage,
            }
            body, kind = (
                f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode(),
                "text/event-stream",
            )
        else:
            reply = {
                "model": "m",
                "choices": [{"index": 0, "message": {"content": text}, "finish_reason": "stop"}],
                "usage": usage,
            }
            body, kind = json.dumps(reply).encode(), "application/json"
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def spent(args, env):
    """CPU and wall seconds of a process."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(args, env=env, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, time.perf_counter() - start


def run():
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), Worker) for _ in range(2)]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    urls = [f"http://127.0.0.1:{server.server_port}/v1" for server in servers]
    with tempfile.TemporaryDirectory() as home:
        pool = Path(home) / "batuta.toml"
        pool.write_text(
            "".join(
                f"[[workers]]\nid = 'w{at}'\nmodel = 'm{at}'\nbase_url = '{url}'\n"
                for at, url in enumerate(urls)
            )
        )
        env = {**os.environ, "BATUTA_HOME": home, "PYTHONDONTWRITEBYTECODE": ""}
        commands = {
            "ask": [sys.executable, "-m", "batuta", "ask", "--pool", str(pool), "Say hello."],
            "bare_aiohttp": [sys.executable, "-c", BARE, urls[0]],
            "bare_urllib": [sys.executable, "-c", PLAIN, urls[0]],
        }
        spent(commands["ask"], env)  # byte code and the database
        Worker.calls = 0
        rows = {name: [] for name in commands}
        for _ in range(TIMES):  # in turn, so that what else runs here weighs on all of them
            for name, command in commands.items():
                rows[name].append(spent(command, env))
        assert Worker.calls == 9 * TIMES, Worker.calls
    result = {}
    for name, found in rows.items():
        cpu, wall = (statistics.median(column) for column in zip(*found, strict=True))
        result[f"{name}_cpu_s"], result[f"{name}_wall_s"] = round(cpu, 3), round(wall, 3)
    for name in ("bare_aiohttp", "bare_urllib"):
        result[f"cpu_ratio_to_{name}"] = round(result["ask_cpu_s"] / result[f"{name}_cpu_s"], 2)
    print(json.dumps(result, indent=1))
    return result


if __name__ == "__main__":
    run()
