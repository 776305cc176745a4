"""A trained policy, a folder or a GGUF file: the model, and what it is to be shown."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from batuta.core import Client, Sampling
from batuta.embedded.adapters import ADAPTER_WEIGHTS, is_adapter, read_base
from batuta.embedded.client import EmbeddedClient
from batuta.embedded.model_files import read_json
from batuta.errors import ConfigError, StoreError
from batuta.language import PromptOptions

CARD_FILE = "batuta.json"
"""Beside the model: the prompt that it was trained on and how it is best sampled."""
SUFFIX = ".gguf"
_VERSION_LENGTH = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ConductorCard:
    """The facts about a trained conductor that serving must know."""

    name: str
    rendering: PromptOptions
    temperature: float = 0.0
    """0: the likeliest workflow."""
    max_tokens: int = 256
    rounds: int = 1
    """Rounds that it has learned; after so many it lets the answer stand."""
    prompt: str = ""
    """Version of the wording that it was trained on; empty: not written down."""
    workers: tuple[str, ...] = ()
    """The workers of its training, in the order of their numbers; empty if not written down."""

    def check_prompt(self) -> None:
        """Make sure that it is prompted now as it was in training.

        Raises:
            ConfigError: the wording is another one by now.
        """
        was = self.prompt or ("compact-1" if self.rendering.compact else "1")
        if was != self.rendering.version:
            raise ConfigError(
                f"the conductor {self.name} was trained on prompt {was} and this Batuta writes "
                f"prompt {self.rendering.version}: train it again, or serve it with the Batuta "
                "that trained it"
            )

    def check_pool(self, workers: Iterable[str]) -> None:
        """Make sure that it can call somebody of the pool.

        Raises:
            ConfigError: it has learned on other workers.
        """
        present = tuple(workers)
        by_number = not (self.rendering.compact or self.rendering.descriptions)
        fits = present == self.workers if by_number else set(present) & set(self.workers)
        if self.workers and not fits:
            raise ConfigError(
                f"the conductor {self.name} has learned on the workers {', '.join(self.workers)} "
                f"and the pool has {', '.join(present)}: name the pool that it was trained on"
            )

    @property
    def sampling(self) -> Sampling:
        """How drafts are sampled."""
        return Sampling(temperature=self.temperature, max_tokens=self.max_tokens)

    def write(self, place: Path) -> None:
        """Put it beside the model, a folder's or a GGUF file's."""
        path = card_path(place)
        dated = replace(self, prompt=self.prompt or self.rendering.version)
        try:
            path.write_bytes(orjson.dumps(asdict(dated), option=orjson.OPT_INDENT_2))
        except OSError as error:
            raise StoreError(f"{path} cannot be written: {error.strerror}") from None

    @staticmethod
    def read(place: Path) -> ConductorCard:
        """Return the card of that folder, or of that GGUF file.

        Raises:
            ConfigError: there is none, or it cannot be used.
        """
        path = card_path(place)
        read: dict[str, Any] = dict(read_json(path))
        try:
            shown = PromptOptions(**read.pop("rendering"))
            card = ConductorCard(rendering=shown, **read)
        except (KeyError, TypeError) as error:
            raise ConfigError(f"{path} is not a conductor's card: {error}") from None
        card = replace(card, workers=tuple(card.workers))
        for name, least in (("temperature", 0), ("max_tokens", 1), ("rounds", 1)):
            value = getattr(card, name)
            if not isinstance(value, int | float) or value < least:
                raise ConfigError(f"{path}: {name} is a number from {least} on")
        return card


def card_path(place: Path) -> Path:
    """Return the path of a policy's card: in its folder, or beside its GGUF file under its name."""
    return place.with_suffix(".json") if place.suffix == SUFFIX else place / CARD_FILE


def is_policy(place: Path) -> bool:
    """Return True if a trained conductor lies there: a folder, or a GGUF file."""
    return place.is_file() if place.suffix == SUFFIX else (place / CARD_FILE).is_file()


def open_policy(place: Path) -> tuple[Client, ConductorCard, str]:
    """Return the model, its card, and its name with the version of its weights.

    Raises:
        ConfigError: something is missing or cannot be used.
    """
    card = ConductorCard.read(place)
    if place.suffix == SUFFIX:
        from batuta.embedded.gguf_client import GgufClient  # noqa: PLC0415 - seldom, of an extra

        model, weights, kind = GgufClient.open(place), [place], "llama.cpp"
    else:
        model, weights, kind = EmbeddedClient.open(place), _weight_files(place), "embedded"
    version = hashlib.sha256()
    for each in weights:
        with each.open("rb") as file:
            hashlib.file_digest(file, lambda: version)
    return model, card, f"{kind}/{card.name}@{version.hexdigest()[:_VERSION_LENGTH]}"


def _weight_files(folder: Path) -> list[Path]:
    """List the files that the weights of a policy's folder come from."""
    if is_adapter(folder):
        return [folder / ADAPTER_WEIGHTS, Path(read_base(folder)) / "model.safetensors"]
    return [folder / "model.safetensors"]
