"""`batuta init`: from keys and servers to a file that opens."""

from functools import partial

import anyio
import pytest

from batuta.clients import HttpTransport
from batuta.config.load import load_config
from fakes import FakeAnthropic, FakeOpenAI, Fault
from fakes.environ import NOWHERE, clean_environ

pytestmark = pytest.mark.anyio


@pytest.fixture
def batuta(command_line):
    async def run(folder, *args, **environ):
        own = {"BATUTA_HOME": str(folder / "home"), "XDG_CACHE_HOME": str(folder / "cache")}
        env = clean_environ(**environ, **own, COLUMNS="160")
        start = partial(command_line.run, *args, cwd=folder, env=env)
        done = await anyio.to_thread.run_sync(start)  # the providers answer in this thread
        return done.returncode, done.stdout, done.stderr

    return run


async def test_what_is_found_answers_and_opens_again(batuta, tmp_path):
    async with (
        FakeOpenAI("ok", strict_openai=False, check=False) as local,
        FakeAnthropic("ok") as far,
    ):
        local.tags = ["small:1b", "big:32b"]
        environ = NOWHERE | {
            "OLLAMA_HOST": local.host,
            "ANTHROPIC_API_KEY": far.key,
            "ANTHROPIC_BASE_URL": far.origin,
        }
        code, _, said = await batuta(tmp_path, "init", **environ)
        assert (
            code == 0 and "\nbatuta.toml has 5 workers. anthropic/claude-opus-5-5 writes" in said
        ), said
        assert "in 0.0 s" not in said and " ms" in said
        written = (tmp_path / "batuta.toml").read_text()
        assert far.key not in written
        code, out, said = await batuta(tmp_path, "ask", "q", "--conductor", "best", **environ)
        assert (code, out) == (0, "ok\n"), said
        async with HttpTransport() as http:
            found = await load_config(http, pool=str(tmp_path / "batuta.toml"), environ=environ)
    assert [w.id for w in found.pool][-2:] == ["ollama/small:1b", "ollama/big:32b"]
    assert found.conductor.name == "prompted/anthropic/claude-opus-5-5"
    assert found.limits.usd == 0.5


async def test_a_server_behind_another_provider_s_variables_keeps_its_key_s_name(batuta, tmp_path):
    async with FakeOpenAI("ok", strict_openai=False) as server:
        server.models = [{"id": 'odd "name"\\'}]
        environ = NOWHERE | {"OPENAI_API_KEY": server.key, "OPENAI_BASE_URL": server.url}
        code, _, said = await batuta(tmp_path, "init", **environ)
        assert code == 0, said
        async with HttpTransport() as http:
            found = await load_config(
                http, pool=str(tmp_path / "batuta.toml"), environ={"OPENAI_API_KEY": server.key}
            )
    assert [w.model for w in found.pool] == ['odd "name"\\']
    assert found.limits.usd is None  # its price is unknown, so a limit would refuse every question
    assert "# max_cost_usd" in (tmp_path / "batuta.toml").read_text()


async def test_a_worker_that_does_not_answer_is_left_out(batuta, tmp_path):
    async with FakeOpenAI("ok", [Fault.UNAUTHORISED], strict_openai=False, check=False) as server:
        server.models = [{"id": "first"}]
        environ = NOWHERE | {"OPENAI_API_KEY": server.key, "OPENAI_BASE_URL": server.url}
        code, _, said = await batuta(tmp_path, "init", **environ)
    assert code == 2 and said.splitlines()[-1].startswith("batuta: no worker answers")
    assert not (tmp_path / "batuta.toml").exists()


async def test_a_file_that_exists_is_kept(batuta, tmp_path):
    (tmp_path / "batuta.toml").write_text("mine")
    code, _, said = await batuta(tmp_path, "init")
    assert code == 2 and "batuta.toml exists" in said
    assert (tmp_path / "batuta.toml").read_text() == "mine"


async def test_where_there_is_nothing_one_sentence_says_so(batuta, tmp_path):
    for command in (["init"], ["ask", "q"], ["pool", "list"]):
        code, _, said = await batuta(tmp_path, *command, **NOWHERE)
        assert code == 2 and len(said.splitlines()) == 1, said
    assert "no server answers at" in said


async def test_one_reason_for_all_is_told_in_the_sentence(batuta, tmp_path):
    faults = [Fault.UNAUTHORISED] * 2
    async with FakeOpenAI("ok", faults, check=False, key="sk-not-told-12345") as server:
        server.models = [{"id": "a"}, {"id": "b"}]
        environ = NOWHERE | {"OPENAI_API_KEY": server.key, "OPENAI_BASE_URL": server.url}
        code, out, said = await batuta(tmp_path, "init", **environ)
    assert (code, out) == (2, "") and server.key not in said
    assert said.splitlines()[-1].startswith(
        "batuta: no worker answers, so nothing was written: the provider refused the key (401)"
    )
    assert not (tmp_path / "batuta.toml").exists()
