"""Import of GGUF files as model folders, and export of trained folders and adapters as GGUF.

`import_gguf` dequantises a file into a folder that transformers and the training stages can open.
`export_gguf` writes a trained folder as a file that llama.cpp serves; vocabulary, chat template and
hyperparameters are those of the file that the model came from. `export_adapter` writes a PEFT
adapter, which llama.cpp loads with its base model. One server can then serve several workers: each
request names its worker's adapter, with `extra_body = { lora = [{ id = 0, scale = 1.0 }] }`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from batuta.distribution import install_hint
from batuta.embedded.adapters import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from batuta.embedded.model_files import read_json
from batuta.embedded.policy import GGUF_SUFFIX, ConductorCard, is_policy
from batuta.environment import available_memory, models_cache
from batuta.errors import ConfigError, report_unwritable
from batuta.files import file_sha256
from batuta.lab.train.checkpoint_files import report_unsaved
from batuta.lab.train.gguf_source import find_gguf
from batuta.lab.train.machine import GIB
from batuta.lab.train.model import DAMAGE, first_line, require_all_weights

# the libraries' own annotations leave arguments untyped:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingImports=false

ORIGIN_FILE = "gguf.json"
"""File beside an imported model that names the GGUF file it came from."""
BYTES_PER_PARAMETER = 10
"""Memory per parameter during import: fp32 weights twice, and quantised weights."""
LLAMA = "llama"
EXPORTED = {LLAMA: "LLAMA", "qwen2": "QWEN2"}
"""Architectures that can be exported: config.json's name, and gguf's."""
WEIGHT_TYPES = ("F32", "F16", "BF16", "Q8_0")
"""Types in which an exported model's weights can be stored."""
_ROTATED = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
"""Llama's projections whose rows GGUF stores in another order, and the config key of the number of
heads of each. Qwen2's rows keep their order."""
_UNREADABLE = (OSError, ValueError, OverflowError, *DAMAGE)
"""Errors of reading a file that is missing, damaged or of another kind."""


def import_gguf(source: str, folder: Path | None = None) -> Path:
    """Convert a GGUF file to a model folder; a folder that has its import is returned as it is.

    The source is a file, or a name in `gguf_source.PACKAGED_MODELS`. Without a folder the model is
    written to the user's cache, under the name of the file.

    Raises:
        ConfigError: the file is missing or damaged, it has no chat template, a package is missing,
            there is too little memory, or the folder has the import of another file.
        StoreError: the folder cannot be written.
    """
    path = find_gguf(source)
    target = folder or models_cache() / path.stem
    digest = _digest_file(path)
    if _has_import(target, path, digest):
        return target
    if find_spec("gguf") is None:
        raise ConfigError(f"reading a GGUF file needs gguf; install it: {install_hint('local')}")
    _check_memory(path)
    model, tokenizer = _read_model(path)
    if not tokenizer.chat_template:
        raise ConfigError(
            f"{path} has no chat template, so it cannot be prompted; use the "
            "instruction-tuned model"
        )
    with report_unsaved(target):
        _write_folder(model, tokenizer, target, path, digest=digest)
    return target


def _digest_file(path: Path) -> str:
    try:
        return file_sha256(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None


def _has_import(folder: Path, path: Path, digest: str) -> bool:
    """Return whether the folder has the import of that file; refuse the import of another one.

    Earlier versions recorded no digest, only the file's path and size.
    """
    if not (folder / ORIGIN_FILE).is_file():
        return False
    origin = read_json(folder / ORIGIN_FILE)
    named, size = str(origin.get("file")), path.stat().st_size
    known = origin.get("sha256")
    if known == digest or (
        known is None and (Path(named).name, origin.get("bytes")) == (path.name, size)
    ):
        return True
    raise ConfigError(f"{folder} has the import of {named}: name another folder with --out")


def _check_memory(path: Path) -> None:
    from gguf import GGUFReader  # noqa: PLC0415 - an extra

    try:
        count = sum(int(np.prod(t.shape)) for t in GGUFReader(path).tensors)
    except _UNREADABLE:
        raise ConfigError(f"{path} is damaged; download it again") from None
    needed, free = count * BYTES_PER_PARAMETER, available_memory()
    if needed > free:
        raise ConfigError(
            f"{path} has {count / 1e6:,.0f} million parameters; converting it needs "
            f"{needed / GIB:.1f} GiB of memory, and {free / GIB:.1f} are free; use a smaller model "
            "or another machine"
        )


def _read_model(path: Path) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415 - seconds

    folder, name = str(path.parent), path.name
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, gguf_file=name)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, gguf_file=name, dtype=torch.float32, output_loading_info=True
        )
        model, report = loaded
    except _UNREADABLE as error:
        raise ConfigError(
            f"{path} is damaged or has an unknown architecture: {first_line(error)}"
        ) from None
    require_all_weights(report, path)
    return model, tokenizer


