"""`batuta serve` as a process: settings read again, requests logged, an ordered end."""

import os
import signal
import sys
from pathlib import Path

import aiohttp
import anyio
import anyio.to_thread
import orjson
import pytest

from batuta.clients import ScriptedClient
from batuta.errors import StoreError
from batuta.gateway.assemble import reload_on_hangup
from batuta.store.process_lock import lock_server_store
from fakes.command_line import loaded_program
from fakes.serving import Server
from gateway.live_server import scripted_state

POOL = """
[[workers]]
id = "{id}"
provider = "compatible"
base_url = "http://127.0.0.1:9/v1"
model = "m"

"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGHUP")
async def test_the_settings_are_read_again_on_hangup_and_wrong_ones_change_nothing(tmp_path):
    file = tmp_path / "batuta.toml"
    file.write_text(POOL.format(id="ada"))
    async with Server(tmp_path, "--pool", str(file)) as server:
        assert "worker/bob" not in await server.models()
        file.write_text(POOL.format(id="ada") + POOL.format(id="bob"))
        server.process.send_signal(signal.SIGHUP)
        await server.until("the settings were read again: 2 workers\n")
        assert {"worker/ada", "worker/bob"} <= await server.models()
        file.write_text("[[workers]]\nid = 7\n")
        server.process.send_signal(signal.SIGHUP)
        await server.until("batuta: the settings stay as they were: ")
        assert {"worker/ada", "worker/bob"} <= await server.models()


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
async def test_a_hangup_during_the_start_does_not_end_the_server_and_is_not_lost(tmp_path):
    """A service manager takes the server for started, and sends it, as soon as it is a process."""
    file = tmp_path / "batuta.toml"
    file.write_text(POOL.format(id="ada"))
    server = Server(tmp_path, "--pool", str(file))
    process = server.process = loaded_program().start(*server.command, env=server.environ)
    status = Path(f"/proc/{process.pid}/status")
    try:
        with anyio.fail_after(60):
            while "SigBlk:\t0000000000000001" not in status.read_text():
                await anyio.sleep(0.001)
        process.send_signal(signal.SIGHUP)
        await server.until("the settings were read again: 1 worker\n")
    finally:
        process.send_signal(signal.SIGKILL)
        await process.wait()


BROKEN = {
    "a syntax error": "[[workers]\nid = ",
    "a wrong value": "[[workers]]\nid = 7\n",
    "no key": POOL.format(id="ada") + 'key_env = "NOBODY_SET_THIS"\n',
    "a key of another name": POOL.format(id="ada") + "prise = 3\n",
    "a price below nothing": POOL.format(id="ada") + "price = { input = -1, output = 0 }\n",
    "a price that is no number": POOL.format(id="ada") + "price = { input = nan, output = 0 }\n",
    "the same worker twice": POOL.format(id="ada") * 2,
    "no worker": "workers = []\n",
    "a conductor that is nobody": '[conductor]\nmodel = "nobody"\n' + POOL.format(id="ada"),
    "a card that is not there": POOL.format(id="ada") + 'card = "nowhere.json"\n',
    "a card that is a folder": POOL.format(id="ada") + 'card = "."\n',
    "a policy that is none": POOL.format(id="ada") + '[[guardrails]]\nkind = "nothing"\n',
    "a pattern that is none": POOL.format(id="ada")
    + '[[guardrails]]\nname = "x"\nkind = "pattern"\npattern = "("\n',
    "nesting without end": "a = " + "[" * 100_000,
    "no text": b"\xff\xfe\x00",
    "nothing at all": b"",
    "no file": None,
}


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGHUP")
async def test_whatever_is_wrong_with_the_settings_is_said_and_nobody_who_asks_notices(tmp_path):
    file = tmp_path / "batuta.toml"
    file.write_text(POOL.format(id="ada"))
    async with Server(tmp_path, "--pool", str(file)) as server:
        served, asked, is_over = await server.models(), 0, False

        async def ask():
            nonlocal asked
            while not is_over:
                assert await server.models() == served
                asked += 1

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            for what, text in BROKEN.items():
                file.unlink(missing_ok=True)
                if text is not None:
                    file.write_bytes(text if isinstance(text, bytes) else text.encode())
                server.said = ""
                for _ in range(3):  # several at once are as good as one
                    server.process.send_signal(signal.SIGHUP)
                await server.until("\n")
                said = server.said.splitlines()[0]
                assert said.startswith("batuta: the settings stay as they were: "), (what, said)
                assert "Traceback" not in server.said and len(said) < 700, (what, server.said)
            is_over = True
        assert asked > 0
        file.write_text(POOL.format(id="bob"))
        server.process.send_signal(signal.SIGHUP)
        await server.until("the settings were read again: 1 worker\n")
        assert "worker/bob" in await server.models()


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGHUP")
async def test_a_fault_of_this_program_while_settings_are_read_ends_no_server(capfd):
    answers = [RuntimeError("a fault"), scripted_state({"bob": ScriptedClient("Hi.")}).catalogue]
    read = anyio.Event()

    async def reload():
        answer = answers.pop(0)
        read.set()
        if isinstance(answer, Exception):
            raise answer
        return answer

    catalogue = scripted_state({"ada": ScriptedClient("Hi.")}).catalogue
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reload_on_hangup, catalogue, reload)
        await anyio.wait_all_tasks_blocked()
        signal.raise_signal(signal.SIGHUP)
        with anyio.fail_after(60):
            await read.wait()
            await anyio.wait_all_tasks_blocked()
            signal.raise_signal(signal.SIGHUP)
            while answers or "bob" not in catalogue.pool:
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()
    said = capfd.readouterr().err
    assert "the settings stay as they were: internal error, see the log\n" in said


async def test_the_page_is_opened_in_the_browser_where_that_is_wanted(tmp_path):
    browser, opened = tmp_path / "browser", tmp_path / "opened"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}.part && mv {opened}.part {opened}\n')
    browser.chmod(0o755)
    options = ("--pool", "rehearsal", "--open")
    async with Server(tmp_path, *options, BROWSER=f"{browser} %s") as server:
        with anyio.fail_after(60):
            while not opened.exists():
                await anyio.sleep(0.05)
        address = opened.read_text().strip()
        assert f"the web page: {address}\n" in server.said
        async with server.http.get(address) as response:
            assert response.status == 200


async def test_requests_are_logged_as_json_and_the_end_is_orderly(tmp_path):
    async with Server(tmp_path, "--pool", "rehearsal", "--log", "json") as server:
        async with server.http.get("/healthz", headers={"x-request-id": "mine"}) as response:
            assert response.status == 200
        await server.until("}\n")
        server.process.send_signal(signal.SIGTERM)
        with anyio.fail_after(60):
            assert await server.process.wait() == 0
        server.said += await server.rest()
    (line,) = [orjson.loads(line) for line in server.said.splitlines() if line.startswith("{")]
    assert server.said.splitlines()[-1] == "the server has stopped"
    assert (line["route"], line["status"], line["request_id"]) == ("/healthz", 200, "mine")


def test_a_variable_that_opentelemetry_refuses_stops_the_start_in_a_sentence(tmp_path):
    server = Server(tmp_path, "--pool", "rehearsal", OTEL_BSP_MAX_QUEUE_SIZE="-1")
    environ = {**server.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
    done = loaded_program().run(*server.command, cwd=tmp_path, env=environ)
    assert done.returncode == 2
    assert done.stderr.startswith("batuta: OpenTelemetry refuses its variables (OTEL_…): ")
    assert done.stderr.count("\n") == 1


async def test_a_second_server_on_the_same_sqlite_file_is_refused(tmp_path):
    store = str(tmp_path / "runs.db")
    async with Server(tmp_path, "--pool", "rehearsal", BATUTA_STORE=store) as first:
        second = Server(tmp_path / "other", "--pool", "rehearsal", BATUTA_STORE=store)
        with anyio.fail_after(60):
            done = await anyio.run_process(
                [sys.executable, "-m", "batuta", *second.command], env=second.environ, check=False
            )
        assert done.returncode == 2
        assert done.stderr.decode() == (
            f"batuta: another server uses {tmp_path}: stop it, give this one another folder "
            "with BATUTA_HOME or BATUTA_STORE, or give both one PostgreSQL with BATUTA_STORE\n"
        )
        assert "batuta-mini" in await first.models()
    async with Server(tmp_path, "--pool", "rehearsal", BATUTA_STORE=store) as third:
        assert "batuta-mini" in await third.models()


def test_a_lock_is_free_again_and_a_server_database_needs_none(tmp_path):
    target = str(tmp_path / "runs.db")
    with lock_server_store(target), pytest.raises(StoreError, match="another server uses"):
        with lock_server_store(target):
            pass
    with lock_server_store(target):
        pass
    with lock_server_store("postgresql://h/d"), lock_server_store("postgresql://h/d"):
        assert {path.name for path in tmp_path.iterdir()} <= {"runs.db.server.lock"}


async def test_files_without_what_reads_them_are_told_at_the_start(tmp_path):
    file = tmp_path / "batuta.toml"
    file.write_text(POOL.format(id="ada") + "[files]\n")
    code = (
        "import sys; sys.modules['pypdf'] = None\n"
        "from batuta.cli import main\n"
        f"sys.argv = ['batuta', 'serve', '--port', '0', '--pool', {str(file)!r}]\nmain()"
    )
    with anyio.fail_after(60):
        done = await anyio.run_process(
            [sys.executable, "-c", code],
            env={**Server(tmp_path).environ},
            check=False,
        )
    said = done.stderr.decode()
    assert done.returncode == 2
    assert said.startswith("batuta: [files] needs pypdf, which this installation lacks: ")
    assert "tools" in said and len(said.strip().splitlines()) == 1


def test_a_lock_that_cannot_be_made_says_what_to_do(tmp_path):
    (tmp_path / "runs.db.server.lock").mkdir()
    message = r"runs\.db\.server\.lock cannot be opened: check that it is a file"
    with pytest.raises(StoreError, match=message), lock_server_store(str(tmp_path / "runs.db")):
        pass
    (tmp_path / "unlocked").touch()
    message = r"unlocked/runs\.db\.server\.lock cannot be created: (File exists|Not a directory)"
    with (
        pytest.raises(StoreError, match=message),
        lock_server_store(str(tmp_path / "unlocked" / "runs.db")),
    ):
        pass


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGHUP")
async def test_a_server_whose_messages_nobody_reads_any_more_serves_on(tmp_path):
    """Its log's reader has ended; a full disk below the log is the same."""
    file = tmp_path / "batuta.toml"
    file.write_text(POOL.format(id="ada"))
    reads, writes = os.pipe()
    command = [sys.executable, "-m", "batuta", "serve", "--port", "0", "--pool", str(file)]
    environ, said = Server(tmp_path).environ, b""
    async with await anyio.open_process(command, env=environ, stderr=writes) as process:
        os.close(writes)
        while b"/v1\n" not in said:
            said += await anyio.to_thread.run_sync(os.read, reads, 4096)
        os.close(reads)
        file.write_text(POOL.format(id="bob"))
        process.send_signal(signal.SIGHUP)
        url = said.decode().split(" at ")[1].split("/v1")[0]
        async with aiohttp.ClientSession(url) as http:
            bob = "/v1/models/worker/bob"
            while (await http.get(bob)).status == 404:
                await anyio.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
