"""Adapters of an earlier stage: what is loaded, gone on with, merged and served is what was saved."""

import json
import os
import shutil
from itertools import pairwise

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from batuta.core import Request, Sampling, user_message
from batuta.embedded.adapters import is_adapter
from batuta.embedded.client import EmbeddedClient
from batuta.embedded.policy import ConductorCard, open_policy
from batuta.embedded.qwen2 import KVCache
from batuta.errors import ConfigError
from batuta.lab.commands.train import app
from batuta.lab.train.conductor_training import train_conductor
from batuta.lab.train.model import (
    load_policy,
    load_to_adapt,
    load_trainable,
    merge_policy,
    read_tokenizer,
    save_stage,
)
from batuta.lab.train.preflight import check_training
from batuta.lab.train.settings import LoraSettings
from batuta.language import PromptOptions
from lab.train.stage import LIBRARIES, settings

pytestmark = LIBRARIES
TOKENS = torch.tensor([[7, 30, 261, 44, 99, 120, 8, 300]])
ALL_LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def logps(model):
    model.eval()
    with torch.inference_mode():
        return torch.log_softmax(model(TOKENS).logits.float(), -1)


def same(one, other):
    torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)


def adapt(base, folder, card=True, **about):
    """Adapters with B ≠ 0 on the model in `base`, saved in `folder`; returns the adapted model."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    about = {"r": 4, "lora_alpha": 8, "target_modules": ALL_LINEAR, **about}
    adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **about))
    torch.manual_seed(5)
    for name, weight in adapted.named_parameters():
        if "lora_" in name and "magnitude" not in name:
            torch.nn.init.normal_(weight, std=0.2)
    adapted.save_pretrained(folder)
    read_tokenizer(str(base)).save_pretrained(folder)
    if card:
        shown = PromptOptions(descriptions=False, compact=True)
        ConductorCard(name="adapted", rendering=shown, max_tokens=12).write(folder)
    return adapted


def set_base(folder, base):
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"base_model_name_or_path": base}))


@pytest.fixture
def adapters(random_policy, tmp_path):
    adapted = adapt(random_policy, tmp_path / "adapters")
    return tmp_path / "adapters", logps(adapted)


TIED = pytest.mark.filterwarnings(
    "ignore:Model has `tie_word:UserWarning", "ignore:Setting `save_emb:UserWarning",
    "ignore:Model with `tie_word:UserWarning", "ignore:Input and output emb:UserWarning",
)  # fmt: skip
"""PEFT's remarks on adapters of tied matrices."""
KINDS = {
    "plain": {},
    "rank-stabilised": {"use_rslora": True},
    "some layers": {"target_modules": ["q_proj", "v_proj"], "r": 3, "lora_alpha": 5},
    "DoRA": {"use_dora": True},
    "a rank for each": {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"v_proj": 1}},
    "a tied head": {"target_modules": [*ALL_LINEAR, "lm_head"]},
    "a table": {"target_modules": ["q_proj", "embed_tokens"]},
}


@TIED
@pytest.mark.parametrize("about", KINDS.values(), ids=KINDS)
def test_the_loaded_policy_says_what_the_saved_one_said(random_policy, tmp_path, about):
    adapted = adapt(random_policy, tmp_path / "adapters", **about)
    said = logps(adapted)
    assert (said - logps(load_policy(str(random_policy), None)[0])).abs().max() > 0.05
    loaded, tokenizer = load_policy(str(tmp_path / "adapters"), None)
    assert not isinstance(loaded, PeftModel)
    same(logps(loaded), said)
    written = save_stage(adapted, tokenizer, settings(tmp_path), "distilled")
    same(logps(load_policy(str(written), None)[0]), said)


@pytest.mark.parametrize(
    "policy", [{}, {"lora": {"rank": 2}}, {"upper_layers": 1}], ids=["all", "lora", "layers"]
)
def test_a_stage_of_one_process_begins_from_the_adapters(adapters, tmp_path, policy):
    folder, said = adapters
    told = settings(tmp_path, policy={"start": str(folder), **policy})
    model, _ = load_trainable(str(folder), told)
    same(logps(model), said)


