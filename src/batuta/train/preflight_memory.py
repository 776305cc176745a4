"""Whether a training fits in the memory of the machine."""

from __future__ import annotations

from transformers import PreTrainedConfig

from batuta.train.hardware import device_memory, host_memory
from batuta.train.memory_estimate import (
    BF16,
    Devices,
    MemoryEstimate,
    estimate_memory,
    keeps_frozen_narrow,
)
from batuta.train.preflight_report import Findings
from batuta.train.settings import TrainSettings

GIB = 2**30


def check_memory(
    settings: TrainSettings,
    config: PreTrainedConfig | None,
    prompt_tokens: int,
    devices: Devices,
    *,
    found: Findings,
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
    frozen = ", frozen matrices in bf16" if keeps_frozen_narrow(settings, devices) else ""
    found.add("weights", memory.weights, "bytes", f"fp32{frozen}{many}")
    found.add("gradients", memory.gradients, "bytes", f"fp32{many}")
    found.add("optimiser", memory.moments, "bytes", f"Adam's two moments, fp32{many}")
    if memory.working_copy:
        found.add("working copy", memory.working_copy, "bytes", "weights in bf16")
    batch = f"estimated: a micro-batch of {settings.optimiser.micro_batch} at its longest"
    found.add("activations", memory.activations, "bytes", batch)
    found.add("generation", *_generation_figure(settings, memory, space))
    outside = settings.optimiser.sampler == "vllm-colocate" and space is None
    told = "at the same time, on each device" + (", without vLLM's share" if outside else "")
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


def _check_host_memory(needed: int, found: Findings) -> None:
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
    return memory.generation, "bytes", "while completions are written, at their longest"
