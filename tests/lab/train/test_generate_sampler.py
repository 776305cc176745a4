"""Models that transformers samples: as their weights say, whatever their generation_config says."""

import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM, GenerationConfig, GPT2Config, GPT2LMHeadModel

from batuta.lab.train.conductor_training import train_conductor
from batuta.lab.train.sampler import GenerateSampler
from lab.train.stage import LIBRARIES, metrics, settings, untimed

pytestmark = LIBRARIES
WORDS, END, OTHER_END, PAD = 12, 0, 11, 10
ODD = {
    "top-p": {"top_p": 0.5},
    "top-k": {"top_k": 3},
    "penalty": {"repetition_penalty": 1.8},
    "the least": {"min_p": 0.2},
    "typical": {"typical_p": 0.5},
    "eta": {"eta_cutoff": 0.2},
    "epsilon": {"epsilon_cutoff": 0.1},
    "no token twice": {"no_repeat_ngram_size": 1},
    "never": {"suppress_tokens": [3, 4]},
    "never first": {"begin_suppress_tokens": [5, 6]},
    "bad words": {"bad_words_ids": [[2], [7]]},
    "at least": {"min_new_tokens": 2},
    "bias": {"sequence_bias": [[[4], 3.0]]},
    "temperature": {"temperature": 0.3},
}
"""What a generation_config may say that the loss does not know."""


class Ends:
    """The special tokens of a tokenizer."""

    eos_token_id, pad_token_id = END, PAD


def network(**about):
    torch.manual_seed(4)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=WORDS, n_embd=16, n_layer=1, n_head=2, n_positions=32,
                   initializer_range=0.6, bos_token_id=None, eos_token_id=END)
    ).eval()  # fmt: skip
    model.generation_config = GenerationConfig(eos_token_id=[END, OTHER_END], **about)
    return model


def drawn(model, group, most, temperature=1.0, seed=0):
    return GenerateSampler(model, Ends()).sample(
        [[3, 5, 3, 2]], group, max_tokens=most, temperature=temperature,
        generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip


def chances(model, ids, temperature=1.0):
    with torch.inference_mode():
        return (model(torch.tensor([ids])).logits[0, -1].double() / temperature).softmax(-1)


@pytest.mark.parametrize("about", ODD.values(), ids=ODD)
def test_tokens_come_as_often_as_the_softmax_says(about):
    model = network(do_sample=True, **about)
    kept = model.generation_config
    rows = drawn(model, 4000, 2)
    assert model.generation_config is kept, "the model keeps its own settings"
    for at in range(2):
        begun = [3, 5, 3, 2]
        if at:  # behind the likeliest first token that ends nothing
            going = [row[0] for row in rows if len(row) == 2]
            begun.append(max(set(going), key=going.count))
        next_ones = [row[at] for row in rows if [3, 5, 3, 2, *row[:at]] == begun and len(row) > at]
        share = chances(model, begun)
        counts = torch.bincount(torch.tensor(next_ones), minlength=WORDS).double()
        expected = share * counts.sum()
        off = ((counts - expected) ** 2 / expected.clamp(min=0.5)).sum()
        assert off < WORDS + 5 * (2 * WORDS) ** 0.5, f"token {at}: five standard deviations"


def test_both_ends_end_a_draft_and_nothing_stands_behind_them():
    rows = drawn(network(), 500, 8)
    assert {row[-1] for row in rows if len(row) < 8} == {END, OTHER_END}
    assert all(token not in {END, OTHER_END} for row in rows for token in row[:-1])


@pytest.mark.parametrize("about", ODD.values(), ids=ODD)
def test_the_likeliest_draft_is_the_weights_own(about):
    model = network(**about)
    ids: list[int] = [3, 5, 3, 2]
    for _ in range(6):
        ids.append(int(chances(model, ids).argmax()))
        if ids[-1] in {END, OTHER_END}:
            break
    assert drawn(model, 1, 6, temperature=0.0) == [ids[4:]]


def test_a_training_is_the_same_whatever_the_models_generation_config_says(warm, tmp_path):
    lines = []
    for name, about in (("plain", {}), ("odd", {"top_p": 0.4, "no_repeat_ngram_size": 2,
                                                "repetition_penalty": 1.5})):  # fmt: skip
        folder = shutil.copytree(warm, tmp_path / name / "start")
        AutoModelForCausalLM.from_pretrained(folder)  # reads it
        told = GenerationConfig.from_pretrained(folder)
        told.update(do_sample=True, **about)
        told.save_pretrained(folder)
        run = settings(
            tmp_path / name / "run", policy={"start": str(folder)},
            optimiser={"sampler": "transformers", "steps": 1, "completion": 40},
        )  # fmt: skip
        train_conductor(run, ["pytest"], lambda line: None)
        lines.append(untimed(metrics(run.output)))
    assert lines[0] == lines[1]
