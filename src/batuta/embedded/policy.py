"""Opens a trained conductor (a folder or a GGUF file) and its card, which says how to prompt it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import orjson

from batuta.core import Client, Sampling
from batuta.embedded.adapters import ADAPTER_WEIGHTS, is_adapter, read_base
from batuta.embedded.client import EmbeddedClient
from batuta.embedded.model_files import read_json
from batuta.errors import ConfigError, StoreError
from batuta.language import PromptOptions

CARD_FILE = "batuta.json"
"""Name of the card in a model's folder."""
GGUF_SUFFIX = ".gguf"
_VERSION_LENGTH = 8


def _first_prompt(rendering: PromptOptions) -> str:
    """Return the version of the prompt of cards that name none."""
    return "compact-1" if rendering.compact else "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConductorCard:
    """The facts about a trained conductor that serving needs."""

    name: str
    rendering: PromptOptions
    temperature: float = 0.0
    """0 is greedy decoding."""
    max_tokens: int = 256
    """Maximum tokens of a draft."""
    rounds: int = 1
    """Number of rounds in the training; after them the conductor accepts the answer."""
    prompt: str = ""
    """Version of the prompt in the training; empty until `write` states this Batuta's version. For
    an old card, which states none, `read` returns the first version."""
    workers: tuple[str, ...] = ()
    """The ids of the training's workers, in the order of their numbers; empty if not recorded."""

    def check_prompt(self) -> None:
        """Check that the prompt has the same version as in the training.

        Raises:
            ConfigError: the prompt's version has changed.
        """
        trained = self.prompt or _first_prompt(self.rendering)
        if trained != self.rendering.version:
            raise ConfigError(
                f"the conductor {self.name} was trained on prompt {trained} and this Batuta writes "
                f"prompt {self.rendering.version}: train it again, or serve it with the Batuta "
                "that trained it"
            )

    def check_pool(self, workers: Iterable[str]) -> None:
        """Check that the conductor was trained on workers of the pool.

        A conductor that knows workers by number needs the same workers in the same order; any other
        needs at least one of them. A card without workers passes.

        Raises:
            ConfigError: the conductor was trained on other workers.
        """
        present = tuple(workers)
        by_number = not (self.rendering.compact or self.rendering.descriptions)
        fits = present == self.workers if by_number else set(present) & set(self.workers)
        if self.workers and not fits:
            raise ConfigError(
                f"the conductor {self.name} was trained on the workers {', '.join(self.workers)} "
                f"and the pool has {', '.join(present)}: use the pool of its training"
            )

    @property
    def sampling(self) -> Sampling:
        """The sampling of its drafts."""
        return Sampling(temperature=self.temperature, max_tokens=self.max_tokens)

    def write(self, policy_path: Path) -> None:
        """Write the card into the model's folder, or beside its GGUF file.

        Raises:
            StoreError: the card cannot be written.
        """
        path = card_path(policy_path)
        dated = replace(self, prompt=self.prompt or self.rendering.version)
        try:
            path.write_bytes(orjson.dumps(asdict(dated), option=orjson.OPT_INDENT_2))
        except OSError as error:
            raise StoreError(f"{path} cannot be written: {error.strerror}") from None

    @staticmethod
    def read(policy_path: Path) -> ConductorCard:
        """Return the card of a model's folder or GGUF file.

        Raises:
            ConfigError: the card is missing or cannot be used.
        """
        path = card_path(policy_path)
        data = read_json(path)
        try:
            rendering = PromptOptions(**data.pop("rendering"))
            workers = tuple(data.pop("workers", ()))
            card = ConductorCard(rendering=rendering, workers=workers, **data)
            card = replace(card, prompt=card.prompt or _first_prompt(rendering))
        except (KeyError, TypeError) as error:
            raise ConfigError(f"{path} is not a conductor's card: {error}") from None
        for name, least in (("temperature", 0), ("max_tokens", 1), ("rounds", 1)):
            value = getattr(card, name)
            if not isinstance(value, int | float) or value < least:
                raise ConfigError(f"{path}: {name} must be a number of at least {least}")
        return card


def card_path(policy_path: Path) -> Path:
    """Return the card's path: in a policy's folder, or beside a GGUF file and with its name."""
    if policy_path.suffix == GGUF_SUFFIX:
        return policy_path.with_suffix(".json")
    return policy_path / CARD_FILE


def is_policy(policy_path: Path) -> bool:
    """Return True for a folder with a card (of a conductor or a selector), or a GGUF file."""
    return (policy_path if policy_path.suffix == GGUF_SUFFIX else policy_path / CARD_FILE).is_file()


def open_policy(policy_path: Path) -> tuple[Client, ConductorCard, str]:
    """Return the model's client, its card, and its name with the beginning of its weights' digest.

    Raises:
        ConfigError: a file is missing or cannot be used.
    """
    card = ConductorCard.read(policy_path)
    if policy_path.suffix == GGUF_SUFFIX:
        from batuta.embedded.gguf_client import GgufClient  # noqa: PLC0415 - needs an extra

        model, weights, kind = GgufClient.open(policy_path), [policy_path], "llama.cpp"
    else:
        model, kind = EmbeddedClient.open(policy_path), "embedded"
        weights = _weight_files(policy_path)
    version = hashlib.sha256()
    for each in weights:
        with each.open("rb") as file:
            hashlib.file_digest(file, lambda: version)
    return model, card, f"{kind}/{card.name}@{version.hexdigest()[:_VERSION_LENGTH]}"


def _weight_files(folder: Path) -> list[Path]:
    """Return the files from which a folder's weights are read."""
    if is_adapter(folder):
        return [folder / ADAPTER_WEIGHTS, Path(read_base(folder)) / "model.safetensors"]
    return [folder / "model.safetensors"]
