"""Reading each prompt once changes no number: TRL's own trainer is the measure."""

from typing import Any

import pytest
import torch

from batuta.lab.train.grpo import SharedPromptTrainer
from batuta.lab.train.reward_function import RewardFunction
from batuta.lab.train.run_folder import RunFolder
from batuta.lab.train.trainer import make_trainer
from lab.train.stage import LIBRARIES, settings

pytestmark = LIBRARIES
P, T, VOCABULARY = 13, 9, 400


def trainer(tmp_path, policy, sampler, temperature):
    told = settings(
        tmp_path,
        optimiser={"sampler": sampler, "temperature": temperature},
        policy={"start": str(policy)},
    )

    async def opened():
        raise AssertionError("nothing is run here")

    reward = RewardFunction(told, [], opened, lambda step, rollouts: None)
    return make_trainer(
        told, [], reward=reward, folder=RunFolder(tmp_path), on_metrics=lambda line: None
    )


def batch(prompts, group, *, shuffled=True, lengths=None):
    """Left-padded prompts and right-padded completions of a group each, in any order."""
    generator = torch.Generator().manual_seed(5)
    draw = lambda *shape: torch.randint(6, VOCABULARY, shape, generator=generator)  # noqa: E731
    asked, asked_mask = draw(prompts, P), torch.ones(prompts, P).long()
    for q in range(prompts):
        asked_mask[q, : 2 * q] = 0
        asked[q, : 2 * q] = 0
    rows = prompts * group
    lengths = lengths or [1 + n % T for n in range(rows)]
    on = torch.arange(T)[None] < torch.tensor(lengths)[:, None]
    written = draw(rows, T) * on
    ids = torch.cat([asked.repeat_interleave(group, 0), written], 1)
    mask = torch.cat([asked_mask.repeat_interleave(group, 0), on.long()], 1)
    order = torch.randperm(rows, generator=generator) if shuffled else torch.arange(rows)
    return ids[order], mask[order]


def measured(trainer, ids, mask):
    """Log-probabilities, entropies, and the gradients of a sum that depends on all of them."""
    trainer.model.zero_grad()
    logps, entropies, _ = trainer._get_per_token_logps_and_entropies(
        trainer.model, ids, mask, T, compute_entropy=True
    )
    written = mask[:, -T:].bool()
    pull = torch.linspace(-1, 1, logps.numel()).view_as(logps)
    ((pull * logps)[written].sum() + 0.3 * entropies[written].sum()).backward()
    gradients = {
        name: p.grad.clone() for name, p in trainer.model.named_parameters() if p.grad is not None
    }
    return logps.detach()[written], entropies.detach()[written], gradients


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize(
    ("prompts", "group", "lengths"),
    [(1, 6, None), (3, 4, None), (4, 1, None), (2, 3, [T] * 6), (2, 2, [1, 1, 1, 1])],
    ids=["one question", "three", "no groups", "all full", "one token each"],
)
def test_log_probabilities_entropies_and_gradients_are_trls(
    tmp_path, random_policy, temperature, prompts, group, lengths
):
    ids, mask = batch(prompts, group, lengths=lengths)
    ours = trainer(tmp_path / "ours", random_policy, "own", temperature)
    theirs = trainer(tmp_path / "theirs", random_policy, "transformers", temperature)
    assert isinstance(ours, SharedPromptTrainer) and not isinstance(theirs, SharedPromptTrainer)
    logps, entropies, gradients = measured(ours, ids, mask)
    their_logps, their_entropies, their_gradients = measured(theirs, ids, mask)
    torch.testing.assert_close(logps, their_logps, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(entropies, their_entropies, atol=2e-5, rtol=1e-4)
    assert gradients.keys() == their_gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, their_gradients[name], atol=2e-4, rtol=1e-3, msg=name)
    assert all(float(g.abs().max()) > 0 for g in gradients.values()), "every weight is pulled at"


