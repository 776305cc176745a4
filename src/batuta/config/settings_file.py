"""Settings from a TOML file: each error is one sentence in a person's words."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from batuta.core.suggestions import suggest_names
from batuta.errors import ConfigError

UNKNOWN = "extra_forbidden"
MISSING = "missing"
OWN_SENTENCE = "value_error"
NAMES = ("id", "name", "model")
"""The fields by which an entry of a list is named, in order of preference."""
LONGEST_VALUE = 60
"""Characters of a wrong value that are repeated."""
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,79}|[a-z_][a-z0-9_]{0,79}")
"""Names of variables; most keys have letters of both cases, or a hyphen."""
_EXPECTED = {
    "int": "a whole number",
    "float": "a number",
    "decimal": "a number",
    "string": "a text in quotes",
    "bool": "true or false",
    "tuple": "a list",
    "list": "a list",
    "dict": "a table",
    "model": "a table",
    "enum": "one of {expected}",
    "literal": "one of {expected}",
    "path": "a path in quotes",
    "finite": "a finite number",
}
"""Descriptions of right values, by the first word of pydantic's error type."""
_BOUNDS = {
    "greater_than": "must be more than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than": "must be less than {lt:g}",
    "less_than_equal": "must be at most {le:g}",
    "string_pattern_mismatch": "must match {pattern}",
}


def describe_setting_error(error: ValidationError, data: object, model: type[BaseModel]) -> str:
    """Return one sentence about the first thing that is wrong; an unknown name comes first."""
    found = error.errors(include_url=False)
    first = next((one for one in found if one["type"] == UNKNOWN), found[0])
    around = _find_place(first, data).path
    # What is wrong inside a table says more than that it is no number.
    inside = [one for one in found if _find_place(one, data).path[: len(around)] == around]
    first = max(inside, key=lambda one: len(_find_place(one, data).path))
    place = _find_place(first, data)
    same = [one for one in inside if _find_place(one, data) == place]
    return f"{place.prefix}{_describe_error(first, same, place, model)}"


def describe_value_error(name: str, error: ValidationError) -> str:
    """Return one sentence about a value that stands alone, such as an option's."""
    found = error.errors(include_url=False)
    place = _Place(entries=(), name=name, path=())
    return _describe_error(found[0], found, place, BaseModel).replace('"', "")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """The place of an error in the file."""

    entries: tuple[str, ...]
    """The entries of lists around it, such as `[[workers]] "sonnet"`."""
    name: str
    """The dotted name of the setting within them; empty: the entry itself."""
    path: tuple[str | int, ...]
    """The same as keys and indices."""

    @property
    def prefix(self) -> str:
        return f"in {', '.join(self.entries)}: " if self.entries else ""


def _find_place(error: ErrorDetails, data: object) -> _Place:
    """Return the place in the file; what pydantic says of a union's members is left out."""
    entries: list[str] = []
    tables: list[str] = []
    name: list[str] = []
    path: list[str | int] = []
    lacks = error["type"] == MISSING
    for number, part in enumerate(error["loc"]):
        if isinstance(data, Mapping):
            table = cast("Mapping[str | int, object]", data)
            if part not in table and not (lacks and number == len(error["loc"]) - 1):
                continue
            data = table.get(part)
            name.append(str(part))
        elif isinstance(part, int) and isinstance(data, Sequence):
            data = cast("Sequence[object]", data)[part]
            if isinstance(data, Mapping):
                tables += name
                entry = _entry_name(cast("Mapping[str, object]", data), part)
                entries.append(f"[[{'.'.join(tables)}]] {entry}")
                name = []
            elif name:
                name[-1] += f"[{part + 1}]"
        else:
            continue
        path.append(part)
    return _Place(entries=tuple(entries), name=".".join(name), path=tuple(path))


def _entry_name(entry: Mapping[str, object], index: int) -> str:
    named = (entry[key] for key in NAMES if isinstance(entry.get(key), str))
    return next((f'"{name}"' for name in named), f"number {index + 1}")


