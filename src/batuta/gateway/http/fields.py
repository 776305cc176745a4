"""A JSON object read field by field; what is wrong is refused by the field's path."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, cast

from batuta.gateway.errors import invalid_type, invalid_value, missing_parameter


class Fields:
    """An object of a request's body. A field that is null counts as absent.

    Every reader raises `APIError` if the field's value is of the wrong type or out of bounds.
    """

    __slots__ = ("_data", "_where")

    def __init__(self, data: Mapping[str, Any], where: str = "") -> None:
        self._data = data
        self._where = where

    @staticmethod
    def of(value: object, where: str) -> Fields:
        """The object at the path `where`."""
        if not isinstance(value, dict):
            raise invalid_type(where, "an object", value)
        return Fields(cast("dict[str, Any]", value), where)

    @property
    def names(self) -> Collection[str]:
        """Every field that is there, null or not."""
        return self._data.keys()

    @property
    def raw(self) -> Mapping[str, Any]:
        """The object as it came."""
        return self._data

    @property
    def where(self) -> str:
        """The object's own path."""
        return self._where

    def path(self, name: str) -> str:
        """The full path of a field, as an error names it."""
        return f"{self._where}.{name}" if self._where else name

    def get(self, name: str) -> Any:
        """The value, whatever it is; None if absent."""
        return self._data.get(name)

    def need(self, name: str) -> Any:
        """The value, whatever it is; refused if absent."""
        value = self._data.get(name)
        if value is None:
            raise missing_parameter(self.path(name))
        return value

    def unused(self, known: Collection[str], accepted: Collection[str]) -> list[str]:
        """The fields that change nothing: unknown ones, and accepted ones that say something."""
        return [
            name
            for name, value in self._data.items()
            if name not in known or (name in accepted and value is not None)
        ]

    def text(self, name: str) -> str | None:
        """A string."""
        value = self._data.get(name)
        if value is not None and not isinstance(value, str):
            raise invalid_type(self.path(name), "a string", value)
        return value

    def need_text(self, name: str) -> str:
        """A string that is not empty."""
        self.need(name)
        value = self.text(name)
        if not value:
            raise invalid_value(self.path(name), "it must not be empty.")
        return value

    def flag(self, name: str) -> bool | None:
        """A boolean."""
        value = self._data.get(name)
        if value is not None and not isinstance(value, bool):
            raise invalid_type(self.path(name), "a boolean", value)
        return value

    def number(self, name: str, low: float, high: float) -> float | None:
        """A number from `low` to `high`."""
        value = self._data.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise invalid_type(self.path(name), "a number", value)
        self._check(name, value, low, high)
        return float(value)

    def cache_mark(self) -> str | None:
        """Whether the prompt is to be cached up to here, and how long: `cache_control`."""
        control = self.object("cache_control")
        if control is None:
            return None
        control.need("type")
        control.choice("type", ("ephemeral",))
        return control.choice("ttl", ("5m", "1h")) or "5m"

    def whole(self, name: str, low: int, high: int) -> int | None:
        """An integer from `low` to `high`."""
        value = self._data.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise invalid_type(self.path(name), "an integer", value)
        self._check(name, value, low, high)
        return value

    def choice(self, name: str, options: Collection[str]) -> str | None:
        """One of those strings."""
        value = self.text(name)
        if value is not None and value not in options:
            wanted = ", ".join(f"'{option}'" for option in options)
            raise invalid_value(self.path(name), f"it must be one of {wanted}.")
        return value

    def array(self, name: str, most: int) -> list[Any] | None:
        """An array of at most `most` entries."""
        value = self._data.get(name)
        if value is None:
            return None
        if not isinstance(value, list):
            raise invalid_type(self.path(name), "an array", value)
        entries = cast("list[Any]", value)
        if len(entries) > most:
            reason = f"it has {len(entries)} entries and at most {most} are allowed."
            raise invalid_value(self.path(name), reason)
        return entries

    def texts(self, name: str, most: int) -> tuple[str, ...] | None:
        """An array of at most `most` strings, none of them empty."""
        entries = self.array(name, most)
        if entries is None:
            return None
        for index, entry in enumerate(entries):
            if not isinstance(entry, str):
                raise invalid_type(f"{self.path(name)}[{index}]", "a string", entry)
            if not entry:
                raise invalid_value(f"{self.path(name)}[{index}]", "it must not be empty.")
        return tuple(entries)

    def object(self, name: str) -> Fields | None:
        """An object."""
        value = self._data.get(name)
        return None if value is None else Fields.of(value, self.path(name))

    def need_object(self, name: str) -> Fields:
        """An object; refused if absent."""
        return Fields.of(self.need(name), self.path(name))

    def objects(self, name: str, most: int) -> list[Fields] | None:
        """An array of at most `most` objects."""
        entries = self.array(name, most)
        if entries is None:
            return None
        path = self.path(name)
        return [Fields.of(entry, f"{path}[{index}]") for index, entry in enumerate(entries)]

    def _check(self, name: str, value: float, low: float, high: float) -> None:
        if not low <= value <= high:
            reason = f"{value} is not in the range from {low:g} to {high:g}."
            raise invalid_value(self.path(name), reason)