def _write_folder(model: Any, tokenizer: Any, target: Path, path: Path, *, digest: str) -> None:
    """Write the model folder; the file that names its origin is written last."""
    target.mkdir(parents=True, exist_ok=True)
    tied = bool(model.config.tie_word_embeddings)
    weights = {
        name: tensor.contiguous().clone()
        for name, tensor in model.state_dict().items()
        if not (tied and name == "lm_head.weight")
    }
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.config.save_pretrained(target)
    tokenizer.save_pretrained(target)
    origin = {"file": str(path.resolve()), "bytes": path.stat().st_size, "sha256": digest}
    (target / ORIGIN_FILE).write_text(json.dumps(origin, indent=2) + "\n", "utf-8")


# -- export -------------------------------------------------------------------------------


def export_gguf(
    folder: Path, like: Path, out: Path, kind: str = "Q8_0", *, temperature: float | None = None
) -> Path:
    """Write a trained folder as a GGUF file with the architecture and vocabulary of `like`.

    The folder must have all weights in one safetensors file. `kind` is one of `WEIGHT_TYPES`. If
    the folder is a conductor, its card is written beside the file, as OUT with `.json` in place of
    `.gguf`; its temperature changes only if `temperature` is given.

    Raises:
        ConfigError: `kind` or the suffix of `out` is invalid, the folder cannot be read or does not
            fit `like`, or a package is missing.
        StoreError: the file cannot be written.
    """
    if find_spec("gguf") is None:
        raise ConfigError(f"writing a GGUF file needs gguf; install it: {install_hint('local')}")
    from gguf import GGMLQuantizationType, GGUFReader  # noqa: PLC0415 - an extra

    if kind not in WEIGHT_TYPES:
        raise ConfigError(f"weights can be stored as F32, F16, BF16 or Q8_0, not {kind}")
    if out.suffix != GGUF_SUFFIX:
        raise ConfigError(f"--out {out} must end in {GGUF_SUFFIX}, as its card has the same name")
    quantised = GGMLQuantizationType[kind]
    try:
        config: Any = json.loads((folder / "config.json").read_text("utf-8"))
        weights = load_file(folder / "model.safetensors")
        original = GGUFReader(like)
    except _UNREADABLE as error:
        raise ConfigError(f"{folder} and {like} cannot be read: {first_line(error)}") from None
    if not isinstance(config, dict) or config.get("model_type") not in EXPORTED:
        raise ConfigError(f"only Llama and Qwen2 models can be exported, not that of {folder}")
    tensors = dict(_gguf_tensors(weights, config))
    expected = {
        tensor.name: tuple(int(n) for n in reversed(tensor.shape)) for tensor in original.tensors
    }
    found = {name: array.shape for name, array in tensors.items()}
    if found != expected:
        raise ConfigError(f"{folder} is not the model of {like}: their tensors differ")
    with report_unwritable(out):
        _write_gguf(original, tensors, out, quantised, architecture=str(config["model_type"]))
    if is_policy(folder):
        card = ConductorCard.read(folder)
        sampling_temperature = card.temperature if temperature is None else temperature
        replace(card, temperature=sampling_temperature).write(out)
    return out


def _gguf_tensors(
    weights: Mapping[str, torch.Tensor], config: Mapping[str, Any]
) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Yield GGUF's name and the array of every tensor, with its rows in GGUF's order."""
    from gguf import MODEL_ARCH, get_tensor_name_map  # noqa: PLC0415 - an extra

    kind = str(config["model_type"])
    names = get_tensor_name_map(MODEL_ARCH[EXPORTED[kind]], int(config["num_hidden_layers"]))
    for name, tensor in weights.items():
        array = tensor.float().numpy()
        if kind == LLAMA:
            array = rotate_rows(name.split(".")[-2], array, config)
        gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if gguf_name is None:
            raise ConfigError(f"{name} cannot be exported, as GGUF has no name for it")
        yield gguf_name, array


def rotate_rows(
    part: str, array: np.ndarray[Any, Any], config: Mapping[str, Any]
) -> np.ndarray[Any, Any]:
    """Return the array with its rows in GGUF's order; only the projections in `_ROTATED` change."""
    if part not in _ROTATED:
        return array
    heads = int(config[_ROTATED[part]])
    pairs = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
    return pairs.swapaxes(1, 2).reshape(array.shape)


