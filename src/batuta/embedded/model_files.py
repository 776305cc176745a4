"""Reads the files of a Hugging Face folder: JSON and safetensors."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Protocol, Self, cast, final

import numpy as np
import safetensors
from numpy.typing import NDArray

from batuta.errors import ConfigError

Floats = NDArray[np.float32]
_deserialize = cast(
    "Callable[[bytes], list[tuple[str, dict[str, Any]]]]",
    safetensors.deserialize,  # pyright: ignore[reportUnknownMemberType] - its stub has no types
)
_DTYPES = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2")}


def read_bytes(path: Path) -> bytes:
    """Return the content of a file.

    Raises:
        ConfigError: the file is missing or cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        ConfigError: the file is missing, cannot be read, or does not contain a JSON object.
    """
    try:
        data = json.loads(read_bytes(path))
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path} contains no JSON object")
    return cast("dict[str, Any]", data)


class Tensors(Protocol):
    """Weights that are read by name and shape."""

    def take(self, name: str, *shape: int) -> Floats:
        """Return the tensor of that name as float32.

        Raises:
            ConfigError: the tensor is missing or cannot be used.
        """
        ...


@final
class SafetensorsFile:
    """The content of a safetensors file, read by name and shape."""

    def __init__(self, name: str, tensors: Mapping[str, Mapping[str, Any]]) -> None:
        """Take the tensors that `safetensors.deserialize` returned for the file `name`."""
        self._name = name
        self._tensors = tensors

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the tensors of a file.

        Raises:
            ConfigError: the file is missing or is not a safetensors file.
        """
        data = read_bytes(path)
        try:
            tensors = dict(_deserialize(data))
        except safetensors.SafetensorError as error:
            raise ConfigError(f"{path.name} is damaged: {error}") from None
        return cls(path.name, tensors)

    @property
    def names(self) -> Collection[str]:
        """The names of all tensors."""
        return self._tensors.keys()

    def take(self, name: str, *shape: int) -> Floats:
        """Return the tensor of that name as float32.

        Raises:
            ConfigError: the tensor is missing, has another shape, is not float32 or float16, or has
                entries that are not finite.
        """
        found = self._tensors.get(name)
        if found is None:
            raise ConfigError(f"{self._name} has no tensor {name}")
        if tuple(found["shape"]) != shape:
            raise ConfigError(
                f"{name} in {self._name} has shape {tuple(found['shape'])}, but config.json "
                f"requires {shape}"
            )
        dtype = _DTYPES.get(found["dtype"])
        if dtype is None:
            raise ConfigError(
                f"{name} in {self._name} is {found['dtype']}: save the model as float32 or float16"
            )
        values = np.frombuffer(found["data"], dtype).reshape(shape).astype(np.float32)
        if not np.isfinite(values).all():
            raise ConfigError(f"{name} in {self._name} contains numbers that are not finite")
        return values