class TestReinforcement:
    def train(self, folder, out, **changes):
        told = settings(
            out,
            policy={"start": str(folder), "lora": {"rank": 4, "alpha": 8}},
            optimiser={"steps": 1, "learning_rate": 1e-12, **changes},
        )
        return train_conductor(told, ["pytest"], lambda line: None)

    @pytest.mark.parametrize("changes", [{}, {"kl": 0.1}], ids=["alone", "with a reference"])
    def test_a_second_stage_goes_on_with_the_adapters_of_the_first(
        self, adapters, tmp_path, changes
    ):
        folder, said = adapters
        written = self.train(folder, tmp_path / "run", **changes)
        assert (written / "adapter_model.safetensors").is_file()
        same(logps(load_policy(str(written), None)[0]), said)

    def test_a_whole_policy_takes_the_place_of_adapters(self, adapters, random_policy, tmp_path):
        """A folder that had both would be served as the adapters of the earlier training."""
        folder, said = adapters
        run = tmp_path / "run"
        shutil.copytree(folder, run / "policy")
        told = settings(run, policy={"start": str(random_policy)}, optimiser={"steps": 1})
        policy = train_conductor(told, ["pytest"], lambda line: None)
        assert not is_adapter(policy)
        assert (logps(load_policy(str(policy), None)[0]) - said).abs().max() > 0.05
        out = tmp_path / "whole"
        shutil.copytree(folder, out)
        merge_policy(folder, out)
        assert not is_adapter(out)

    def test_three_stages_add_up_and_the_last_is_served(self, adapters, tmp_path):
        folder, said = adapters
        first = self.train(folder, tmp_path / "one", learning_rate=1e-2)
        second = self.train(first, tmp_path / "two", learning_rate=1e-2)
        one, two = (logps(load_policy(str(each), None)[0]) for each in (first, second))
        saved = [load_file(each / "adapter_model.safetensors") for each in (folder, first, second)]
        for older, newer in pairwise(saved):
            assert older.keys() == newer.keys()
            moved = max(float((newer[name] - older[name]).abs().max()) for name in older)
            assert moved < 0.05, "a step moves little: what the stages before learned is there"
        assert (one - said).abs().max() < 0.5 and (two - said).abs().max() < 0.8
        open_policy(second)

    @pytest.mark.parametrize(
        "lora",
        [{"rank": 8, "alpha": 8}, {"rank": 4}, {"rank": 4, "alpha": 8, "targets": ["q_proj"]}],
    )
    def test_other_adapters_than_the_settings_ask_for_are_refused(self, adapters, tmp_path, lora):
        folder, _ = adapters
        with pytest.raises(ConfigError, match=r"adapters in .* with these|batuta train merge"):
            load_to_adapt(str(folder), None, LoraSettings(**lora))

    def test_the_check_knows_the_model_behind_adapters_and_says_what_cannot_go_on(
        self, adapters, tmp_path
    ):
        folder, _ = adapters
        right = {"start": str(folder), "lora": {"rank": 4, "alpha": 8}}
        found = check_training(settings(tmp_path / "run", policy=right))
        assert not found.missing
        assert {figure.name for figure in found.figures} >= {"parameters", "memory"}
        wrong = {"start": str(folder), "lora": {"rank": 16}}
        found = check_training(settings(tmp_path / "run", policy=wrong))
        (said,) = found.missing
        assert "rank 4 and alpha 8" in said and "batuta train merge" in said

    @pytest.mark.parametrize("tokenizer", [True, False])
    def test_the_check_reports_the_rest_without_the_base_model(self, adapters, tmp_path, tokenizer):
        folder, _ = adapters
        set_base(folder, None)
        if not tokenizer:
            for path in folder.glob("tokenizer*"):
                path.unlink()
        found = check_training(settings(tmp_path / "run", policy={"start": str(folder)}))
        (said,) = found.missing
        assert "does not name the adapters' base model" in said
        assert {figure.name for figure in found.figures} >= {"parameters", "prompt"}


