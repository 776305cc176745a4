"""The commands of docs/tune.md, run as they stand, on workers on loopback; and kill -9."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tune.worlds import CHECKS

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

PAGE = (Path(__file__).parents[2] / "docs" / "tune.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    (batuta .*)$", PAGE, re.MULTILINE)
KILLED = COMMANDS[1] + " --concurrency 4"


@pytest.fixture(scope="module")
def workers():
    """OpenAI-compatible models; the requests that were answered, as they came."""
    answered = []

    class Model(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            text = CHECKS.answer(body["model"], body["messages"][-1]["content"])
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
            answered.append(json.dumps(body, sort_keys=True))
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1", answered
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def folder(tmp_path, workers):
    """A pool file and questions, as the page has them."""
    workers[1].clear()
    return write_files(tmp_path, workers[0])


@pytest.fixture(scope="module")
def whole(tmp_path_factory, workers):
    """A tuning that nobody killed, and how many calls it made."""
    folder = write_files(tmp_path_factory.mktemp("whole"), workers[0])
    workers[1].clear()
    run(KILLED, folder)
    return folder, len(workers[1])


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
    keys = ("API_KEY", "BASE_URL", "OLLAMA", "BATUTA")
    clean = {k: v for k, v in os.environ.items() if not any(word in k for word in keys)}
    env = {**clean, "BATUTA_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1", "COLUMNS": "150"}
    return subprocess.Popen([sys.executable, "-m", "batuta", *options], cwd=folder, env=env, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip


def run(command, folder):
    process = start(command, folder)
    out, err = process.communicate(timeout=280)
    assert process.returncode == 0, err
    return out if "ask" not in command.split() else out + err


def test_the_commands_of_the_page(folder, workers):
    _, answered = workers
    check, tune, cards, ask, other = COMMANDS
    assert "nobody was called" in run(check, folder) and not answered
    assert "report: runs/tuned/report.html" in run(tune, folder)
    assert len(answered) <= 1600 and len(set(answered)) == len(answered)
    found = json.loads((folder / "runs/tuned/report.json").read_text())
    assert found["recommendation"]["ultra"] == "selector", found["recommendation"]["why"]
    assert "strength = " in (folder / "runs/tuned/batuta.toml").read_text()
    assert "<svg" in (folder / "runs/tuned/report.html").read_text()
    measured = json.loads(run(cards, folder))
    assert {card["worker"] for card in measured["workers"]} == set(CHECKS.workers)
    assert measured["comparisons"] == []
    for command in (ask, other):
        said = run(command, folder)
        assert "workflow-selector/tuned@" in said and "Answer:" in said


@pytest.mark.parametrize(
    ("stage", "when"), [("calibrate", 40), ("search", 500), ("select", 1030), ("judge", 1250)]
)
def test_killed_and_begun_again_it_ends_the_same_and_pays_nothing_twice(
    folder, workers, whole, stage, when
):
    _, answered = workers
    finished, paid = whole
    answered.clear()
    process = start(KILLED, folder)
    until = time.monotonic() + 240
    while len(answered) < when and process.poll() is None and time.monotonic() < until:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert when <= len(answered) < paid, f"it was killed in {stage}, before its end"
    run(KILLED, folder)
    again = sum(many - 1 for many in Counter(answered).values())
    assert again <= 4, "only what was in flight is asked again"
    names = "report.json", "report.md", "selector/batuta.json", "selector/selector.safetensors"
    for name in (*names, "batuta.toml", "workflows.jsonl"):
        one, other = (where / "runs/tuned" / name for where in (finished, folder))
        assert one.read_bytes() == other.read_bytes(), name
