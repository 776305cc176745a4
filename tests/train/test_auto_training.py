"""`batuta train conductor --minutes`: chosen settings, questions kept back, an end in time."""

import json
import time
from dataclasses import replace
from decimal import Decimal
from itertools import repeat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from batuta.cli.train import app
from batuta.config.load import load_trained_conductor
from batuta.core import Step, WorkerId, Workflow
from batuta.errors import ConfigError
from batuta.rehearsal import draw_tasks, rehearsal_pool
from batuta.train.auto_settings import TrainingFacts, choose_settings
from batuta.train.fit_plan import LEAST_STEPS, SMALL, open_new_policy, plan_fitting
from batuta.train.fitting import TrainingExample, fit_examples
from batuta.train.held_back import LEAST_QUESTIONS, divide_lines, split_source
from batuta.train.model import load_policy
from batuta.train.search_first import (
    FoundWorkflows,
    single_worker_texts,
    teach_single_worker,
    teach_workflows,
    workflow_texts,
    write_greedily,
)
from batuta.train.training_supervisor import StageClock
from batuta.train.warmup import render_user_prompt
from batuta.tune.parts import text_key
from train.stage import LIBRARIES, settings

pytestmark = LIBRARIES


@given(st.integers(LEAST_QUESTIONS, 10**6), st.floats(0.2, 10_000))
def test_any_facts_give_settings_that_can_be_carried_out(questions, minutes):
    facts = TrainingFacts(
        questions=questions,
        minutes=minutes,
        cores=2,
        source="q.jsonl",
        pool="p.toml",
        output=Path("out"),
    )
    settings, rows = choose_settings(facts)
    o = settings.optimiser
    assert o.questions * o.group % o.micro_batch == 0
    assert rows and all(row.value and row.why for row in rows)


def found_workflows(**shares):
    tasks = draw_tasks("arithmetic", 60, 3)
    solve = Step(subtask="", worker=WorkerId("cello"))
    check = Step(subtask="Verify the solution.", worker=WorkerId("viola"), access=(0,))
    checked, alone = Workflow((solve, check)), Workflow((solve,))
    return FoundWorkflows(
        executed=tuple((task, checked) for task in tasks),
        single=alone,
        workflows=0,
        calls=0,
        usd=Decimal(0),
        **shares,
    )


@pytest.mark.parametrize(
    ("single", "found", "steps"), [(0.5, 0.6, 2), (0.6, 0.5, 1), (None, 0.1, 2), (0.6, None, 2)]
)
def test_a_search_that_found_nothing_better_is_not_learned(single, found, steps):
    targets = found_workflows(single_right=single, found_right=found).targets
    assert {len(flow.steps) for _, flow in targets} == {steps}


def test_what_was_found_is_written_after_a_hundred_steps_and_then_one_worker_alone(tmp_path):
    found = found_workflows(single_right=0.1, found_right=0.9)
    stage, pool = settings(tmp_path), rehearsal_pool()
    texts = workflow_texts(stage, pool, found.targets)
    plan = replace(plan_fitting(stage, texts, 0.0), steps=LEAST_STEPS)
    folder = teach_workflows(stage, pool, found.targets, plan, is_over=lambda _: False)
    model, tokenizer = load_policy(str(folder), None)
    prompts = [render_user_prompt(tokenizer, prompt) for prompt, _ in texts]
    assert set(write_greedily(model, tokenizer, prompts, plan.completion)) == {texts[0][1]}
    tasks = [task for task, _ in found.executed]
    prompts, draft = single_worker_texts(stage, tokenizer, pool, tasks, single=found.single)
    options = {"held": prompts[:20], "is_over": lambda: False}
    assert teach_single_worker(model, tokenizer, prompts, draft, **options)
    assert set(write_greedily(model, tokenizer, prompts, 200)) == {draft}
    assert not teach_single_worker(model, tokenizer, [], "", held=[], is_over=lambda: True)


def test_the_network_has_room_for_the_longest_question_and_workflow(tmp_path):
    texts = [("word " * 1100, "draft " * 40), ("short", "draft")]
    plan = plan_fitting(settings(tmp_path), texts, 0.0)
    assert plan.steps == 0 and plan.step_seconds > 0
    assert plan.completion > 40 and plan.network.positions >= 1100 + plan.completion
    applied = plan.apply_to(settings(tmp_path))
    assert applied.optimiser.completion == plan.completion
    assert applied.policy.network == plan.network


def test_on_a_slower_machine_steps_are_left_out_evenly_and_the_end_is_reached(tmp_path):
    texts = workflow_texts(
        settings(tmp_path),
        rehearsal_pool(),
        found_workflows(single_right=0, found_right=1).executed,
    )
    model, tokenizer = open_new_policy(settings(tmp_path), SMALL, texts)
    batch = [TrainingExample(render_user_prompt(tokenizer, p), d) for p, d in texts[:2]]
    heard, asked = [], []

    def is_over(part):
        asked.append(part)
        return part <= 5 * len(heard) / 40  # every step takes as long as five should

    fit_examples(
        model,
        tokenizer,
        batches=repeat(batch),
        steps=40,
        learning_rate=1e-3,
        on_step=lambda step, _: heard.append(step),
        is_over=is_over,
    )
    assert heard == list(range(8)) and max(asked) == 1.0


def test_the_stages_share_what_is_left_after_the_beginning():
    now = [0.0]
    clock = StageClock(2.0, 0.0, lambda: now[0])
    now[0] = 20.0
    assert clock.left(1.0) == 100 and clock.left(0.5) == 40
    clock.begin_stages()
    assert clock.left(1.0) == 100 and clock.left(0.5) == 50 and clock.share == 0
    now[0] = 70.0
    assert clock.share == 0.5 and clock.left(0.5) == 0
    assert clock.within(0.5, 1.0)(0.0) and not clock.within(0.5, 1.0)(0.1)


def test_a_time_that_is_too_short_is_refused_in_one_sentence_before_anything_is_spent(tmp_path):
    command = ["conductor", "--pool", "rehearsal", "--tasks", "rehearsal:arithmetic"]
    command += ["--minutes", "0.2", "--out", str(tmp_path / "out")]
    said = str(CliRunner().invoke(app, command).exception)
    assert "too short" in said and "--minutes" in said and said.count(". ") == 0
    assert not (tmp_path / "out" / "tuned").exists()


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
        (["--config", "x.toml", "--minutes", "1"], "give one or the other"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, said):
    result = CliRunner().invoke(app, ["conductor", *options])
    assert isinstance(result.exception, ConfigError) and said in str(result.exception)


@pytest.mark.long
def test_it_ends_in_time_with_a_policy_that_is_served(tmp_path):
    began = time.monotonic()
    command = ["conductor", "--pool", "rehearsal", "--tasks", "rehearsal:arithmetic"]
    command += ["--minutes", "2", "--out", str(tmp_path / "out"), "--set", "optimiser.threads=1"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert time.monotonic() - began <= 132
    assert "kept" in result.output and "held-back" in result.output
    assert load_trained_conductor(tmp_path / "out" / "policy").name
    again = CliRunner().invoke(app, command)
    assert "holds a training already" in str(again.exception)
