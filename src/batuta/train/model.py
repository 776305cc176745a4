"""The policy: a small Qwen2 from nothing or a pretrained model, loaded and kept in folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from batuta.embedded.model_files import read_json
from batuta.embedded.policy import ConductorCard
from batuta.errors import ConfigError, StoreError
from batuta.train.settings import TrainSettings

_GENERIC_TOKENIZERS = ("TokenizersBackend", "PreTrainedTokenizerFast")
"""Names of the tokenizer that is nothing but its file, of this transformers and of older ones."""


def make_model(
    tokenizer: Any,
    *,
    hidden: int = 128,
    layers: int = 3,
    heads: int = 4,
    kv_heads: int = 2,
    inner: int = 256,
    positions: int = 1024,
) -> Qwen2ForCausalLM:
    """A Qwen2 of random weights with tied embeddings, in fp32.

    Args:
        tokenizer: gives the vocabulary and the special tokens.
        hidden: width of the residual stream.
        layers: how many.
        heads: of attention.
        kv_heads: keys and values are shared among the heads.
        inner: width inside the feed-forward part.
        positions: tokens of prompt and completion at most.
    """
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=inner,
        max_position_embeddings=positions,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        use_cache=True,
        initializer_range=0.02,
    )
    return Qwen2ForCausalLM(config)


def load_policy(start: str, revision: str | None) -> tuple[Any, Any]:
    """Model, with fp32 weights, and tokenizer of a folder or hub id.

    Raises:
        ConfigError: they cannot be loaded, or the tokenizer is of another model.
    """
    try:
        tokenizer = read_tokenizer(start, revision)
        model: Any = AutoModelForCausalLM.from_pretrained(
            start, dtype=torch.float32, revision=revision
        )
    except (OSError, ValueError):
        raise ConfigError(
            f"no policy can be loaded from {start!r}; name a folder with a model and its "
            "tokenizer, or a hub id that can be fetched from here, as policy.start"
        ) from None
    if len(tokenizer) > model.config.vocab_size:
        raise ConfigError(
            f"the tokenizer in {start} has {len(tokenizer)} pieces and the model knows "
            f"{model.config.vocab_size}: copy all files of the tokenizer that it was trained with"
        )
    return model, tokenizer


def check_own_sampler(model: Any, start: str) -> None:
    """Whether our own sampler can read that model.

    Raises:
        ConfigError: it cannot.
    """
    if type(model).__name__ != "Qwen2ForCausalLM":
        raise ConfigError(
            f"our own sampler is for Qwen2 only, and {start} is a {type(model).__name__}; write "
            'sampler = "transformers" in [optimiser], and leave rejection sampling out'
        )


def read_tokenizer(start: str, revision: str | None = None) -> Any:
    """The tokenizer of a folder or hub id, as it was saved.

    `AutoTokenizer` gives every folder of a Qwen2 model Qwen2's own way of cutting text into pieces,
    whatever its tokenizer.json says, and a small policy was not trained on those.

    Raises:
        ConfigError: what the folder says of it is no JSON object.
        OSError, ValueError: there is none.
    """
    kind: Any = PreTrainedTokenizerFast if _is_generic_tokenizer(Path(start)) else AutoTokenizer
    return kind.from_pretrained(start, padding_side="left", revision=revision)


def _is_generic_tokenizer(folder: Path) -> bool:
    """Whether the folder's tokenizer says that it is nothing but its tokenizer.json."""
    path = folder / "tokenizer_config.json"
    return path.is_file() and read_json(path).get("tokenizer_class") in _GENERIC_TOKENIZERS


def find_policy_start(settings: TrainSettings, *, sampling: bool = False) -> str | None:
    """The folder or hub id that a stage starts from: what the stage before it has left.

    Args:
        settings: which name it, or the folder in which an earlier stage left it.
        sampling: the stage is rejection sampling, and not reinforcement learning.

    Returns:
        None: nothing is named and no earlier stage was done.
    """
    sampled, warm = settings.output / "rejection", settings.output / "warmup"
    if settings.rejection.rounds and not sampling and (sampled / "config.json").is_file():
        return str(sampled)
    if settings.policy.start:
        return settings.policy.start
    return str(warm) if (warm / "config.json").is_file() else None


def require_policy_start(settings: TrainSettings, *, sampling: bool = False) -> str:
    """As `find_policy_start`.

    Raises:
        ConfigError: there is nothing to start from.
    """
    start = find_policy_start(settings, sampling=sampling)
    if start is None:
        raise ConfigError(
            "there is no policy to start from: name one as policy.start, or make "
            f"{settings.output / 'warmup'} with `batuta train warmup` and the same --config"
        )
    return start


def set_threads(settings: TrainSettings) -> None:
    """As many threads as the settings say, where there is no GPU."""
    if settings.optimiser.threads and not torch.cuda.is_available():
        torch.set_num_threads(settings.optimiser.threads)


def save_stage(model: Any, tokenizer: Any, settings: TrainSettings, stage: str) -> Path:
    """Write the policy that a stage before reinforcement learning ended with.

    Returns:
        Its folder.

    Raises:
        StoreError: it cannot be written.
    """
    folder = settings.output / stage
    try:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        rendering, most = settings.prompt.rendering(), settings.optimiser.completion
        rounds = settings.recursion.rounds
        ConductorCard(
            name=f"{settings.name}-{stage}",
            rendering=rendering,
            temperature=1.0,
            max_tokens=most,
            rounds=rounds,
        ).write(folder)
    except OSError as error:
        raise StoreError(f"the policy cannot be written to {folder}: {error.strerror}") from None
    return folder
