"""Real trainings, small: the reward rises, and TRL's rules are followed to the letter."""

import json
import math
from statistics import fmean, variance
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import AutoModelForCausalLM, TrainerCallback

from batuta.core import (
    Grade,
    Limits,
    Outcome,
    Plan,
    Question,
    Round,
    Run,
    RunHeader,
    RunId,
    Step,
    Workflow,
)
from batuta.errors import WorkerLostError
from batuta.lab import worlds
from batuta.lab.train.conductor_training import train_conductor
from batuta.lab.train.device import choose_attention
from batuta.lab.train.episodes import make_episodes
from batuta.lab.train.grpo import FirstRound, SharedPromptTrainer
from batuta.lab.train.model import load_policy
from batuta.lab.train.questions import draw_questions
from batuta.lab.train.reward_function import RewardFunction
from batuta.lab.train.rollouts import GradedRollout, PolicyDraft
from batuta.lab.train.run_folder import RunFolder
from batuta.lab.train.trainer import make_trainer
from lab.train.stage import LIBRARIES, metrics, settings, untimed

pytestmark = LIBRARIES


def heard_nothing(line):
    """A training whose figures are read from its folder."""


# -- learning -----------------------------------------------------------------------------


def rises(before, after):
    """Welch's one-sided test that the mean of `after` is greater; the p-value, by the normal law."""
    spread = variance(before) / len(before) + variance(after) / len(after)
    z = (fmean(after) - fmean(before)) / math.sqrt(spread)
    return math.erfc(z / math.sqrt(2)) / 2


def test_the_reward_rises(learned):
    """Nobody taught the policy whom to call: from the warm start to a rise that is no chance."""
    lines = metrics(learned)
    for key in ("reward", "right"):
        values = [line[key] for line in lines]
        assert rises(values[:10], values[-10:]) < 0.001, key
    end = lines[-10:]
    assert (
        fmean(line["valid"] for line in end) > 0.9 and fmean(line["reward"] for line in end) > 0.65
    )


def test_a_run_folder_says_what_was_done(learned):
    lines = metrics(learned)
    assert [line["step"] for line in lines] == list(range(1, 31))
    told = json.loads((learned / "settings.json").read_text())
    assert told["optimiser"]["steps"] == 30
    assert json.loads((learned / "versions.json").read_text())["libraries"]["trl"]
    samples = [json.loads(x) for x in (learned / "samples.jsonl").read_text().splitlines()]
    assert {sample["step"] for sample in samples} == set(range(30))
    assert all(sample["question"] and "model_id" in sample["draft"] for sample in samples[-4:])
    assert (learned / "policy" / "model.safetensors").is_file()


def test_time_is_split(learned):
    for line in metrics(learned):
        parts = line["time/sampling"] + line["time/playing"]
        assert line["time/sampling"] > 0 and line["time/playing"] > 0 and parts < line["step_time"]


# -- TRL's rules --------------------------------------------------------------------------


FLOW = Workflow((Step(subtask="Solve it.", worker=worlds.rehearsal_pool().workers[0].id),))


class Paying:
    """A runner that pays what it is told, row by row."""

    def __init__(self, rewards, outcomes=()):
        self.rewards = rewards
        self.outcomes = outcomes or [Outcome.ANSWERED] * len(rewards)

    async def run_drafts(self, drafts, seeds, step):
        rows = zip(drafts, self.rewards, self.outcomes, strict=True)
        return [
            self._rollout(episode, draft, reward, outcome)
            for (episode, draft), reward, outcome in rows
        ]

    def _rollout(self, episode, draft, reward, outcome):
        header = RunHeader(
            id=RunId("r"),
            question=Question.of("q"),
            pool=episode.pool,
            seed=0,
            limits=Limits(),
            conductor="policy",
        )
        run = Run(
            header=header,
            rounds=(Round(decision=Plan(FLOW), workflow=FLOW),),
            outcome=outcome,
            answer="7",
        )
        return GradedRollout(
            episode=episode, draft=draft, run=run, grade=Grade(reward), reward=reward
        )


