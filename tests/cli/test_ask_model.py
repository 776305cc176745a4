"""`batuta ask --model`: who answers, by its name."""

from __future__ import annotations

import json
import os

import pytest

SETTINGS = """
[models.team]
conductor = "fusion"
workers = ["ada", "cyd"]
[models.quick]
conductor = "vote"
effort = "minimal"
[models.method]
baseline = "moa"
"""
WORKERS = "".join(
    f'[[workers]]\nid = "{name}"\nmodel = "m"\nbase_url = "http://127.0.0.1:9/v1"\n'
    f"strength = 0.{9 - at}\nprice = {{ input = {9 - at}, output = 1 }}\n"
    for at, name in enumerate(("ada", "bob", "cyd"))
)


@pytest.fixture
def ask(tmp_path, command_line):
    (tmp_path / "batuta.toml").write_text(SETTINGS + WORKERS)
    keep = {k: v for k, v in os.environ.items() if "API_KEY" not in k and "BATUTA" not in k}
    env = {**keep, "BATUTA_HOME": str(tmp_path / "home"), "COLUMNS": "160"}

    def run(*args):
        return command_line.run("ask", "hi", "--plan", *args, cwd=tmp_path, env=env)

    return run


def planned(done):
    assert done.returncode == 0, done.stderr
    return [step["worker"] for step in json.loads(done.stdout)["workflow"]]


def test_a_preset_and_its_effort_are_planned_as_they_are_served(ask):
    assert planned(ask("--model", "team", "--json")) == ["ada", "cyd", "ada", "ada"]
    # a vote has more steps than that effort allows, so a worker of the cheaper half answers alone
    assert "conductor vote" in ask("--model", "quick").stdout
    assert planned(ask("--model", "batuta-mini", "--json")) == ["ada"]


def test_what_cannot_be_asked_is_refused_in_one_sentence(ask):
    for args, said in (
        (("--model", "tean"), "there is no model 'tean'; did you mean team?"),
        (("--model", "method"), "method is the baseline moa, which only a server answers"),
        (("--model", "team", "--conductor", "best"), "--conductor has no effect with --model"),
    ):
        done = ask(*args)
        assert done.returncode == 2 and said in done.stderr, done.stderr
