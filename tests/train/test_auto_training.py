"""`batuta train conductor --minutes`: chosen settings, questions kept back, an end in time."""

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from batuta.cli.train import app
from batuta.config.load import load_trained_conductor
from batuta.errors import ConfigError
from batuta.train.auto_settings import TrainingFacts, choose_settings
from batuta.train.held_back import LEAST_QUESTIONS, divide_lines, split_source
from batuta.tune.parts import text_key
from train.stage import LIBRARIES

pytestmark = LIBRARIES


@given(
    st.integers(LEAST_QUESTIONS, 10**6),
    st.integers(1, 20_000),
    st.integers(1, 64),
    st.floats(0.2, 10_000),
)
def test_any_facts_give_settings_that_can_be_carried_out(questions, longest, workers, minutes):
    facts = TrainingFacts(
        questions=questions,
        longest=longest,
        workers=workers,
        minutes=minutes,
        cores=2,
        source="q.jsonl",
        pool="p.toml",
        output=Path("out"),
    )
    settings, rows = choose_settings(facts)
    o = settings.optimiser
    assert o.questions * o.group % o.micro_batch == 0
    assert settings.policy.network.positions >= longest // 2 + o.completion
    assert rows and all(row.value and row.why for row in rows)


@given(st.lists(st.integers(0, 200), min_size=LEAST_QUESTIONS, unique=True, max_size=80))
def test_no_question_nor_one_like_it_is_in_both_parts(numbers):
    lines = [
        json.dumps({"question": text, "answer": n}).encode()
        for n in numbers
        for text in (f"Add {n} and 1.", f"add {n} AND 1")
    ]
    learned, held = divide_lines(lines)
    keys = [{text_key(json.loads(line)["question"]) for line in part} for part in (learned, held)]
    assert not keys[0] & keys[1] and keys[0] | keys[1] and keys[1]
    assert len(held) == len(keys[1]), "a question judges once"


def test_what_cannot_be_divided_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(ConfigError, match="too few"):
        divide_lines([b'{"question": "a?"}'] * 40)
    with pytest.raises(ConfigError, match="line 2 of the questions"):
        divide_lines([b'{"question": "a?"}', b"{"])
    with pytest.raises(ConfigError, match="cannot read"):
        split_source(str(tmp_path / "none.jsonl"), tmp_path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "--minutes"),
        (["--pool", "rehearsal", "--tasks", "rehearsal"], "--minutes"),
        (["--pool", "rehearsal", "--tasks", "x", "--minutes", "1", "--resume"], "--resume needs"),
        (["--config", "x.toml", "--minutes", "1"], "leave one out"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, said):
    result = CliRunner().invoke(app, ["conductor", *options])
    assert isinstance(result.exception, ConfigError) and said in str(result.exception)


@pytest.mark.long
def test_it_ends_in_time_with_a_policy_that_is_served(tmp_path):
    began = time.monotonic()
    command = ["conductor", "--pool", "rehearsal", "--tasks", "rehearsal:arithmetic"]
    command += ["--minutes", "1", "--out", str(tmp_path / "out"), "--set", "optimiser.threads=1"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert time.monotonic() - began <= 66
    assert "kept" in result.output and "held-back" in result.output
    assert load_trained_conductor(tmp_path / "out" / "policy").name
    again = CliRunner().invoke(app, command)
    assert "holds a training already" in str(again.exception)
