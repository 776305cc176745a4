"""A trained policy's folder: the model, and what it is to be shown."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from batuta.core import Sampling
from batuta.embedded.folder import read_json
from batuta.embedded.model import Embedded
from batuta.errors import ConfigError, StoreError
from batuta.language import Rendering

FILE = "batuta.json"
"""Beside the model: the prompt that it was trained on and how it is best sampled."""
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Card:
    """What serving must know of a trained conductor."""

    name: str
    rendering: Rendering
    temperature: float = 0.0
    """0: the likeliest workflow."""
    max_tokens: int = 256
    rounds: int = 1
    """Rounds that it has learned; after so many it lets the answer stand."""

    @property
    def sampling(self) -> Sampling:
        """How drafts are sampled."""
        return Sampling(temperature=self.temperature, max_tokens=self.max_tokens)

    def write(self, folder: Path) -> None:
        """Put it beside the model.

        Raises:
            StoreError: the folder cannot be written.
        """
        try:
            (folder / FILE).write_bytes(orjson.dumps(asdict(self), option=orjson.OPT_INDENT_2))
        except OSError as error:
            raise StoreError(f"{folder / FILE} cannot be written: {error.strerror}") from None

    @staticmethod
    def read(folder: Path) -> Card:
        """The card of that folder.

        Raises:
            ConfigError: there is none, or it cannot be used.
        """
        read: dict[str, Any] = dict(read_json(folder / FILE))
        try:
            shown = Rendering(**read.pop("rendering"))
            card = Card(rendering=shown, **read)
        except (KeyError, TypeError) as error:
            raise ConfigError(f"{folder / FILE} is not a conductor's card: {error}") from None
        for name, least in (("temperature", 0), ("max_tokens", 1), ("rounds", 1)):
            value = getattr(card, name)
            if not isinstance(value, int | float) or value < least:
                raise ConfigError(f"{folder / FILE}: {name} is a number from {least} on")
        return card


def is_policy(folder: Path) -> bool:
    """Whether a trained conductor lies there."""
    return (folder / FILE).is_file()


def open_policy(folder: Path) -> tuple[Embedded, Card, str]:
    """The model, its card, and its name with the version of its weights.

    Raises:
        ConfigError: something is missing or cannot be used.
    """
    card = Card.read(folder)
    model = Embedded.open(folder)
    weights = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    return model, card, f"embedded/{card.name}@{weights[:_SHOWN]}"
