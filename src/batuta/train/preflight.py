"""`batuta train conductor --check`: what a training takes and what it lacks, before it spends.

Loads no weights, writes nothing, and opens no connection unless the pool is to be discovered.
"""

# the libraries' own annotations leave arguments untyped:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import anyio
import torch
from transformers import AutoTokenizer, PreTrainedConfig

from batuta.clients import HttpTransport, find_provider, provider_key
from batuta.clients.providers import has_url_override
from batuta.config.load import (
    DISCOVER_POOL,
    REHEARSAL_POOL,
    WORLD2_POOL,
    LoadedConfig,
    load_config,
)
from batuta.config.settings import Settings, WorkerSetting
from batuta.config.settings_file import read_settings
from batuta.core import Pool, Task, TaskId
from batuta.core.token_estimate import estimate_tokens
from batuta.errors import BatutaError
from batuta.train.cost_estimate import (
    CostEstimate,
    StepTime,
    StepTimeInputs,
    estimate_cost,
    estimate_step_time,
    read_earlier_metrics,
)
from batuta.train.episodes import Episode, make_episodes
from batuta.train.hardware import (
    device_memory,
    divisibility_problems,
    hardware_problems,
    host_memory,
    missing_extras,
    needs_gpu,
    read_devices,
)
from batuta.train.memory_estimate import (
    BF16,
    Devices,
    MemoryEstimate,
    estimate_memory,
    new_architecture,
    read_architecture,
)
from batuta.train.model import find_policy_start, read_tokenizer
from batuta.train.questions import draw_questions
from batuta.train.run_folder import METRICS_FILE, read_jsonl
from batuta.train.settings import TrainSettings