def test_the_order_of_the_rows_does_not_matter(tmp_path, random_policy):
    ours = trainer(tmp_path, random_policy, "own", 1.0)
    ids, mask = batch(3, 4, shuffled=False)
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(1))
    read = ours._get_per_token_logps_and_entropies
    plain = read(ours.model, ids, mask, T)[0]
    torch.testing.assert_close(
        read(ours.model, ids[order], mask[order], T)[0], plain[order], atol=2e-5, rtol=1e-4
    )


@pytest.mark.parametrize(("questions", "group", "passes"), [(4, 4, 4), (2, 8, 4), (6, 2, 3)])
def test_a_pass_reads_as_few_prompts_as_may_be(
    tmp_path, random_policy, monkeypatch, questions, group, passes
):
    learner = trainer(tmp_path, random_policy, "own", 1.0)
    ids, mask = batch(questions, group, shuffled=False)
    rows = questions * group

    def written(self, inputs):
        del self, inputs
        return {
            "prompt_ids": ids[:, :P],
            "prompt_mask": mask[:, :P],
            "completion_ids": ids[:, P:],
            "advantages": torch.arange(rows).float(),
            "names": [str(n) for n in range(rows)],
            "num_items_in_batch": torch.tensor(77),
            "old_per_token_logps": None,
        }

    monkeypatch.setattr(SharedPromptTrainer, "_generate_and_score_completions", written)
    monkeypatch.setattr(learner.args, "steps_per_generation", passes)
    learner.model.train()
    seen = []
    for step in range(passes):
        learner._step = step
        part = learner._prepare_inputs({})
        assert len(part["prompt_ids"].unique(dim=0)) == max(1, questions // passes)
        assert int(part["num_items_in_batch"]) == 77 and part["old_per_token_logps"] is None
        for at, number in enumerate(part["advantages"].int().tolist()):
            assert part["names"][at] == str(number)
            assert part["prompt_ids"][at].equal(ids[number, :P])
            assert part["prompt_mask"][at].equal(mask[number, :P])
            assert part["completion_ids"][at].equal(ids[number, P:])
            seen.append(number)
    assert sorted(seen) == list(range(rows))


def test_what_is_padding_in_every_row_is_not_read(tmp_path, random_policy, monkeypatch):
    """A pass of short prompts is padded to the batch's longest one: that is left out."""
    ours = trainer(tmp_path, random_policy, "own", 1.0)
    ids, mask = batch(3, 2, shuffled=False)
    short, short_mask = ids[4:], mask[4:]  # the third prompt: its first four columns are padding
    inner: Any = type(ours.model.model)
    lengths, core = [], inner.forward

    def listen(self, input_ids, *args, **kwargs):
        lengths.append(input_ids.shape[1])
        return core(self, input_ids, *args, **kwargs)

    read = ours._get_per_token_logps_and_entropies
    whole = read(ours.model, ids, mask, T)[0][4:]
    monkeypatch.setattr(inner, "forward", listen)
    torch.testing.assert_close(
        read(ours.model, short, short_mask, T)[0], whole, atol=2e-5, rtol=1e-4
    )
    assert lengths[0] == P - 4 - 1


def test_in_bf16_the_loss_is_computed_in_bf16(tmp_path, random_policy, monkeypatch):
    told = settings(tmp_path, policy={"start": str(random_policy), "bf16": True})

    async def opened():
        raise AssertionError("nothing is run here")

    reward = RewardFunction(told, [], opened, lambda step, rollouts: None)
    learner = make_trainer(
        told, [], reward=reward, folder=RunFolder(tmp_path), on_metrics=lambda line: None
    )
    kinds = []
    model: Any = learner.model
    model.model.layers[0].mlp.down_proj.register_forward_hook(
        lambda module, given, out: kinds.append(out.dtype)
    )
    ids, mask = batch(2, 2)
    logps = learner._get_per_token_logps_and_entropies(learner.model, ids, mask, T)[0]
    assert set(kinds) == {torch.bfloat16} and logps.dtype == torch.float32
