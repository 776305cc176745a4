"""What a tuning found is what the policy writes afterwards."""

import json
import os

import pytest

from batuta.config.settings_file import read_settings
from batuta.errors import ConfigError
from batuta.lab.tasks.question_keys import text_key
from batuta.lab.train.distil_stage import WORKFLOWS, read_found_workflows, run_distillation
from batuta.lab.train.run_folder import read_jsonl
from batuta.lab.train.settings import TrainSettings
from batuta.lab.worlds import draw_tasks, rehearsal_pool
from lab.train.stage import LIBRARIES, NETWORK, settings

pytestmark = LIBRARIES


def write_found(folder, worker="viola"):
    folder.mkdir(exist_ok=True)
    rows = [
        {
            "id": task.id,
            "question": task.question,
            "steps": [
                {"worker": "cello", "subtask": "", "access": []},
                {"worker": worker, "subtask": "Verify the solution.", "access": [0]},
            ],
        }
        for task in draw_tasks("arithmetic", 40, 3)
    ]
    (folder / WORKFLOWS).write_text("\n".join(map(json.dumps, rows)))
    return folder


@pytest.mark.slow
def test_what_was_found_gets_likelier_and_is_kept_where_reinforcement_begins(tmp_path, warm):
    losses = []
    stage = settings(
        tmp_path,
        rejection={"steps": 30, "batch": 16, "learning_rate": 3e-3},
        policy={"start": str(warm), "network": NETWORK},
    )
    folder = run_distillation(
        stage, write_found(tmp_path / "tuned"), lambda step, steps, loss: losses.append(loss)
    )
    assert folder == tmp_path / "distilled" and (folder / "batuta.json").is_file()
    assert len(losses) >= 30 and losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_questions_that_are_kept_back_are_left_out_and_that_is_said(tmp_path, capsys, encoding):
    folder = write_found(tmp_path / "tuned")
    text = (folder / WORKFLOWS).read_text()
    (folder / WORKFLOWS).write_text(text, encoding=encoding)
    rows = [json.loads(line)["question"] for line in text.splitlines()]
    kept = frozenset({text_key(rows[0].upper()), text_key(rows[7])})
    gone = [each for each in rows if text_key(each) in kept]
    found = read_found_workflows(folder, rehearsal_pool(), kept)
    assert [task.question for task, _ in found] == [each for each in rows if each not in gone]
    assert f"{len(gone)} workflows in" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="all its questions are held out"):
        read_found_workflows(folder, rehearsal_pool(), frozenset(map(text_key, rows)))


def test_what_the_settings_say_of_distilling_holds_for_a_tuning_too(tmp_path, warm):
    steps = []
    stage = settings(
        tmp_path,
        rejection={"steps": 30, "batch": 16, "learning_rate": 3e-3},
        distil={"steps": 3, "batch": 4},
        policy={"start": str(warm), "network": NETWORK},
    )
    run_distillation(stage, write_found(tmp_path / "tuned"), lambda *told: steps.append(told[:2]))
    assert steps == [(1, 3), (2, 3), (3, 3)]


def test_workflows_that_do_not_fit_into_a_draft_are_refused_before_anything_is_fitted(
    tmp_path, warm
):
    stage = settings(
        tmp_path,
        optimiser={"completion": 8},
        policy={"start": str(warm), "network": NETWORK},
    )
    with pytest.raises(ConfigError, match=r"has \d+ tokens, and the policy may write 8: set"):
        run_distillation(stage, write_found(tmp_path / "tuned"), lambda *_: None)
    assert not (tmp_path / "distilled").exists()


def test_workflows_of_more_workers_than_a_question_lists_are_refused(tmp_path, warm):
    stage = settings(
        tmp_path, policy={"start": str(warm), "network": NETWORK}, pool={"fewest": 1, "most": 1}
    )
    with pytest.raises(ConfigError, match=r"every workflow found calls a worker .*pool\.most"):
        run_distillation(stage, write_found(tmp_path / "tuned"), lambda *_: None)


TRAINING = """
output = "{run}"
[policy]
start = "{policy}"
[prompt]
compact = true
[[curriculum]]
tasks = {{ "rehearsal:arithmetic" = 1.0 }}
[distil]
steps = 6
batch = 4
[log]
checkpoint_every = 1
[optimiser]
sampler = "own"
steps = 1
questions = 2
group = 4
micro_batch = 4
completion = 300
threads = 1
"""


def test_a_training_that_was_killed_while_it_was_fitted_is_fitted_to_its_end(
    tmp_path, random_policy, training_line
):
    run, file = tmp_path / "run", tmp_path / "training.toml"
    file.write_text(TRAINING.format(run=run, policy=random_policy), "utf-8")
    tuned = write_found(tmp_path / "tuned")

    def stop(step, steps, loss):
        if step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_distillation(read_settings(file, TrainSettings), tuned, stop)
    command = ["train", "conductor", "--config", str(file), "--from", str(tuned), "--resume"]
    done = training_line.run(*command, cwd=tmp_path, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert [line["step"] for line in read_jsonl(run / "distilled.jsonl")] == [0, 1, 2, 3, 4, 5]
    assert (run / "distilled" / "batuta.json").is_file()
    assert not (run / "distilled.checkpoint").exists()
    before = (run / "distilled.jsonl").stat().st_mtime_ns
    done = training_line.run(*command, cwd=tmp_path, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert (run / "distilled.jsonl").stat().st_mtime_ns == before, "it is fitted once"


@pytest.mark.parametrize("text", ["", "{}", "no json", '{"id": 1, "question": "q", "steps": [{}]}'])
def test_a_folder_that_holds_no_workflows_is_refused_in_a_sentence(tmp_path, text):
    (tmp_path / WORKFLOWS).write_text(text)
    with pytest.raises(ConfigError, match="workflows"):
        read_found_workflows(tmp_path, rehearsal_pool())


def test_a_worker_that_the_pool_lacks_and_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="the pool has no worker celesta"):
        read_found_workflows(write_found(tmp_path / "tuned", "celesta"), rehearsal_pool())
    with pytest.raises(ConfigError, match="batuta tune"):
        read_found_workflows(tmp_path / "nowhere", rehearsal_pool())
