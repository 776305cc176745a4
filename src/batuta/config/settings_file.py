"""Settings from a TOML file, whatever they are of: one sentence about the first that is wrong."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from batuta.config.setting_errors import describe_setting_error
from batuta.errors import ConfigError

_Settings = TypeVar("_Settings", bound=BaseModel)


class StrictModel(BaseModel):
    """Settings that stay as they were read; a name that is not theirs is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def refuse_settings(self, names: Iterable[str], reason: str) -> None:
        """Return if none of these was set, else raise.

        Raises:
            ValueError: one was; the first in order of the alphabet is named.
        """
        if said := sorted(self.model_fields_set.intersection(names)):
            raise ValueError(f"`{said[0]}` {reason}")


def read_settings(path: Path, model: type[_Settings]) -> _Settings:
    """The settings in a TOML file; relative paths in it stay as they are written.

    Raises:
        ConfigError: it cannot be read, is no TOML, or has a setting that cannot be used.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    return validate_settings(data, str(path), model)


def validate_settings(values: Mapping[str, Any], source: str, model: type[_Settings]) -> _Settings:
    """The settings of those values; `source` is where they come from.

    Raises:
        ConfigError: a setting is unknown or cannot be used.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        said = describe_setting_error(error, values, model)
        raise ConfigError(f"{source}: {said}") from None
