"""Claude Code, Codex and opencode at work through Batuta, offline, against a scripted model.

    npm install --prefix ~/.cache/batuta-clients @anthropic-ai/claude-code @openai/codex opencode-ai
    python bench/clients.py [--clients FOLDER] [claude|codex|opencode ...] [alone|escalate|advise|gate|lead|ultra|compact|search|own ...]

Each client is set up by `batuta connect` in a home of its own and does one task of nine calls of
tools, of which two fail as planned; first without Batuta, where it asks the scripted model in its own dialect,
then through each way. The workers are two scripted models on the loopback. Nothing leaves
this machine: every other address leads to a proxy that is not there. Printed are what was asked, of
whom, and the status of each request; exit 1 if one was refused, if the task is not done, or if a call
or its result differs from what it is without Batuta.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from difflib import unified_diff
from pathlib import Path
from typing import Any

import aiohttp
import anyio
from aiohttp import web

sys.path[:0] = [str(Path(__file__).parents[1] / "tests"), str(Path(__file__).parent)]

from client_transcripts import as_chat, transcript
from fakes.anthropic import FakeAnthropic
from fakes.openai import USAGE, FakeOpenAI
from fakes.openai_responses import FakeOpenAIResponses
from fakes.server import Said
from fakes.serving import Server
from fakes.web import FakeWeb

Json = dict[str, Any]
ROOT = Path(__file__).parents[1]
CLIENTS = ("claude", "codex", "opencode")
WAYS = {
    "alone": "pattern/alone",
    "escalate": "pattern/escalate",
    "advise": "pattern/advise",
    "gate": "pattern/gate",
    "lead": "pattern/lead-and-hands",
    "ultra": "batuta-ultra",
    "compact": "pattern/escalate",
    "search": "pattern/escalate",
    "own": "pattern/escalate",
}
"""The ways in which a task is done, and the models that are asked for.

`compact`: the client takes its conversation for too long in the middle. `search`: Claude Code searches the
web. `own`: Codex with a model of its maker, by whose name it offers `apply_patch` and asks for compaction in
its own way, and offers `tool_search`.
"""
BROKEN = "def add(a, b):\n    return a - b\n"
MENDED = "def add(a, b):\n    return a + b\n"
PATCH = """*** Begin Patch
*** Update File: add.py
@@
-    return a - b
+    return a + b
*** End Patch
"""
TASK = "Mend add.py so that its test passes, run the test, and say MENDED."
SEARCHED = "Imola observatory"
STUCK = "worker that acts here is stuck"
"""What an adviser is told; it may have tools that only look."""
NO_SOCKET = 426
"""What Codex is told that looks for a WebSocket; it goes on without."""
COMPACTED = "is told of a compaction"
LEAST_CALLS = 8
"""Calls of tools that a task takes at least."""
PATIENCE_S = 400
"""Seconds that a task may take if nothing else is said; on a quiet machine it takes some twenty."""

WANTED = {"advise": ": advises", "gate": ": judges", "lead": ": judges", "escalate": "claude-big: ", "compact": COMPACTED, "own": COMPACTED, "search": ": tells what was found"}  # fmt: skip
"""What must have happened on a way."""
FULL_AT, FULL = 5, 150_000
"""The action after which a conversation is said to be long, and how many tokens it then has."""
FULL_USAGE: dict[str, Json] = {
    "chat": {**USAGE, "prompt_tokens": FULL, "total_tokens": FULL + 10},
    "messages": {"input_tokens": FULL, "output_tokens": 10},
    "responses": {
        "input_tokens": FULL,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 10,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": FULL + 10,
    },
}
DONE = "MENDED: add.py adds now, and its test passes."
ONE_DOES = {"search": {"claude"}, "own": {"codex"}, "compact": {"claude", "codex"}}
"""Ways that not every client has."""
PACKAGES = {
    "claude": "@anthropic-ai/claude-code",
    "codex": "@openai/codex",
    "opencode": "opencode-ai",
}
SETTINGS = """
[[workers]]
id = "small"
provider = "compatible"
model = "gpt-small"
base_url = "{url}"
key_env = "SCRIPTED_API_KEY"
price = {{ input = 0.1, cached = 0.01, output = 0.4 }}
strength = 0.4
tags = ["tools"]
context_window = 200000

[[workers]]
id = "big"
provider = "compatible"
model = "claude-big"
base_url = "{url}"
key_env = "SCRIPTED_API_KEY"
price = {{ input = 3, cached = 0.3, output = 15 }}
strength = 0.9
tags = ["tools"]
context_window = 200000

