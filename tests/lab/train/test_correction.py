"""The correction for vLLM's own probabilities: TRL's options, and the share that its limit concerns."""

import math

import pytest
import torch
from datasets import Dataset
from pydantic import ValidationError

from batuta.errors import ConfigError
from batuta.lab.train.correction import count_beyond_limit
from batuta.lab.train.grpo import StalePolicyTrainer
from batuta.lab.train.model import load_policy
from batuta.lab.train.run_folder import RunFolder
from batuta.lab.train.settings import OptimiserSettings
from batuta.lab.train.trainer import grpo_config
from lab.train.stage import LIBRARIES, settings

pytestmark = LIBRARIES
TRL_MODES = {"token": "token_truncate", "sequence": "sequence_mask"}


@pytest.mark.parametrize("correction", ["none", "token", "sequence"])
def test_each_correction_is_one_of_trls(tmp_path, correction):
    told = settings(tmp_path, optimiser={"correction": correction, "correction_limit": 2.0})
    config = grpo_config(told, RunFolder(tmp_path))
    assert config.vllm_importance_sampling_correction is (correction != "none")
    if correction != "none":
        assert config.vllm_importance_sampling_mode == TRL_MODES[correction]
        assert config.vllm_importance_sampling_clip_max == 2.0


def test_a_token_is_corrected_by_its_own_ratio_unless_told_otherwise(tmp_path):
    config = grpo_config(settings(tmp_path), RunFolder(tmp_path))
    assert config.vllm_importance_sampling_mode == "token_truncate"
    assert config.vllm_importance_sampling_clip_max == 3.0


@pytest.mark.parametrize(("loss", "highest"), [("cispo", 1.2), ("grpo", None)])
def test_the_ratio_is_clipped_at_its_distance_from_1(tmp_path, loss, highest):
    """TRL's `epsilon_high` is CISPO's maximum itself, and otherwise a distance from 1."""
    config = grpo_config(settings(tmp_path, optimiser={"loss": loss}), RunFolder(tmp_path))
    assert config.epsilon == 0.2 and config.epsilon_high == highest


@pytest.mark.parametrize("limit", [1.0, 0.5, math.inf, math.nan])
def test_a_limit_that_limits_nothing_is_refused(limit):
    with pytest.raises(ValidationError, match="correction_limit"):
        OptimiserSettings(correction_limit=limit)


def test_an_unknown_correction_is_refused_with_the_known_ones(tmp_path):
    with pytest.raises(ConfigError, match="none, token or sequence"):
        settings(tmp_path, optimiser={"correction": "turn"})


@pytest.mark.parametrize(
    ("sampler", "correction", "scores"),
    [
        ("own", "token", True),
        ("transformers", "sequence", True),
        ("vllm-server", "token", False),
        ("vllm-colocate", "sequence", False),
        ("vllm-colocate", "none", True),
        ("vllm-server", "none", True),
    ],
)
def test_older_weights_drafts_have_a_ratio_in_any_case(sampler, correction, scores):
    """Either TRL's, of the engine's figures, or ours: without both they would be taken for new."""
    assert OptimiserSettings(sampler=sampler, correction=correction).scores_drafts is scores


def test_ratios_above_the_limit_are_counted_and_padding_is_not():
    """By hand: log 3 is 1.0986, and the engine told nothing of one token."""
    learned = torch.tensor([[-1.0, -1.0, -9.0], [-1.0, -1.0, -1.0]])
    sampled = torch.tensor([[-1.6, -1.6, -99.0], [-2.2, math.nan, -1.0]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    count = lambda whole: count_beyond_limit(learned, sampled, mask, whole=whole, limit=3.0)  # noqa: E731
    assert count(True).tolist() == [2, 2], "0.6 + 0.6 and 1.2 are more than log 3"
    assert count(False).tolist() == [1, 5], "1.2 alone is"


DRAFTS = 8


def shares(tmp_path, policy, correction, off):
    """What a step of TRL's own code makes of an engine that is `off[row]` nats off in each token."""
    told = settings(
        tmp_path,
        optimiser={"sampler": "transformers", "correction": correction},
        policy={"start": str(policy)},
    )
    model, tokenizer = load_policy(str(policy), None)
    written = [[7, 8, 9 + row] for row in range(DRAFTS)]

    def write(prompts, trainer):
        logps, _, _ = trainer._get_per_token_logps_and_entropies(
            trainer.model,
            torch.tensor([[5, 6, *ids] for ids in written]),
            torch.ones(DRAFTS, 5).long(),
            3,
        )
        told = (logps.detach() - torch.tensor(off)[:, None]).tolist()
        return {"prompt_ids": [[5, 6]] * DRAFTS, "completion_ids": written, "logprobs": told}

    trainer = StalePolicyTrainer(
        model=model,
        reward_funcs=lambda completions, **_: [float(n % 2) for n in range(len(completions))],
        args=grpo_config(told, RunFolder(tmp_path)),
        train_dataset=Dataset.from_dict({"prompt": [[{"role": "user", "content": "x"}]] * 4}),
        processing_class=tokenizer,
        rollout_func=write,
    )
    trainer.use_vllm, trainer._last_loaded_step = True, 0  # an engine that has the weights already
    rows = [{"prompt": [{"role": "user", "content": "x"}]}] * DRAFTS
    output = trainer._generate_and_score_completions(rows)
    return output, {name: values[-1] for name, values in trainer._metrics["train"].items()}


def test_the_masked_share_is_that_of_the_completions_trl_leaves_out(random_policy, tmp_path):
    off = [0.5 if row < 3 else 0.1 for row in range(DRAFTS)]  # three tokens each: 1.5 and 0.3
    output, told = shares(tmp_path, random_policy, "sequence", off)
    assert (output["importance_sampling_ratio"] == 0).float().mean() == 3 / 8
    assert told["masked"] == 3 / 8 and "truncated" not in told


def test_by_token_nothing_is_left_out_and_the_cut_share_is_told(random_policy, tmp_path):
    off = [1.5 if row < 2 else 0.5 for row in range(DRAFTS)]
    output, told = shares(tmp_path, random_policy, "token", off)
    ratios = output["importance_sampling_ratio"]
    assert (ratios > 0).all() and ratios.max() == 3.0
    assert (ratios == 3.0).float().mean() == told["truncated"] == 2 / 8
    assert "masked" not in told


def test_without_a_correction_nothing_is_told_of_one(random_policy, tmp_path):
    output, told = shares(tmp_path, random_policy, "none", [1.5] * DRAFTS)
    assert "importance_sampling_ratio" not in output
    assert not {"masked", "truncated"} & told.keys()
