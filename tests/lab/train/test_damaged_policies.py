"""A policy's folder that is spoilt: one sentence that names it, whatever the libraries raise."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from batuta.errors import ConfigError
from batuta.lab.train.gguf_files import export_gguf
from batuta.lab.train.model import load_policy
from batuta.lab.train.preflight import check_training
from lab.train.stage import LIBRARIES, settings

pytestmark = LIBRARIES
WEIGHTS = "model.safetensors"


def cut_weights(folder: Path) -> None:
    whole = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(whole[: len(whole) // 2])


def empty_weights(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(b"")


def without_a_layer(folder: Path) -> None:
    weights = load_file(folder / WEIGHTS)
    kept = {name: tensor for name, tensor in weights.items() if ".layers.1." not in name}
    save_file(kept, folder / WEIGHTS, metadata={"format": "pt"})


def set_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def narrower(folder: Path) -> None:
    set_config(folder, intermediate_size=64)


def heads_by_name(folder: Path) -> None:
    set_config(folder, num_attention_heads="four")


def no_heads(folder: Path) -> None:
    set_config(folder, num_attention_heads=0)


def empty_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")


def spoilt_template(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{% if %}")


def template_that_refuses(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{{ raise_exception('a system message first') }}")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (cut_weights, "is damaged"),
        (empty_weights, "is damaged"),
        (narrower, "belong to different models"),
        (heads_by_name, "num_attention_heads"),
        (no_heads, "correct its config.json"),
        (empty_tokenizer, "is damaged"),
        (without_a_layer, r"lacks \d+ of its model's weights, for example model\.layers\.1\."),
        (spoilt_template, "chat template in .* cannot be rendered"),
        (template_that_refuses, "a system message first"),
    ],
)
def test_a_spoilt_folder_is_one_sentence(
    random_policy: Path, tmp_path: Path, spoil: Callable[[Path], None], said: str
) -> None:
    folder = tmp_path / "policy"
    shutil.copytree(random_policy, folder)
    spoil(folder)
    with pytest.raises(ConfigError, match=said) as raised:
        load_policy(str(folder), None)
    assert str(folder) in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (heads_by_name, "has no model that transformers can read"),
        (no_heads, "correct its config.json"),
        (empty_tokenizer, "the tokenizer in .* is damaged"),
    ],
)
def test_the_check_says_it_and_goes_on(
    random_policy: Path, tmp_path: Path, spoil: Callable[[Path], None], said: str
) -> None:
    folder = tmp_path / "policy"
    shutil.copytree(random_policy, folder)
    spoil(folder)
    found = check_training(settings(tmp_path / "run", policy={"start": str(folder)}))
    (sentence,) = found.missing
    assert re.search(said, sentence) and str(folder) in sentence
    assert "prompt" in {figure.name for figure in found.figures}


@pytest.mark.skipif(importlib.util.find_spec("gguf") is None, reason="gguf is not installed")
@pytest.mark.parametrize("spoil", [cut_weights, lambda f: (f / "config.json").write_text("[]")])
def test_a_spoilt_folder_is_not_exported(
    random_policy: Path, tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    gguf: Any = importlib.import_module("gguf")

    like, folder = tmp_path / "like.gguf", tmp_path / "policy"
    writer = gguf.GGUFWriter(str(like), "llama")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    shutil.copytree(random_policy, folder)
    spoil(folder)
    with pytest.raises(ConfigError, match=r"cannot be read|only Llama and Qwen2 models"):
        export_gguf(folder, like, tmp_path / "out.gguf")