MAX_PROMPTS = 500
"""Prompts that are measured."""
GIB = 2**30
PLACEHOLDER_KEY = "not-set"
"""Stands for a key that is missing, so that the rest of the pool can be read."""
PLACEHOLDER_TASK = Task(id=TaskId("stand-in"), question="word " * 100, target="0", grader="integer")
"""A question of 100 words, in the place of those that are missing."""
CALLS_PER_WORKER = 32
"""Calls at the same time of a worker that the environment's keys give."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedFigure:
    """One expected number."""

    name: str
    value: float | None
    """None: unknown, which is not 0."""
    unit: str
    """`count`, `bytes`, `tokens`, `usd` or `seconds`."""
    source: str
    """How it is known, or what was assumed."""


@dataclass(frozen=True, slots=True)
class PreflightReport:
    """What a training takes, and what it lacks."""

    figures: tuple[ExpectedFigure, ...]
    missing: tuple[str, ...]
    """One sentence each; empty: it can start."""
    notes: tuple[str, ...]
    """What is worth knowing and forbids nothing."""

    @property
    def is_ready(self) -> bool:
        """Whether the training can start."""
        return not self.missing


@dataclass(slots=True)
class _Findings:
    figures: list[ExpectedFigure] = field(default_factory=list[ExpectedFigure])
    missing: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])

    def add(self, name: str, value: float | None, unit: str, source: str) -> None:
        self.figures.append(ExpectedFigure(name=name, value=value, unit=unit, source=source))


def check_training(
    settings: TrainSettings, environ: Mapping[str, str] = os.environ
) -> PreflightReport:
    """What the training takes and lacks; never raises for settings that cannot be carried out."""
    found = _Findings()
    loaded, places = _check_pool(settings, environ, found)
    asked = _plan_episodes(settings, loaded, found)
    config = _check_policy(settings, environ, found)
    prompt = _check_prompts(settings, asked, config, found)
    devices = read_devices(environ)
    found.missing += [
        *missing_extras(settings),
        *divisibility_problems(settings, devices.processes),
    ]
    found.missing += hardware_problems(settings, devices)
    if devices.nodes > 1:
        each = f"{devices.local_processes} processes each"
        found.add("nodes", devices.nodes, "count", each)
        found.notes.append(
            f"{settings.output} must be the same folder on all {devices.nodes} nodes: the first "
            "one writes checkpoints there and all resume from them"
        )
    memory = _check_memory(settings, config, prompt_tokens=prompt, devices=devices, found=found)
    if asked and loaded:
        lines = read_earlier_metrics(settings)
        spent = estimate_cost(settings, asked, lines)
        _add_spending(settings, spent, config=loaded, prompt_tokens=prompt, found=found)
        if memory:
            device = "cuda" if torch.cuda.is_available() or needs_gpu(settings) else "cpu"
            stage = StepTimeInputs(parameters=memory.parameters, prompt_tokens=prompt,
            device=device, processes=devices.processes, call_slots=places,
                          simulated=loaded.simulated)  # fmt: skip
            _add_time(settings, estimate_step_time(settings, spent, stage, lines), found)
    _check_run_folder(settings, found)
    return PreflightReport(tuple(found.figures), tuple(found.missing), tuple(found.notes))


# -- the pool -----------------------------------------------------------------------------


def _check_pool(
    settings: TrainSettings, environ: Mapping[str, str], found: _Findings
) -> tuple[LoadedConfig | None, int]:
    """The workers, even if their keys are missing, and how many calls they take at once."""
    path = Path(settings.pool.source)
    try:
        kind = settings.pool.source.partition(":")[0]
        named = kind not in {REHEARSAL_POOL, WORLD2_POOL, DISCOVER_POOL}
        workers = read_settings(path, Settings).workers if named else ()
        lacking = list(dict.fromkeys(_missing_keys(workers, environ)))
        found.missing += [f"{name} is not set; a worker of {path} needs it" for name in lacking]
        loaded = anyio.run(
            _load_pool, settings, {**environ, **dict.fromkeys(lacking, PLACEHOLDER_KEY)}
        )
    except BatutaError as error:
        found.missing.append(str(error))
        return None, CALLS_PER_WORKER
    unpriced = [str(worker.id) for worker in loaded.pool if worker.price is None]
    if unpriced:
        found.notes.append(
            f"the price of {', '.join(unpriced)} is unknown: what they cost is not in the dollars; "
            f"write it as `price` in {path}"
        )
    places = sum(worker.concurrency for worker in workers) or CALLS_PER_WORKER * len(loaded.pool)
    return loaded, places


async def _load_pool(settings: TrainSettings, environ: Mapping[str, str]) -> LoadedConfig:
    async with HttpTransport() as http:
        source = settings.pool.source
        return await load_config(
            http, pool=source, conductor="best", environ=environ, time_scale=0.0
        )


def _missing_keys(workers: Sequence[WorkerSetting], environ: Mapping[str, str]) -> list[str]:
    """The variables that workers need and that are not set."""
    names: list[str] = []
    for worker in workers:
        provider = find_provider(worker.provider)
        reached = provider.local or worker.base_url or has_url_override(provider, environ)
        if worker.key_env:
            names += [] if environ.get(worker.key_env) else [worker.key_env]
        elif provider.key_vars and not reached and not provider_key(provider, environ):
            names.append(provider.key_vars[0])
    return names


# -- the questions and the policy ---------------------------------------------------------


def _plan_episodes(
    settings: TrainSettings, config: LoadedConfig | None, found: _Findings
) -> list[Episode]:
    """The training's questions, each with its pool; stand-ins for those that cannot be had."""
    pool: Pool | None = config and config.pool
    try:
        tasks = draw_questions(settings)
    except BatutaError as error:
        found.missing.append(str(error))
        found.notes.append("the questions are missing: others of 100 words stand for them here")
        tasks = [PLACEHOLDER_TASK] * MAX_PROMPTS
    return make_episodes(tasks, pool, settings.pool, settings.seed) if pool else []


def _check_policy(
    settings: TrainSettings, environ: Mapping[str, str], found: _Findings
) -> PreTrainedConfig | None:
    """The policy's architecture; says what must be made or fetched first."""
    start = find_policy_start(settings)
    if start is None:
        found.missing.append(
            f"there is no policy in {settings.output / 'warmup'}: make one with `batuta train "
            "warmup` and the same settings, or name one as policy.start"
        )
        return new_architecture(settings.policy.network)
    config = read_architecture(start, settings.policy.revision)
    local = Path(start).is_dir()
    if config is None and not local:
        found.missing.append(
            f"{start} is neither a folder with a model nor a model that is known here; name a "
            "folder, or download the model first"
        )
    elif config is None:
        found.missing.append(f"the folder {start} has no model that transformers can read")
    elif not local and not _is_downloaded(start, settings.policy.revision):
        offline = environ.get("HF_HUB_OFFLINE", "0") not in {"", "0"}
        where = found.missing if offline else found.notes
        where.append(f"{start} is not downloaded yet; it is fetched from the hub at the start")
    return config


