"""Reads LoRA adapters saved by PEFT, and adds them to the weights of their base model.

The sum is W + s B A, where s is alpha / rank, or alpha / √rank (rank-stabilised LoRA).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, final

import numpy as np

from batuta.embedded.model_files import Floats, SafetensorsFile, read_json
from batuta.errors import ConfigError

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_DOWN, _UP = ".lora_A.weight", ".lora_B.weight"
_EXTRAS = ("use_dora", "rank_pattern", "alpha_pattern", "modules_to_save", "lora_bias")
"""PEFT options that need more than plain pairs of low-rank matrices."""


def is_adapter(folder: Path) -> bool:
    """Return True if the folder contains LoRA adapters that PEFT saved."""
    return (folder / ADAPTER_CONFIG).is_file() and (folder / ADAPTER_WEIGHTS).is_file()


def read_base(folder: Path) -> str:
    """Return the folder or hub id of the model that the adapters in `folder` were trained on.

    A relative folder is looked for in the working directory, then in the folders above `folder`.

    Raises:
        ConfigError: the adapter's configuration cannot be read or names no base model, or the base
            model is itself a LoRA adapter.
    """
    named = read_json(folder / ADAPTER_CONFIG).get("base_model_name_or_path")
    if not isinstance(named, str) or not named:
        raise ConfigError(
            f"{folder / ADAPTER_CONFIG} does not name the adapters' base model: set "
            "base_model_name_or_path to its folder or hub id"
        )
    candidates = (parent / named for parent in (Path(), *folder.resolve().parents))
    base = next((path for path in candidates if path.is_dir()), None)
    if base and is_adapter(base):
        raise ConfigError(
            f"the base model of {folder}, {base}, is itself a LoRA adapter: merge that first with "
            f"`batuta train merge {base} --out FOLDER`, and set base_model_name_or_path in "
            f"{folder / ADAPTER_CONFIG} to that folder"
        )
    return named if base is None else str(base)


@final
class AdaptedTensors:
    """The tensors of a base model with LoRA adapters added."""

    def __init__(
        self, base: SafetensorsFile, adapters: SafetensorsFile, scale: float, rank: int
    ) -> None:
        """Wrap `base`; `scale` is the factor s of B A, and `rank` the rank of the adapters."""
        self._base = base
        self._adapters = adapters
        self._scale = scale
        self._rank = rank
        self._unread = set(adapters.names)

    @classmethod
    def read(cls, folder: Path, base: Path) -> Self:
        """Read the adapters in `folder` and the model in `base`.

        Raises:
            ConfigError: a file is missing or damaged, or the adapters are not plain LoRA.
        """
        config = read_json(folder / ADAPTER_CONFIG)
        adapters = SafetensorsFile.read(folder / ADAPTER_WEIGHTS)
        other = [name for name in adapters.names if not name.endswith((_DOWN, _UP))]
        if config.get("peft_type") != "LORA" or other or any(map(config.get, _EXTRAS)):
            raise ConfigError(
                f"{folder} is not a plain LoRA adapter: write the whole model with "
                f"`batuta train merge {folder} --out FOLDER` and name that folder"
            )
        scale, rank = _scale_of(config)
        return cls(SafetensorsFile.read(base / "model.safetensors"), adapters, scale, rank)

    def take(self, name: str, *shape: int) -> Floats:
        """Return the tensor of that name as float32, with its adapter added if it has one.

        Raises:
            ConfigError: the tensor or its adapter cannot be used (`SafetensorsFile.take`).
        """
        whole = self._base.take(name, *shape)
        part = _PREFIX + name.removesuffix(".weight")
        if part + _DOWN not in self._adapters.names:
            return whole
        self._unread -= {part + _DOWN, part + _UP}
        down = self._adapters.take(part + _DOWN, self._rank, shape[1])
        up = self._adapters.take(part + _UP, shape[0], self._rank)
        whole += np.float32(self._scale) * (up @ down)
        return whole

    def check_all_taken(self) -> None:
        """Check that every adapter was added to a tensor.

        Raises:
            ConfigError: an adapter belongs to no tensor that was taken.
        """
        if self._unread:
            raise ConfigError(
                f"the adapter {min(self._unread)} belongs to no tensor that is used here: write "
                "the whole model with `batuta train merge` and name its folder"
            )


def _scale_of(config: Mapping[str, Any]) -> tuple[float, int]:
    """Return LoRA's scaling factor s, and the rank."""
    try:
        rank, alpha = int(config["r"]), float(config["lora_alpha"])
        return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank), rank
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise ConfigError(f"{ADAPTER_CONFIG} is not as PEFT saves it: {error!r}") from None