[conductor]
worker = "big"

[tools.search]
engine = "searxng"
base_url = "{search}"
server_tool = true

[aliases]
"gpt-5*" = "pattern/escalate"
"""


def commands_of(tools: Mapping[str, Json]) -> Callable[[str], tuple[str, Json]]:
    """How these tools are asked to run a command of the shell."""
    for name, tool in tools.items():
        known = (tool.get("parameters") or {}).get("properties", {})
        for field_name in ("command", "cmd"):
            if field_name in known and name.lower() in {"bash", "shell", "shell_command", "exec_command", "local_shell"}:  # fmt: skip
                is_list = known[field_name].get("type") == "array"
                said = {"description": "As the task wants it."} if "description" in known else {}
                return lambda text, n=name, f=field_name, lists=is_list, more=said: (
                    n,
                    {f: ["bash", "-lc", text] if lists else text, **more},
                )
    raise LookupError(f"no shell among {sorted(tools)}")


def steps_of(tools: Mapping[str, Json], folder: str) -> list[tuple[str, Json]]:
    """The calls of the scripted model, in the client's own tools where it has them."""
    run = commands_of(tools)
    path = f"{folder}/add.py"
    read = run(f"cat {path}")
    if "Read" in tools:
        read = ("Read", {"file_path": path})
    if "read" in tools:
        read = ("read", {"filePath": path})
    write = run(f"printf 'def add(a, b):\\n    return a + b\\n' > {path}")
    if "Edit" in tools:
        write = ("Edit", {"file_path": path, "old_string": "a - b", "new_string": "a + b"})
    if "edit" in tools:
        write = ("edit", {"filePath": path, "oldString": "a - b", "newString": "a + b"})
    if "apply_patch" in tools:
        write = ("apply_patch", {"input": PATCH})
    failing = run(f"cd {folder} && python3 test_add.py")
    looks = [("tool_search", {"query": "issues"})] if "tool_search" in tools else []
    return [
        run(f"ls {folder}"),
        *looks,
        read,
        run(f"cat {folder}/test_add.py"),
        failing,
        failing,
        write,
        run(f"cd {folder} && python3 test_add.py"),
        run(f"cd {folder} && python3 -c 'import add; print(add.add(20, 22))'"),
        run(f"cd {folder} && cat add.py"),
    ]


def last_words(messages: list[Json]) -> str:
    """The text of the last message."""
    content = messages[-1]["content"]
    return content if isinstance(content, str) else str(content[-1].get("text", ""))


def is_summary(messages: list[Json]) -> bool:
    """Whether the client wants a summary of the conversation."""
    last = last_words(messages)
    return messages[-1]["role"] == "user" and any(word in last for word in ("CHECKPOINT COMPACTION", "task is to create a detailed summary", "Summarize"))  # fmt: skip


@dataclass
class Script:
    """What the scripted models say, by what they are sent."""

    folder: str = ""
    way: str = ""
    given: int = 0
    """The steps that were given so far: a client that compacts forgets its calls."""
    asked: list[str] = field(default_factory=list)
    """Who was asked for what."""
    dialect: str = "chat"
    """The dialect that it is asked in."""

    def reply(self, sent: Json) -> Said:
        body = as_chat(sent)
        who, messages = body["model"], body["messages"]
        tools = {t["function"]["name"]: t["function"] for t in body.get("tools", [])}
        text = json.dumps(messages)
        if tools.keys() == {"web_search"}:
            return self._search(who, messages)
        if not tools or is_summary(messages) or (STUCK in text and who == "claude-big"):
            return self._aside(who, text, body)
        steps = steps_of(tools, self.folder)
        if self.way == "search" and "WebSearch" in tools:
            steps.insert(1, ("WebSearch", {"query": SEARCHED}))
        if self.given < len(steps):
            name, arguments = steps[self.given]
            self.given += 1
            self.asked.append(f"{who}: {name} {json.dumps(arguments)[:60]}")
            full = self.way in {"compact", "own"} and self.given == FULL_AT
            usage = FULL_USAGE[self.dialect] if full else None
            return Said("I go on.", calls=((f"call_{self.given}", name, arguments),), usage=usage)
        self.asked.append(f"{who}: done")
        return Said(DONE)

    def _search(self, who: str, messages: list[Json]) -> Said:
        if messages[-1]["role"] == "tool":
            self.asked.append(f"{who}: tells what was found: {last_words(messages)[:60]!r}")
            return Said("It was opened in 1822 [1].")
        self.asked.append(f"{who}: searches")
        return Said(calls=(("call_s", "web_search", {"query": SEARCHED}),))

    def _aside(self, who: str, text: str, body: Json) -> Said:
        if "REDO" in text:
            self.asked.append(f"{who}: judges")
            return Said("ACCEPT: the test passes.")
        if STUCK in text:
            self.asked.append(f"{who}: advises")
            return Said("The sign is wrong: write + for - in add.py, then run test_add.py.")
        said = COMPACTED if is_summary(body["messages"]) else "an aside"
        self.asked.append(f"{who}: {said}: {last_words(body['messages'])[:70]}")
        form = body.get("response_format", {}).get("json_schema", {}).get("schema", {})
        if form:
            return Said(json.dumps(dict.fromkeys(form.get("properties", {"title": 0}), "Mend add")))
        return Said("Mend add")


