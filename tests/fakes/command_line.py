"""`batuta` as a process of its own, forked off one that has loaded the program already.

What it does, what it writes and how it ends are a person's `batuta`; only loading the program, most of a
second each time, is done once for all tests of a worker. What is about the start itself, about its streams
or about a terminal starts `python -m batuta`.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from socketserver import StreamRequestHandler, UnixStreamServer
from tempfile import TemporaryDirectory
from threading import Lock, Thread

import anyio
from anyio.abc import ByteReceiveStream

LOADED = """
import atexit, gc, json, os, sys, threading
gc.disable()
from importlib import import_module
from batuta.cli import BatutaCommands, main
from batuta.plugins import open_plugin, plugin_names
for name in (*(f"batuta.cli.{each.module}" for each in BatutaCommands.sources.values()), *sys.argv[3:]):
    import_module(name)
for kind in ("command", "pool"):
    for name in plugin_names(kind):
        open_plugin(kind, name, id)
gc.freeze()
gc.enable()
asked, told = os.fdopen(int(sys.argv[1])), int(sys.argv[2])
for line in asked:
    wanted = json.loads(line)
    child = wanted.get("ended") or os.fork()
    if not child:
        break
    if wanted.get("stays"):
        continue
    _, status = os.waitpid(child, 0)
    os.write(told, f"{os.waitstatus_to_exitcode(status)}\\n".encode())
else:
    sys.exit()
asked.close()
os.chdir(wanted["cwd"])
os.environ.clear()
os.environ.update(wanted["env"])
for number, path in enumerate(wanted["files"]):
    os.dup2(os.open(path, os.O_RDWR | (os.O_APPEND if number else 0)), number)
if wanted.get("stays"):
    os.write(told, f"{os.getpid()}\\n".encode())
os.close(told)
for number, name in enumerate(("stdin", "stdout", "stderr")):  # the old ones know other files
    old = getattr(sys, name)
    fresh = open(number, "w" if number else "r", encoding=old.encoding, errors=old.errors, closefd=False)
    setattr(sys, name, fresh)
sys.argv = ["batuta", *wanted["args"]]
code = None
try:
    if wanted["code"] is None:
        main()
    else:
        exec(wanted["code"], {"__name__": "__main__"})
except SystemExit as error:
    code = error.code
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
        code = 1
except BaseException:
    sys.excepthook(*sys.exc_info())
    code = 1
threading._shutdown()
atexit._run_exitfuncs()
for stream in (sys.stdout, sys.stderr):
    stream.flush()
os._exit(code or 0)  # all else goes with the process: to clear it away would copy the memory that is shared
"""

LATER = (
    "anyio._backends._asyncio", "batuta.lab.baselines", "batuta.lab.evals.report_files", "batuta.lab.worlds.simulated",
    "batuta.gateway.assemble", "batuta.lab.worlds.world2.pools", "numpy.random", "sqlalchemy.dialects.sqlite.aiosqlite", "typer._adapters",
    "typer.rich_utils",
)  # fmt: skip
"""What commands load when they need it, and most tests do."""

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
        self._asking = Lock()

    def __enter__(self):
        asked, self._asks = os.pipe()
        self._tells, told = os.pipe()
        self._loaded = subprocess.Popen(
            [sys.executable, "-c", LOADED, str(asked), str(told), *LATER, *self._loads], pass_fds=(asked, told),
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

    def start(self, *args, env):
        """As `run`, here, of a process that goes on."""
        return self._start_here(args, env, None, ("stderr",))

    def start_file(self, path, *args, env):
        """As `start`, of `python path *args`; what it writes to stdout is heard with its stderr."""
        return self._start_here((str(path), *args), env, RUN_FILE, ("stdout", "stderr"))

    def _start_here(self, args, env, code, heard):
        reads, writes = os.pipe()
        pipe = f"/proc/{os.getpid()}/fd/{writes}"
        files = [pipe if name in heard else os.devnull for name in ("stdin", "stdout", "stderr")]
        wanted = {"args": args, "cwd": str(Path.cwd()), "env": dict(env), "files": files, "code": code, "stays": True}  # fmt: skip
        pid = self._start(json.dumps(wanted).encode())
        os.close(writes)
        return Started(pid, Said(reads), self)

    def code_of(self, pid):
        """Waits for the end of one that went on."""
        return self._start(json.dumps({"ended": pid}).encode())

    def _start(self, wanted):
        with self._asking:
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


@cache
def loaded_program():
    """The `CommandLine` that all tests of this process share; it ends with the process."""
    opened = CommandLine().__enter__()
    atexit.register(opened.__exit__)
    return opened


class Said(ByteReceiveStream):
    """What a process writes to a pipe."""

    def __init__(self, number):
        self._number = number

    async def receive(self, max_bytes=65536):
        await anyio.wait_readable(self._number)
        if not (piece := os.read(self._number, max_bytes)):
            raise anyio.EndOfStream
        return piece

    async def aclose(self):
        os.close(self._number)


class Started:
    """A process that goes on: what `anyio.open_process` returns, as far as the tests use it."""

    def __init__(self, pid, stderr, line):
        self.pid, self.stderr = pid, stderr
        self._line, self._code = line, None
        self._end = os.pidfd_open(pid)

    @property
    def returncode(self):
        """None: it goes on."""
        if self._code is None:
            ended = select.poll()
            ended.register(self._end, select.POLLIN)
            if ended.poll(0):
                self._code = self._line.code_of(self.pid)
        return self._code

    async def wait(self):
        if self.returncode is None:
            await anyio.wait_readable(self._end)
        return self.returncode

    def send_signal(self, number):
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    async def aclose(self):
        await self.wait()
        os.close(self._end)
        await self.stderr.aclose()