def _describe_error(
    error: ErrorDetails, same: Sequence[ErrorDetails], place: _Place, model: type[BaseModel]
) -> str:
    """Describe the error of the setting at that place."""
    kind, name = error["type"], place.name
    if kind == UNKNOWN:
        known = sorted(_known_names(place.path[:-1], model))
        return f"there is no setting {name}; {suggest_names(str(place.path[-1]), known)}"
    if kind == MISSING:
        return f"{name} is missing"
    if kind == OWN_SENTENCE:
        message = error["msg"].removeprefix("Value error, ")
        return f"{name}: {message}" if name else message
    subject = name or "it"
    if kind in _BOUNDS:
        return f"{subject} {_BOUNDS[kind].format(**error.get('ctx', {}))}{_describe_value(error)}"
    if kind == "tuple_type" and isinstance(error["input"], Mapping) and len(place.path) == 1:
        return f"{subject} must be a list of tables: write [[{name}]]"
    if kind.endswith("too_short"):
        return f"{subject} must not be empty"
    return f"{subject} must be {' or '.join(_list_expectations(same))}{_describe_value(error)}"


def _list_expectations(errors: Sequence[ErrorDetails]) -> Iterator[str]:
    """Yield descriptions of right values, once each."""
    seen: set[str] = set()
    for one in errors:
        form = _EXPECTED.get(one["type"].split("_")[0], "something else")
        expectation = form.format(**one.get("ctx", {})).replace("'", "")
        if expectation not in seen:
            seen.add(expectation)
            yield expectation


def _describe_value(error: ErrorDetails) -> str:
    """Return the value that was found, as TOML would show it."""
    value: object = error["input"]
    if isinstance(value, Mapping):
        return ", not a table"
    if isinstance(value, str):
        if "@" in value or "://" in value:  # an address may hold a password
            return ""
        text = f'"{value}"'
    elif isinstance(value, Sequence):
        return ", not a list"
    else:
        text = str(value).lower() if isinstance(value, bool) else str(value)
    return f", not {text}" if len(text) <= LONGEST_VALUE else ""


def _known_names(path: Sequence[str | int], model: type[BaseModel]) -> set[str]:
    """Return the settings that a table of the file may have."""
    tables = [model]
    for part in path:
        if isinstance(part, str):
            fields = (table.model_fields.get(part) for table in tables)
            tables = [inner for f in fields if f is not None for inner in _models_in(f.annotation)]
    return {name for table in tables for name in table.model_fields}


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models that a field's type names, through tuples, mappings and unions."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)


_Settings = TypeVar("_Settings", bound=BaseModel)


class StrictModel(BaseModel):
    """Settings that stay as they were read; a name that is not theirs is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    def refuse_settings(self, names: Iterable[str], reason: str) -> None:
        """Return if none of these was set, else raise.

        Raises:
            ValueError: one was; the first in order of the alphabet is named.
        """
        if unfit := sorted(self.model_fields_set.intersection(names)):
            raise ValueError(f"`{unfit[0]}` {reason}")


def _check_variable(name: str) -> str:
    if name and not _VARIABLE.fullmatch(name):
        raise ValueError(
            "what stands there is not the name of an environment variable, such as MY_KEY; it is "
            "not shown, as it may be the secret itself"
        )
    return name


VariableName = Annotated[str, AfterValidator(_check_variable)]
"""The name of the environment variable that holds a secret; empty: none."""


def read_settings(path: Path, model: type[_Settings]) -> _Settings:
    """Return the settings in a TOML file; relative paths in it stay as they are written.

    Raises:
        ConfigError: it cannot be read, is no TOML, or has a setting that cannot be used.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    return validate_settings(data, str(path), model)


def read_tables(path: Path) -> AbstractSet[str]:
    """Return the names of the file's tables and settings; none of a file that cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8")).keys()
    except (OSError, ValueError, RecursionError):
        return frozenset()


def validate_settings(values: Mapping[str, Any], source: str, model: type[_Settings]) -> _Settings:
    """Return the settings of those values; `source` is where they come from.

    Raises:
        ConfigError: a setting is unknown or cannot be used.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        message = describe_setting_error(error, values, model)
        raise ConfigError(f"{source}: {message}") from None
