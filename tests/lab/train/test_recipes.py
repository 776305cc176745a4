"""The recipe for 7 billion parameters: its figures by hand, and its first steps in small.

The true model has no room here and vLLM no CPU, so a very small Qwen2, fitted on four drafts so
that it writes workflows at all, stands for the one, and transformers samples in the place of the
other. Prompts, pool, dialects, reward and trainer are the recipe's.
"""

from __future__ import annotations

import json
import re
from contextlib import AsyncExitStack
from importlib.metadata import version
from itertools import cycle
from pathlib import Path

import pytest
import torch
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils.launch import prepare_multi_gpu_env
from anyio import to_thread
from packaging.specifiers import SpecifierSet

from batuta.config.settings import Settings
from batuta.config.settings_file import read_settings
from batuta.core import Pool, Worker, WorkerId
from batuta.lab.commands.train_settings import override_settings
from batuta.lab.tasks.datasets import find_split
from batuta.lab.train.conductor_training import train_conductor
from batuta.lab.train.episodes import make_episodes
from batuta.lab.train.machine import (
    GIB,
    KNOWN_ARCHITECTURES,
    Devices,
    divisibility_problems,
    estimate_memory,
    node_problems,
    read_devices,
    supported_vllm,
    vllm_problem,
)
from batuta.lab.train.model import load_policy, make_model, make_tokenizer
from batuta.lab.train.preflight import check_training
from batuta.lab.train.questions import draw_questions
from batuta.lab.train.settings import TrainSettings, WarmupSettings
from batuta.lab.train.warmup import fit_warmup
from batuta.language.prompt import PREFILL
from fakes import FakeAnthropic, FakeGemini, FakeOpenAI
from fakes.server import KEY
from lab.train.loopback import questions_file
from lab.train.stage import LIBRARIES, metrics

pytestmark = [
    *LIBRARIES,
    pytest.mark.filterwarnings(
        "ignore:`gradient_checkpointing_.*able` is deprecated:FutureWarning"
    ),
]
RECIPE = Path(__file__).parents[3] / "recipes" / "conductor-7b"
SMALL = RECIPE.parent / "rehearsal-conductor" / "conductor.toml"
FULL, LORA = RECIPE / "full.toml", RECIPE / "one-gpu-lora.toml"
POOLS, RECURSION = RECIPE / "random-pools.toml", RECIPE / "recursion.toml"
SEVEN = KNOWN_ARCHITECTURES["Qwen/Qwen2.5-7B-Instruct"]
PROMPT = 1500


# -- figures ------------------------------------------------------------------------------


def test_the_recipe_has_the_papers_hyper_parameters():
    told = read_settings(FULL, TrainSettings)
    o = told.optimiser
    assert (o.steps, o.questions, o.group) == (200, 4, 64)
    assert (o.learning_rate, o.betas, o.schedule, o.warmup) == (1e-6, (0.9, 0.999), "cosine", 0.03)
    assert (o.clip, o.kl, o.scale, o.loss, o.entropy) == (0.2, 0.0, "group", "grpo", 0.0)
    assert (o.temperature, o.completion) == (1.0, 1024)
    assert (told.reward.malformed, told.reward.wrong, told.reward.right) == (0.0, 0.5, 1.0)
    assert told.reward.cost == "none"
    shown = told.prompt.rendering()
    assert shown.examples and not (shown.compact or shown.descriptions or shown.prices)


def test_the_variant_of_one_gpu_differs_where_it_says():
    full, lora = (
        read_settings(FULL, TrainSettings).model_dump(),
        read_settings(LORA, TrainSettings).model_dump(),
    )
    differ = {
        f"{section}.{key}"
        for section in ("policy", "pool", "prompt", "reward", "optimiser", "log")
        for key in full[section]
        if full[section][key] != lora[section][key]
    }
    assert differ == {"policy.lora", "optimiser.learning_rate", "optimiser.vllm_memory"}


