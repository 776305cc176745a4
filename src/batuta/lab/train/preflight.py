"""`batuta train conductor --check`: what a training needs and lacks, before it spends anything.

The check loads no weights, writes nothing, and opens no connection unless the pool must be
discovered. Only `--calls` makes calls, which go into the training's journal if it has one.
"""

# the libraries' own annotations leave arguments untyped:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import torch
from transformers import AutoTokenizer, PreTrainedConfig

from batuta.clients import HttpTransport, find_provider, provider_key
from batuta.clients.providers import LOCAL, has_url_override
from batuta.config.load import DISCOVER_POOL, load_config
from batuta.config.loaded import LoadedConfig
from batuta.config.settings import Settings
from batuta.config.settings_file import read_settings
from batuta.config.worker_settings import WorkerSetting
from batuta.core import Pool, Task, TaskId
from batuta.core.token_estimate import estimate_tokens
from batuta.environment import host_memory
from batuta.errors import BatutaError, ConfigError
from batuta.lab.executor import executor_problem
from batuta.lab.train.adapters import check_continuation, find_adapters
from batuta.lab.train.bill import (
    CostEstimate,
    Preflight,
    add_spending,
    correct_by_calls,
    estimate_cost,
    estimate_step_time,
    read_earlier_metrics,
)
from batuta.lab.train.budget import budget_problem
from batuta.lab.train.episodes import Episode, make_episodes
from batuta.lab.train.hub import hub_problem
from batuta.lab.train.machine import (
    BF16,
    GIB,
    Devices,
    MemoryEstimate,
    device_memory,
    divisibility_problems,
    estimate_memory,
    hardware_problems,
    keeps_frozen_narrow,
    missing_extras,
    needs_gpu,
    new_architecture,
    read_architecture,
    read_devices,
)
from batuta.lab.train.model import DAMAGE, find_policy_start, first_line, read_tokenizer
from batuta.lab.train.questions import draw_questions
from batuta.lab.train.rollout_setup import judge_problem
from batuta.lab.train.run_folder import METRICS_FILE, read_jsonl
from batuta.lab.train.sampler import architecture_problem
from batuta.lab.train.settings import TrainSettings
from batuta.plugins import plugin_names

MAX_PROMPTS = 500
"""Maximum number of prompts that are measured."""
PLACEHOLDER_KEY = "not-set"
"""Used in place of a missing key, so that the rest of the pool can be read."""
PLACEHOLDER_TASK = Task(id=TaskId("stand-in"), question="word " * 100, target="0", grader="integer")
"""A question of 100 words, used in place of questions that cannot be loaded."""
CALLS_PER_WORKER = 32
"""Concurrent calls assumed for a worker that no pool file describes."""


def check_training(
    settings: TrainSettings, environ: Mapping[str, str] = os.environ, calls: int = 0
) -> Preflight:
    """Report what the training needs and lacks; settings that cannot be used are reported too.

    `calls` real calls of workers correct the estimated cost; 0 spends nothing.

    Raises:
        StoreError: the metrics or a list of paid calls cannot be read.
        ExceptionGroup: a run of the real calls failed; it has the first error.
    """
    found = Preflight()
    loaded, call_slots = _check_pool(settings, environ, found)
    asked = _plan_episodes(settings, loaded, found)
    config = _check_policy(settings, environ, found)
    prompt = _check_prompts(settings, asked, config, found)
    devices = read_devices(environ)
    found.missing += settings_problems(settings, environ) + hardware_problems(settings, devices)
    if devices.nodes > 1:
        found.add("nodes", devices.nodes, "count", f"{devices.local_processes} processes each")
        found.notes.append(
            f"{settings.output} must be the same folder on all {devices.nodes} nodes: the first "
            "node writes checkpoints there, and all nodes resume from them"
        )
    memory = _check_memory(settings, config, prompt, devices, found=found)
    if asked and loaded:
        lines = read_earlier_metrics(settings)
        spent = estimate_cost(settings, asked, lines)
        if calls:
            spent = _correct_by_calls(settings, spent, asked, calls, found=found)
        elif not loaded.simulated and spent.depth is not None:
            found.notes.append(
                "the cost is assumed, not measured: --calls 24 makes 24 real calls and estimates "
                "it from them"
            )
        add_spending(settings, spent, loaded, prompt, episodes=asked, found=found)
        if memory:
            seconds, why = estimate_step_time(
                settings,
                spent,
                lines,
                parameters=memory.parameters,
                prompt_tokens=prompt,
                device="cuda" if torch.cuda.is_available() or needs_gpu(settings) else "cpu",
                processes=devices.processes,
                call_slots=call_slots,
                simulated=loaded.simulated,
            )
            steps = settings.optimiser.steps
            found.add("a step", round(seconds, 3), "seconds", why)
            found.add("wall time", round(seconds * steps, 1), "seconds", f"{steps} steps")
    if done := len(read_jsonl(settings.output / METRICS_FILE)):
        found.notes.append(
            f"{settings.output} has a run of {done} steps: with --resume it is continued, without "
            "--resume it is overwritten"
        )
    return found


