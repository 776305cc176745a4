"""`batuta connect`: settings written, taken back byte for byte, and no key where others read it."""

import json
import os
import tomllib
from functools import partial

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.cli.connect_settings import AGENTS, Connection
from batuta.clients import ScriptedClient
from batuta.errors import ConfigError
from fakes.serving import Server
from gateway.live_server import Serving, scripted_state

pytestmark = pytest.mark.anyio
FILES = {
    "claude": ".claude/settings.json",
    "codex": ".codex/config.toml",
    "opencode": ".config/opencode/opencode.json",
    "aider": ".aider.conf.yml",
}
BEFORE = {
    "claude": '{ "model": "opus",\n\t"env": {"A": "b", "ANTHROPIC_BASE_URL": "https://x"},  "hooks": {} }',
    "codex": "# mine\r\nmodel = 'gpt-5.5' # best\r\napproval_policy = \"never\"\n\n[tui]\nmodel = 1\n[model_providers.x]\nname = \"x\"",
    "opencode": '{"$schema": "https://opencode.ai/config.json", "provider": {"a": {"name": "é"}}}\n\n',
    "aider": "# my settings\nmodel: sonnet\nread:\n  - CONVENTIONS.md\n\nweak-model: haiku\n",
}  # fmt: skip
BROKEN = {
    "claude": '{"model": ',
    "codex": "model = ",
    "opencode": '{\n  // the best\n  "model": "a/b"\n}',
    "aider": "model sonnet\n",
}
CLIENTS = sorted(FILES)


@pytest.fixture
def batuta(command_line, tmp_path):
    async def run(*args, **environ):
        clean = {k: v for k, v in os.environ.items() if "BATUTA" not in k and "CONFIG" not in k}
        env = {**clean, "HOME": str(tmp_path), "BATUTA_HOME": str(tmp_path / "home"), "COLUMNS": "300"}  # fmt: skip
        env = {**env, "NO_PROXY": "127.0.0.1", **environ}
        done = await anyio.to_thread.run_sync(
            partial(command_line.run, *args, cwd=tmp_path, env=env)
        )
        return done.returncode, done.stdout, done.stderr

    return run


def server():
    return Serving(scripted_state({"ada": ScriptedClient(lambda _: "OK.")}))


def written(folder, client, text=None):
    """The settings file; `text` is put into it."""
    file = folder / FILES[client]
    if text is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode())
        file.chmod(0o640)
    return file


@pytest.mark.parametrize("client", CLIENTS)
async def test_settings_are_written_and_undone_byte_for_byte(batuta, tmp_path, client):
    file = written(tmp_path, client, BEFORE[client])
    async with server() as app_state:
        code, shown, said = await batuta("connect", client, "--url", app_state.url)
        assert code == 0, said
        assert (shown, said.count("\n")) == ("", 1) and f"start it with `{client}`" in said
        text = file.read_text(encoding="utf-8")
        assert app_state.url in text and "batuta-ultra" in text
        assert file.stat().st_mode & 0o777 == 0o600
        again = await batuta("connect", client, "--url", app_state.url, "--model", "batuta-mini")
        assert again[0] == 0 and "batuta-ultra" not in file.read_text(encoding="utf-8")
    code, _, said = await batuta("connect", client, "--undo")
    assert code == 0, said
    assert file.read_bytes() == BEFORE[client].encode()
    assert file.stat().st_mode & 0o777 == 0o640
    assert [p.name for p in file.parent.iterdir() if "batuta" in p.name] == []
    code, _, said = await batuta("connect", client, "--undo")
    assert code == 2 and "there is nothing to undo" in said


async def test_two_settings_files_of_a_client_are_written_and_undone_each(batuta, tmp_path):
    """As of somebody with a profile for work beside the usual one."""
    usual, work = written(tmp_path, "claude", BEFORE["claude"]), tmp_path / "work.json"
    async with server() as app_state:
        for more in ((), ("--file", str(work))):
            code, _, said = await batuta("connect", "claude", "--url", app_state.url, *more)
            assert code == 0, said
        assert all(app_state.url in file.read_text(encoding="utf-8") for file in (usual, work))
    assert (await batuta("connect", "claude", "--undo"))[0] == 0
    assert usual.read_bytes() == BEFORE["claude"].encode() and work.exists()
    code, _, said = await batuta("connect", "claude", "--undo", "--file", str(usual))
    assert code == 2 and "there is nothing to undo" in said
    assert (await batuta("connect", "claude", "--undo"))[0] == 0, "the one that is left"
    assert not work.exists()


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_file_that_was_not_there_is_gone_again(batuta, tmp_path, client):
    async with server() as app_state:
        assert (await batuta("connect", client, "--url", app_state.url))[0] == 0
    assert written(tmp_path, client).exists()
    assert (await batuta("connect", client, "--undo"))[0] == 0
    assert not written(tmp_path, client).exists()


@pytest.mark.parametrize("client", CLIENTS)
async def test_broken_settings_are_refused_in_a_sentence(batuta, tmp_path, client):
    file = written(tmp_path, client, BROKEN[client])
    async with server() as app_state:
        code, _, said = await batuta("connect", client, "--url", app_state.url)
    assert (code, said.count("\n")) == (2, 1)
    assert said.startswith(f"batuta: {file} was left unchanged: ") and "--print" in said
    assert file.read_bytes() == BROKEN[client].encode()
    assert not (tmp_path / "home" / "connect").exists()


