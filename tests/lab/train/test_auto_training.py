"""`batuta train conductor --minutes`: chosen settings, questions kept back, an end in time."""

import json
import time
from decimal import Decimal
from itertools import repeat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from batuta.config.conductors import open_trained
from batuta.core import Step, WorkerId, Workflow
from batuta.errors import BatutaError, ConfigError
from batuta.lab.commands.train import app
from batuta.lab.tasks.question_keys import text_key
from batuta.lab.train.auto_training import (
    LEAST_QUESTIONS,
    MOST_HELD,
    choose_settings,
    count_held_out,
)
from batuta.lab.train.conductor_training import train_conductor
from batuta.lab.train.episodes import render_user_prompt
from batuta.lab.train.fitting import TrainingExample, fit_examples
from batuta.lab.train.found_workflows import (
    LEAST_STEPS,
    SMALL,
    FoundWorkflows,
    _search_questions,
    add_random_lessons,
    fit_lessons,
    fit_single_worker,
    lesson_texts,
    open_new_policy,
    plan_fitting,
)
from batuta.lab.train.live_view import TrainingState, read_view
from batuta.lab.train.questions import draw_held_out, draw_questions
from batuta.lab.train.supervision import StageClock, Supervision
from batuta.lab.worlds import draw_tasks, rehearsal_pool
from lab.train.stage import LIBRARIES, settings

pytestmark = LIBRARIES


CHOSEN = {"pool": "rehearsal", "cores": 2, "output": Path("out")}


@given(st.integers(1, MOST_HELD), st.floats(0.2, 10_000))
def test_any_facts_give_settings_that_can_be_carried_out(held, minutes):
    settings, rows = choose_settings(source="q.jsonl", held=held, minutes=minutes, **CHOSEN)
    o = settings.optimiser
    assert o.questions * o.group % o.micro_batch == 0
    assert settings.evaluation.questions == held
    assert rows and all(map(all, rows))