def settings_problems(
    settings: TrainSettings, environ: Mapping[str, str] = os.environ
) -> list[str]:
    """Return a sentence for each setting that cannot be carried out, found before any work."""
    pool = settings.pool
    found = [
        executor_problem(pool.executor, pool.processes),
        budget_problem(settings),
        hub_problem(settings.hub, environ),
    ]
    processes = read_devices(environ).processes
    return [
        *missing_extras(settings),
        *divisibility_problems(settings, processes),
        *filter(None, found),
    ]


def _correct_by_calls(
    settings: TrainSettings,
    assumed: CostEstimate,
    episodes: Sequence[Episode],
    calls: int,
    *,
    found: Preflight,
) -> CostEstimate:
    """Return the estimate corrected by real calls, or `assumed` and a note why it is not."""
    if assumed.depth is None:
        found.notes.append("no call was made, as the run in this folder is a better basis")
        return assumed
    if found.missing:
        found.notes.append("no call was made, because something is missing")
        return assumed
    try:
        corrected, failures = anyio.run(correct_by_calls, settings, assumed, episodes, calls)
    except BatutaError as error:
        found.missing.append(str(error))
        return assumed
    for failure in dict.fromkeys(failures):
        found.notes.append(f"a call failed and is not in the figures: {failure}")
    if corrected is assumed:
        found.notes.append("no workflow ended, so the cost is assumed, not measured")
    return corrected


# -- the pool -----------------------------------------------------------------------------


def _check_pool(
    settings: TrainSettings, environ: Mapping[str, str], found: Preflight
) -> tuple[LoadedConfig | None, int]:
    """Return the pool, None if it cannot be loaded, and its workers' total concurrency."""
    path = Path(settings.pool.source)
    try:
        kind = settings.pool.source.partition(":")[0]
        is_file = kind not in {*plugin_names("pool"), LOCAL, DISCOVER_POOL}
        workers = read_settings(path, Settings).workers if is_file else ()
        lacking = list(dict.fromkeys(_missing_keys(workers, environ)))
        found.missing += [f"{name} is not set; a worker of {path} needs it" for name in lacking]
        loaded = anyio.run(
            _load_pool, settings, {**environ, **dict.fromkeys(lacking, PLACEHOLDER_KEY)}
        )
    except BatutaError as error:
        found.missing.append(str(error))
        return None, CALLS_PER_WORKER
    if problem := judge_problem(settings.reward.judge, loaded.pool):
        found.missing.append(problem)
    unpriced = [str(worker.id) for worker in loaded.pool if worker.price is None]
    if unpriced:
        found.notes.append(
            f"the price of {', '.join(unpriced)} is unknown and not included in the dollars; "
            f"set `price` in {path}"
        )
        if settings.reward.cost == "usd":
            found.notes.append(
                f'reward.cost = "usd" charges nothing for calls of {", ".join(unpriced)}: their '
                "price is unknown"
            )
    slots = sum(worker.concurrency for worker in workers) or CALLS_PER_WORKER * len(loaded.pool)
    return loaded, slots


async def _load_pool(settings: TrainSettings, environ: Mapping[str, str]) -> LoadedConfig:
    async with HttpTransport() as http:
        source = settings.pool.source
        return await load_config(
            http, pool=source, conductor="best", environ=environ, time_scale=0.0
        )


def _missing_keys(workers: Sequence[WorkerSetting], environ: Mapping[str, str]) -> list[str]:
    """Return the names of environment variables that hold the workers' keys and are not set."""
    names: list[str] = []
    for worker in workers:
        provider = find_provider(worker.provider)
        has_address = provider.local or worker.base_url or has_url_override(provider, environ)
        if worker.key_env:
            names += [] if environ.get(worker.key_env) else [worker.key_env]
        elif provider.key_vars and not has_address and not provider_key(provider, environ):
            names.append(provider.key_vars[0])
    return names


# -- the questions and the policy ---------------------------------------------------------


def _plan_episodes(
    settings: TrainSettings, config: LoadedConfig | None, found: Preflight
) -> list[Episode]:
    """Return the training's episodes, placeholders for missing questions; none without a pool."""
    pool: Pool | None = config and config.pool
    try:
        tasks = draw_questions(settings)
    except BatutaError as error:
        found.missing.append(str(error))
        found.notes.append("the questions are missing: placeholders of 100 words are used here")
        tasks = [PLACEHOLDER_TASK] * MAX_PROMPTS
    return make_episodes(tasks, pool, settings.pool, settings.seed) if pool else []


