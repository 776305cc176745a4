"""Where a training computes, how precisely, and with which programs.

Reinforcement learning is placed by accelerate; the stages before it (SFT warm-up, distilling,
rejection sampling) run in one process, on the GPU where there is one.
"""

from __future__ import annotations

import shutil
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from peft import PeftModel

from batuta.lab.train.settings import TrainSettings


def training_device() -> torch.device:
    """The GPU where there is one, else the processor."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def place_model(model: Any) -> Any:
    """The model, which now lies where a stage of one process computes."""
    return model.to(training_device())


def bf16_autocast(settings: TrainSettings) -> AbstractContextManager[Any]:
    """Computing in bf16 over fp32 weights, where the settings say so."""
    if not settings.policy.bf16:
        return nullcontext()
    return torch.autocast(training_device().type, torch.bfloat16)


def without_adapters(model: Any) -> Any:
    """The causal language model itself; adapters stand inside its layers."""
    return model.get_base_model() if isinstance(model, PeftModel) else model


def linear_weights(model: torch.nn.Module) -> list[torch.Tensor]:
    """The matrices of the model's linear layers, without one that is its table of vectors too."""
    modules = list(model.modules())
    tables = {id(each.weight) for each in modules if isinstance(each, torch.nn.Embedding)}
    linear = [each.weight for each in modules if isinstance(each, torch.nn.Linear)]
    return [weight for weight in linear if id(weight) not in tables]


def narrow_frozen(model: torch.nn.Module) -> None:
    """Keep the linear layers that do not learn in bf16, as they are computed with under autocast.

    The numbers are the same. autocast keeps a narrow copy of what learns for a whole pass, but of
    what is frozen it makes another one each time, and the way back holds on to all of them: of a
    model of 7 billion parameters three times 14 GiB beside the wide one's 28.
    """
    for weight in linear_weights(model):
        if not weight.requires_grad:
            weight.data = weight.data.to(torch.bfloat16)


def choose_attention(model: Any, settings: TrainSettings) -> None:
    """Attention whose gradient is right, and fast.

    On a GPU it is not cuDNN's. On the Hopper kind that gives gradients that are no numbers, with a
    mask, some lengths and strongly negative scores, as Qwen2.5 has them (PyTorch 2.11 to 2.13,
    github.com/pytorch/pytorch/issues/196678).

    On a processor in bf16 without AMX it is plain matrix products: PyTorch's fused attention takes
    a third of a training step there, its way back above all. With SmolLM2-135M and texts of 360
    tokens 352 tokens a CPU second, against 447 without (AVX-512). With AMX it is the other way
    round: 413 fused, 314 without, with eight texts of 400 tokens.
    """
    if torch.cuda.is_available():
        torch.backends.cuda.enable_cudnn_sdp(enabled=False)
    elif settings.policy.bf16 and not torch.cpu.get_capabilities().get("amx_bf16", False):
        without_adapters(model).set_attn_implementation("eager")


def compile_layers(model: Any) -> None:
    """Each layer as one compiled program, for texts of any length.

    On a processor 388 tokens a CPU second become 533 (SmolLM2-135M, AMX). Without a C++ compiler
    nothing changes.
    """
    if torch.cuda.is_available() or shutil.which("c++"):
        for layer in without_adapters(model).get_decoder().layers:
            layer.compile(dynamic=True)


def set_threads(settings: TrainSettings) -> None:
    """As many threads as the settings say, where there is no GPU."""
    if settings.optimiser.threads and not torch.cuda.is_available():
        torch.set_num_threads(settings.optimiser.threads)