def found_workflows(**shares):
    tasks = draw_tasks("arithmetic", 60, 3)
    solve = Step(subtask="", worker=WorkerId("cello"))
    check = Step(subtask="Verify the solution.", worker=WorkerId("viola"), access=(0,))
    checked, alone = Workflow((solve, check)), Workflow((solve,))
    return FoundWorkflows(
        lessons=tuple((task, checked) for task in tasks),
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


@pytest.mark.long
def test_what_was_found_is_written_after_a_hundred_steps_and_then_one_worker_alone(tmp_path):
    found = found_workflows(single_right=0.1, found_right=0.9)
    stage, pool = settings(tmp_path), rehearsal_pool()
    texts = lesson_texts(stage, pool, found.targets)
    stage = plan_fitting(stage, texts, 0.0).apply_to(stage)
    lessons = add_random_lessons(found.targets, pool, 1)
    assert len(lessons) == pytest.approx(len(texts) / 0.9, abs=1)
    folder = fit_lessons(stage, pool, lessons, steps=LEAST_STEPS, is_over=lambda _: False)
    assert open_trained(folder).name
    tasks = [task for task, _ in found.lessons]
    single = [(task, found.single) for task in tasks]
    before = (folder / "model.safetensors").read_bytes()

    def teach(*, over):
        return fit_single_worker(
            stage, pool, single, tasks[:20], folder=folder, is_over=lambda _: over
        )

    assert not teach(over=True), "it still writes what was found"
    assert (folder / "model.safetensors").read_bytes() == before
    assert teach(over=False)
    assert (folder / "model.safetensors").read_bytes() != before


def test_the_network_has_room_for_the_longest_question_and_workflow(tmp_path):
    texts = [("word " * 1100, "draft " * 40), ("short", "draft")]
    plan = plan_fitting(settings(tmp_path), texts, 0.0)
    assert plan.count_steps(0.0) == 0 and plan.step_seconds > 0
    assert plan.completion > 40 and plan.network.positions >= 1100 + plan.completion
    applied = plan.apply_to(settings(tmp_path))
    assert applied.optimiser.completion == plan.completion
    assert applied.policy.network == plan.network


def test_on_a_slower_machine_steps_are_left_out_evenly_and_the_end_is_reached(tmp_path):
    lessons = found_workflows(single_right=0, found_right=1).lessons
    texts = lesson_texts(settings(tmp_path), rehearsal_pool(), lessons)
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
    assert clock.left(1.0) == 100 and clock.left(0.5) == 50
    over = clock.until(0.5)
    assert over(0.0) and not over(0.1)
    now[0] = 70.0
    assert clock.left(0.5) == 0 and over(1.0)
    late = clock.until(0.4)
    assert late(0.0) and late(1.0), "a stage whose time is used ends at once"


@pytest.mark.slow
def test_a_time_that_is_too_short_is_refused_in_one_sentence_before_anything_is_spent(tmp_path):
    rows = [{"question": f"Add {n} and 1.", "answer": n + 1} for n in range(LEAST_QUESTIONS)]
    command = ["conductor", "--pool", "rehearsal", "--tasks", write_rows(tmp_path, rows)]
    command += ["--minutes", "0.2", "--out", str(tmp_path / "out")]
    said = str(CliRunner().invoke(app, command).exception)
    assert "too short" in said and "--minutes" in said and said.count(". ") == 0
    assert not (tmp_path / "out" / "tuned").exists()


def write_rows(folder, rows, encoding="utf-8"):
    path = folder / "asked.jsonl"
    text = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    path.write_text(text, encoding=encoding)
    return str(path)


def chosen(source, **more):
    held = count_held_out(source)
    return choose_settings(source=source, held=held, minutes=1, **CHOSEN, **more)[0]


def test_no_question_nor_one_like_it_is_in_both_parts(tmp_path):
    rows = [
        {"question": text, "answer": n}
        for n in range(40)
        for text in (f"Add {n} and 1.", f"add {n} AND 1")
    ]
    source = write_rows(tmp_path, rows)
    told = chosen(source)
    held = [text_key(task.question) for task in draw_held_out(told)]
    learned = {text_key(task.question) for task in draw_questions(told)}
    searched = _search_questions(source, draw_held_out(told), told.seed)
    searched = {text_key(task.question) for task in searched.tasks}
    assert len(set(held)) == len(held) == 8, "a question judges once"
    assert learned == searched and len(learned) == 32 and not learned & set(held)


def test_what_cannot_be_divided_is_refused_in_a_sentence(tmp_path):
    rows = [{"question": f"a{'?' * n}", "answer": 1} for n in range(1, LEAST_QUESTIONS + 9)]
    alike = write_rows(tmp_path, rows)
    with pytest.raises(ConfigError, match="too few"):
        count_held_out(alike)
    with pytest.raises(BatutaError, match=r"none\.jsonl"):
        count_held_out(str(tmp_path / "none.jsonl"))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_file_is_divided_in_whatever_unicode_it_is_written(tmp_path, encoding):
    rows = [{"question": f"Wie groß ist {n}\u2028?", "answer": 10**25 + n} for n in range(40)]
    told = chosen(write_rows(tmp_path, rows, encoding))
    found = {(each.question, each.target) for each in (*draw_held_out(told), *draw_questions(told))}
    assert found == {(row["question"], str(row["answer"])) for row in rows}


def test_an_option_that_needs_a_file_is_named_as_it_was_written(tmp_path):
    said = str(CliRunner().invoke(app, ["conductor", "--store", "runs.db"]).exception)
    assert said.startswith("--store needs --config")


def test_a_setting_of_the_command_line_is_not_said_to_be_in_the_file(tmp_path):
    file = tmp_path / "training.toml"
    file.write_text("", encoding="utf-8")
    command = ["warmup", "--config", str(file), "--set", "optimiser.steps=-1"]
    said = str(CliRunner().invoke(app, command).exception)
    assert said.startswith(f"{file} with the options of the command line: optimiser.steps must be")


@pytest.mark.parametrize(
    "change",
    ["pool.max_usd=1", "pool.fewest=2", "rejection.rounds=2", "evaluation.every=0"],
)
def test_what_a_training_within_a_time_has_rules_of_its_own_for_is_refused(tmp_path, change):
    command = ["conductor", "--pool", "rehearsal", "--tasks", "rehearsal:arithmetic"]
    command += ["--minutes", "1", "--out", str(tmp_path / "out"), "--set", change]
    said = str(CliRunner().invoke(app, command).exception)
    assert "needs --config" in said and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("optimiser.group=4", "cannot be divided into micro-batches of 128"),
        ("pool.processes=2", "workers are for ray"),
        ("hub.repo=mine", "write OWNER/NAME"),
        ("output=OLD", "OLD already contains a training"),
    ],
)
def test_what_cannot_be_carried_out_is_refused_before_anything_is_measured_or_spent(
    tmp_path, monkeypatch, capfd, change, said
):
    """A training that is written over would lose its checkpoints."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "OLD" / "tuned").mkdir(parents=True)
    command = ["conductor", "--pool", "rehearsal", "--tasks", "rehearsal:arithmetic"]
    command += ["--minutes", "0.2", "--out", "out", "--set", change]
    found = CliRunner().invoke(app, command).exception
    assert isinstance(found, ConfigError) and said in str(found)
    assert "measuring" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "--minutes"),
        (["--pool", "rehearsal", "--tasks", "rehearsal"], "--minutes"),
        (["--pool", "rehearsal", "--tasks", "x", "--minutes", "1", "--resume"], "--resume needs"),
        (["--config", "x.toml", "--minutes", "1"], "give one or the other"),
        (["--config", "x.toml", "--json"], "--json needs --check"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, said):
    result = CliRunner().invoke(app, ["conductor", *options])
    assert isinstance(result.exception, ConfigError) and said in str(result.exception)


@pytest.mark.parametrize(
    "command",
    [
        ["warmup", "--config", "x.toml"],
        ["rejection", "--config", "x.toml"],
        ["distil", "--config", "x.toml", "--drafts", "x"],
        ["conductor", "--config", "x.toml", "--from", "x"],
        ["conductor", "--pool", "rehearsal", "--tasks", "rehearsal", "--minutes", "1"],
    ],
    ids=lambda command: " ".join(command[:1] + command[3:4]),
)
def test_what_several_processes_would_write_over_each_other_is_refused(
    tmp_path, monkeypatch, command
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    (tmp_path / "x.toml").touch()
    found = CliRunner().invoke(app, command).exception
    assert isinstance(found, ConfigError) and "in one process, and 2 were started" in str(found)
    assert [path.name for path in tmp_path.iterdir()] == ["x.toml"]


class EndsAfterOneStep(Supervision):
    keeps = True

    def on_step_end(self, args, state, control, **_):
        self._keep()
        control.should_training_stop = True


def test_a_training_that_its_time_has_ended_is_shown_as_finished(tmp_path, random_policy):
    told = settings(tmp_path, policy={"start": str(random_policy)}, optimiser={"steps": 3})
    train_conductor(told, ["pytest"], lambda _: None, supervision=EndsAfterOneStep(told))
    view = read_view(tmp_path, time.time())
    assert (view.state, view.steps, len(view.lines)) == (TrainingState.FINISHED, 1, 1)


@pytest.mark.long
def test_it_ends_in_time_with_a_policy_that_is_served(tmp_path):
    began = time.monotonic()
    command = ["conductor", "--pool", "rehearsal", "--tasks", "rehearsal:arithmetic"]
    command += ["--minutes", "2", "--out", str(tmp_path / "out"), "--set", "optimiser.threads=1"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert time.monotonic() - began <= 132
    assert "kept" in result.output and "held-out" in result.output
    assert open_trained(tmp_path / "out" / "policy").name
    again = CliRunner().invoke(app, command)
    assert "already contains a training" in str(again.exception)
