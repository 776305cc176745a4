"""What a training asks of the machine, and whether this one has it."""

# the libraries' own annotations leave arguments untyped:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch

from batuta.config.load import REHEARSAL_POOL
from batuta.train.memory_estimate import Devices
from batuta.train.settings import TrainSettings


def read_devices(environ: Mapping[str, str]) -> Devices:
    """How `accelerate launch` divides the training, by what it tells its processes."""
    sharded = any(environ.get(f"ACCELERATE_USE_{how}") == "true" for how in ("FSDP", "DEEPSPEED"))
    offloaded = sharded and environ.get("FSDP_OFFLOAD_PARAMS") == "true"
    processes = int(environ.get("WORLD_SIZE", "1"))
    here = int(environ.get("LOCAL_WORLD_SIZE", str(processes)))
    return Devices(processes=processes, local_processes=here, sharded=sharded, offloaded=offloaded)


def needs_gpu(settings: TrainSettings) -> bool:
    """Whether the settings make sense on a GPU only; bf16 is computed by some processors too."""
    return settings.optimiser.sampler.startswith("vllm")


def device_memory(settings: TrainSettings) -> tuple[int | None, str]:
    """Bytes of memory that one device has, and which device; None: it is not here."""
    if torch.cuda.is_available():
        about: Any = torch.cuda.get_device_properties(0)
        return int(about.total_memory), f"of one {about.name}"
    if needs_gpu(settings):
        return None, "there is no GPU here"
    return host_memory(), "of this machine"


def host_memory() -> int:
    """Bytes of memory that this machine has beside its GPUs' own."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def available_memory() -> int:
    """Bytes of memory that are free on this machine, caches counted as free."""
    try:
        lines = Path("/proc/meminfo").read_text("utf-8").splitlines()
    except OSError:
        return host_memory()
    free = next((line.split()[1] for line in lines if line.startswith("MemAvailable:")), None)
    return host_memory() if free is None else int(free) * 1024


def missing_extras(settings: TrainSettings) -> list[str]:
    """Packages that the settings call for and that are not installed, a sentence each."""
    wanted = {"peft": settings.policy.lora is not None}
    wanted["vllm"] = settings.optimiser.sampler.startswith("vllm")
    wanted |= {name: name in settings.log.to for name in ("tensorboard", "wandb")}
    return [
        f"{name} is not installed and the settings call for it; pip install {name}"
        for name, needed in wanted.items()
        if needed and find_spec(name) is None
    ]


def divisibility_problems(settings: TrainSettings, processes: int) -> list[str]:
    """Sizes that do not go into each other, a sentence each."""
    o = settings.optimiser
    again = settings.recursion.count_second_rounds(o.questions)
    found: list[str] = []
    if o.questions % processes or (again and (o.questions // processes) % 2):
        pairs = " in pairs of a first and a second round" if again else ""
        found.append(
            f"optimiser.questions = {o.questions} cannot be divided among {processes} "
            f"processes{pairs}"
        )
    if (o.questions * o.group) % (o.micro_batch * processes):
        found.append(
            f"optimiser.questions x group = {o.questions * o.group} completions cannot be divided "
            f"into micro-batches of {o.micro_batch} on {processes} processes"
        )
    return found


def hardware_problems(settings: TrainSettings, devices: Devices) -> list[str]:
    """What this machine is not, and settings that exclude each other, a sentence each."""
    o, found = settings.optimiser, list[str]()
    cuda = torch.cuda.device_count()
    if needs_gpu(settings) and cuda < devices.local_processes:
        why = "policy.bf16" if settings.policy.bf16 else f'optimiser.sampler = "{o.sampler}"'
        have = f"only {cuda}" if cuda else "none"
        found.append(f"{why} needs a GPU for each process, and this machine has {have}")
    if settings.recursion.share and not settings.pool.journal:
        found.append("recursion runs first rounds again from the journal; set pool.journal = true")
    return found + node_problems(settings, devices)


def node_problems(settings: TrainSettings, devices: Devices) -> list[str]:
    """What keeps several machines from training together, a sentence each."""
    found = list[str]()
    if devices.nodes == 1:
        return found
    o, pool = settings.optimiser, settings.pool
    host = urlsplit(o.vllm_server).hostname or ""
    if o.sampler == "vllm-server" and (host == "localhost" or host.startswith("127.")):
        found.append(
            f"optimiser.vllm_server = {o.vllm_server} is another machine on each of the "
            f"{devices.nodes} nodes; name the vLLM node's address"
        )
    if pool.journal is True and pool.source.partition(":")[0] != REHEARSAL_POOL:
        found.append(
            f"pool.journal = true keeps calls in a file, which {devices.nodes} nodes cannot share: "
            "set it to postgresql://…"
        )
    return found