def test_the_later_stages_begin_from_the_first_and_differ_where_they_say():
    full = read_settings(FULL, TrainSettings)
    pools, recursion = (read_settings(file, TrainSettings) for file in (POOLS, RECURSION))
    first = str(full.output / "policy")
    assert pools.policy.start == recursion.policy.start == first
    assert len({full.output, pools.output, recursion.output}) == 3
    for later in (pools, recursion):
        moved = {"steps", "questions", "group"}
        assert later.optimiser.model_dump(exclude=moved) == full.optimiser.model_dump(exclude=moved)
        assert later.prompt == full.prompt and later.reward == full.reward
    assert (pools.pool.fewest, pools.pool.most, pools.pool.permute) == (3, 6, True)
    o, again = recursion.optimiser, recursion.recursion
    assert (o.steps, o.group, again.discount, again.rounds) == (20, 32, 0.25, 2)
    seconds = again.count_second_rounds(o.questions)
    assert seconds == o.questions - seconds == 18, "each question has a first and a second round"
    assert set(recursion.curriculum[0].tasks) == {"rlpr:learn", "livecodebench:v1"}


ABSENT_HERE = re.compile(
    r"_API_KEY is not set|`batuta tasks fetch|vllm is not installed|needs a GPU|offload|has no GPU|"
    r"no room|takes [\d.]+ GiB"
)
"""What a machine without GPU, keys and questions lacks, whatever the file says."""


LAUNCHED = {"eight-gpus.toml": 4, "full.toml": 2}
"""Processes that learn, where the recipe's commands start more than one."""


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.name for path in RECIPE.glob("*.toml")))
def test_the_check_finds_nothing_wrong_with_any_file(name, tmp_path, monkeypatch):
    """As far as a machine can tell that has no GPU, key, question or vLLM."""
    file = RECIPE / name
    if name in {"pool.toml", "evaluate.toml"}:
        assert len(read_settings(file, Settings).workers) == 7
        return
    monkeypatch.chdir(RECIPE.parents[1])
    ranks = LAUNCHED.get(name, 1)
    environ = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "BATUTA_DATA": str(tmp_path)}  # fmt: skip
    changes = [f"output='{tmp_path}'", "policy.start='Qwen/Qwen2.5-7B-Instruct'"]
    told = override_settings(read_settings(file, TrainSettings), changes, "the test")
    report = check_training(told, environ)
    figures = {figure.name: figure.value for figure in report.figures}
    assert [line for line in report.missing if not ABSENT_HERE.search(line)] == []
    o = told.optimiser
    assert figures["workflows"] == o.steps * o.questions * o.group
    assert figures["parameters"] >= SIZE
    assert figures["dollars at most"] > figures["dollars"] > 0


def test_one_node_of_eight_learns_what_the_paper_says_on_four_and_answers_on_four():
    full, eight = (read_settings(RECIPE / n, TrainSettings) for n in ("full.toml", "eight-gpus.toml"))  # fmt: skip
    moved = {"sampler", "vllm_memory", "vllm_server"}
    assert eight.optimiser.sampler == "vllm-server"
    assert eight.optimiser.model_dump(exclude=moved) == full.optimiser.model_dump(exclude=moved)
    rest = {"optimiser"}
    assert eight.model_dump(exclude=rest) == full.model_dump(exclude=rest)
    command = ["--config_file", str(RECIPE / "eight-gpus.yaml"), "-m", "batuta"]
    launched, _, _ = _validate_launch_command(launch_command_parser().parse_args(command))
    assert (launched.num_processes, launched.gpu_ids) == (4, "0,1,2,3")
    environ = prepare_multi_gpu_env(launched)
    devices = read_devices({**environ, "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"})
    assert devices == Devices(processes=4, local_processes=4, sharded=True)
    assert not divisibility_problems(eight, 4)
    found = estimate_memory(eight, SEVEN, PROMPT, devices, device_bytes=80 * GIB)
    assert found.total < 80 * GIB and found.host == 0


