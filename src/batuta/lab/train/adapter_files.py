"""Export of a PEFT adapter as a GGUF file, which llama.cpp loads beside its base model.

One server then holds one model, and each request names the adapter of its worker:
`extra_body = { lora = [{ id = 0, scale = 1.0 }] }`.
"""

# the libraries' own annotations leave arguments untyped:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingImports=false

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from batuta.distribution import install_hint
from batuta.embedded.adapters import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from batuta.errors import ConfigError, StoreError
from batuta.lab.train.gguf_files import LLAMA, rotate_rows

_PREFIX = "base_model.model."
_SUFFIXES = {".lora_A.weight": ".lora_a", ".lora_B.weight": ".lora_b"}


def export_adapter(folder: Path, like: Path, out: Path) -> Path:
    """Write the adapter in half precision as a GGUF file.

    Args:
        folder: an adapter as PEFT saves it.
        like: the GGUF file of the model that was adapted.
        out: the file to write.

    Returns:
        `out`.

    Raises:
        ConfigError: the adapter does not fit the model or is no plain LoRA, or a package is
            missing.
    """
    if find_spec("gguf") is None:
        raise ConfigError(f"a GGUF file is written with gguf; install it: {install_hint('local')}")
    from gguf import GGUFReader  # noqa: PLC0415 - an extra

    try:
        adapter: dict[str, Any] = json.loads((folder / ADAPTER_CONFIG).read_text("utf-8"))
        weights = load_file(folder / ADAPTER_WEIGHTS)
        original = GGUFReader(like)
        rank, alpha = int(adapter["r"]), float(adapter["lora_alpha"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{folder} and {like} cannot be read: {error}") from None
    fields = {field.name: field.contents() for field in original.fields.values()}
    if fields.get("general.architecture") != LLAMA:
        raise ConfigError(
            f"only adapters of Llama models are exported, not of {like}: make one model of it with "
            "batuta train merge, and export that"
        )
    shapes = {t.name: tuple(int(n) for n in reversed(t.shape)) for t in original.tensors}
    heads = {
        "num_attention_heads": fields["llama.attention.head_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
    }
    tensors = dict(_adapter_tensors(weights, heads, int(fields["llama.block_count"])))
    _check_fit(tensors, shapes, folder, like)
    if adapter.get("use_rslora"):
        alpha *= math.sqrt(rank)
    try:
        _write_adapter(tensors, alpha, out)
    except OSError as error:
        raise StoreError(f"{out} cannot be written: {error.strerror}") from None
    return out


def _adapter_tensors(
    weights: Mapping[str, torch.Tensor], heads: Mapping[str, Any], layers: int
) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Yield the A and B matrices of every layer under GGUF's names, B's rows in GGUF's order."""
    from gguf import MODEL_ARCH, get_tensor_name_map  # noqa: PLC0415 - an extra

    names = get_tensor_name_map(MODEL_ARCH.LLAMA, layers)
    for name, tensor in weights.items():
        side = next((one for one in _SUFFIXES if name.endswith(one)), None)
        plain = name.removeprefix(_PREFIX).removesuffix(side or "")
        called = names.get_name(f"{plain}.weight", try_suffixes=(".weight",))
        if side is None or called is None:
            raise ConfigError(f"{name} is no part of a plain low-rank adapter of a Llama")
        array = tensor.float().numpy()
        if _SUFFIXES[side] == ".lora_b":
            array = rotate_rows(plain.split(".")[-1], array, heads)
        yield called + _SUFFIXES[side], array


def _check_fit(
    tensors: Mapping[str, np.ndarray[Any, Any]],
    shapes: Mapping[str, tuple[int, ...]],
    folder: Path,
    like: Path,
) -> None:
    """Check that each pair of A and B multiplies to a matrix of the model."""
    stems = {name.rpartition(".lora_")[0] for name in tensors}
    for name in stems:
        down, up = tensors.get(f"{name}.lora_a"), tensors.get(f"{name}.lora_b")
        fits = down is not None and up is not None and up.shape[1] == down.shape[0]
        if not fits or shapes.get(name) != (up.shape[0], down.shape[1]):  # pyright: ignore[reportOptionalMemberAccess]
            raise ConfigError(f"{folder} is not an adapter of the model of {like}: {name} differs")
    if not stems:
        raise ConfigError(f"{folder} holds no adapter")


def _write_adapter(tensors: Mapping[str, np.ndarray[Any, Any]], alpha: float, out: Path) -> None:
    from gguf import GGUFWriter  # noqa: PLC0415 - an extra

    out.parent.mkdir(parents=True, exist_ok=True)
    writer: Any = GGUFWriter(str(out), LLAMA)
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", alpha)
    for name, array in tensors.items():
        writer.add_tensor(name, array.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