def _check_policy(
    settings: TrainSettings, environ: Mapping[str, str], found: Preflight
) -> PreTrainedConfig | None:
    """Return the policy's architecture, and report a policy that is missing or cannot be used.

    The architecture is None if it is not known on this machine.
    """
    start = find_policy_start(settings)
    if start is None:
        found.missing.append(
            f"there is no policy in {settings.output / 'warmup'}: make one with `batuta train "
            "warmup` and the same settings, or name one as policy.start"
        )
        return new_architecture(settings.policy.network)
    try:
        start, revision = _base_model(settings, start, found)
        config = read_architecture(start, revision)
        local = Path(start).is_dir()
        downloaded = local or _local_tokenizer(start, revision) is not None
    except ConfigError as error:
        found.missing.append(str(error))
        return None
    if config is None and not local:
        found.missing.append(
            f"{start} is neither a folder with a model nor a downloaded model; name a "
            "folder, or download the model first"
        )
    elif config is None:
        found.missing.append(f"the folder {start} has no model that transformers can read")
    elif settings.optimiser.sampler == "own" and (problem := architecture_problem(config)):
        found.missing.append(
            f'sampler = "own" cannot be used, as {start} is {problem}; set sampler = '
            '"transformers" in [optimiser]'
        )
    elif not downloaded:
        if environ.get("HF_HUB_OFFLINE", "0") in {"", "0"}:
            note = f"{start} is not downloaded yet; it is fetched from the hub at the start"
            found.notes.append(note)
        else:
            found.missing.append(
                f"{start} is not downloaded and HF_HUB_OFFLINE forbids it; download the model "
                "first, or unset HF_HUB_OFFLINE"
            )
    return config


def _base_model(settings: TrainSettings, start: str, found: Preflight) -> tuple[str, str | None]:
    """Return the model at `start`, or the base model of adapters there, and its revision.

    Adapters that do not match `policy.lora` are reported.

    Raises:
        ConfigError: the adapters name no base model, or one that is itself an adapter.
    """
    saved = find_adapters(start, settings.policy.revision, local_only=True)
    if saved is None:
        return start, settings.policy.revision
    try:
        if settings.policy.lora:
            check_continuation(saved, settings.policy.lora)
    except ConfigError as error:
        found.missing.append(str(error))
    return saved.base, saved.config.revision


def _local_tokenizer(start: str, revision: str | None) -> Any:
    """Return the policy's tokenizer, or None if it is not on this machine.

    Raises:
        ConfigError: it is damaged, or adapters without one name no base model.
    """
    try:
        if Path(start).is_dir():
            return read_tokenizer(start, revision)
        return AutoTokenizer.from_pretrained(start, revision=revision, local_files_only=True)
    except (OSError, ValueError):
        return None
    except DAMAGE as error:
        raise ConfigError(
            f"the tokenizer in {start} is damaged ({first_line(error)}); download or write it again"
        ) from None


def _check_prompts(
    settings: TrainSettings,
    episodes: Sequence[Episode],
    config: PreTrainedConfig | None,
    found: Preflight,
) -> int:
    """Return the tokens of the longest of `MAX_PROMPTS` first-round prompts; 0 without episodes.

    A prompt that does not fit in the policy's positions with a completion is reported.
    """
    start = find_policy_start(settings)
    try:
        tokenizer = start and _local_tokenizer(start, settings.policy.revision)
    except ConfigError as error:
        tokenizer = None
        if str(error) not in found.missing:  # adapters without a base model are reported once
            found.missing.append(str(error))
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


# -- memory and money ---------------------------------------------------------------------


def _check_memory(
    settings: TrainSettings,
    config: PreTrainedConfig | None,
    prompt_tokens: int,
    devices: Devices,
    *,
    found: Preflight,
) -> MemoryEstimate | None:
    """Add the memory to the forecast, and report if the device has too little.

    The estimate is None if the architecture is not known or the adapters match no layer.
    """
    if config is None:
        found.add("parameters", None, "count", "the architecture is not known on this machine")
        return None
    space, where = device_memory(settings)
    try:
        memory = estimate_memory(
            settings, config, prompt_tokens=prompt_tokens, devices=devices, device_bytes=space
        )
    except ConfigError as error:
        found.missing.append(str(error))
        return None
    placement = f", 1 of {devices.processes} shards" if devices.sharded else ""
    placement += ", in the host's memory" if devices.offloaded else ""
    found.add("parameters", memory.parameters, "count", "counted")
    upper = settings.policy.upper_layers
    kind = "LoRA" if settings.policy.lora else f"the upper {upper} layers" if upper else "all"
    found.add("trained", memory.trainable, "count", kind)
    frozen = ", frozen matrices in bf16" if keeps_frozen_narrow(settings, devices) else ""
    found.add("weights", memory.weights, "bytes", f"fp32{frozen}{placement}")
    found.add("gradients", memory.gradients, "bytes", f"fp32{placement}")
    found.add("optimiser", memory.moments, "bytes", f"Adam's two moments, fp32{placement}")
    if memory.working_copy:
        found.add("working copy", memory.working_copy, "bytes", "weights in bf16")
    batch = f"estimated: a micro-batch of {settings.optimiser.micro_batch} at its longest"
    found.add("activations", memory.activations, "bytes", batch)
    found.add("generation", *_generation_figure(settings, memory, space))
    outside = settings.optimiser.sampler == "vllm-colocate" and space is None
    meaning = "at the same time, on each device" + (", without vLLM's share" if outside else "")
    found.add("memory", memory.total, "bytes", meaning)
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


def _check_host_memory(needed: int, found: Preflight) -> None:
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
    return memory.generation, "bytes", "while completions are written, at their longest"