README = (RECIPE / "README.md").read_text(encoding="utf-8")


def test_two_nodes_have_as_many_questions_as_the_readme_gives_them():
    assert divisibility_problems(read_settings(FULL, TrainSettings), 16)
    changes = re.findall(r"--set (optimiser\.(?:questions|group)=16)", README)
    assert len(changes) == 2
    told = override_settings(read_settings(FULL, TrainSettings), changes, "the README")
    assert not divisibility_problems(told, 16)
    assert told.optimiser.questions * told.optimiser.group == 256


def test_every_set_that_is_asked_is_fetched_by_a_command():
    fetched = {name for line in re.findall(r"for set in (.*?); do batuta tasks fetch", README) for name in line.split()}  # fmt: skip
    for name in fetched:
        find_split(name)
    trained = set()
    for file in RECIPE.glob("*.toml"):
        if file.name not in {"pool.toml", "evaluate.toml"}:
            trained |= {t for stage in read_settings(file, TrainSettings).curriculum for t in stage.tasks}  # fmt: skip
    assert trained <= fetched
    assert {"math-500", "mmlu:test", "rlpr:held-out", "livecodebench:v6-new"} <= fetched - trained


def test_vllm_is_pinned_to_what_the_installed_trl_names():
    wanted = supported_vllm()
    (pinned,) = re.findall(r"trl\[vllm\]==([\d.]+)", README)
    assert pinned == version("trl")
    least, most = re.search(r"vLLM ([\d.]+) to ([\d.]+),", README).groups()
    assert wanted == SpecifierSet(f">={least},<={most}")
    assert vllm_problem(least) is vllm_problem(most) is vllm_problem(f"{most}+cu130") is None
    assert f"needs vllm{wanted}" in vllm_problem("0.10.2")
    assert "trl[vllm]" in vllm_problem("99.0")


def test_evaluation_asks_the_same_workers_and_the_trained_policy():
    pool, served = (read_settings(RECIPE / n, Settings) for n in ("pool.toml", "evaluate.toml"))
    assert served.workers == pool.workers
    assert (served.conductor.provider, served.conductor.card) == (
        "vllm",
        "runs/conductor-7b/policy",
    )
    assert "--pool recipes/conductor-7b/evaluate.toml" in README


