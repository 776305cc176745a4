"""Folders as transformers saves them, with random weights, made without torch."""

import json
import math

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from batuta.embedded import CHAT_TEMPLATE

END = "<|end|>"
SPECIAL = ["<|pad|>", END, "<|system|>", "<|user|>", "<|assistant|>"]
PIECES = {
    "frames": r'(?:"?\]\n)?(?:model_id|subtasks) = \[+"?| ?\d| ?[A-Za-z]+'
    r"| ?[^\sA-Za-z\d]+(?: [^\sA-Za-z\d]+)*|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "words": r"\p{Lu}?\p{Ll}+|\P{L}+?(?=\p{L})|\S",
    "gpt2": None,
    "whole": "",
}
"""Split patterns; None: ByteLevel's own, empty: none at all."""
TEXTS = [
    "How many positive integers below 1000 are divisible by neither 6 nor 10?",
    "Let me think about which models should do what.\nmodel_id = [0, 2, 1]",
    'subtasks = ["Solve the problem step by step.", "Compare the two solutions."]\n',
    "It's 12 o'clock; we'll see   what they've done.\n\n\tÜber die Brücke, naïve café.",
    "Привет, мир! 你好，世界。 ١٢٣ ½ Ⅷ 🙂🙃",
] * 4


def tokenizer(pieces="frames", size=600):
    """A byte-level tokenizer, trained on a few texts."""
    made = Tokenizer(models.BPE())
    pattern = PIECES[pieces]
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    split = [pre_tokenizers.Split(Regex(pattern), "isolated")] if pattern else []
    made.pre_tokenizer = pre_tokenizers.Sequence([*split, level]) if split else level
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[AddedToken(content, special=True, normalized=False) for content in SPECIAL],
        show_progress=False,
    )
    made.train_from_iterator(TEXTS, trainer)
    return made


def config(**changes):
    """A config.json of a tiny model."""
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_act": "silu",
        "vocab_size": 640,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "eos_token_id": 1,
        **changes,
    }


def shapes(settings):
    """The names and shapes of a model's tensors."""
    d, f = settings["hidden_size"], settings["intermediate_size"]
    v, heads = settings["vocab_size"], settings["num_attention_heads"]
    k = d // heads * settings["num_key_value_heads"]
    found = {"model.embed_tokens.weight": (v, d), "model.norm.weight": (d,)}
    if not settings["tie_word_embeddings"]:
        found["lm_head.weight"] = (v, d)
    for layer in range(settings["num_hidden_layers"]):
        for name, out, into in (
            ("self_attn.q_proj", d, d),
            ("self_attn.k_proj", k, d),
            ("self_attn.v_proj", k, d),
            ("self_attn.o_proj", d, d),
            ("mlp.gate_proj", f, d),
            ("mlp.up_proj", f, d),
            ("mlp.down_proj", d, f),
        ):
            found[f"model.layers.{layer}.{name}.weight"] = (out, into)
            if name[-6] in "qkv":
                found[f"model.layers.{layer}.{name}.bias"] = (out,)
        for name in ("input_layernorm", "post_attention_layernorm"):
            found[f"model.layers.{layer}.{name}.weight"] = (d,)
    return found


def weights(settings, seed=0):
    """Random tensors, of a size at which the model has opinions."""
    rng = np.random.default_rng(seed)
    made = {}
    for name, shape in shapes(settings).items():
        scale = 0.3 if len(shape) == 1 else 1.5 / math.sqrt(shape[1])
        values = rng.normal(1.0 if "norm" in name else 0.0, scale, shape)
        made[name] = values.astype(np.float32)
    return made


def write(folder, settings, tensors, tokens=None):
    """A folder as transformers would save it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 1}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    (tokens or tokenizer()).save(str(folder / "tokenizer.json"))
    save_file(tensors, folder / "model.safetensors")
    return folder