def trainer_paying(tmp_path, policy, rewards, outcomes=(), **optimiser):
    told = settings(tmp_path, optimiser={"steps": 1, **optimiser}, policy={"start": str(policy)})
    asked = make_episodes(draw_questions(told), worlds.rehearsal_pool(), told.pool, told.seed)

    async def opened():
        return Paying(rewards, outcomes)

    lines = []
    reward = RewardFunction(told, asked, opened, lambda step, rollouts: None)  # pyright: ignore[reportArgumentType]
    trainer = make_trainer(
        told, asked, reward=reward, folder=RunFolder(tmp_path), on_metrics=lines.append
    )
    return trainer, lines


@pytest.mark.parametrize("sampler", ["own", "transformers"])
def test_what_nobody_could_judge_leaves_its_group(tmp_path, random_policy, sampler):
    """Advantage 0, and a baseline of the others only."""
    rewards = [1.0, 0.0, None, 0.5, None, None, 0.5, 0.5]
    trainer, lines = trainer_paying(tmp_path, random_policy, rewards, sampler=sampler)
    trainer.train()
    advantages = list(trainer._logs["advantages"])
    known = torch.tensor([1.0, 0.0, 0.5])
    expected = ((known - known.mean()) / (known.std() + 1e-4)).tolist()
    assert advantages[2] == 0.0
    assert [advantages[i] for i in (0, 1, 3)] == pytest.approx(expected, abs=1e-5)
    assert advantages[4:] == pytest.approx([0.0] * 4), "no spread, or nobody judged it"
    (line,) = lines
    assert line["outages"] == pytest.approx(3 / 8)
    assert line["reward"] == pytest.approx((1.0 + 0.0 + 0.5 + 0.5 + 0.5) / 5)
    assert line["no_spread"] == pytest.approx(0.5), "a group without spread is counted"


def test_workflows_that_a_limit_ended_are_counted(tmp_path, random_policy):
    """As wrong, and told: where calls wait for a place at their worker the deadline ends good ones."""
    outcomes = [Outcome.LIMITED] * 3 + [Outcome.ANSWERED] * 5
    trainer, lines = trainer_paying(tmp_path, random_policy, [0.5] * 3 + [1.0] * 5, outcomes)
    trainer.train()
    assert lines[0]["limited"] == pytest.approx(3 / 8) and lines[0]["outages"] == 0


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_groups_without_spread_are_told_whatever_divides_advantages(tmp_path, random_policy, scale):
    rewards = [1.0, 0.0, None, 0.5, None, None, 0.5, 0.5]
    trainer, lines = trainer_paying(tmp_path, random_policy, rewards, scale=scale)
    trainer.train()
    assert lines[0]["no_spread"] == 0.5


async def test_the_completions_of_a_second_round_are_one_group(tmp_path):
    """Each continues another first round, and TRL compares them with each other."""
    told = settings(tmp_path, recursion={"share": 0.5, "discount": 0.0})
    asked = make_episodes(draw_questions(told), worlds.rehearsal_pool(), told.pool, told.seed)

    async def opened():
        return Paying([1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 0.5, 1.0])

    found: dict[str, float] = {}
    reward = RewardFunction(told, asked, opened, lambda step, rollouts: None)  # pyright: ignore[reportArgumentType]
    await reward(
        completions=["draft"] * 8, completion_ids=[[1]] * 8, episode=[0] * 8,
        trainer_state=SimpleNamespace(global_step=0), log_metric=found.__setitem__,
        root=[None] * 4 + [FirstRound(PolicyDraft(text="first"), row, ()) for row in range(4)],
    )  # fmt: skip
    assert found["no_spread"] == 0.5


def test_groups_without_spread_move_nothing(tmp_path, random_policy):
    trainer, lines = trainer_paying(tmp_path, random_policy, [0.5] * 8)
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    trainer.train()
    assert lines[0]["no_spread"] == 1.0 and lines[0]["grad_norm"] == 0.0
    for name, p in trainer.model.named_parameters():
        assert torch.equal(p, before[name]), name


