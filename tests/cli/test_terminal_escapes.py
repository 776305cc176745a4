"""What callers and models write never commands the operator's terminal, whichever command shows it."""

import asyncio
import json
import logging
import os
import pty
import re
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO

import pytest
from rich.markdown import Markdown
from rich.table import Table
from tests.store.strategies import make_run

from batuta.core import Attempt, Failure, WorkerId, Workflow
from batuta.core.formatting import escape_controls
from batuta.gateway.telemetry.logs import JsonLogFormatter
from batuta.rendering.console import EscapingConsole
from batuta.rendering.terminal import EscapingFormatter
from batuta.store import Store
from fakes.environ import clean_environ

HOSTILE = (
    "\x1b[2J\x1b[31mred\x1b]0;title\x07\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\\x1b]52;c;aGk=\x07 "
    "\x9b31m \x9d52;c;aGk=\x9c bell\a back\b\b line\rover \u202eturned\u202c \u2066x\u2069 hid\u200bden \ufeff [/red] [bold red]loud[/] [link=evil]x[/link] :warning:"
)
OURS = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?25[hl]|\x1b\[\d*[AK]|\r(?=\n|\x1b\[2?K)")
"""Colours and the moves of a live display."""


def assert_harmless(text, *, terminal=False):
    """Only this program's own colours and moves are there, and those on a terminal alone."""
    rest = OURS.sub("", text) if terminal else text
    assert escape_controls(rest) == rest, ascii(rest)
    if terminal:
        assert "\x1b[31mred" not in text and "\x1b[2J" not in text


class _Model(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = self.rfile.read(int(self.headers["content-length"])).decode()
        message = {"role": "assistant", "content": f"# Title\n\n{HOSTILE}[a](http://evil/x)\n\nend"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        body = {"id": "x", "model": HOSTILE, "choices": [choice]}
        failed = "FAIL" in asked
        self.send_response(400 if failed else 200)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps({"error": {"message": HOSTILE}} if failed else body).encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def url():
    with ThreadingHTTPServer(("127.0.0.1", 0), _Model) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


@pytest.fixture
def batuta(tmp_path, command_line, url):
    env = clean_environ("COLOR", BATUTA_HOME=str(tmp_path / "home"), COLUMNS="160")
    quoted = json.dumps(f"Good at {HOSTILE}")
    (tmp_path / "batuta.toml").write_text(
        f'[[workers]]\nid = "a"\nmodel = "m"\nprovider = "compatible"\nbase_url = "{url}"\n'
        f'description = {quoted}\n[conductor]\nworker = "single/a"\n',
        encoding="utf-8",
    )

    def run(*args, **more):
        return command_line.run(*args, cwd=tmp_path, env={**env, **more})

    run.env = env
    return run


def hostile_run():
    run = make_run(1, question=f"Why {HOSTILE}?", answer=f"Because {HOSTILE}.", model=HOSTILE)
    [round_] = run.rounds
    [step] = round_.steps
    failure = Failure(code="bad_request", message=HOSTILE)
    step = replace(step, attempts=(Attempt(worker=WorkerId(HOSTILE), failure=failure, at=0.1),))
    assert round_.workflow is not None
    flow = Workflow((replace(round_.workflow.steps[0], subtask=HOSTILE),))
    return replace(run, rounds=(replace(round_, workflow=flow, steps=(step,)),))


@contextmanager
def stored(tmp_path):
    async def keep():
        async with Store.open(tmp_path / "home" / "runs.db") as store:
            await store.append(hostile_run())

    (tmp_path / "home").mkdir(exist_ok=True)
    asyncio.run(keep())
    yield "run_000001"


def task_file(tmp_path):
    path = tmp_path / "mine.jsonl"
    row = {"id": f"x{HOSTILE}", "question": HOSTILE, "target": HOSTILE, "grader": "exact"}
    path.write_text(json.dumps(row) + "\n", encoding="utf-8")
    return str(path)


def training(tmp_path):
    folder = tmp_path / "training"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text(
        json.dumps({"step": 1, "reward": 0.5, "time": 1.0}) + "\n"
    )
    sample = dict.fromkeys(("question", "draft", "answer", "target"), HOSTILE)
    sample |= {"step": 1, "reward": 0.5, "score": 0.0}
    (folder / "samples.jsonl").write_text(json.dumps(sample) + "\n", encoding="utf-8")
    return str(folder)


SHOWING = {
    "runs list": lambda _: ["runs", "list"],
    "runs show": lambda _: ["runs", "show", "run_000001"],
    "runs show a step": lambda _: ["runs", "show", "run_000001", "--step", "1"],
    "runs replay": lambda _: ["runs", "replay", "run_000001", "--recorded"],
    "runs show what is not": lambda _: ["runs", "show", HOSTILE],
    "keys list": lambda _: ["keys", "list"],
    "keys spend": lambda _: ["keys", "spend"],
    "keys activity": lambda _: ["keys", "activity", "--by", "model,error"],
    "keys refusals": lambda _: ["keys", "refusals"],
    "pool list": lambda _: ["pool", "list"],
    "pool check": lambda _: ["pool", "check"],
    "tasks show": lambda folder: ["tasks", "show", task_file(folder)],
    "eval": lambda folder: ["eval", "--tasks", task_file(folder), "--systems", "single/a"],
    "train watch": lambda folder: ["train", "watch", training(folder), "--once"],
    "ask": lambda _: ["ask", f"Why {HOSTILE}?"],
    "ask raw": lambda _: ["ask", f"Why {HOSTILE}?", "--raw"],
    "ask a plan": lambda _: ["ask", f"Why {HOSTILE}?", "--plan"],
    "ask and fail": lambda _: ["ask", f"FAIL {HOSTILE}?"],
    "a wrong option": lambda _: ["ask", "q", f"--{HOSTILE}"],
    "a wrong command": lambda _: [HOSTILE],
}
JSON = {
    "runs list": ["runs", "list", "--json"],
    "runs show": ["runs", "show", "run_000001", "--json"],
    "keys list": ["keys", "list", "--json"],
    "ask": ["ask", f"Why {HOSTILE}?", "--json"],
}


@pytest.mark.parametrize("name", SHOWING)
@pytest.mark.parametrize("coloured", [False, True])
def test_no_command_passes_on_what_a_terminal_obeys(batuta, tmp_path, name, coloured):
    made = batuta("keys", "create", f"mine {HOSTILE}", "--tenant", "acme")
    assert made.returncode == 0, made.stderr
    assert_harmless(made.stderr)
    more = {"FORCE_COLOR": "1", "TERM": "xterm-256color"} if coloured else {}
    with stored(tmp_path):
        done = batuta(*SHOWING[name](tmp_path), **more)
    assert "Traceback" not in done.stderr, done.stderr
    assert done.stdout + done.stderr
    assert_harmless(done.stdout, terminal=coloured)
    assert_harmless(done.stderr, terminal=coloured)


@pytest.mark.parametrize("name", ["runs show", "runs list", "keys list", "ask"])
def test_the_hostile_text_is_what_these_commands_show(batuta, tmp_path, name):
    """The walk above would prove nothing if the texts were not shown."""
    batuta("keys", "create", f"mine {HOSTILE}", "--tenant", "acme")
    with stored(tmp_path):
        done = batuta(*SHOWING[name](tmp_path))
    assert "␛[2J" in done.stdout + done.stderr


@pytest.mark.parametrize("name", JSON)
def test_json_for_a_program_is_unchanged(batuta, tmp_path, name):
    batuta("keys", "create", f"mine {HOSTILE}", "--tenant", "acme")
    with stored(tmp_path):
        done = batuta(*JSON[name])
    assert any(HOSTILE[:40] in text for text in texts_in(json.loads(done.stdout)))


def texts_in(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from texts_in(one)
    elif isinstance(value, list):
        for one in value:
            yield from texts_in(one)


@pytest.mark.parametrize(
    "args", [["ask", f"Why {HOSTILE}?"], ["runs", "show", "run_000001", "--json"]]
)
def test_on_a_terminal_too(batuta, tmp_path, args):
    with stored(tmp_path):
        parent, child = pty.openpty()
        done = subprocess.Popen([sys.executable, "-m", "batuta", *args], cwd=tmp_path, stdout=child, stderr=child,
                                stdin=child, env={**batuta.env, "TERM": "xterm-256color"})  # fmt: skip
        os.close(child)
        seen = b""
        while True:
            try:
                piece = os.read(parent, 65536)
            except OSError:
                break
            seen += piece
        done.wait(60)
        os.close(parent)
    assert_harmless(seen.decode(), terminal=True)


def test_a_console_escapes_whatever_it_is_given():
    out = StringIO()
    console = EscapingConsole(file=out, force_terminal=True, width=300)
    table = Table("name")
    table.add_row(HOSTILE)
    for shown in (
        HOSTILE,
        table,
        Markdown(f"{HOSTILE} [a](http://evil)"),
        "[link=http://evil]x[/link]",
    ):
        console.print(shown)
    assert_harmless(out.getvalue(), terminal=True)
    assert "\x1b]8" not in out.getvalue()


def test_a_console_shows_brackets_and_colons_as_they_are():
    out = StringIO()
    console = EscapingConsole(file=out, width=300)
    table = Table("[/title]")
    table.add_row("[/red] [bold]x[/bold] :warning:")
    console.print(table)
    console.print("[/dim] [link=http://evil]x[/link] :smile:", style="dim")
    shown = out.getvalue()
    for text in (
        "[/title]",
        "[/red] [bold]x[/bold] :warning:",
        "[/dim] [link=http://evil]x[/link] :smile:",
    ):
        assert text in shown


def test_a_log_line_is_one_line_and_commands_nothing():
    record = logging.LogRecord(
        "batuta", logging.WARNING, "f", 1, "worker %s\nforged", (HOSTILE,), None
    )
    line = EscapingFormatter().format(record)
    assert_harmless(line)
    assert "\n" not in line
    told = JsonLogFormatter().format(record)
    assert_harmless(told)
    assert json.loads(told)["message"] == record.getMessage()
