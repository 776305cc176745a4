"""Trains a conductor by itself on a small world and measures it on fresh questions.

    python recipes/train-by-itself/measure.py experts --minutes 8

The worlds are those of tests/lab/tune/worlds.py, behind a loopback server in a process of its own. One
line of JSON: the held-back shares that the command printed stand on stderr.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import fmean

import anyio

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from batuta.conductors import single_worker
from batuta.config.conductors import open_trained
from batuta.core import Limits, Question
from batuta.engine import conduct
from lab.tune.worlds import ALL, grade

LEARNED, FRESH = 600, 400


def serve_world(name):
    """Chat completions by the world's workers, until the process is ended."""
    world = ALL[name]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            said = world.answer(asked["model"], asked["messages"][-1]["content"])
            usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
            message = {"role": "assistant", "content": said}
            body = json.dumps(
                {
                    "id": "x",
                    "object": "chat.completion",
                    "created": 0,
                    "model": asked["model"],
                    "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                    "usage": usage,
                }
            ).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 512

    server = Server(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


@contextmanager
def world_server(name):
    """The port of a server of that world."""
    command = [sys.executable, __file__, name, "--serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - ours
        try:
            yield int(process.stdout.readline())
        finally:
            process.terminate()


def write_files(world, port, folder):
    """The pool's file and the questions."""
    workers = [
        f'[[workers]]\nid = "{w}"\nprovider = "compatible"\n'
        f'base_url = "http://127.0.0.1:{port}/v1"\nmodel = "{w}"\n'
        "price = { input = 0.5, output = 2 }\nconcurrency = 64\n"
        for w in world.workers
    ]
    (folder / "pool.toml").write_text("\n".join(workers))
    lines = [
        json.dumps({"question": task.question, "answer": int(task.target), "tags": list(task.tags)})
        for task in world.tasks(LEARNED, 0)
    ]
    (folder / "questions.jsonl").write_text("\n".join(lines) + "\n")


async def measure_fresh(world, conductor, pool, tasks):
    """Share right, and calls of workers a question."""
    scores, calls = [], []
    for task in tasks:
        run = await conduct(
            Question.of(task.question), conductor, pool, world.clients(), limits=Limits(), seed=1
        )
        scores.append(float((await grade(task, run.answer or "")).score or 0))
        calls.append(len(run.steps))
    return {"right": round(100 * fmean(scores), 1), "calls": round(fmean(calls), 2)}


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("world", choices=sorted(ALL))
    options.add_argument("--minutes", type=float, default=8)
    options.add_argument("--serve", action="store_true")
    chosen = options.parse_args()
    if chosen.serve:
        return serve_world(chosen.world)
    world = ALL[chosen.world]
    fresh = world.tasks(FRESH, 900)
    with tempfile.TemporaryDirectory() as name, world_server(chosen.world) as port:
        folder = Path(name)
        write_files(world, port, folder)
        command = [sys.executable, "-m", "batuta", "train", "conductor", "--pool", "pool.toml"]
        command += ["--tasks", "questions.jsonl", "--minutes", str(chosen.minutes)]
        command += ["--out", "out", "--set", "optimiser.threads=1"]
        began = time.perf_counter()
        subprocess.run(command, cwd=folder, check=True, stdout=sys.stderr)  # noqa: S603 - ours
        took = (time.perf_counter() - began) / 60
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        policy = open_trained(folder / "out" / "policy")
        found = anyio.run(measure_fresh, world, policy, world.pool, fresh)
        singles = {
            str(w): anyio.run(measure_fresh, world, single_worker(w), world.pool, fresh)["right"]
            for w in world.workers
        }
    told = {
        "world": world.name,
        "minutes": round(took, 2),
        "cpu minutes": round((used.ru_utime + used.ru_stime) / 60, 2),
        "load": [round(one, 1) for one in os.getloadavg()],
        "trained": found,
        "singles": singles,
    }
    print(json.dumps(told), flush=True)
    return None


if __name__ == "__main__":
    main()
