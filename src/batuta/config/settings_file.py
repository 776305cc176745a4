"""Reads settings from a TOML file and describes validation errors in one plain sentence."""

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

# Types of pydantic's errors.
UNKNOWN = "extra_forbidden"
MISSING = "missing"
VALUE_ERROR = "value_error"
NAMES = ("id", "name", "model")
"""The fields by which messages name an entry of a list, in order of preference."""
LONGEST_VALUE = 60
"""Maximum number of characters of an invalid value that a message repeats."""
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,79}|[a-z_][a-z0-9_]{0,79}")
"""Names of environment variables; most API keys do not match (mixed case, or a hyphen)."""
_EXPECTED = {
    "int": "a whole number",
    "float": "a number",
    "decimal": "a number",
    "string": "a string in quotes",
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
"""Descriptions of valid values, by the first word of pydantic's error type."""
_BOUNDS = {
    "greater_than": "must be more than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than": "must be less than {lt:g}",
    "less_than_equal": "must be at most {le:g}",
    "string_pattern_mismatch": "must match {pattern}",
}


def describe_setting_error(error: ValidationError, data: object, model: type[BaseModel]) -> str:
    """Return one sentence about one error: an unknown setting if there is one, else the first.

    Of an error about a table and others inside that table, the innermost is reported. `data` is the
    input that did not fit `model`.
    """
    errors = error.errors(include_url=False)
    first = next((each for each in errors if each["type"] == UNKNOWN), errors[0])
    around = _find_location(first, data).path
    # An error inside a table says more than that the table is, for example, not a number.
    inside = [each for each in errors if _find_location(each, data).path[: len(around)] == around]
    first = max(inside, key=lambda each: len(_find_location(each, data).path))
    location = _find_location(first, data)
    same = [each for each in inside if _find_location(each, data) == location]
    return f"{location.prefix}{_describe_error(first, same, location, model)}"


def describe_value_error(name: str, error: ValidationError) -> str:
    """Return one sentence about a single value that is not from a file, such as an option's."""
    errors = error.errors(include_url=False)
    location = _Location(entries=(), name=name, path=())
    return _describe_error(errors[0], errors, location, BaseModel).replace('"', "")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Location:
    """The location of an error in the file."""

    entries: tuple[str, ...]
    """The enclosing entries of lists, such as `[[workers]] "sonnet"`."""
    name: str
    """The dotted name of the setting within the last entry; empty: the entry itself."""
    path: tuple[str | int, ...]
    """The whole location as keys and indices."""

    @property
    def prefix(self) -> str:
        """The enclosing entries as the beginning of a message; empty if there are none."""
        return f"in {', '.join(self.entries)}: " if self.entries else ""


def _find_location(error: ErrorDetails, data: object) -> _Location:
    """Return the location in the file, without pydantic's names of a union's members."""
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
    return _Location(entries=tuple(entries), name=".".join(name), path=tuple(path))


def _entry_name(entry: Mapping[str, object], index: int) -> str:
    named = (entry[key] for key in NAMES if isinstance(entry.get(key), str))
    return next((f'"{name}"' for name in named), f"number {index + 1}")


def _describe_error(
    error: ErrorDetails, same: Sequence[ErrorDetails], location: _Location, model: type[BaseModel]
) -> str:
    """Describe the error; `same` has all errors at that location, one for each allowed type."""
    kind, name = error["type"], location.name
    if kind == UNKNOWN:
        known = sorted(_known_names(location.path[:-1], model))
        return f"there is no setting {name}; {suggest_names(str(location.path[-1]), known)}"
    if kind == MISSING:
        return f"{name} is missing"
    if kind == VALUE_ERROR:
        message = error["msg"].removeprefix("Value error, ")
        return f"{name}: {message}" if name else message
    subject = name or "it"
    if kind in _BOUNDS:
        return f"{subject} {_BOUNDS[kind].format(**error.get('ctx', {}))}{_describe_value(error)}"
    if kind == "tuple_type" and isinstance(error["input"], Mapping) and len(location.path) == 1:
        return f"{subject} must be a list of tables: write [[{name}]]"
    if kind.endswith("too_short"):
        return f"{subject} must not be empty"
    if kind.endswith("too_long"):
        unit = "characters" if kind.startswith("string") else "entries"
        return f"{subject} must have at most {error.get('ctx', {})['max_length']} {unit}"
    return f"{subject} must be {' or '.join(_list_expectations(same))}{_describe_value(error)}"


def _list_expectations(errors: Sequence[ErrorDetails]) -> Iterator[str]:
    """Yield descriptions of valid values, each once."""
    seen: set[str] = set()
    for error in errors:
        form = _EXPECTED.get(error["type"].split("_")[0], "something else")
        expectation = form.format(**error.get("ctx", {})).replace("'", "")
        if expectation not in seen:
            seen.add(expectation)
            yield expectation


def _describe_value(error: ErrorDetails) -> str:
    """Return `, not VALUE` with the value as in TOML; empty for a long text or an address."""
    value: object = error["input"]
    if isinstance(value, Mapping):
        return ", not a table"
    if isinstance(value, str):
        if "@" in value or "://" in value:  # an address may contain a password
            return ""
        text = f'"{value}"'
    elif isinstance(value, Sequence):
        return ", not a list"
    else:
        text = str(value).lower() if isinstance(value, bool) else str(value)
    return f", not {text}" if len(text) <= LONGEST_VALUE else ""


def _known_names(path: Sequence[str | int], model: type[BaseModel]) -> set[str]:
    """Return the names of the settings that a table of the file may have."""
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
    """Immutable settings; unknown names are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    def refuse_settings(self, names: Iterable[str], reason: str) -> None:
        """Check that none of these settings was set.

        Raises:
            ValueError: a setting was set; the message is its name (of several, the first by
                alphabet), followed by `reason`.
        """
        if unfit := sorted(self.model_fields_set.intersection(names)):
            raise ValueError(f"`{unfit[0]}` {reason}")


def _check_variable(name: str) -> str:
    if name and not _VARIABLE.fullmatch(name):
        raise ValueError(
            "this is not the name of an environment variable, such as MY_KEY; it is not shown, as "
            "it may be the secret itself"
        )
    return name


VariableName = Annotated[str, AfterValidator(_check_variable)]
"""The name of the environment variable that holds a secret; empty: none."""


def read_settings(path: Path, model: type[_Settings]) -> _Settings:
    """Return the settings in a TOML file; its relative paths are not resolved.

    Raises:
        ConfigError: the file cannot be read, is not TOML, or has a setting that cannot be used.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    return validate_settings(data, str(path), model)


def read_top_level_names(path: Path) -> AbstractSet[str]:
    """Return the names of the file's top-level tables and settings; none if it cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig")).keys()
    except (OSError, ValueError, RecursionError):
        return frozenset()


def validate_settings(values: Mapping[str, Any], source: str, model: type[_Settings]) -> _Settings:
    """Return the settings with these values; error messages name `source` as their origin.

    Raises:
        ConfigError: a setting is unknown or cannot be used.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        message = describe_setting_error(error, values, model)
        raise ConfigError(f"{source}: {message}") from None