class TestServing:
    async def test_adapters_are_computed_with_their_model_without_torch(self, adapters, tmp_path):
        folder, _ = adapters
        whole = merge_policy(folder, tmp_path / "whole")
        request = Request(
            messages=(user_message("Add 12 and 30."),),
            sampling=Sampling(temperature=0.0, max_tokens=12),
        )
        of_adapters = await EmbeddedClient.open(folder).complete(request)
        of_whole = await EmbeddedClient.open(whole).complete(request)
        assert of_adapters.text == of_whole.text != ""
        ours = EmbeddedClient.open(folder)._model
        model, _ = load_policy(str(whole), None)
        logits = torch.tensor(ours.logits(TOKENS[0].tolist(), KVCache(ours.shape, 64)))
        same(torch.log_softmax(logits, -1), logps(model)[0, -1])
        names = [open_policy(each)[2] for each in (folder, whole)]
        assert names[0].startswith("embedded/adapted@") and names[0] != names[1]

    def test_the_command_answers_with_adapters_and_with_what_it_merged(
        self, adapters, tmp_path, training_line
    ):
        folder, _ = adapters
        whole, here = tmp_path / "whole", {"cwd": tmp_path, "env": dict(os.environ)}
        done = training_line.run("train", "merge", str(folder), "--out", str(whole), **here)
        assert (done.returncode, done.stdout) == (0, f"{whole}\n"), done.stderr
        said = []
        for place in (folder, whole):
            done = training_line.run(
                "ask", "Add 12 and 30.", "--pool", "rehearsal", "--conductor", str(place),
                "--json", **here,
            )  # fmt: skip
            found = json.loads(done.stdout)
            assert found["conductor"].startswith("embedded/adapted@"), done.stderr
            said.append(found["rounds"][0]["workflow"])
        assert said[0] == said[1]

    def test_the_model_is_found_beside_the_adapters(self, random_policy, tmp_path, monkeypatch):
        shutil.copytree(random_policy, tmp_path / "models" / "base")
        adapt(random_policy, tmp_path / "runs" / "one" / "policy")
        folder = tmp_path / "runs" / "one" / "policy"
        set_base(folder, "models/base")
        monkeypatch.chdir(tmp_path / "runs")
        EmbeddedClient.open(folder)
        load_policy(str(folder), None)

    @pytest.mark.parametrize("base", ["nobody/nothing", None, "", 7])
    def test_a_model_that_is_not_here_is_said(self, adapters, base, monkeypatch):
        # the hub's library would wait for the network, again and again for 45 seconds
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        folder, _ = adapters
        set_base(folder, base)
        wanted = (
            "--enable-lora.*batuta train merge" if base == "nobody/nothing" else "does not name"
        )
        with pytest.raises(ConfigError, match=wanted):
            EmbeddedClient.open(folder)
        with pytest.raises(ConfigError, match="adapters"):
            load_policy(str(folder), None)

    @pytest.mark.parametrize("about", [{"use_dora": True}, {"target_modules": ["lm_head"]}])
    @TIED
    def test_what_is_not_computed_without_torch_is_refused(self, random_policy, tmp_path, about):
        adapt(random_policy, tmp_path / "adapters", **about)
        with pytest.raises(ConfigError, match="batuta train merge"):
            EmbeddedClient.open(tmp_path / "adapters")

    @pytest.mark.parametrize("rank", [0, None, "many", float("inf")])
    def test_a_rank_that_is_no_number_is_one_sentence(self, adapters, rank):
        folder, _ = adapters
        path = folder / "adapter_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"r": rank}))
        with pytest.raises(ConfigError, match="is not as PEFT saves it"):
            EmbeddedClient.open(folder)


def test_adapters_of_another_model_or_without_a_matrix_are_refused(adapters, tmp_path):
    folder, _ = adapters
    path = folder / "adapter_model.safetensors"
    weights = load_file(path)
    name = next(iter(weights))
    save_file({n: w for n, w in weights.items() if n != name}, path)
    with pytest.raises(ConfigError, match=r"matrices differ"):
        load_policy(str(folder), None)
    save_file({**weights, name: torch.zeros(4, 9)}, path)
    with pytest.raises(ConfigError, match=r"damaged|belong to different models"):
        load_policy(str(folder), None)
    path.write_bytes(b"no")
    with pytest.raises(ConfigError):
        load_policy(str(folder), None)


def test_neither_adapters_nor_what_they_change_are_written_over(adapters, random_policy):
    folder, _ = adapters
    before = {path: path.read_bytes() for path in random_policy.iterdir() if path.is_file()}
    for out in (folder, random_policy):
        with pytest.raises(ConfigError, match="the adapters or of their model"):
            merge_policy(folder, out)
    assert before == {path: path.read_bytes() for path in random_policy.iterdir() if path.is_file()}


def test_the_file_of_the_base_model_is_not_written_over(tmp_path):
    base = tmp_path / "base.gguf"
    base.write_bytes(b"GGUF")
    command = ["export", str(tmp_path), "--like", str(base), "--out", f"{tmp_path}/./base.gguf"]
    found = CliRunner().invoke(app, command).exception
    assert isinstance(found, ConfigError) and "--like itself" in str(found)
    assert base.read_bytes() == b"GGUF"


def test_adapters_on_adapters_and_no_adapters_are_refused(adapters, random_policy, tmp_path):
    folder, _ = adapters
    with pytest.raises(ConfigError, match="has no PEFT adapters"):
        merge_policy(random_policy, tmp_path / "whole")
    set_base(folder, str(folder))
    with pytest.raises(ConfigError, match="is itself a LoRA adapter"):
        load_policy(str(folder), None)


def test_targets_that_the_model_lacks_are_said_before_and_refused_after(tmp_path, random_policy):
    told = settings(
        tmp_path, policy={"start": str(random_policy), "lora": {"targets": ["nonsense"]}}
    )
    assert any("policy.lora.targets" in each for each in check_training(told).missing)
    with pytest.raises(ConfigError, match=r"policy\.lora\.targets = \['nonsense'\]"):
        train_conductor(told, ["pytest"], lambda line: None)