def _write_gguf(
    original: Any,
    tensors: Mapping[str, np.ndarray[Any, Any]],
    out: Path,
    kind: Any,
    *,
    architecture: str,
) -> None:
    from gguf import GGMLQuantizationType, GGUFWriter  # noqa: PLC0415 - an extra
    from gguf.quants import quantize  # noqa: PLC0415 - same

    out.parent.mkdir(parents=True, exist_ok=True)
    writer: Any = GGUFWriter(str(out), architecture)
    for field in original.fields.values():
        if field.name.startswith("GGUF.") or field.name in {
            "general.architecture",
            "general.file_type",
            "general.quantization_version",
        }:
            continue
        inner = field.types[-1] if len(field.types) > 1 else None
        writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=inner)
    writer.add_quantization_version(2)
    for tensor in original.tensors:
        array = tensors[tensor.name]
        chosen = kind if array.ndim > 1 else GGMLQuantizationType.F32
        writer.add_tensor(tensor.name, quantize(array.astype(np.float32), chosen), raw_dtype=chosen)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


_PREFIX = "base_model.model."
_SUFFIXES = {".lora_A.weight": ".lora_a", ".lora_B.weight": ".lora_b"}


def export_adapter(folder: Path, like: Path, out: Path) -> Path:
    """Write an adapter that PEFT saved in `folder` as a GGUF file in half precision.

    `like` is the GGUF file of its base model.

    Raises:
        ConfigError: a file cannot be read, the adapter does not fit the model or is not a plain
            LoRA, or a package is missing.
        StoreError: the file cannot be written.
    """
    if find_spec("gguf") is None:
        raise ConfigError(f"writing a GGUF file needs gguf; install it: {install_hint('local')}")
    from gguf import GGUFReader  # noqa: PLC0415 - an extra

    try:
        adapter: dict[str, Any] = json.loads((folder / ADAPTER_CONFIG).read_text("utf-8"))
        weights = load_file(folder / ADAPTER_WEIGHTS)
        original = GGUFReader(like)
        rank, alpha = int(adapter["r"]), float(adapter["lora_alpha"])
    except _UNREADABLE as error:
        raise ConfigError(f"{folder} and {like} cannot be read: {first_line(error)}") from None
    fields = {field.name: field.contents() for field in original.fields.values()}
    if fields.get("general.architecture") != LLAMA:
        raise ConfigError(
            f"only adapters of Llama models can be exported, not of {like}: merge the adapter with "
            "batuta train merge, and export the merged model"
        )
    shapes = {t.name: tuple(int(n) for n in reversed(t.shape)) for t in original.tensors}
    attention = fields["llama.attention.head_count"]
    heads = {
        "num_attention_heads": attention,
        # left out if every head has keys and values of its own
        "num_key_value_heads": fields.get("llama.attention.head_count_kv", attention),
    }
    tensors = dict(_adapter_tensors(weights, heads, int(fields["llama.block_count"])))
    _check_fit(tensors, shapes, folder, like)
    if adapter.get("use_rslora"):
        alpha *= math.sqrt(rank)
    with report_unwritable(out):
        _write_adapter(tensors, alpha, out)
    return out


def _adapter_tensors(
    weights: Mapping[str, torch.Tensor], heads: Mapping[str, Any], layers: int
) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Yield GGUF's name and the array of each A and B; the rows of B are in GGUF's order."""
    from gguf import MODEL_ARCH, get_tensor_name_map  # noqa: PLC0415 - an extra

    names = get_tensor_name_map(MODEL_ARCH.LLAMA, layers)
    for name, tensor in weights.items():
        side = next((one for one in _SUFFIXES if name.endswith(one)), None)
        plain = name.removeprefix(_PREFIX).removesuffix(side or "")
        called = names.get_name(f"{plain}.weight", try_suffixes=(".weight",))
        if side is None or called is None:
            raise ConfigError(f"{name} is not part of a plain LoRA adapter of a Llama model")
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
    """Check that the product of each pair of A and B has the shape of its matrix in the model."""
    stems = {name.rpartition(".lora_")[0] for name in tensors}
    for name in stems:
        down, up = tensors.get(f"{name}.lora_a"), tensors.get(f"{name}.lora_b")
        fits = down is not None and up is not None and up.shape[1] == down.shape[0]
        if not fits or shapes.get(name) != (up.shape[0], down.shape[1]):  # pyright: ignore[reportOptionalMemberAccess]
            raise ConfigError(f"{folder} is not an adapter of the model of {like}: {name} differs")
    if not stems:
        raise ConfigError(f"{folder} contains no adapter")


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
