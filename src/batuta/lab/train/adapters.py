"""Adds LoRA adapters to a model, loads those of an earlier training, and merges them."""

# the libraries' own annotations leave arguments untyped:
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftConfig, get_peft_model, set_peft_model_state_dict
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.save_and_load import get_peft_model_state_dict, load_peft_weights
from transformers.utils.peft_utils import find_adapter_config_file

from batuta.embedded.adapters import ADAPTER_CONFIG, ADAPTER_WEIGHTS, read_base
from batuta.errors import ConfigError
from batuta.lab.train.settings import LoraSettings

_SHAPE_OPTIONS = (
    "r", "lora_alpha", "use_rslora", "use_dora", "rank_pattern", "alpha_pattern",
    "modules_to_save", "bias", "lora_bias",
)  # fmt: skip
"""PEFT options that determine the shape and the scale of adapters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedAdapters:
    """LoRA adapters saved in a folder or on the hub."""

    start: str
    """The folder or hub repository of the adapters."""
    revision: str | None
    """The revision of a hub repository; None for the latest, or for a folder."""
    config: Any
    """The saved PEFT configuration."""
    base: str
    """The folder or hub id of the model that the adapters change."""


def find_adapters(
    start: str, revision: str | None, *, local_only: bool = False
) -> SavedAdapters | None:
    """Return the adapters in a folder or hub repository; None if it has none that can be read.

    With `local_only` a hub repository is read from the local cache, without the network.

    Raises:
        ConfigError: the adapters name no base model, or one that is itself an adapter.
    """
    try:
        path = find_adapter_config_file(start, revision=revision, local_files_only=local_only)
        if path is None:
            return None
        folder = Path(path).parent
        config = PeftConfig.from_pretrained(str(folder))
    except (OSError, ValueError, TypeError, KeyError):
        return None
    config.base_model_name_or_path = None  # PEFT would warn that the folder has another name here
    return SavedAdapters(start=start, revision=revision, config=config, base=read_base(folder))


def lora_config(lora: LoraSettings) -> LoraConfig:
    """Return the settings as PEFT's configuration."""
    return LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=lora.targets,
        task_type="CAUSAL_LM",
    )


def add_adapters(model: Any, lora: LoraSettings) -> Any:
    """Add LoRA adapters to the model and freeze all other weights.

    Raises:
        ConfigError: no layer of the model matches `lora.targets`.
    """
    try:
        return get_peft_model(model, lora_config(lora))
    except ValueError as error:
        raise ConfigError(f"policy.lora.targets = {lora.targets}: {error}") from None


def check_continuation(saved: SavedAdapters, lora: LoraSettings) -> None:
    """Check that the saved adapters are LoRA adapters of the shape and scale that `lora` sets.

    Raises:
        ConfigError: the adapters differ from the settings.
    """
    expected = lora_config(lora)
    plain = isinstance(saved.config, LoraConfig)
    differ = [
        n for n in _SHAPE_OPTIONS if plain and getattr(saved.config, n) != getattr(expected, n)
    ]
    if plain and not differ:
        return
    was = f"rank {saved.config.r} and alpha {saved.config.lora_alpha}" if plain else "another kind"
    raise ConfigError(
        f"the adapters in {saved.start} ({was}) do not match policy.lora (rank "
        f"{lora.rank} and alpha {lora.alpha}{'; different: ' + ', '.join(differ) if plain else ''})"
        f": set policy.lora to their values, or merge them with `batuta train merge {saved.start} "
        "--out FOLDER` and set policy.start to that folder"
    )


def attach_adapters(model: Any, saved: SavedAdapters, lora: LoraSettings | None) -> Any:
    """Add the saved adapters, with their weights, to the model.

    With `lora` the adapters can be trained further; without it they keep their saved settings, and
    stay frozen if they were saved for inference.

    Raises:
        ConfigError: the adapters are a learned prompt, belong to another model, or differ from
            `lora`.
    """
    if saved.config.is_prompt_learning:
        raise ConfigError(f"{saved.start} is a learned prompt; only weight adapters can be loaded")
    if lora is not None:
        check_continuation(saved, lora)
    adapted = get_peft_model(model, saved.config if lora is None else lora_config(lora))
    weights = load_peft_weights(saved.start, device="cpu", revision=saved.revision)
    expected = get_peft_model_state_dict(adapted, save_embedding_layers=False)
    found = set_peft_model_state_dict(adapted, weights)
    mismatched = sorted({*(expected.keys() - weights.keys()), *found.unexpected_keys})
    if mismatched:
        raise ConfigError(
            f"the adapters in {saved.start} do not fit the model {saved.base} with these "
            f"policy.lora.targets ({len(mismatched)} matrices differ, for example {mismatched[0]}):"
            " use the targets and the base model that the adapters were trained with"
        )
    return adapted


def remove_adapters(folder: Path) -> None:
    """Delete adapters that an earlier policy left in the folder of a whole model.

    A folder with both would be opened as adapters.
    """
    for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS):
        (folder / name).unlink(missing_ok=True)


def merge_adapters(adapted: Any) -> Any:
    """Merge the adapters into the weights and return the base model.

    Tied embeddings are untied first if an adapter changes one of the two matrices.
    """
    base: Any = adapted.get_base_model()
    ends: tuple[Any, Any] = (base.get_input_embeddings(), base.get_output_embeddings())
    table, head = (getattr(each, "base_layer", each) for each in ends)
    tied: bool = getattr(head, "weight", None) is table.weight
    if tied and any(isinstance(each, BaseTunerLayer) for each in ends):
        head.weight = torch.nn.Parameter(head.weight.detach().clone(), requires_grad=False)
        base.config.tie_word_embeddings = False
    return adapted.merge_and_unload()