async def test_what_was_changed_since_stays(batuta, tmp_path):
    claude, codex = (written(tmp_path, name, BEFORE[name]) for name in ("claude", "codex"))
    async with server() as app_state:
        for name in ("claude", "codex"):
            await batuta("connect", name, "--url", app_state.url)
    claude.write_text(json.dumps({**json.loads(claude.read_text()), "theme": "dark"}))
    codex.write_bytes(codex.read_bytes() + b'[projects."/x"]\ntrust_level = "trusted"\n')
    for name in ("claude", "codex"):
        code, _, said = await batuta("connect", name, "--undo")
        assert code == 0 and "were kept" in said
    assert json.loads(claude.read_text()) == {**json.loads(BEFORE["claude"]), "theme": "dark"}
    found = tomllib.loads(codex.read_bytes().decode())
    assert found == {**tomllib.loads(BEFORE["codex"]), "projects": {"/x": {"trust_level": "trusted"}}}  # fmt: skip


@pytest.mark.parametrize("before", ["", "approval_policy = 'never'\n"])
async def test_edits_between_two_connections_outlive_the_undo(batuta, tmp_path, before):
    file = written(tmp_path, "codex", before)
    if not before:
        file.unlink()
    async with server() as app_state:
        await batuta("connect", "codex", "--url", app_state.url)
        file.write_bytes(file.read_bytes() + b"[tui]\nmodel = 1\n")
        await batuta("connect", "codex", "--url", app_state.url)
    assert (await batuta("connect", "codex", "--undo"))[0] == 0
    assert file.read_text() == f"{before}[tui]\nmodel = 1\n"


async def test_an_undo_leaves_settings_that_are_no_text(batuta, tmp_path):
    file = written(tmp_path, "codex", BEFORE["codex"])
    async with server() as app_state:
        await batuta("connect", "codex", "--url", app_state.url)
    file.write_bytes(file.read_bytes() + b"# \xff\n")
    code, _, said = await batuta("connect", "codex", "--undo")
    assert code == 2 and "is not UTF-8; nothing was written" in said
    assert file.read_bytes().endswith(b"\xff\n")


async def test_a_key_is_made_shown_nowhere_and_revoked(batuta, tmp_path):
    file = written(tmp_path, "codex", BEFORE["codex"])
    await batuta("keys", "create", "first")
    async with Server(tmp_path, "--pool", "rehearsal", HOME=str(tmp_path)) as app_state:
        url = str(app_state.http._base_url)
        code, shown, said = await batuta("connect", "codex", "--url", url, "--per-day", "3")
        assert code == 0, said
        key = tomllib.loads(file.read_text())["model_providers"]["batuta"]["experimental_bearer_token"]  # fmt: skip
        assert key.startswith("batuta_") and key not in shown + said
        holders = [p for p in tmp_path.rglob("*") if p.is_file() and key.encode() in p.read_bytes()]
        assert holders == [file] and file.stat().st_mode & 0o077 == 0
        _, told, _ = await batuta("keys", "list", "--json")
        (made,) = [one for one in json.loads(told) if one["name"] == "Codex"]
        assert made["id"] in said and made["id"] in key and "3" in json.dumps(made["limits"])
        assert (await batuta("connect", "codex", "--undo"))[0] == 0
    _, told, _ = await batuta("keys", "list")
    assert [line for line in told.splitlines() if "Codex" in line and "revoked" in line]


async def test_a_server_that_cannot_answer_changes_nothing(batuta, tmp_path):
    file = written(tmp_path, "claude", BEFORE["claude"])
    code, _, said = await batuta("connect", "claude", "--url", "http://127.0.0.1:9")
    assert code == 2 and "no Batuta server answers at http://127.0.0.1:9" in said
    async with server() as app_state:
        code, _, said = await batuta(
            "connect", "claude", "--url", app_state.url, "--model", "nobody"
        )
        assert code == 2 and "nobody" in said and "nothing was written" in said
    assert file.read_bytes() == BEFORE["claude"].encode()
    for url in ("server:1", "http://", "http://[bad"):
        for command in (["connect", "claude", "--url"], ["open", "run_1", "--server"]):
            code, _, said = await batuta(*command, url)
            assert (code, said.count("\n")) == (2, 1) and "is not a URL" in said


@pytest.mark.parametrize("client", CLIENTS)
async def test_print_shows_and_writes_nothing(batuta, tmp_path, client):
    code, shown, said = await batuta("connect", client, "--print", "--model", "escalate")
    assert code == 0 and "YOUR_KEY" in shown and "escalate" in shown
    assert FILES[client] in said
    assert not written(tmp_path, client).exists()


TO = Connection(url="http://127.0.0.1:1", model='a"b', key="k")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
SETTINGS = st.dictionaries(
    st.sampled_from(["model", "env", "provider", "small_model", "other"]), VALUES
)


@pytest.mark.parametrize("client", ["claude", "opencode"])
@given(settings=SETTINGS)
def test_what_is_taken_back_is_what_was_there(client, settings):
    text = json.dumps(settings)
    try:
        changed = AGENTS[client].connect(text, TO)
    except ConfigError:
        return
    back = AGENTS[client].disconnect(changed, text)
    assert json.loads(back or "{}") == settings


LINES = st.lists(
    st.sampled_from(
        ["model = 'x'", 'model_provider = "y"', "# c", "", "[a]", "[b.c]", 'k = """', "model: x"]
    )
    | st.text(st.characters(exclude_characters="\r\n", codec="utf-8"))
)  # fmt: skip


@pytest.mark.parametrize("client", ["codex", "aider"])
@given(lines=LINES)
def test_lines_are_taken_back_as_they_were(client, lines):
    text = "".join(f"{line}\n" for line in lines)
    try:
        changed = AGENTS[client].connect(text, TO)
    except ConfigError:
        return
    assert AGENTS[client].disconnect(changed, text) == text
    if client == "codex":
        found = tomllib.loads(changed)
        assert (found["model"], found["model_provider"]) == ('a"b', "batuta")