@dataclass
class Recorder:
    """A proxy before Batuta that keeps every request and the status of its answer."""

    target: str = ""
    seen: list[Json] = field(default_factory=list)

    async def pass_on(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        kept = {k: v for k, v in request.headers.items() if k.lower() not in {"host", "content-length"}}  # fmt: skip
        async with (
            aiohttp.ClientSession(auto_decompress=False) as http,
            http.request(
                request.method, self.target + request.path_qs, headers=kept, data=body
            ) as got,
        ):
            one: Json = {"method": request.method, "path": request.path, "status": got.status, "headers": kept,
                         "ignored": got.headers.get("x-batuta-ignored", ""), "session": got.headers.get("x-batuta-session", ""), "body": readable(body, kept)}  # fmt: skip
            self.seen.append(one)
            headers = {k: v for k, v in got.headers.items() if k.lower() not in {"transfer-encoding", "content-length", "connection"}}  # fmt: skip
            response = web.StreamResponse(status=got.status, headers=headers)
            await response.prepare(request)
            told = b""
            async for piece in got.content.iter_any():
                told += piece
                with suppress(ConnectionResetError):  # a client that has its answer goes
                    await response.write(piece)
            with suppress(ConnectionResetError):
                await response.write_eof()
            one["answer"] = told.decode(errors="replace")
            return response

    @asynccontextmanager
    async def serve(self) -> AsyncGenerator[str]:
        """Yield the address while it passes on."""
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{path:.*}", self.pass_on)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()

    @property
    def transcript(self) -> list[str]:
        """The calls of tools and their results, as the client told them."""
        return transcript(one["body"] for one in self.seen if isinstance(one["body"], dict))


def readable(body: bytes, headers: Mapping[str, str]) -> Any:
    """The body as JSON, unpacked."""
    if headers.get("content-encoding", headers.get("Content-Encoding")) == "zstd":
        import zstandard

        body = zstandard.ZstdDecompressor().decompressobj().decompress(body)
    try:
        return json.loads(body)
    except ValueError:
        return body.decode(errors="replace")


def environ_of(home: Path) -> dict[str, str]:
    """What a client sees: a home of its own, and no way out of this machine."""
    nowhere = "http://127.0.0.1:9"
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "HTTPS_PROXY": nowhere,
        "HTTP_PROXY": nowhere,
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
        "XDG_CONFIG_HOME": str(home / ".config"),
        "XDG_DATA_HOME": str(home / ".local/share"),
        "XDG_CACHE_HOME": str(home / ".cache"),
        "DISABLE_AUTOUPDATER": "1",
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "IS_SANDBOX": "1",
    }


def command_of(client: str, way: str, binary: Path, folder: Path) -> list[str]:
    """How the client does the task and ends."""
    match client:
        case "claude":
            return [str(binary), "-p", TASK, "--dangerously-skip-permissions"]
        case "codex":
            early = ["-c", f"model_auto_compact_token_limit={FULL // 2}"]
            return [str(binary), "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", *(early if way in {"compact", "own"} else []), "-C", str(folder), TASK]  # fmt: skip
        case _:
            return [str(binary), "run", "--auto", "--dir", str(folder), TASK]


async def make_key(environ: Mapping[str, str]) -> str:
    """Make a key of the server, which needs one from then on."""
    command = [sys.executable, "-m", "batuta", "keys", "create", "bench"]
    done = await anyio.run_process(command, env=dict(environ))
    return done.stdout.decode().strip()


