"""Which models our own computing is right for: the others are refused, or sampled by transformers."""

import re
from typing import Any

import pytest
import torch
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from batuta.errors import ConfigError
from batuta.lab.train.adapters import add_adapters
from batuta.lab.train.device import compile_layers
from batuta.lab.train.model import (
    check_own_sampler,
    check_shared_prompts,
    load_trainable,
    make_model,
    read_tokenizer,
)
from batuta.lab.train.preflight import check_training
from batuta.lab.train.sampler import GenerateSampler, Sampler, open_sampler, own_sampler_problem
from batuta.lab.train.settings import LoraSettings
from lab.train.stage import LIBRARIES, settings

pytestmark = LIBRARIES
SIZES = {
    "vocab_size": 60, "hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 3, "num_key_value_heads": 1, "max_position_embeddings": 128,
    "initializer_range": 0.3, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1,
}  # fmt: skip


def made(kind, config, **about):
    torch.manual_seed(2)
    return kind(config(**{**SIZES, **about})).eval()


def llama(**about):
    return made(LlamaForCausalLM, LlamaConfig, **about)


def qwen(**about):
    return made(Qwen2ForCausalLM, Qwen2Config, **about)


COMPUTED = {
    "qwen2": qwen,
    "tied": lambda: qwen(tie_word_embeddings=True),
    "wide heads": lambda: llama(head_dim=16),
    "narrow heads": lambda: qwen(head_dim=6),
    "with biases": lambda: llama(attention_bias=True, mlp_bias=True),
    "llama3 positions": lambda: llama(rope_parameters={
        "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 32}),
    "yarn": lambda: llama(rope_parameters={
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}),
    "linear": lambda: llama(rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}),
    "a window wider than all positions": lambda: qwen(
        use_sliding_window=True, sliding_window=128, max_window_layers=0),
}  # fmt: skip


def disguised():
    """A Llama by its class and its config, and another one by what it computes."""
    model = llama()
    model.model.layers[1].forward = lambda hidden, *args, **kwargs: hidden * 2
    return model


REFUSED = {
    "a window": (lambda: qwen(use_sliding_window=True, sliding_window=8, max_window_layers=1), "window of 8"),
    "dynamic positions": (lambda: llama(rope_parameters={
        "rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}), "type dynamic"),
    "qk-norm": (lambda: made(Qwen3ForCausalLM, Qwen3Config, head_dim=8), "qwen3"),
    "mistral": (lambda: made(MistralForCausalLM, MistralConfig, sliding_window=None), "mistral"),
    "another computation": (disguised, "does not reproduce"),
}  # fmt: skip


class Ends:
    eos_token_id, pad_token_id = 1, 0

    def __len__(self):
        return 60

    def decode(self, row, **_):
        return "".join(chr(60 + token) for token in row)

    def batch_decode(self, rows):
        return [self.decode(row) for row in rows]


@pytest.mark.parametrize("make", COMPUTED.values(), ids=COMPUTED)
def test_what_is_computed_writes_what_transformers_writes(make):
    model, prompts = make(), [[5, 9, 33, 2], [7, 8, 21, 40, 11, 12, 3]]
    check_own_sampler(model, "it")
    assert isinstance(open_sampler(model, Ends()), Sampler)
    rows = Sampler(model, pad=0, end=-1).sample(
        prompts, 2, max_tokens=40, temperature=0.0, generator=torch.Generator()
    )
    for prompt, row in zip([p for p in prompts for _ in range(2)], rows, strict=True):
        ids = torch.tensor([prompt])
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=40,
                             do_sample=False, eos_token_id=None)  # fmt: skip
        assert row == out[0, len(prompt) :].tolist()


@pytest.mark.parametrize(("make", "said"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_computed_is_refused_in_a_sentence_and_sampled_by_transformers(make, said):
    model = make()
    with pytest.raises(ConfigError, match=rf'{said}.*sampler = "transformers"'):
        check_own_sampler(model, "it")
    assert isinstance(open_sampler(model, Ends()), GenerateSampler)


def test_adapters_on_the_last_matrix_are_sampled_too():
    model = add_adapters(qwen(), LoraSettings(rank=2, targets=["lm_head", "q_proj"]))
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.5)
    model.eval()
    assert own_sampler_problem(model.get_base_model()) is None
    (row,) = Sampler(model.get_base_model(), pad=0, end=-1).sample(
        [[5, 9, 33, 2]], 1, max_tokens=12, temperature=0.0, generator=torch.Generator()
    )
    ids = torch.tensor([[5, 9, 33, 2]])
    out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=12,
                         do_sample=False, eos_token_id=None)  # fmt: skip
    assert row == out[0, 4:].tolist()


MORE = {
    "soft capping": lambda: made(Gemma2ForCausalLM, Gemma2Config, head_dim=8, final_logit_softcapping=2.0),
    "scaled logits": lambda: made(CohereForCausalLM, CohereConfig, logit_scale=0.1),
    "states": lambda: MambaForCausalLM(MambaConfig(vocab_size=60, hidden_size=24, num_hidden_layers=2, initializer_range=0.3)),
}  # fmt: skip


@pytest.mark.parametrize("make", MORE.values(), ids=MORE)
def test_a_loss_that_the_stages_before_reinforcement_do_not_compute_is_refused(make):
    with pytest.raises(ConfigError, match="do not support"):
        check_shared_prompts(make(), "it")


@pytest.mark.parametrize("make", [qwen, *(one[0] for one in list(REFUSED.values())[:4])])
def test_their_loss_is_right_for_models_that_only_our_sampler_does_not_compute(make):
    check_shared_prompts(make(), "it")


def test_the_check_and_the_stages_say_it(random_policy, tmp_path):
    tokenizer = read_tokenizer(str(random_policy))
    model = make_model(tokenizer, hidden=32, layers=2, inner=32)
    model.config.use_sliding_window, model.config.sliding_window = True, 16
    model.config.layer_types = ["full_attention", "sliding_attention"]
    model.save_pretrained(tmp_path / "windows")
    tokenizer.save_pretrained(tmp_path / "windows")
    told = settings(tmp_path / "run", policy={"start": str(tmp_path / "windows")})
    assert any("sliding window of 16" in each for each in check_training(told).missing)
    gemma = made(Gemma2ForCausalLM, Gemma2Config, head_dim=8, final_logit_softcapping=1.0,
                 vocab_size=len(tokenizer))  # fmt: skip
    gemma.save_pretrained(tmp_path / "gemma")
    tokenizer.save_pretrained(tmp_path / "gemma")
    with pytest.raises(ConfigError, match="do not support"):
        load_trainable(str(tmp_path / "gemma"), told)


@pytest.fixture
def start(random_policy, tmp_path):
    """Writes a model and a tokenizer, and returns the settings of a training that starts there."""

    def write(kind, config, /, policy=None, **sizes):
        tokenizer = read_tokenizer(str(random_policy))
        folder = tmp_path / "start"
        kind(config(vocab_size=len(tokenizer), **sizes)).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        told = {"start": str(folder), **(policy or {})}
        optimiser = {"sampler": "transformers"}
        return settings(tmp_path / "run", policy=told, optimiser=optimiser)

    return write


def test_a_model_that_writes_no_text_is_refused_in_a_sentence(start):
    told = start(T5ForConditionalGeneration, T5Config, d_model=24, d_kv=8, d_ff=32, num_layers=1)
    said = "the t5 model in .* is no causal language model"
    (missing,) = check_training(told).missing
    for refusal in (missing, raised(lambda: load_trainable(told.policy.start, told))):
        assert re.match(said, refusal)


GPT2 = (GPT2LMHeadModel, GPT2Config)
GPT2_SIZES: dict[str, Any] = {
    "n_embd": 24,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 2048,
    "eos_token_id": 1,
}


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        (GPT2, GPT2_SIZES),
        ((MambaForCausalLM, MambaConfig), {"hidden_size": 24, "num_hidden_layers": 2}),
    ],
    ids=["gpt2", "mamba"],
)
def test_the_check_estimates_models_that_name_other_sizes_than_llama(start, kind, sizes):
    found = check_training(start(*kind, **sizes))
    assert found.missing == []
    assert {figure.name: figure.value for figure in found.figures}["memory"]


def test_a_setting_that_needs_the_layers_of_llama_is_refused_for_others(start):
    told = start(*GPT2, policy={"upper_layers": 1}, **GPT2_SIZES)
    (missing,) = check_training(told).missing
    said = "policy.upper_layers cannot be used, as the decoder of GPT2LMHeadModel has no `layers`"
    for refusal in (missing, raised(lambda: load_trainable(told.policy.start, told))):
        assert refusal.startswith(said)
    refusal = raised(lambda: compile_layers(GPT2LMHeadModel(GPT2Config(**GPT2_SIZES))))
    assert refusal.startswith("distil.compile cannot be used")


def raised(work):
    """The sentence with which the work was refused."""
    with pytest.raises(ConfigError) as refused:
        work()
    return str(refused.value)
