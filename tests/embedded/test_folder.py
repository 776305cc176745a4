"""Folders that cannot be used, and what is said of them."""

import json
import time

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from batuta.embedded import EmbeddedClient, KVCache, Qwen2, Qwen2Config
from batuta.embedded.model_files import SafetensorsFile
from batuta.errors import ConfigError
from embedded import making


@pytest.fixture
def copy(folder, tmp_path):
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def refused(folder, *named):
    with pytest.raises(ConfigError) as caught:
        EmbeddedClient.open(folder)
    sentence = str(caught.value)
    assert all(name in sentence for name in (str(folder), *named)), sentence
    assert "\n" not in sentence


def edit(path, **changes):
    data = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in data.items() if value != "absent"}))


def test_opens_within_fifty_milliseconds(folder):
    took = []
    for _ in range(5):
        start = time.process_time()
        EmbeddedClient.open(folder)
        took.append(time.process_time() - start)
    assert min(took) < 0.05


def test_a_missing_folder(tmp_path):
    refused(tmp_path / "nowhere", "no such folder")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_or_damaged_file(copy, name):
    (copy / name).write_bytes(b"\0\0")
    refused(copy, name)
    (copy / name).unlink()
    refused(copy, name)
    (copy / name).mkdir()
    refused(copy, name)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "generation_config.json"])
def test_json_of_another_kind(copy, name):
    (copy / name).write_text("[1]")
    refused(copy, name)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("model_type", "llama"),
        ("hidden_act", "gelu"),
        ("use_sliding_window", True),
        ("rope_parameters", {"rope_type": "yarn", "rope_theta": 1e4}),
        ("rope_parameters", {"rope_type": "default"}),
        ("hidden_size", 50),
        ("num_attention_heads", 5),
        ("num_key_value_heads", 3),
        ("num_hidden_layers", 0),
        ("num_hidden_layers", 3),
        ("vocab_size", 641),
        ("vocab_size", 300),
        ("vocab_size", "absent"),
        ("intermediate_size", 81),
        ("num_key_value_heads", 4),
        ("tie_word_embeddings", False),
        ("max_position_embeddings", None),
    ],
)
def test_settings_that_do_not_fit(copy, setting, value):
    edit(copy / "config.json", **{setting: value})
    refused(copy)


def test_a_scaled_rotation_of_older_folders_is_refused(copy):
    older = {"rope_parameters": "absent", "rope_theta": 1e4}
    edit(copy / "config.json", **older, rope_scaling={"rope_type": "linear", "factor": 2.0})
    refused(copy, "rope_type", "linear")


def test_the_older_form_of_the_rotation_gives_the_same_model(copy, folder):
    edit(copy / "config.json", rope_parameters="absent", rope_theta=10000.0, rope_scaling=None)
    assert logits(copy).tolist() == logits(folder).tolist()
    edit(copy / "config.json", rope_theta=5000.0)
    assert logits(copy).tolist() != logits(folder).tolist()


def logits(folder):
    shape = Qwen2Config.read(json.loads((folder / "config.json").read_text()))
    network = Qwen2(shape, SafetensorsFile.read(folder / "model.safetensors"))
    return network.logits([5, 6, 7], KVCache(shape, 3))


def test_tensors_that_do_not_fit(copy):
    path = copy / "model.safetensors"
    tensors = load_file(path)
    name = "model.layers.1.self_attn.k_proj.bias"
    for changed, said in (
        ({}, "no tensor"),
        ({name: tensors[name][:-1]}, "shape (23,), but config.json requires (24,)"),
        ({name: tensors[name].astype(np.float64)}, "F64"),
        ({name: tensors[name] * np.nan}, "not finite"),
    ):
        rest = {key: value for key, value in tensors.items() if key != name}
        save_file(rest | changed, path)
        refused(copy, name, "model.safetensors", said)


def test_half_precision_is_read_as_it_is(copy):
    path = copy / "model.safetensors"
    halves = {name: values.astype(np.float16) for name, values in load_file(path).items()}
    save_file({name: values.astype(np.float32) for name, values in halves.items()}, path)
    exact = logits(copy)
    save_file(halves, path)
    assert logits(copy).tolist() == exact.tolist()


def test_another_chat_template(copy):
    (copy / "chat_template.jinja").write_text(making.CHAT_TEMPLATE + "\n")
    refused(copy, "chat_template.jinja")
    (copy / "chat_template.jinja").unlink()
    refused(copy, "tokenizer_config.json has no chat_template")
    edit(copy / "tokenizer_config.json", chat_template=making.CHAT_TEMPLATE)
    assert EmbeddedClient.open(copy)
    edit(copy / "tokenizer_config.json", chat_template="{{ messages }}")
    refused(copy, "tokenizer_config.json")


def test_the_end_token_may_stand_in_either_file(copy):
    (copy / "generation_config.json").unlink()
    assert EmbeddedClient.open(copy)
    edit(copy / "config.json", eos_token_id=None)
    refused(copy, "eos_token_id")
    (copy / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    assert EmbeddedClient.open(copy)
    (copy / "generation_config.json").write_text('{"eos_token_id": []}')
    refused(copy, "eos_token_id")
