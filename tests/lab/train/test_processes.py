"""Two processes learn what one process learns from both halves (gloo, on this machine)."""

import asyncio
import os
import shutil
import subprocess
import sys
from decimal import Decimal
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from batuta.embedded.policy import ConductorCard
from batuta.lab import worlds
from batuta.lab.train.budget import paid_so_far
from batuta.lab.train.episodes import make_episodes
from batuta.lab.train.questions import draw_questions
from batuta.lab.train.reward_function import RewardFunction
from batuta.lab.train.rollout_setup import RolloutRunnerFactory
from batuta.lab.train.run_folder import RunFolder
from batuta.lab.train.settings import RecursionSettings
from batuta.lab.train.trainer import make_trainer
from batuta.lab.worlds import shipped_policy_folder
from lab.train.stage import LIBRARIES, metrics, settings, untimed

pytestmark = LIBRARIES
SHARE = RecursionSettings(share=0.2)
HALF = 8
"""Rows of a step in each process."""

CHILD = """
import sys, warnings
warnings.simplefilter("ignore")
from pathlib import Path
from batuta.lab.train.conductor_training import train_conductor
from batuta.lab.train.settings import TrainSettings
settings = TrainSettings.model_validate_json(Path(sys.argv[1]).read_text())
train_conductor(settings, ["child"], lambda line: None)
"""


def told(folder, policy, sampler):
    return settings(
        folder,
        optimiser={"questions": 4, "micro_batch": HALF, "steps": 2, "sampler": sampler,
                   "max_grad_norm": 100.0},
        policy={"start": str(policy)},
    )  # fmt: skip


class Halves:
    """One process that samples and pays the rows of two, each half as its own process would."""

    __name__ = "conducted"

    def __init__(self, conducted, rollout):
        self.conducted, self.rollout = conducted, rollout
        self.rewards = []

    def sample(self, prompts, trainer):
        found = {}
        for rank in (0, 1):
            accelerator = SimpleNamespace(
                process_index=rank,
                num_processes=2,
                unwrap_model=trainer.accelerator.unwrap_model,
            )
            seen = SimpleNamespace(
                accelerator=accelerator, state=trainer.state, model=trainer.model,
                _log_metric=lambda name, value: None,
            )  # fmt: skip
            half = self.rollout(prompts[rank * HALF : (rank + 1) * HALF], seen)
            found = {k: found[k] + v if found else v for k, v in half.items() if v is not None}
        return {**found, "logprobs": None}

    async def __call__(self, **batch):
        parts = [
            {k: v[at : at + HALF] if isinstance(v, list) else v for k, v in batch.items()}
            for at in (0, HALF)
        ]
        rewards = [each for part in parts for each in await self.conducted(**part)]
        self.rewards.append(rewards)
        return rewards

    def run_first_rounds(self, chosen, trainer):
        raise AssertionError("there is one round only")


def trained_in_one(told_):
    asked = make_episodes(draw_questions(told_), worlds.rehearsal_pool(), told_.pool, told_.seed)
    folder = RunFolder(told_.output)
    opening = RolloutRunnerFactory(told_, folder)
    whole = told_.model_copy(
        update={"optimiser": told_.optimiser.model_copy(update={"micro_batch": 2 * HALF})}
    )
    halves = Halves(RewardFunction(told_, asked, opening, lambda step, rollouts: None), None)
    trainer = make_trainer(
        whole,
        asked,
        reward=halves,  # pyright: ignore[reportArgumentType]
        folder=folder,
        on_metrics=folder.add_metrics,
    )
    halves.rollout, trainer.rollout_func = trainer.rollout_func, halves.sample  # pyright: ignore[reportAttributeAccessIssue]
    trainer.train()
    asyncio.run_coroutine_threadsafe(opening.close(), trainer.async_loop).result()
    return trainer, halves


@pytest.mark.long
@pytest.mark.parametrize("sampler", ["own"])
def test_two_processes_learn_what_one_learns_from_both_halves(tmp_path, warm, sampler):
    one = told(tmp_path / "one", warm, sampler)
    trainer, halves = trained_in_one(one)
    two = told(tmp_path / "two", warm, sampler)
    file, child = tmp_path / "told.json", tmp_path / "child.py"
    file.write_text(two.model_dump_json())
    child.write_text(CHILD)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2",
         "--standalone", str(child), str(file)],
        capture_output=True, text=True, check=False, timeout=500,
        env={**os.environ, "TRL_EXPERIMENTAL_SILENCE": "1", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]

    expected = [sum(rewards) / len(rewards) for rewards in halves.rewards]
    assert [line["reward"] for line in metrics(two.output)] == pytest.approx(expected, abs=1e-6)
    saved = load_file(two.output / "policy" / "model.safetensors")
    before = load_file(warm / "model.safetensors")
    ours = trainer.model.state_dict()
    moved = torch.cat([(saved[name] - before[name]).flatten() for name in saved])
    wanted = torch.cat([(ours[name] - before[name]).flatten() for name in saved])
    assert wanted.norm() > 0
    # Adam makes a whole step even of a gradient that is nothing but rounding: not each weight, all.
    assert (moved - wanted).norm() < 0.02 * wanted.norm()


