"""`batuta train conductor --check`: what a training takes and what it lacks, before it spends.

Loads no weights, writes nothing, and opens no connection unless the pool is to be discovered.
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
from batuta.clients.providers import has_url_override
from batuta.config.load import (
    DISCOVER_POOL,
    REHEARSAL_POOL,
    WORLD2_POOL,
    LoadedConfig,
    load_config,
)
from batuta.config.settings import Settings
from batuta.config.settings_file import read_settings
from batuta.config.worker_settings import WorkerSetting
from batuta.core import Pool, Task, TaskId
from batuta.core.token_estimate import estimate_tokens
from batuta.errors import BatutaError
from batuta.train.cost_estimate import (
    StepTimeInputs,
    estimate_cost,
    estimate_step_time,
    read_earlier_metrics,
)
from batuta.train.episodes import Episode, make_episodes
from batuta.train.hardware import (
    divisibility_problems,
    hardware_problems,
    missing_extras,
    needs_gpu,
    read_devices,
)
from batuta.train.memory_estimate import (
    new_architecture,
    read_architecture,
)
from batuta.train.model import find_policy_start, read_tokenizer
from batuta.train.preflight_bill import add_spending, add_time, check_run_folder
from batuta.train.preflight_memory import check_memory
from batuta.train.preflight_report import Findings, PreflightReport
from batuta.train.questions import draw_questions
from batuta.train.settings import TrainSettings

MAX_PROMPTS = 500
"""Prompts that are measured."""
PLACEHOLDER_KEY = "not-set"
"""Stands for a key that is missing, so that the rest of the pool can be read."""
PLACEHOLDER_TASK = Task(id=TaskId("stand-in"), question="word " * 100, target="0", grader="integer")
"""A question of 100 words, in the place of those that are missing."""
CALLS_PER_WORKER = 32
"""Calls at the same time of a worker that the environment's keys give."""


def check_training(
    settings: TrainSettings, environ: Mapping[str, str] = os.environ
) -> PreflightReport:
    """What the training takes and lacks; never raises for settings that cannot be carried out."""
    found = Findings()
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
    memory = check_memory(settings, config, prompt_tokens=prompt, devices=devices, found=found)
    if asked and loaded:
        lines = read_earlier_metrics(settings)
        spent = estimate_cost(settings, asked, lines)
        add_spending(settings, spent, config=loaded, prompt_tokens=prompt, found=found)
        if memory:
            device = "cuda" if torch.cuda.is_available() or needs_gpu(settings) else "cpu"
            stage = StepTimeInputs(parameters=memory.parameters, prompt_tokens=prompt,
            device=device, processes=devices.processes, call_slots=places,
                          simulated=loaded.simulated)  # fmt: skip
            add_time(settings, estimate_step_time(settings, spent, stage, lines), found)
    check_run_folder(settings, found)
    return PreflightReport(tuple(found.figures), tuple(found.missing), tuple(found.notes))


# -- the pool -----------------------------------------------------------------------------


def _check_pool(
    settings: TrainSettings, environ: Mapping[str, str], found: Findings
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
    settings: TrainSettings, config: LoadedConfig | None, found: Findings
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
    settings: TrainSettings, environ: Mapping[str, str], found: Findings
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
    found: Findings,
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