async def connect(client: str, url: str, model: str, environ: Mapping[str, str]) -> None:
    """Set the client up, as a user does."""
    if model == WAYS["own"] and client == "codex" and environ.get("WAY") == "own":
        folder = Path(environ["HOME"]) / ".codex"
        folder.mkdir()
        (folder / "config.toml").write_text(f'model = "gpt-5.5-codex"\nopenai_base_url = "{url}/v1"\n')  # fmt: skip
        (folder / "auth.json").write_text(json.dumps({"OPENAI_API_KEY": await make_key(environ), "tokens": None}))  # fmt: skip
        return
    command = [sys.executable, "-m", "batuta", "connect", client, "--url", url, "--model", model]
    done = await anyio.run_process(command, env=dict(environ), check=False)
    assert done.returncode == 0, done.stderr.decode()


@dataclass
class Place:
    """The folders of one task."""

    home: Path
    work: Path
    environ: dict[str, str]


@contextmanager
def open_place(way: str, store: Path | None = None) -> Iterator[Place]:
    """Yield the folders of one task: a home, and what is to be mended.

    Args:
        way: how it is done.
        store: the server's folder; None: there is no server.
    """
    with tempfile.TemporaryDirectory(prefix="batuta-clients-") as root:
        home, work = Path(root) / "home", Path(root) / "work"
        home.mkdir()
        work.mkdir()
        (work / "add.py").write_text(BROKEN)
        (work / "test_add.py").write_text("from add import add\n\nassert add(2, 3) == 5, 'wrong sum'\nprint('passed')\n")  # fmt: skip
        environ = environ_of(home) | {"WAY": way, "BATUTA_HOME": str(store or home / "home")}
        if way in {"compact", "own"}:
            environ["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] = "100000"
        yield Place(home, work, environ)


async def do_task(client: str, way: str, binary: Path, place: Place, patience: float) -> str:
    """Let the client do the task, and return what it said; empty if it is not done."""
    with anyio.move_on_after(patience) as scope:
        command = command_of(client, way, binary, place.work)
        done = await anyio.run_process(command, env=place.environ, cwd=place.work, check=False, stdin=subprocess.DEVNULL)  # fmt: skip
        said = done.stdout.decode().strip()
        if "MENDED" in said and (place.work / "add.py").read_text() == MENDED:
            return said
        print("    said:", said[-1500:], done.stderr.decode()[-3000:])
    if scope.cancelled_caught:
        print(f"    {client} by {way}: not done in {patience:g} s", flush=True)
    return ""


FAKES = {"claude": (FakeAnthropic, "messages"), "codex": (FakeOpenAIResponses, "responses"), "opencode": (FakeOpenAI, "chat")}  # fmt: skip
"""What each client asks where there is no Batuta, and in which dialect."""
FILES = {"claude": ".claude/settings.json", "codex": ".codex/config.toml", "opencode": ".config/opencode/opencode.json"}  # fmt: skip


async def without_batuta(client: str, way: str, binary: Path, patience: float) -> list[str]:
    """Return the transcript of the task that the client does with the scripted model alone.

    Raises:
        RuntimeError: it is not done.
    """
    fake, dialect = FAKES[client]
    with open_place(way) as place:
        script, recorder = Script(str(place.work), way, dialect=dialect), Recorder()
        async with fake(script.reply, check=False) as upstream, recorder.serve() as url:
            recorder.target = upstream.origin
            command = [sys.executable, "-m", "batuta", "connect", client, "--url", url, "--model", "small", "--print"]  # fmt: skip
            printed = await anyio.run_process(command, env={**os.environ, **place.environ})
            file = place.home / FILES[client]
            file.parent.mkdir(parents=True)
            file.write_bytes(printed.stdout)
            if not await do_task(client, way, binary, place, patience):
                raise RuntimeError(f"{client} does not do the task without Batuta: {script.asked}")
        return recorder.transcript


@dataclass
class Trial:
    """One client's tasks by one server, way after way."""

    client: str
    binary: Path
    patience: float
    keep: Path | None
    script: Script = field(default_factory=Script)
    alone: dict[str, list[str]] = field(default_factory=dict)
    """The transcripts without Batuta, by the ways that make them different."""

    async def try_ways(self, ways: list[str]) -> int:
        """Do the task by each way; return how many failed."""
        with tempfile.TemporaryDirectory(prefix="batuta-server-") as root:
            async with FakeWeb() as found, FakeOpenAI(self._reply, check=True, strict_openai=False) as upstream:  # fmt: skip
                folder, pool = Path(root), Path(root) / "batuta.toml"
                pool.write_text(SETTINGS.format(url=upstream.url, search=found.url))
                await make_key({**os.environ, "BATUTA_HOME": str(folder / "home")})
                server = Server(folder, "--pool", str(pool), SCRIPTED_API_KEY=upstream.key)
                server.patience_s = self.patience
                async with server:
                    target = str(server.http._base_url).rstrip("/")
                    done = [await self._try_way(way, target, folder, upstream) for way in ways]
        return done.count(False)

    def _reply(self, sent: Json) -> Said:
        return self.script.reply(sent)

    async def _try_way(self, way: str, target: str, folder: Path, upstream: FakeOpenAI) -> bool:
        """One task by one way; whether it is done as without Batuta, and nothing refused."""
        client, alone = self.client, await self._find_alone(way)
        recorder = Recorder(target)
        with open_place(way, folder / "home") as place:
            async with recorder.serve() as url:
                self.script = Script(str(place.work), way)
                await connect(client, url, WAYS[way], place.environ)
                recorder.seen.clear()
                self.script.asked.clear()
                self.script.given = 0
                upstream.wrong.clear()
                done = await do_task(client, way, self.binary, place, self.patience)
        if self.keep:
            self.keep.mkdir(parents=True, exist_ok=True)
            (self.keep / f"{client}-{way}.json").write_text(json.dumps(recorder.seen, indent=1))
        return report(client, way, self.script, recorder, alone, bool(done), upstream.wrong)

    async def _find_alone(self, way: str) -> list[str] | None:
        """Return the transcript without Batuta; None of a way that there is only with it."""
        if way == "own":
            return None
        kind = way if way in {"compact", "search"} else "plain"
        if kind not in self.alone:
            self.alone[kind] = await without_batuta(self.client, way, self.binary, self.patience)
        return self.alone[kind]


def report(client: str, way: str, script: Script, recorder: Recorder, alone: list[str] | None, done: bool, wrong: list[Any]) -> bool:  # fmt: skip
    """Print what became of a task; return whether it is as it should be."""
    failed = [one for one in recorder.seen if one["status"] >= 400 and one["status"] != NO_SOCKET]
    told = recorder.transcript
    same = alone is None or told == alone
    happened = any(WANTED.get(way, "") in row for row in script.asked)
    good = done and same and happened and not failed and not wrong and len(told) >= LEAST_CALLS
    as_alone = "" if alone is None else ", as without Batuta" if same else ", OTHERWISE than without Batuta"  # fmt: skip
    print(f"\n{client} by {way}: {'done' if good else 'FAILED'}, {len(told)} calls of tools{as_alone}")  # fmt: skip
    for row in script.asked:
        print(f"    {row}")
    for one in recorder.seen:
        print(f"    {one['status']} {one['method']} {one['path']} session {one['session'][:12]} ignored: {one['ignored'] or 'nothing'}")  # fmt: skip
    if not good:
        print("    wrong:", wrong, [one["answer"][:500] for one in failed])
        print("\n".join(unified_diff(alone or [], told, "without", "through", lineterm="")))
    sys.stdout.flush()
    return good


def find_binary(folder: Path, client: str) -> Path | None:
    """The client's command, as npm installed it; else that of the path."""
    found = folder / "node_modules" / ".bin" / client
    named = shutil.which(client)
    return found if found.exists() else Path(named) if named else None


async def main() -> int:
    """Try every client by every way."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--clients", type=Path, default=Path.home() / ".cache/batuta-clients")
    parser.add_argument("--keep", type=Path, help="a folder for what was sent")
    parser.add_argument("--patience", type=float, default=PATIENCE_S, help="seconds for each task")
    given = parser.parse_args()
    clients = [name for name in CLIENTS if name in given.names] or list(CLIENTS)
    ways = [name for name in WAYS if name in given.names] or list(WAYS)
    failed = 0
    for client in clients:
        binary = find_binary(given.clients, client)
        if binary is None:
            print(f"{client} is not installed: npm install --prefix {given.clients} {PACKAGES[client]}")  # fmt: skip
            continue
        does = [one for one in ways if client in ONE_DOES.get(one, CLIENTS)]
        trial = Trial(client, binary, given.patience, given.keep)
        failed += await trial.try_ways(does)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(anyio.run(main))