@pytest.mark.long
def test_two_processes_end_where_one_has_no_second_round(tmp_path, warm):
    """Four groups of which one is a second round: the second process has none."""
    two = told(tmp_path, warm, "transformers").model_copy(update={"recursion": SHARE})
    file, child = tmp_path / "told.json", tmp_path / "child.py"
    file.write_text(two.model_dump_json())
    child.write_text(CHILD)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2",
         "--standalone", str(child), str(file)],
        capture_output=True, text=True, check=False, timeout=500,
        env={**os.environ, "TRL_EXPERIMENTAL_SILENCE": "1", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    lines = metrics(two.output)
    assert [line["step"] for line in lines] == [1, 2]
    card = ConductorCard.read(two.output / "policy")
    assert card.rounds == 2


@pytest.mark.long
def test_two_processes_write_ahead_and_go_on_with_it(tmp_path, random_policy):
    """Each writes its own rows ahead, and keeps what is in flight beside the checkpoint."""
    two = settings(
        tmp_path,
        optimiser={"questions": 4, "micro_batch": HALF, "steps": 4, "staleness": 2},
        policy={"start": str(random_policy)},
        log={"checkpoint_every": 2},
    )
    child = tmp_path / "child.py"
    child.write_text(CHILD.replace("lambda line: None)", "lambda line: None, resume=True)"))
    file = tmp_path / "told.json"
    for steps in (2, 4):
        told_ = two.model_copy(
            update={"optimiser": two.optimiser.model_copy(update={"steps": steps})}
        )
        file.write_text(told_.model_dump_json())
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2",
             "--standalone", str(child), str(file)],
            capture_output=True, text=True, check=False, timeout=500,
            env={**os.environ, "TRL_EXPERIMENTAL_SILENCE": "1", "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
    kept = sorted(path.name for path in (tmp_path / "checkpoints").glob("checkpoint-4/in_flight*"))
    assert kept == ["in_flight-0.json", "in_flight-1.json"]
    assert [line["staleness"] for line in metrics(tmp_path)] == [0, 1, 0, 1]


BUDGETED = """
name = "two"
output = "{output}"
policy.start = "{start}"
prompt.compact = true
curriculum = [{{ tasks = {{ "rehearsal:arithmetic" = 1.0 }} }}]
evaluation = {{ every = 2, questions = 7, metric = "reward" }}
log = {{ checkpoint_every = 100, sample_every = 1 }}
[optimiser]
sampler = "own"
steps = 6
questions = 4
group = 4
micro_batch = 8
completion = 60
learning_rate = 1e-3
temperature = 1.3
threads = 1
"""


def launched(file, *options):
    """The command in two processes: its code and what it said."""
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2",
         "--standalone", "-m", "batuta", "train", "conductor",
         "--config", str(file), *options],
        capture_output=True, text=True, check=False, timeout=500,
        env={**os.environ, "TRL_EXPERIMENTAL_SILENCE": "1", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.mark.long
def test_two_processes_share_a_budget_and_end_together(tmp_path):
    """One of them is refused a call; both keep the checkpoint, and go on as if nothing happened."""
    files = {}
    for name in ("whole", "cut"):
        files[name] = tmp_path / f"{name}.toml"
        start = shipped_policy_folder()
        files[name].write_text(BUDGETED.format(output=tmp_path / name, start=start))
    code, said = launched(files["whole"])
    assert code == 0, said[-2000:]
    # What one step costs depends on the texts that this machine samples: raised until one ended.
    for cents in range(11, 25, 2):
        shutil.rmtree(tmp_path / "cut", ignore_errors=True)
        most = Decimal(cents) / 100
        code, said = launched(files["cut"], "--set", f"pool.max_usd={most}")
        done = 0 if "no step ended" in said else len(metrics(tmp_path / "cut"))
        if done:
            break
    assert code != 0 and 0 < done < 6, said[-2000:]
    assert said.count(f"the training ended after {done} of 6 steps") == 1
    assert "rank      : 0" in said and "exitcode  : 4" in said, "the first one says so"
    assert (
        tmp_path / "cut" / "checkpoints" / f"checkpoint-{done}" / "trainer_state.json"
    ).is_file()
    assert (tmp_path / "cut" / "policy" / "model.safetensors").is_file()
    assert 0 < paid_so_far(tmp_path / "cut") <= most
    code, said = launched(files["cut"], "--set", "pool.max_usd=5", "--resume")
    assert code == 0, said[-2000:]
    assert untimed(metrics(tmp_path / "cut")) == untimed(metrics(tmp_path / "whole"))
    evaluated = [(tmp_path / name / "evaluation.jsonl").read_text() for name in ("cut", "whole")]
    assert evaluated[0] == evaluated[1] and len(evaluated[0].splitlines()) == 4
    one, two = (load_file(tmp_path / n / "policy" / "model.safetensors") for n in ("cut", "whole"))
    assert all(torch.equal(one[name], two[name]) for name in two)
