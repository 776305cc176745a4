"""PEFT's adapters as files of llama.cpp: what is added there is what was trained here."""

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from batuta.embedded.adapters import is_adapter
from batuta.errors import ConfigError
from batuta.lab.train.gguf_files import export_adapter, export_gguf, rotate_rows
from lab.train.stage import LIBRARIES

gguf = pytest.importorskip("gguf")
pytestmark = LIBRARIES
MATRICES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
NAMES = dict(zip(MATRICES, ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up",
                            "ffn_down"), strict=True))  # fmt: skip
HEADS = {"num_attention_heads": 6, "num_key_value_heads": 3}


def small_llama():
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64, hidden_size=48, intermediate_size=96, num_hidden_layers=2,
            num_attention_heads=6, num_key_value_heads=3, tie_word_embeddings=True,
        )
    )  # fmt: skip


def write_like(model, path, *, without=""):
    """A GGUF file of that model's shapes."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(2)
    writer.add_head_count(6)
    writer.add_head_count_kv(3)
    for layer, block in enumerate(model.model.layers):
        for part, name in NAMES.items():
            inside = block.self_attn if part in MATRICES[:4] else block.mlp
            if name != without:
                array = getattr(inside, part).weight.detach().numpy().astype(np.float32)
                writer.add_tensor(f"blk.{layer}.{name}.weight", array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def adapted(tmp_path):
    """The model's GGUF file, its adapter's folder, and the adapted model."""
    model = small_llama()
    like = write_like(model, tmp_path / "like.gguf")
    wrapped = get_peft_model(
        model, LoraConfig(r=4, lora_alpha=8, target_modules=MATRICES, task_type="CAUSAL_LM")
    )
    for name, parameter in wrapped.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    wrapped.save_pretrained(tmp_path / "adapter")
    return like, tmp_path / "adapter", wrapped


def test_what_llama_cpp_adds_is_the_trained_difference(adapted, tmp_path):
    like, folder, wrapped = adapted
    assert is_adapter(folder)
    assert not is_adapter(tmp_path)
    read = gguf.GGUFReader(export_adapter(folder, like, tmp_path / "out" / "one.gguf"))
    fields = {field.name: field.contents() for field in read.fields.values()}
    assert fields["general.type"] == "adapter"
    assert fields["adapter.type"] == "lora"
    scale = fields["adapter.lora.alpha"] / 4
    sides = {tensor.name: np.asarray(tensor.data, np.float32) for tensor in read.tensors}
    before = small_llama()
    after = wrapped.merge_and_unload()
    for layer in range(2):
        for part, name in NAMES.items():
            within = "self_attn" if part in MATRICES[:4] else "mlp"
            old, new = (
                getattr(getattr(one.model.layers[layer], within), part).weight.detach().numpy()
                for one in (before, after)
            )
            at = f"blk.{layer}.{name}.weight"
            added = scale * sides[f"{at}.lora_b"] @ sides[f"{at}.lora_a"]
            wanted = rotate_rows(part, new, HEADS) - rotate_rows(part, old, HEADS)
            assert np.allclose(added, wanted, atol=2e-3)
            assert np.abs(wanted).max() > 0.02


def test_an_adapter_of_another_model_is_refused(adapted, tmp_path):
    _, folder, _ = adapted
    other = write_like(small_llama(), tmp_path / "other.gguf", without="ffn_up")
    with pytest.raises(ConfigError, match=r"not an adapter of the model.*ffn_up"):
        export_adapter(folder, other, tmp_path / "one.gguf")
    (tmp_path / "no.gguf").write_bytes(b"GGUFxxxx")
    with pytest.raises(ConfigError, match="cannot be read"):
        export_adapter(folder, tmp_path / "no.gguf", tmp_path / "one.gguf")


def test_a_damaged_adapter_is_one_sentence(adapted, tmp_path):
    like, folder, _ = adapted
    weights = folder / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(ConfigError, match="cannot be read"):
        export_adapter(folder, like, tmp_path / "one.gguf")


def test_a_type_of_weights_that_cannot_be_written_is_refused(tmp_path):
    """The package gguf knows more types than it can write."""
    with pytest.raises(ConfigError, match="not Q4_K"):
        export_gguf(tmp_path, tmp_path / "like.gguf", tmp_path / "one.gguf", "Q4_K")


def test_a_file_beside_which_its_card_cannot_be_named_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"must end in \.gguf"):
        export_gguf(tmp_path, tmp_path / "like.gguf", tmp_path / "mine")
    assert not list(tmp_path.iterdir())
