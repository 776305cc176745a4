"""Questions of a simulated world cost real money if real models are asked: only on purpose."""

import json

import anyio
import pytest
from typer.testing import CliRunner

from batuta.errors import ConfigError
from batuta.lab.commands import train
from batuta.lab.task_sources import check_simulated_questions
from fakes.openai import FakeOpenAI
from fakes.server import KEY

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]
TRAINING = '[policy]\nstart = "policy"\n[pool]\nsource = "batuta.toml"\n'
CURRICULUM = '[[curriculum]]\ntasks = { "own.jsonl" = 1.0'
COMMANDS = {
    "eval": ("eval", "--tasks", "rehearsal"),
    "eval without tasks": ("eval",),
    "tune": ("tune", "--tasks", "rehearsal:lists", "--calls", "100"),
    "tune's check": ("tune", "--tasks", "world2", "--calls", "100", "--check"),
    "train by itself": ("train", "conductor", "--pool", "batuta.toml", "--tasks", "rehearsal",
                        "--minutes", "1"),
    "train": ("train", "conductor", "--config", "mixed.toml"),
    "train without tasks": ("train", "conductor", "--config", "bare.toml"),
    "train's check": ("train", "conductor", "--config", "mixed.toml", "--check"),
    "train's evaluation": ("train", "conductor", "--config", "judged.toml"),
    "rejection": ("train", "rejection", "--config", "mixed.toml"),
}  # fmt: skip


def write_files(folder, url):
    (folder / "batuta.toml").write_text(
        f'[[workers]]\nid = "a"\nmodel = "model-a"\nbase_url = "{url}"\nkey_env = "TEST_KEY"\n'
    )
    lines = ({"question": f"What is {n}?", "answer": n} for n in range(8))
    (folder / "own.jsonl").write_text("\n".join(map(json.dumps, lines)))
    rounds = "[rejection]\nrounds = 1\n"
    (folder / "mixed.toml").write_text(f'{TRAINING}{CURRICULUM}, "world2:bills" = 0.5 }}\n{rounds}')
    (folder / "judged.toml").write_text(
        f"{TRAINING}{CURRICULUM} }}\n[evaluation]\nevery = 1\ntasks = {{ rehearsal = 1.0 }}\n"
    )
    (folder / "bare.toml").write_text(TRAINING)


async def start(command_line, folder, command, out="out"):
    env = {"BATUTA_HOME": str(folder / "home"), "HOME": str(folder), "TEST_KEY": KEY}
    return await anyio.to_thread.run_sync(
        lambda: command_line.run(*command, "--out", out, cwd=folder, env=env)
    )


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
async def test_no_command_asks_them_of_real_models(tmp_path, command_line, command):
    if command[0] == "train":
        pytest.importorskip("trl")
    async with FakeOpenAI(strict_openai=False) as server:
        write_files(tmp_path, server.url)
        done = await start(command_line, tmp_path, command)
        assert done.returncode == 2, done.stderr
        assert "questions of a simulated world" in done.stderr, done.stderr
        assert "--simulated-questions" in done.stderr and "Traceback" not in done.stderr
        assert not server.requests and not (tmp_path / "out").exists()


async def test_tune_asks_them_where_it_is_allowed(tmp_path, command_line):
    async with FakeOpenAI(strict_openai=False) as server:
        write_files(tmp_path, server.url)
        command = (*COMMANDS["tune's check"], "--simulated-questions")
        done = await start(command_line, tmp_path, command)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", ["conductor", "rejection"])
def test_a_training_asks_them_where_it_is_allowed(tmp_path, monkeypatch, command):
    """In this process: it goes on to load the libraries of training, of which a process needs ten seconds."""
    pytest.importorskip("trl")
    write_files(tmp_path, "http://127.0.0.1:9/v1")
    monkeypatch.chdir(tmp_path)
    named = (command, "--config", "mixed.toml", "--simulated-questions", "--out", "out")
    done = CliRunner().invoke(
        train.app, named, env={"BATUTA_HOME": str(tmp_path / "home"), "TEST_KEY": KEY}
    )
    said = f"{done.output}{done.exception}"
    assert "simulated world" not in said and "policy" in said, said


@pytest.mark.parametrize(
    ("names", "simulated", "allowed"),
    [(["own.jsonl", "gsm8k:test"], False, False), (["rehearsal"], True, False),
     (["own.jsonl", "world2:roads"], False, True), ([], False, False)],
)  # fmt: skip
def test_others_are_asked(names, simulated, allowed):
    check_simulated_questions(names, "pool.toml", simulated=simulated, allowed=allowed)


def test_the_sentence_names_the_questions_the_pool_and_the_way_out():
    with pytest.raises(ConfigError, match=r"world2:roads .* pool\.toml .*--pool world2"):
        check_simulated_questions(["own.jsonl", "world2:roads"], "pool.toml", simulated=False)


async def test_tune_asks_simulated_workers_about_their_own_world(tmp_path, command_line):
    command = ("tune", "--pool", "world2:5", "--calls", "300")
    foretold = await start(command_line, tmp_path, (*command, "--check"))
    assert foretold.returncode == 0 and "; world2: " in foretold.stdout
    begun = await start(command_line, tmp_path, (*command, "--stages", "calibrate"))
    assert begun.returncode == 0 and "--conductor" not in begun.stdout, "there is no selector yet"
    done = await start(command_line, tmp_path, command, out="whole")
    assert done.returncode == 0
    assert "batuta ask --pool world2:5 --conductor whole/selector" in done.stdout