def test_a_later_stage_says_that_the_first_was_not_done(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = read_settings(POOLS, TrainSettings)
    missing = " ".join(check_training(told, {"BATUTA_DATA": str(tmp_path)}).missing)
    assert "runs/conductor-7b/policy" in missing


def test_seven_workers_of_four_providers_have_the_papers_limits():
    workers = read_settings(RECIPE / "pool.toml", Settings).workers
    assert len(workers) == 7
    assert {w.provider for w in workers} == {"openai", "anthropic", "gemini", "openrouter"}
    assert {w.sampling.max_tokens for w in workers} == {4096}
    thinks = {w.id: w.sampling for w in workers}
    for name, temperature, top_p in (("qwen3-32b", 0.7, 0.8), ("qwen3-32b-thinking", 0.6, 0.95)):
        own = thinks[name]
        assert (own.temperature, own.top_p, own.top_k) == (temperature, top_p, 20)


LAYER = 3 * 3584 * 18_944 + 2 * 3584 * 3584 + 2 * 512 * 3584 + 3584 + 2 * 512 + 2 * 3584
SIZE = 28 * LAYER + 2 * 152_064 * 3584 + 3584
"""Numbers of Qwen2.5-7B: 28 layers, embedding and output matrix, the last norm."""


def test_all_weights_take_sixteen_bytes_a_parameter_and_a_copy_in_bf16():
    found = estimate_memory(read_settings(FULL, TrainSettings), SEVEN, PROMPT, Devices())
    assert found.parameters == found.trainable == SIZE == 7_615_616_512
    assert (found.weights, found.gradients, found.moments) == (4 * SIZE, 4 * SIZE, 8 * SIZE)
    assert found.working_copy == 2 * SIZE and found.host == 0


def test_two_processes_hold_half_each_in_the_hosts_memory():
    found = estimate_memory(
        read_settings(FULL, TrainSettings),
        SEVEN,
        PROMPT,
        Devices(processes=2, local_processes=2, sharded=True, offloaded=True),
        device_bytes=80 * GIB,
    )
    assert (found.weights, found.gradients, found.moments) == (0, 0, 0)
    assert 2 * found.host == 16 * SIZE
    assert found.working_copy == 2 * 2 * SIZE // 28, "about two layers at a time"
    assert found.generation == int(0.45 * 80 * GIB)
    assert found.total < 80 * GIB


def test_adapters_leave_the_moments_of_seven_billion_out():
    told = read_settings(LORA, TrainSettings)
    found = estimate_memory(told, SEVEN, PROMPT, Devices(), device_bytes=80 * GIB)
    inner, kept, wide = 3584, 512, 18_944
    each = 2 * (inner + inner) + 2 * (inner + kept) + 3 * (inner + wide)
    trained = 28 * told.policy.lora.rank * each
    assert found.trainable == trained
    frozen = SIZE - 28 * (3584 + 2 * 512 + 2 * 3584) - 3584 - 152_064 * 3584
    assert found.weights == 2 * frozen + 4 * (SIZE - frozen + trained), "matrices lie in bf16"
    assert found.working_copy == 2 * trained
    assert (found.gradients, found.moments) == (4 * trained, 8 * trained)
    assert found.total < 80 * GIB


def estimated(*changes):
    told = override_settings(read_settings(FULL, TrainSettings), list(changes), "the test")
    return estimate_memory(told, SEVEN, PROMPT, Devices(), device_bytes=80 * GIB)


def test_only_upper_layers_have_gradients_moments_and_activations():
    whole, upper = estimated(), estimated("policy.upper_layers=2")
    assert (upper.parameters, upper.weights) == (whole.parameters, whole.weights)
    layer = 2 * 3584**2 + 2 * 3584 * 512 + 3 * 3584 * 18_944 + 3584 + 2 * 512 + 2 * 3584
    assert upper.trainable == 2 * layer + 3584
    assert (upper.gradients, upper.moments) == (4 * upper.trainable, 8 * upper.trainable)
    assert upper.working_copy == 2 * upper.trainable
    assert upper.activations < whole.activations


def test_a_sleeping_vllm_leaves_its_share_to_the_update():
    awake, asleep = estimated("optimiser.vllm_sleep=false"), estimated("optimiser.vllm_sleep=true")
    assert awake.generation == asleep.generation
    assert awake.total - asleep.total == min(awake.generation, awake.gradients + awake.activations)


def test_accelerate_reads_its_file_and_tells_the_check_how_the_training_is_divided():
    command = ["--config_file", str(RECIPE / "two-gpus.yaml"), "-m", "batuta"]
    told, _, _ = _validate_launch_command(launch_command_parser().parse_args(command))
    environ = prepare_multi_gpu_env(told)
    assert (told.num_processes, told.mixed_precision) == (2, "bf16")
    assert environ["FSDP_VERSION"] == "2" and environ["FSDP_STATE_DICT_TYPE"] == "FULL_STATE_DICT"
    seen = read_devices({**environ, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"})
    assert seen == Devices(processes=2, local_processes=2, sharded=True, offloaded=True)


@pytest.mark.parametrize(
    ("file", "sharded"), [("two-nodes-fsdp.yaml", True), ("two-nodes-lora.yaml", False)]
)
def test_accelerate_reads_the_files_of_two_nodes_and_the_check_reckons_with_them(file, sharded):
    command = ["--config_file", str(RECIPE / file), "--machine_rank", "1",
               "--main_process_ip", "10.0.0.1", "--main_process_port", "29500", "-m", "batuta"]  # fmt: skip
    told, _, _ = _validate_launch_command(launch_command_parser().parse_args(command))
    assert (told.num_processes, told.num_machines, told.machine_rank) == (16, 2, 1)
    assert told.mixed_precision == "bf16"
    environ = prepare_multi_gpu_env(told)
    seen = read_devices({**environ, "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"})
    assert seen == Devices(processes=16, local_processes=8, sharded=sharded)
    assert seen.nodes == 2


def test_two_nodes_share_no_file_of_calls_and_find_the_vllm_server():
    two, one = Devices(processes=16, local_processes=8), Devices(processes=8, local_processes=8)
    told = override_settings(
        read_settings(FULL, TrainSettings),
        ["optimiser.sampler='vllm-server'", "optimiser.vllm_server='http://127.0.0.1:8000'"],
        "the test",
    )
    assert not node_problems(told, one)
    said = " ".join(node_problems(told, two))
    assert "set it to the vLLM node's address" in said and "pool.journal" in said
    right = override_settings(
        told,
        ["optimiser.vllm_server='http://10.0.0.9:8000'", "pool.journal='postgresql://db/calls'"],
        "the test",
    )
    assert not node_problems(right, two)
    for simulated in ("rehearsal", "world2:3"):
        changes = [f"pool.source='{simulated}'", "pool.journal=true"]
        assert not node_problems(override_settings(right, changes, "the test"), two)


def test_the_check_needs_no_key_no_question_and_no_gpu(tmp_path, monkeypatch):
    monkeypatch.chdir(RECIPE.parents[1])
    told = override_settings(
        read_settings(FULL, TrainSettings), [f"output='{tmp_path}'"], "the test"
    )
    report = check_training(told, {"BATUTA_DATA": str(tmp_path)})
    figures = {figure.name: figure.value for figure in report.figures}
    assert not report.is_ready
    missing = " ".join(report.missing)
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "OPENROUTER_API_KEY"):
        assert name in missing
    assert figures["workflows"] == 200 * 4 * 64
    assert 1 <= figures["steps a workflow"] <= 5
    assert figures["calls"] == pytest.approx(51_200 * figures["steps a workflow"], rel=0.01)
    assert figures["dollars"] > 0 and figures["wall time"] > 0
    assert "calls without a price" not in figures, "genai-prices knows all seven"


@pytest.mark.slow
def test_the_check_counts_the_stage_before_and_only_until_it_is_done(tmp_path):
    changes = [f"output='{tmp_path}'", "rejection.rounds=2", "rejection.questions=300"]
    told = override_settings(read_settings(SMALL, TrainSettings), changes, "the test")
    before = check_training(told)
    (sampling,) = (each for each in before.figures if each.name == "rejection sampling")
    assert sampling.value == 2 * 300 * told.rejection.group
    calls = next(each.value for each in before.figures if each.name == "calls")
    share = sampling.value / (
        told.optimiser.steps * told.optimiser.questions * told.optimiser.group
    )
    assert f"{round(calls * share):,} calls" in sampling.source
    assert any("batuta train rejection" in note for note in before.notes)
    (tmp_path / "rejection").mkdir()
    assert "rejection sampling" not in {each.name for each in check_training(told).figures}


def test_the_check_names_a_spoilt_tokenizer(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text("[1]")
    report = check_training(
        override_settings(
            read_settings(SMALL, TrainSettings), [f"policy.start='{tmp_path}'"], "the test"
        )
    )
    assert any("tokenizer_config.json contains no JSON object" in each for each in report.missing)


# -- first steps --------------------------------------------------------------------------


DRAFTS = [
    f'model_id = [{number}]\nsubtasks = ["Solve it."]\naccess_list = [[]]' for number in range(4)
]
"""By number: 0 Gemini, 1 Anthropic, 2 OpenAI, 3 OpenRouter."""
SUM = re.compile(r"What is (\d+) plus (\d+)\?")


def adding(errs):
    """A model that adds and is wrong by one where `errs` says of the first number."""

    def say(body):
        one, two = map(int, SUM.search(str(body)).groups())
        return f"I add.\nAnswer: {one + two + int(errs(one))}"

    return say


class Providers:
    """The recipe's four providers on loopback, each with its own way to err."""

    def __init__(self):
        self.openai = FakeOpenAI(adding(lambda n: n % 3 == 0))
        self.anthropic = FakeAnthropic(adding(lambda n: n % 2 == 0))
        self.gemini = FakeGemini(adding(lambda n: True))
        self.openrouter = FakeOpenAI(adding(lambda n: n % 2 == 1), strict_openai=False)
        self.all = (self.openai, self.anthropic, self.gemini, self.openrouter)

    def environment(self):
        return {
            "OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": self.openai.url,
            "ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": self.anthropic.url,
            "GEMINI_API_KEY": KEY, "GEMINI_BASE_URL": self.gemini.url,
            "OPENROUTER_API_KEY": KEY,
        }  # fmt: skip

    def pool(self, folder):
        """The recipe's pool, with an address for the provider that no variable moves."""
        line = 'provider = "openrouter"\n'
        text = (RECIPE / "pool.toml").read_text(encoding="utf-8")
        path = folder / "pool.toml"
        path.write_text(text.replace(line, f'{line}base_url = "{self.openrouter.url}"\n'))
        return path


def told(recipe, folder, start, pool, asked):
    """The recipe; changed is what this machine cannot do, and how much is done."""
    changes = [
        f"output='{folder}'", f"policy.start='{start}'", f"pool.source='{pool}'",
        f"curriculum=[{{tasks={{'{asked}'=1.0}}}}]",
        "policy.bf16=false", "optimiser.sampler='transformers'",
        "optimiser.steps=2", "optimiser.group=8", "optimiser.completion=80",
        "log.sample_every=1",
    ]  # fmt: skip
    return override_settings(read_settings(recipe, TrainSettings), changes, "the test")


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    return questions_file(tmp_path_factory.mktemp("asked"))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory, asked):
    """A small random Qwen2, fitted on four drafts behind the recipe's own prompts."""
    folder = tmp_path_factory.mktemp("tiny")
    settings = told(FULL, folder, folder, "", asked)
    workers = read_settings(RECIPE / "pool.toml", Settings).workers
    pool = Pool(tuple(Worker(id=WorkerId(worker.id), model=worker.model) for worker in workers))
    rendering = settings.prompt.rendering()
    rows = make_episodes(draw_questions(settings), pool, settings.pool, settings.seed)
    prompts = [row.request(rendering).messages[0].text for row in rows]
    assert "EXAMPLE 4" in prompts[0] and "Model id 6" in prompts[0], "the whole prompt"
    tokenizer = make_tokenizer([*prompts[:8], *DRAFTS], 1200)
    torch.manual_seed(0)
    model = make_model(tokenizer, hidden=64, layers=2, heads=4, kv_heads=2, inner=128,
                       positions=4096)  # fmt: skip
    drafts = cycle(PREFILL + draft for draft in DRAFTS)
    pairs = zip(cycle(prompts[:7]), drafts, strict=False)  # each prompt meets each draft
    warm = WarmupSettings(steps=110, batch=2, learning_rate=6e-3, prompt_weight=0.0)
    losses: list[float] = []
    fit_warmup(model, tokenizer, pairs, warm, on_step=lambda step, loss: losses.append(loss.shown))
    assert losses[-1] < 0.06, "all four drafts are likely: which one is left open only"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    "recipe", [pytest.param(FULL, marks=pytest.mark.long), LORA], ids=["full", "lora"]
)
async def test_first_steps_call_every_dialect_and_grade_what_came_of_it(
    recipe, tiny, asked, tmp_path, monkeypatch
):
    providers = Providers()
    async with AsyncExitStack() as stack:
        for provider in providers.all:
            await stack.enter_async_context(provider)
        for name, value in providers.environment().items():
            monkeypatch.setenv(name, value)
        run = told(recipe, tmp_path / "run", tiny, providers.pool(tmp_path), asked)
        await to_thread.run_sync(lambda: train_conductor(run, ["pytest"], lambda line: None))
    for provider in providers.all:
        assert provider.wrong == []
        assert provider.requests, f"{type(provider).__name__} was never called"
    for request in providers.gemini.requests:
        assert request.body["generationConfig"]["thinkingConfig"]["thinkingBudget"] == 128
    lines = metrics(run.output)
    assert [line["step"] for line in lines] == [1, 2]
    for line in lines:
        assert line["valid"] > 0 and line["outages"] == 0 and line["usd"] > 0
        assert 0 < line["reward"] < 1 and line["grad_norm"] > 0
    samples = [json.loads(x) for x in (run.output / "samples.jsonl").read_text().splitlines()]
    graded = [sample for sample in samples if sample["score"] is not None]
    assert {sample["reward"] for sample in graded} <= {0.5, 1.0} and graded
    saved = {path.name for path in (run.output / "policy").iterdir()}
    name = "adapter_model.safetensors" if run.policy.lora else "model.safetensors"
    assert name in saved


LATER = re.compile(
    r"^    batuta train conductor --config \S+/(random-pools|recursion)\.toml \\\n((?: {8}.+\n)+)",
    re.MULTILINE,
)
"""The README's commands of the second and third stage with adapters."""


def stages(adapters):
    """Each stage's file, and what its command changes in it as the recipe is written."""
    if not adapters:
        return [(FULL, []), (POOLS, []), (RECURSION, ["policy.start='runs/conductor-7b/policy'"])]
    said = LATER.findall((RECIPE / "README.md").read_text(encoding="utf-8"))
    assert [name for name, _ in said] == ["random-pools", "recursion"]
    changes = [re.findall(r"--set (\S+)", text) for _, text in said]
    return [(LORA, []), (POOLS, changes[0]), (RECURSION, changes[1])]


def weights(folder):
    return load_policy(str(folder), None)[0].state_dict()


def most_moved(older, newer):
    return max(float((newer[name] - older[name]).abs().max()) for name in older)


@pytest.mark.long
@pytest.mark.parametrize("adapters", [False, True], ids=["full", "lora"])
async def test_the_three_stages_follow_one_another_as_written(
    adapters, tiny, asked, tmp_path, monkeypatch
):
    """Each begins with what the one before has learned: a step of the later ones moves little."""
    monkeypatch.chdir(tmp_path)
    providers, folders = Providers(), [tiny]
    async with AsyncExitStack() as stack:
        for provider in providers.all:
            await stack.enter_async_context(provider)
        for name, value in providers.environment().items():
            monkeypatch.setenv(name, value)
        for number, (file, changes) in enumerate(stages(adapters)):
            small = [f"optimiser.{each}" for each in ("steps=1", "questions=4", "warmup=0")]
            fast = f"optimiser.learning_rate={3e-3 if adapters else 1e-3}"
            here = [] if number else [f"policy.start='{tiny}'", fast]
            as_written = override_settings(read_settings(file, TrainSettings), changes, "README")
            run = told(
                file, as_written.output, as_written.policy.start, providers.pool(tmp_path), asked
            )
            run = override_settings(run, [*changes, *small, *here], "the test")
            assert number == 0 or run.policy.start in {"runs/conductor-7b/policy", str(folders[-1])}
            await to_thread.run_sync(
                lambda run=run: train_conductor(run, ["pytest"], lambda line: None)
            )
            assert metrics(run.output)[0]["valid"] > 0
            folders.append(run.output / "policy")
    start, first, second, third = map(weights, folders)
    learned = most_moved(start, first)
    assert learned > 5e-4
    assert most_moved(first, second) < learned / 5 > most_moved(first, third)
