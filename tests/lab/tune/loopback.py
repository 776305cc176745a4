"""Workers on loopback, the files and the commands of docs/tune.md; for its test and for scripts."""

import json
import random
import re
import shlex
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from fakes.environ import clean_environ
from lab.tune.worlds import CHECKS

PAGE = (Path(__file__).parents[3] / "docs" / "tune.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    (batuta .*)$", PAGE, re.MULTILINE)
KILLED = COMMANDS[1] + " --concurrency 4"
RESULTS = ("report.json", "report.md", "selector/batuta.json", "selector/selector.safetensors",
           "batuta.toml", "workflows.jsonl")  # fmt: skip
"""Files of a tuning that are the same to the byte, however often it was killed."""

REWRITTEN = "```\nCheck the answer line by line, and give the final answer.\n```"
"""What a model proposes that is asked for a better subtask."""


class Server(ThreadingHTTPServer):
    """Takes as many connections at once as come."""

    request_queue_size = 128
    daemon_threads = True


@contextmanager
def serve_workers(late=0.0):
    """OpenAI-compatible models; the requests that were answered, as they came.

    Args:
        late: seconds that one answer in twenty takes longer.
    """
    answered = []

    class Model(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            prompt = body["messages"][-1]["content"]
            rewrites = prompt.startswith("Several language models")
            text = REWRITTEN if rewrites else CHECKS.answer(body["model"], prompt)
            message = {"role": "assistant", "content": text}
            reply = {"id": "c", "object": "chat.completion", "model": body["model"],
                     "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                     "usage": {"prompt_tokens": 40, "completion_tokens": 8, "total_tokens": 48}}  # fmt: skip
            data, kind = json.dumps(reply).encode(), "application/json"
            if body.get("stream"):
                chunk = reply | {"object": "chat.completion.chunk"}
                chunk["choices"] = [{"index": 0, "delta": message, "finish_reason": "stop"}]
                data, kind = (
                    f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode(),
                    "text/event-stream",
                )
            if late and random.random() < 0.05:
                time.sleep(late)
            answered.append(json.dumps(body, sort_keys=True))
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    server = Server(("127.0.0.1", 0), Model)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", answered
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def write_files(tmp_path, url):
    tables = [
        f'[[workers]]\nid = "{name}"\nprovider = "compatible"\nbase_url = "{url}"\nmodel = "{name}"\n'
        + ("" if name == "cleo" else "price = { input = 0.5, output = 2 }\n")
        for name in CHECKS.workers
    ]
    (tmp_path / "pool.toml").write_text("\n".join(tables) + '\n[conductor]\nworker = "ada"\n')
    rows = [
        {"question": t.question, "answer": t.target, "tags": list(t.tags)}
        for t in CHECKS.tasks(300)
    ]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def start(command, folder):
    program, *options = shlex.split(command)
    assert program == "batuta"
    env = clean_environ(BATUTA_HOME=str(folder / "home"), OMP_NUM_THREADS="1", COLUMNS="150")
    return subprocess.Popen([sys.executable, "-m", "batuta", *options], cwd=folder, env=env, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip


def run(command, folder):
    process = start(command, folder)
    out, err = process.communicate(timeout=900)
    assert process.returncode == 0, err
    return out if "ask" not in command.split() else out + err