def test_a_step_that_nobody_could_judge_is_survived(tmp_path, random_policy):
    trainer, lines = trainer_paying(tmp_path, random_policy, [None] * 8)
    trainer.train()
    assert lines[0]["reward"] is None and lines[0]["outages"] == 1.0
    assert all(bool(p.isfinite().all()) for p in trainer.model.parameters())


def test_workers_that_answer_no_more_end_the_training_and_a_short_outage_does_not(
    tmp_path, random_policy
):
    trainer, lines = trainer_paying(tmp_path, random_policy, [None] * 8, steps=9)
    with pytest.raises(WorkerLostError, match=r"3 consecutive steps, last in step 3 .*--resume"):
        trainer.train()
    assert len(lines) == 2

    rewards = [None] * 8
    outage = trainer_paying(tmp_path / "b", random_policy, rewards, steps=5)[0]
    outage.add_callback(AnswersAgain(rewards, after=2))
    outage.train()
    assert outage.state.global_step == 5


class AnswersAgain(TrainerCallback):
    """The workers answer again after so many steps."""

    def __init__(self, rewards, after):
        self.rewards, self.after = rewards, after

    def on_step_end(self, args, state, control, **_):
        if state.global_step == self.after:
            self.rewards[:] = [1.0, 0.0] * (len(self.rewards) // 2)


# -- other ways to train ------------------------------------------------------------------


def weights(folder):
    return load_file(folder / "model.safetensors")


def test_a_training_can_be_repeated(tmp_path, learned):
    policy = {"start": str(learned / "policy")}
    for name in ("a", "b"):
        train_conductor(settings(tmp_path / name, policy=policy), ["pytest"], heard_nothing)
    assert untimed(metrics(tmp_path / "a")) == untimed(metrics(tmp_path / "b"))
    first, second = weights(tmp_path / "a" / "policy"), weights(tmp_path / "b" / "policy")
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_transformers_can_sample_instead(tmp_path, learned):
    told = settings(tmp_path, optimiser={"sampler": "transformers"},
                    policy={"start": str(learned / "policy")})  # fmt: skip
    train_conductor(told, ["pytest"], heard_nothing)
    lines = metrics(tmp_path)
    assert [line["step"] for line in lines] == [1, 2]
    assert fmean(line["valid"] for line in lines) > 0.5, "the same policy writes the same way"


def test_adapters_can_be_learned_instead_of_all_weights(tmp_path, learned):
    told = settings(tmp_path, optimiser={"learning_rate": 1e-2, "questions": 16, "temperature": 1.3},
                    policy={"start": str(learned / "policy"), "lora": {"rank": 4, "alpha": 8}})  # fmt: skip
    train_conductor(told, ["pytest"], heard_nothing)
    saved = load_file(tmp_path / "policy" / "adapter_model.safetensors")
    assert all("lora" in name for name in saved)
    moved = [float(value.abs().max()) for name, value in saved.items() if "lora_B" in name]
    assert moved and max(moved) > 0, "B starts at zero and has moved"
    whole = AutoModelForCausalLM.from_pretrained(learned / "policy")
    assert sum(v.numel() for v in saved.values()) < 0.3 * sum(p.numel() for p in whole.parameters())


def test_tensorboard_gets_the_figures(tmp_path, learned):
    told = settings(tmp_path, policy={"start": str(learned / "policy")},
                    log={"to": ["tensorboard"], "checkpoint_every": 100})  # fmt: skip
    train_conductor(told, ["pytest"], heard_nothing)
    (events,) = tmp_path.rglob("events.out.tfevents.*")
    board = EventAccumulator(str(events.parent)).Reload()
    shown = [event.value for event in board.Scalars("train/reward")]
    assert shown == pytest.approx([line["reward"] for line in metrics(tmp_path)])


def test_the_pool_is_drawn_anew_for_each_question(tmp_path, learned):
    told = settings(tmp_path, policy={"start": str(learned / "policy")},
                    pool={"fewest": 2, "most": 3, "permute": True}, optimiser={"steps": 4})  # fmt: skip
    train_conductor(told, ["pytest"], heard_nothing)
    samples = [json.loads(x) for x in (tmp_path / "samples.jsonl").read_text().splitlines()]
    pools = {tuple(sample["pool"]) for sample in samples}
    assert len(pools) > 3 and {len(pool) for pool in pools} == {2, 3}


def test_a_gradient_that_is_no_number_changes_nothing(tmp_path, random_policy):
    """With it every weight would be none: the step is left out, and said."""
    rewards = [1.0, 0.0, 0.0, 0.5, 1.0, 0.0, 0.5, 0.5]
    trainer, lines = trainer_paying(tmp_path, random_policy, rewards, steps=2)
    before = {n: p.detach().clone() for n, p in trainer.model.named_parameters()}
    spoil, seen = [True, False], []

    def spoilt(gradient):
        return gradient * float("nan") if spoil[0] else gradient

    class Look(TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **kwargs):
            spoil.pop(0)
            seen.append(all(bool((p == before[n]).all()) for n, p in model.named_parameters()))

    next(trainer.model.parameters()).register_hook(spoilt)
    trainer.add_callback(Look())
    trainer.train()
    assert seen == [True, False]
    assert [line["skipped"] for line in lines] == [1.0, 0.0]
    assert all(bool(p.isfinite().all()) for p in trainer.model.parameters())


def test_with_checkpointing_our_sampler_writes_and_trl_learns(tmp_path, random_policy):
    """The same drafts and, but for rounding, the same weights as without."""
    rewards = [1.0, 0.0, 0.0, 0.5, 1.0, 0.0, 0.5, 0.5]
    weights, drafts = [], []
    for checkpointing in (False, True):
        trainer, _ = trainer_paying(
            tmp_path / str(checkpointing), random_policy, rewards,
            gradient_checkpointing=checkpointing,
        )  # fmt: skip
        assert isinstance(trainer, SharedPromptTrainer) is not checkpointing
        trainer.train()
        drafts.append(list(trainer._logs["completion"]))
        weights.append(dict(trainer.model.named_parameters()))
    assert drafts[0] == drafts[1]
    for name, one in weights[0].items():
        torch.testing.assert_close(one, weights[1][name], atol=2e-4, rtol=1e-3)


def test_beside_adapters_the_matrices_lie_in_bf16_and_no_number_changes(tmp_path, random_policy):
    told = settings(
        tmp_path,
        policy={"start": str(random_policy), "bf16": True, "lora": {"rank": 4}},
        optimiser={"steps": 1},
    )

    async def opened():
        return Paying([1.0, 0.0, 0.0, 0.5, 1.0, 0.0, 0.5, 0.5])

    asked = make_episodes(draw_questions(told), worlds.rehearsal_pool(), told.pool, told.seed)
    reward = RewardFunction(told, asked, opened, lambda step, rollouts: None)  # pyright: ignore[reportArgumentType]
    trainer = make_trainer(
        told, asked, reward=reward, folder=RunFolder(tmp_path), on_metrics=heard_nothing
    )
    model: Any = trainer.model
    layer = model.get_base_model().model.layers[0].mlp.up_proj
    assert layer.base_layer.weight.dtype == torch.bfloat16
    assert layer.lora_A.default.weight.dtype == torch.float32
    ids = torch.arange(6, 30)[None]
    wide, _ = load_policy(str(random_policy), None)
    choose_attention(wide, told)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(model(ids).logits, wide(ids).logits), "adapters add nothing yet"
    before = layer.lora_B.default.weight.detach().clone()
    trainer.train()
    assert not torch.equal(layer.lora_B.default.weight, before)
    assert layer.base_layer.weight.dtype == torch.bfloat16