def _is_downloaded(start: str, revision: str | None) -> bool:
    return _local_tokenizer(start, revision) is not None


def _local_tokenizer(start: str, revision: str | None) -> Any:
    """The policy's tokenizer; None if it is not on this machine."""
    try:
        if Path(start).is_dir():
            return read_tokenizer(start, revision)
        return AutoTokenizer.from_pretrained(start, revision=revision, local_files_only=True)
    except (OSError, ValueError):
        return None


def _check_prompts(
    settings: TrainSettings,
    episodes: Sequence[Episode],
    config: PreTrainedConfig | None,
    found: _Findings,
) -> int:
    """Tokens of the longest prompt of a first round; says if it does not fit."""
    start = find_policy_start(settings)
    try:
        tokenizer = start and _local_tokenizer(start, settings.policy.revision)
    except BatutaError as error:
        found.missing.append(str(error))
        tokenizer = None
    rendering = settings.prompt.rendering()
    requests = [each.request(rendering) for each in episodes[:MAX_PROMPTS]]
    texts = [f"{each.messages[0].text}{each.prefill}" for each in requests]
    if not texts:
        return 0
    if not tokenizer:
        longest, source = max(map(estimate_tokens, texts)), "estimated at 4 characters a token"
    else:
        longest = max(map(len, tokenizer(texts)["input_ids"]))
        source = f"the longest of {len(texts)} prompts"
    found.add("prompt", longest, "tokens", source)
    room = getattr(config, "max_position_embeddings", None)
    if room and longest + settings.optimiser.completion > room:
        found.missing.append(
            f"a prompt of {longest:,} tokens and a completion of {settings.optimiser.completion:,} "
            f"do not fit in the policy's {room:,} positions; lower optimiser.completion or write "
            "prompt.examples = false"
        )
    return longest


# -- the machine --------------------------------------------------------------------------


def _check_memory(
    settings: TrainSettings,
    config: PreTrainedConfig | None,
    prompt_tokens: int,
    devices: Devices,
    *,
    found: _Findings,
) -> MemoryEstimate | None:
    """The memory estimate, and whether it fits."""
    if config is None:
        found.add("parameters", None, "count", "the architecture is not known on this machine")
        return None
    space, where = device_memory(settings)
    memory = estimate_memory(
        settings, config, prompt_tokens=prompt_tokens, devices=devices, device_bytes=space
    )
    many = f", 1 of {devices.processes} shards" if devices.sharded else ""
    many += ", in the host's memory" if devices.offloaded else ""
    found.add("parameters", memory.parameters, "count", "counted")
    found.add("trained", memory.trainable, "count", "LoRA" if settings.policy.lora else "all")
    found.add("weights", memory.weights, "bytes", f"fp32{many}")
    found.add("gradients", memory.gradients, "bytes", f"fp32{many}")
    found.add("optimiser", memory.moments, "bytes", f"Adam's two moments, fp32{many}")
    if memory.working_copy:
        found.add("working copy", memory.working_copy, "bytes", "weights in bf16")
    batch = f"estimated: a micro-batch of {settings.optimiser.micro_batch} at its longest"
    found.add("activations", memory.activations, "bytes", batch)
    found.add("generation", *_generation_figure(settings, memory, space))
    outside = settings.optimiser.sampler == "vllm-colocate" and space is None
    told = "the sum, on each device" + (", without vLLM's share" if outside else "")
    found.add("memory", memory.total, "bytes", told)
    if devices.offloaded:
        _check_host_memory(memory.host * devices.local_processes, found)
    found.add("room", space, "bytes", where)
    if space is not None and memory.total > space:
        found.missing.append(
            f"the training needs about {memory.total / GIB:.1f} GiB on a device that has "
            f"{space / GIB:.1f}; lower optimiser.micro_batch, set gradient_checkpointing, or learn "
            "adapters with policy.lora"
        )
    return memory


