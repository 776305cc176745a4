"""A policy's folder: what is read from it is what was saved in it."""

import json

import pytest
import torch
from transformers import AutoTokenizer

from batuta.embedded.policy import ConductorCard
from batuta.errors import ConfigError
from batuta.lab.train.device import choose_attention
from batuta.lab.train.model import (
    load_policy,
    make_model,
    make_tokenizer,
    policy_card,
    read_tokenizer,
    save_stage,
)
from lab.train.stage import LIBRARIES, ONE, TWO, settings

pytestmark = LIBRARIES


@pytest.fixture
def tokenizer():
    return make_tokenizer([ONE, TWO] * 3, 400)


@pytest.fixture
def folder(tmp_path, tokenizer):
    """As training keeps a checkpoint: a model and its tokenizer, and no card yet."""
    make_model(tokenizer, hidden=16, layers=1, heads=2, inner=16).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


def test_a_folder_without_a_card_cuts_its_texts_as_it_was_trained_to(folder, tokenizer):
    expected = tokenizer(TWO)["input_ids"]
    assert AutoTokenizer.from_pretrained(folder)(TWO)["input_ids"] != expected, "the trap"
    assert load_policy(str(folder), None)[1](TWO)["input_ids"] == expected


def test_one_that_an_older_transformers_wrote_too(folder, tokenizer):
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    assert read_tokenizer(str(folder))(TWO)["input_ids"] == tokenizer(TWO)["input_ids"]


@pytest.mark.parametrize("told", ['{"tokenizer_class": "Qwen2Tokenizer"}', None])
def test_any_other_folder_is_read_as_its_model_says(folder, told):
    path = folder / "tokenizer_config.json"
    path.unlink() if told is None else path.write_text(told)
    usual = AutoTokenizer.from_pretrained(folder)
    assert read_tokenizer(str(folder))(TWO)["input_ids"] == usual(TWO)["input_ids"]


@pytest.mark.parametrize(("told", "why"), [("no JSON", "not JSON"), ("[1]", "no JSON object")])
def test_a_spoilt_description_of_the_tokenizer_is_refused_by_name(folder, told, why):
    (folder / "tokenizer_config.json").write_text(told)
    with pytest.raises(ConfigError, match=rf"tokenizer_config\.json.*{why}"):
        load_policy(str(folder), None)


def test_a_tokenizer_with_more_pieces_than_its_model_knows_is_refused(folder):
    make_tokenizer([ONE, TWO, "other words"] * 3, 420).save_pretrained(folder)
    with pytest.raises(ConfigError, match=r"has \d+ tokens and the model only \d+"):
        load_policy(str(folder), None)


@pytest.mark.parametrize(("share", "rounds"), [(0.0, 1), (0.5, 2)])
def test_the_card_says_how_many_rounds_were_learned(tmp_path, tokenizer, share, rounds):
    told = settings(tmp_path, recursion={"share": share})
    model = make_model(tokenizer, hidden=16, layers=1, heads=2, inner=16)
    assert ConductorCard.read(save_stage(model, tokenizer, told, "rejection")).rounds == rounds
    assert policy_card(told).rounds == rounds


def test_on_a_gpu_cudnns_attention_is_not_used(random_policy, monkeypatch, tmp_path):
    """On Hopper GPUs its gradients may be no numbers."""
    model, _ = load_policy(str(random_policy), None)
    chosen: dict[str, bool] = {}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", chosen.update)
    choose_attention(model, settings(tmp_path, policy={"bf16": True}))
    assert chosen == {"enabled": False}
    assert model.config._attn_implementation == "sdpa"
