"""A training's settings: checked before anything is spent, every error one sentence."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from batuta.config.settings_file import read_settings, validate_settings
from batuta.errors import ConfigError
from batuta.lab.commands.train_settings import override_settings
from batuta.lab.train.settings import TrainSettings

ROOT = Path(__file__).parents[3]
SHIPPED = sorted(
    path
    for path in [*(ROOT / "recipes").glob("*/*.toml"), *(ROOT / "examples").glob("*/*.toml")]
    if "[optimiser]" in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_every_shipped_training_can_be_read(path):
    assert read_settings(path, TrainSettings).optimiser.steps > 0


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"optimizer": {}}, "optimizer"),
        ({"optimiser": {"steps": "many"}}, "optimiser.steps"),
        ({"optimiser": {"sampler": "magic"}}, "optimiser.sampler"),
        ({"optimiser": {"group": 0}}, "optimiser.group"),
        ({"warmup": {"batch": 0}}, "warmup.batch"),
        ({"rejection": {"steps": -1}}, "rejection.steps"),
        ({"reward": {"ramp": 0}}, "reward.ramp"),
        ({"pool": {"concurrency": 0}}, "pool.concurrency"),
        ({"reward": {"cost": "time"}}, "reward.cost"),
        ({"recursion": {"share": 0.6}}, "recursion.share"),
        ({"policy": {"lora": {"ranks": 3}}}, "policy.lora.ranks"),
        ({"curriculum": []}, "curriculum"),
        ({"log": {"to": ["mlflow"]}}, "log.to"),
    ],
)
def test_a_wrong_setting_is_named_in_one_sentence(values, named):
    with pytest.raises(ConfigError) as caught:
        validate_settings(values, "mine.toml", TrainSettings)
    said = str(caught.value)
    assert said.startswith("mine.toml: ") and named in said and "\n" not in said


NOT_NUMBERS = ["nan", "inf", "-inf"]


@pytest.mark.parametrize(
    "change",
    [
        "optimiser.group=1", "rejection.group=1", "optimiser.temperature=0", "optimiser.temperature=-1",
        "optimiser.clip=0", "optimiser.betas=[0.9, 1.0]", "optimiser.kl=-0.1",
        "optimiser.weight_decay=-1", "optimiser.entropy=-1", "optimiser.vllm_memory=1.5",
        "optimiser.threads=0", "policy.lora.rank=0", "policy.lora.dropout=1", "policy.network.layers=0",
        "pool.seconds=0", "pool.whole=2", "recursion.discount=-1", "reward.unit=0",
        "reward.coefficient=-1", "warmup.drills=1.5", "log.sample_every=0", "rejection.rounds=-1",
        *(f"{stage}.learning_rate={value}"
          for stage in ("optimiser", "warmup", "distil", "rejection")
          for value in (*NOT_NUMBERS, "0", "-1e-4", "1e300")),
        "optimiser.temperature=1e-320", "optimiser.temperature=1e9", "reward={right=0.5}", "reward={wrong=2}",
        *(f"{name}={value}" for value in NOT_NUMBERS for name in (
            "optimiser.temperature", "optimiser.clip", "optimiser.kl", "optimiser.warmup",
            "optimiser.max_grad_norm", "reward.right", "reward.malformed", "pool.seconds",
            "prompt.hidden", "rejection.shorter", "distil.minutes")),
        "curriculum=[{tasks={rehearsal=nan}}]", "optimiser.betas=[nan, 0.9]",
        "curriculum=[{tasks={rehearsal=0}}]", "curriculum=[{tasks={}}]",
        "curriculum=[{tasks={rehearsal=1e308, a=1e308}}]", "evaluation.tasks={rehearsal=0}",
        "rejection.tasks={rehearsal=0}", "policy.network={heads=3}", "policy.network={kv_heads=3}",
        "optimiser.schedule=nonsense",
    ],
)  # fmt: skip
def test_a_number_with_which_nothing_can_be_learned_is_refused(change):
    with pytest.raises(ConfigError) as caught:
        override_settings(TrainSettings(), [change], "--set")
    said, name = str(caught.value), change.partition("=")[0]
    assert name in said and "\n" not in said


def test_the_command_refuses_it_with_and_without_the_check(tmp_path, command_line):
    path = tmp_path / "training.toml"
    path.write_text("[optimiser]\nlearning_rate = nan\n")
    for more in ((), ("--check",)):
        done = command_line.run(
            "train", "conductor", "--config", str(path), *more, cwd=tmp_path, env=dict(os.environ)
        )
        assert done.returncode and "optimiser.learning_rate" in done.stderr


@pytest.mark.parametrize("text", [None, "steps = ", "a = 1\na = 2"])
def test_a_file_that_is_missing_or_no_toml_is_one_sentence(tmp_path, text):
    path = tmp_path / "mine.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_settings(path, TrainSettings)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_settings_are_overridden_one_by_one():
    told = override_settings(
        TrainSettings(),
        [
            "optimiser.steps=7",
            "policy.start=Qwen/Qwen2.5-7B-Instruct",
            "policy.lora.rank=8",
            'curriculum=[{step = 0, tasks = {"a.jsonl" = 2.0}}]',
            "optimiser.betas=[0.9, 0.95]",
            "log.to=['tensorboard']",
        ],
        "x",
    )
    assert told.optimiser.steps == 7 and told.optimiser.group == TrainSettings().optimiser.group
    assert told.policy.start == "Qwen/Qwen2.5-7B-Instruct"
    assert told.policy.lora is not None and told.policy.lora.rank == 8
    assert told.curriculum[0].tasks == {"a.jsonl": 2.0}
    assert told.optimiser.betas == (0.9, 0.95)
    assert told.log.to == ["tensorboard"]


@pytest.mark.parametrize(
    "change",
    [
        "steps", "=3", "a b=3", "optimiser.stepz=3", "seed=x", "seed.more=1", "output.more=1",
        "log.to.more=1", "pool.max_usd.more=1", "warmup.names=['']",
    ],
)  # fmt: skip
def test_a_wrong_override_is_one_sentence(change):
    with pytest.raises(ConfigError) as caught:
        override_settings(TrainSettings(), [change], "x")
    assert "\n" not in str(caught.value)


def test_the_command_line_says_what_is_wrong_in_one_sentence(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("[optimiser]\nsteps = 2\n")
    args = ["train", "conductor", "--config", str(path), "--set", "optimiser.group=none"]
    command = [sys.executable, "-m", "batuta", *args]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith("batuta: ") and done.stderr.count("\n") == 1
    assert "optimiser.group" in done.stderr
