"""`batuta` as a process of its own, forked off one that has loaded the program already.

What it does, what it writes and how it ends are a person's `batuta`; only loading the program, most of a
second each time, is done once for all tests of a worker. What is about the start itself, about signals
or about a terminal starts `python -m batuta`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from socketserver import StreamRequestHandler, UnixStreamServer
from tempfile import TemporaryDirectory
from threading import Thread

LOADED = """
import gc, json, os, sys
gc.disable()
from importlib import import_module
from batuta.cli import BatutaCommands, main
for name in (*(f"batuta.cli.{each.module}" for each in BatutaCommands.sources.values()), *sys.argv[3:]):
    import_module(name)
gc.freeze()
gc.enable()
asked, told = os.fdopen(int(sys.argv[1])), int(sys.argv[2])
for line in asked:
    wanted = json.loads(line)
    child = os.fork()
    if not child:
        break
    _, status = os.waitpid(child, 0)
    os.write(told, f"{os.waitstatus_to_exitcode(status)}\\n".encode())
else:
    sys.exit()
asked.close()
os.close(told)
os.chdir(wanted["cwd"])
os.environ.clear()
os.environ.update(wanted["env"])
for number, path in enumerate(wanted["files"]):
    os.dup2(os.open(path, os.O_RDWR | (os.O_APPEND if number else 0)), number)
for number, name in enumerate(("stdin", "stdout", "stderr")):  # the old ones know other files
    old = getattr(sys, name)
    fresh = open(number, "w" if number else "r", encoding=old.encoding, errors=old.errors, closefd=False)
    setattr(sys, name, fresh)
sys.argv = ["batuta", *wanted["args"]]
if wanted["code"] is None:
    main()
else:
    exec(wanted["code"], {"__name__": "__main__"})
"""

CLIENT = Path(__file__).with_name("command_line_client.py")
RUN_FILE = """
import runpy, sys
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class CommandLine:
    """Processes of `batuta`, one after another, for the length of a block."""

    def __init__(self, *loads):
        """Those modules are loaded before the first of them, too."""
        self._loads = loads

    def __enter__(self):
        asked, self._asks = os.pipe()
        self._tells, told = os.pipe()
        self._loaded = subprocess.Popen(
            [sys.executable, "-c", LOADED, str(asked), str(told), *self._loads], pass_fds=(asked, told),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        os.close(asked)
        os.close(told)
        return self

    def run(self, *args, cwd, env, stdin=None, code=None):
        """What `subprocess.run(["batuta", *args], input=stdin, ...)` returns, its streams as texts.

        With `code`, of `python -c code *args`.
        """
        with TemporaryDirectory() as folder:
            said, out, err = (Path(folder) / name for name in ("stdin", "stdout", "stderr"))
            for file, text in ((said, stdin or ""), (out, ""), (err, "")):
                file.write_text(text, encoding="utf-8")
            files = [os.devnull if stdin is None else str(said), str(out), str(err)]
            wanted = {"args": args, "cwd": str(cwd), "env": dict(env), "files": files, "code": code}
            status = self._start(json.dumps(wanted).encode())
            return subprocess.CompletedProcess(
                args, status, out.read_text(encoding="utf-8"), err.read_text(encoding="utf-8")
            )

    def _start(self, wanted):
        os.write(self._asks, wanted + b"\n")
        code = b""
        while not code.endswith(b"\n"):
            piece = os.read(self._tells, 16)
            assert piece, "the process that has loaded the program has ended"
            code += piece
        return int(code)

    @contextmanager
    def answer(self, address):
        """Starts it also for a shell: `python CLIENT address *args` there is `batuta *args`, without stdin."""
        start = self._start

        class Request(StreamRequestHandler):
            def handle(self):
                code = start(self.rfile.readline().rstrip())
                self.wfile.write(f"{code}\n".encode())

        with UnixStreamServer(str(address), Request) as server:
            thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
            thread.start()
            try:
                yield
            finally:
                server.shutdown()
                thread.join()

    def run_file(self, path, *args, cwd, env):
        """As `run`, of `python path *args`."""
        return self.run(str(path), *args, cwd=cwd, env=env, code=RUN_FILE)

    def __exit__(self, *_):
        os.close(self._asks)
        self._loaded.wait(60)
        os.close(self._tells)
