"""The device, precision, attention and compilation of a training.

For reinforcement learning accelerate places the model; the stages before it (SFT warm-up,
distilling, rejection sampling) run in one process, on the GPU if there is one.
"""

from __future__ import annotations

import shutil
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from peft import PeftModel

from batuta.errors import ConfigError
from batuta.lab.train.settings import TrainSettings


def training_device() -> torch.device:
    """Return the GPU if there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def place_model(model: Any) -> Any:
    """Move the model to the device of a single-process stage, and return it."""
    return model.to(training_device())


def bf16_autocast(settings: TrainSettings) -> AbstractContextManager[Any]:
    """Return a context that computes in bf16 over fp32 weights if `policy.bf16` is set."""
    if not settings.policy.bf16:
        return nullcontext()
    return torch.autocast(training_device().type, torch.bfloat16)


def without_adapters(model: Any) -> Any:
    """Return the causal language model itself; adapters stay inside its layers."""
    return model.get_base_model() if isinstance(model, PeftModel) else model


def freeze_lower_layers(model: Any, upper_layers: int | None) -> None:
    """Freeze all but the uppermost layers and the last norm; None changes nothing.

    Raises:
        ConfigError: the model has its layers or its last norm under another name than Llama.
    """
    if upper_layers is None:
        return
    layers, norm = (
        _decoder_part(model, name, "policy.upper_layers") for name in ("layers", "norm")
    )
    model.requires_grad_(requires_grad=False)
    for part in (*layers[-upper_layers:], norm):
        part.requires_grad_(requires_grad=True)


def _decoder_part(model: Any, name: str, setting: str) -> Any:
    """Return the part of the decoder that has this name in Llama and Qwen2.

    Raises:
        ConfigError: there is none, so `setting` cannot be used.
    """
    bare = without_adapters(model)
    part = getattr(bare.get_decoder(), name, None)
    if part is None:
        raise ConfigError(
            f"{setting} cannot be used, as the decoder of {type(bare).__name__} has no `{name}`; "
            "remove the setting, or train a model such as Qwen2 or Llama"
        )
    return part


def linear_weights(model: torch.nn.Module) -> list[torch.Tensor]:
    """Return the matrices of the model's linear layers, except one tied to the embedding table."""
    modules = list(model.modules())
    tables = {id(each.weight) for each in modules if isinstance(each, torch.nn.Embedding)}
    linear = [each.weight for each in modules if isinstance(each, torch.nn.Linear)]
    return [weight for weight in linear if id(weight) not in tables]


def narrow_frozen(model: torch.nn.Module) -> None:
    """Store the frozen linear layers in bf16, the precision in which autocast computes with them.

    The results are the same. Autocast caches its bf16 copy of a trainable matrix for a whole pass,
    but copies a frozen one each time it is used, and the backward pass keeps all copies: three
    times 14 GiB, beside 28 GiB of fp32 weights, for a model of 7 billion parameters.
    """
    for weight in linear_weights(model):
        if not weight.requires_grad:
            weight.data = weight.data.to(torch.bfloat16)


def choose_attention(model: Any, settings: TrainSettings) -> None:
    """Choose the fastest attention implementation with correct gradients.

    On a GPU cuDNN attention is disabled: on Hopper it gives NaN gradients for masked batches of
    certain lengths with strongly negative scores, as in Qwen2.5 (PyTorch 2.11 to 2.13,
    github.com/pytorch/pytorch/issues/196678).

    On a CPU in bf16 without AMX, eager attention is used: PyTorch's fused attention takes a third
    of a training step there, mostly in the backward pass. SmolLM2-135M learns 352 tokens per CPU
    second with fused and 447 with eager attention (AVX-512, texts of 360 tokens). With AMX, fused
    attention is faster: 413 tokens per CPU second, against 314 with eager attention (eight texts
    of 400 tokens).
    """
    if torch.cuda.is_available():
        torch.backends.cuda.enable_cudnn_sdp(enabled=False)
    elif settings.policy.bf16 and not torch.cpu.get_capabilities().get("amx_bf16", False):
        without_adapters(model).set_attn_implementation("eager")


def compile_layers(model: Any) -> None:
    """Compile each layer, for texts of any length, in place.

    Throughput rises from 388 to 533 tokens per CPU second (SmolLM2-135M, AMX). Without a GPU or a
    C++ compiler nothing is compiled.

    Raises:
        ConfigError: the model has its layers under another name than Llama.
    """
    layers = _decoder_part(model, "layers", "distil.compile")
    if torch.cuda.is_available() or shutil.which("c++"):
        for layer in layers:
            layer.compile(dynamic=True)


def set_threads(settings: TrainSettings) -> None:
    """Set the number of CPU threads to `optimiser.threads` if it is set and there is no GPU."""
    if settings.optimiser.threads and not torch.cuda.is_available():
        torch.set_num_threads(settings.optimiser.threads)