def _check_host_memory(needed: int, found: _Findings) -> None:
    """Whether what is offloaded fits in this machine's memory."""
    has = host_memory()
    found.add("host memory", needed, "bytes", "offloaded by the processes of this machine")
    if needed > has:
        found.missing.append(
            f"the processes of this machine offload {needed / GIB:.1f} GiB and it has "
            f"{has / GIB:.1f}; divide the training among more machines, or learn adapters with "
            "policy.lora"
        )


def _generation_figure(
    settings: TrainSettings, memory: MemoryEstimate, space: int | None
) -> tuple[float | None, str, str]:
    o = settings.optimiser
    if o.sampler == "vllm-server":
        return None, "bytes", f"on the vLLM server {o.vllm_server}"
    if o.sampler == "vllm-colocate":
        needs = f"its bf16 weights take {BF16 * memory.parameters / GIB:.1f} GiB of it"
        share = f"vLLM's share, {o.vllm_memory:.0%} of a device; {needs}"
        return (memory.generation if space else None), "bytes", share
    return memory.generation, "bytes", "keys and values of a step's completions at their longest"


# -- the bill -----------------------------------------------------------------------------


def _add_spending(
    settings: TrainSettings,
    cost: CostEstimate,
    config: LoadedConfig,
    prompt_tokens: int,
    *,
    found: _Findings,
) -> None:
    o = settings.optimiser
    rows = f"{o.steps} steps x {o.questions} questions x {o.group} completions"
    if settings.reward.executions > 1:
        rows += f" x {settings.reward.executions} executions"
    policy = o.steps * o.questions * o.group * (prompt_tokens + o.completion)
    found.add("workflows", cost.workflows, "count", rows)
    found.add("steps a workflow", round(cost.steps, 2), "count", cost.source)
    found.add("calls", cost.calls, "count", "of workers, by the same")
    found.add("worker tokens", cost.tokens, "tokens", "by the same")
    found.add("policy tokens", policy, "tokens", "its own, at most")
    _add_rejection_sampling(settings, cost, found)
    if config.simulated:
        invented = f"the workers are simulated; at their invented prices ${cost.usd:,.2f}"
        found.add("dollars", 0, "usd", invented)
        return
    unpriced = [worker.id for worker in config.pool if worker.price is None]
    usd = None if len(unpriced) == len(config.pool) else float(cost.usd)
    found.add("dollars", usd, "usd", "at list prices, nothing read from a cache")
    if unpriced:
        found.add("calls without a price", cost.unpriced_calls, "count", "not in the dollars")


def _add_rejection_sampling(settings: TrainSettings, cost: CostEstimate, found: _Findings) -> None:
    """What rejection sampling takes, where it is asked for and not done yet."""
    r, done = settings.rejection, settings.output / "rejection"
    if not r.rounds:
        return
    if done.is_dir():
        found.notes.append(f"learning begins from {done}, where rejection sampling has ended")
        return
    workflows = r.rounds * r.questions * r.group * settings.reward.executions
    share = Decimal(workflows) / cost.workflows
    rows = f"{r.rounds} rounds x {r.questions} questions x {r.group} workflows"
    dollars = f" and ${cost.usd * share:,.2f}" if cost.usd else ""
    bill = f"about {round(cost.calls * share):,} calls of workers{dollars} beside those named here"
    found.add("rejection sampling", workflows, "count", f"{rows}: {bill}")
    found.notes.append(
        "rejection sampling is asked for and not done yet: without `batuta train rejection` and "
        "the same settings, learning begins from the policy before it"
    )


def _add_time(settings: TrainSettings, expected: StepTime, found: _Findings) -> None:
    found.add("a step", round(expected.seconds, 3), "seconds", expected.source)
    total = expected.seconds * settings.optimiser.steps
    found.add("wall time", round(total, 1), "seconds", f"{settings.optimiser.steps} steps")


def _check_run_folder(settings: TrainSettings, found: _Findings) -> None:
    """What stands in the run folder already."""
    done = len(read_jsonl(settings.output / METRICS_FILE))
    if done:
        found.notes.append(
            f"{settings.output} holds a run of {done} steps; --resume goes on with it, without "
            "--resume it is written over"
        )
