"""Derives a JSON schema from a parser by recording the fields that it reads.

Instead of a body, the parser gets a recorder, which notes the type and the bounds of each field
read. Booleans and arrays of strings appear to be absent; required fields of other types, objects,
arrays of objects and given strings appear to be present; all else is absent. To reach more
branches, the parser is run again for each value of a field with a choice, at most `_MAX_RUNS` times
in all; a run ends where the parser raises an error. A field that `get` read, or that was read only
with `need`, accepts anything in the schema.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any

from batuta.gateway.errors import APIError
from batuta.gateway.http.body import Fields

Json = dict[str, Any]
_MAX_RUNS = 500
"""Maximum number of runs of a parser."""
_TEXT = "x"


class _ObjectNotes:
    """The fields that the parser reads of the object at one path, over all its runs."""

    def __init__(self) -> None:
        self.properties: dict[str, Json] = {}
        self.objects: dict[str, _ObjectNotes] = {}
        """Nested objects by field name; for an array of objects, its items."""
        self.required: set[str] | None = None
        """The fields required by every completed run that read the object; None: no such run."""
        self.open_names: set[str] = set()
        """Fields that `get` read, which accept anything."""

    def schema(self) -> Json:
        """Return the object's schema."""
        properties = {name: self._property(name, noted) for name, noted in self.properties.items()}
        required = sorted(self.required or ())
        body: Json = {"type": "object", "properties": properties}
        return body | ({"required": required} if required else {})

    def _property(self, name: str, noted: Json) -> Json:
        if name in self.open_names or not noted:
            return {}
        if name in self.objects:
            inner = self.objects[name].schema()
            noted = {**noted, "items": inner} if noted["type"] == "array" else inner
        if name in (self.required or ()):
            return noted
        return {**noted, "type": [noted["type"], "null"]} | (
            {"enum": [*noted["enum"], None]} if "enum" in noted else {}
        )


class _Recording:
    """One run of the parser."""

    def __init__(self, forced: Mapping[str, str], given: Mapping[str, str]) -> None:
        self.given = given
        """Strings that the body contains, by path."""
        self.forced = forced
        """The values that this run sets for some fields with a choice, by path."""
        self.choices: dict[str, tuple[str, ...]] = {}
        """The possible values of each field with a choice, by path."""
        self.needed: dict[int, tuple[_ObjectNotes, set[str]]] = {}
        """The required fields of each object, by the `id` of its notes."""


class FieldRecorder(Fields):
    """A fake body, or an object in it, that records the fields read from it."""

    __slots__ = ("_needed", "_notes", "_recording")

    def __init__(self, notes: _ObjectNotes, recording: _Recording, where: str = "") -> None:
        super().__init__({}, where)
        self._notes = notes
        self._recording = recording
        self._needed = recording.needed.setdefault(id(notes), (notes, set()))[1]

    @property
    def raw(self) -> Mapping[str, Any]:
        """The required fields seen so far, each with a placeholder value."""
        return dict.fromkeys(self._needed, _TEXT)

    def _note(self, name: str, **schema: Any) -> None:
        self._notes.properties.setdefault(name, {}).update(schema)

    def _inner(self, name: str, path: str) -> FieldRecorder:
        notes = self._notes.objects.setdefault(name, _ObjectNotes())
        return FieldRecorder(notes, self._recording, path)

    def mentions(self, names: Collection[str]) -> bool:
        """Return True, so that the parser reads all of them."""
        return True

    def get(self, name: str) -> Any:
        """Note a field of any type; return the given string, a placeholder if required, or None."""
        self._notes.properties.setdefault(name, {})
        self._notes.open_names.add(name)
        given = self._recording.given.get(self.path(name))
        return _TEXT if given is None and name in self._needed else given

    def need(self, name: str) -> Any:
        """Note that the field is required; return a placeholder."""
        self._notes.properties.setdefault(name, {})
        self._needed.add(name)
        return _TEXT

    def text(self, name: str) -> str | None:
        """Note a string; return the given one, a placeholder if required, else None."""
        self._note(name, type="string")
        given = self._recording.given.get(self.path(name))
        return _TEXT if given is None and name in self._needed else given

    def need_text(self, name: str) -> str:
        """Note a required string; return a placeholder."""
        self._note(name, type="string", minLength=1)
        self._needed.add(name)
        return _TEXT

    def need_string(self, name: str) -> str:
        """Note a required string that may be empty; return the given one, or a placeholder."""
        self._needed.add(name)
        return self.text(name) or ""

    def flag(self, name: str) -> bool | None:
        """Note a boolean; return None."""
        self._note(name, type="boolean")
        return None

    def number(self, name: str, low: float, high: float) -> float | None:
        """Note a number; return the minimum if it is required, else None."""
        self._note(name, type="number", minimum=low, maximum=high)
        return low if name in self._needed else None

    def whole(self, name: str, low: int, high: int) -> int | None:
        """Note an integer; return the minimum if it is required, else None."""
        self._note(name, type="integer", minimum=low, maximum=high)
        return low if name in self._needed else None

    def choice(self, name: str, options: Collection[str]) -> str | None:
        """Note a choice; return this run's value, the first option if required, else None."""
        known = self._notes.properties.get(name, {}).get("enum", [])
        self._note(name, type="string", enum=list(dict.fromkeys((*known, *options))))
        path = self.path(name)
        self._recording.choices[path] = tuple(options)
        forced = self._recording.forced.get(path)
        if forced in options:
            return forced
        return next(iter(options)) if name in self._needed else None

    def array(self, name: str, most: int) -> list[Any] | None:
        """Note an array; return an empty one if it is required, else None."""
        self._note(name, type="array", maxItems=most)
        return [] if name in self._needed else None

    def texts(self, name: str, most: int) -> tuple[str, ...] | None:
        """Note an array of strings; return None."""
        self._note(name, type="array", maxItems=most, items={"type": "string", "minLength": 1})
        return None

    def object(self, name: str) -> Fields | None:
        """Note an object; return its recorder."""
        self._note(name, type="object")
        return self._inner(name, self.path(name))

    def need_object(self, name: str) -> Fields:
        """Note a required object; return its recorder."""
        self._note(name, type="object")
        self._needed.add(name)
        return self._inner(name, self.path(name))

    def objects(self, name: str, most: int) -> list[Fields] | None:
        """Note an array of objects; return a list with the recorder of one item."""
        self._note(name, type="array", maxItems=most)
        return [self._inner(name, f"{self.path(name)}[]")]


def body_schema(
    parse: Callable[[Fields], Any],
    given: Mapping[str, str] | None = None,
    refused: Collection[str] = (),
) -> Json:
    """Return the schema of the bodies that `parse` reads.

    Args:
        parse: the parser of a body.
        given: strings that the body contains, by path (`Fields.path`), so that the parser does not
            stop there.
        refused: known fields of the body that are refused; they are left out.
    """
    notes, waiting, seen = _ObjectNotes(), [dict[str, str]()], set[tuple[tuple[str, str], ...]]()
    while waiting and len(seen) < _MAX_RUNS:
        forced = waiting.pop(0)
        key = tuple(sorted(forced.items()))
        if key in seen:
            continue
        seen.add(key)
        recording = _Recording(forced, given or {})
        with suppress(APIError, AttributeError, KeyError, TypeError, ValueError):
            parse(FieldRecorder(notes, recording))
            for inner, names in recording.needed.values():
                inner.required = names if inner.required is None else inner.required & names
        waiting += [
            {**_values_around(forced, path), path: option}
            for path, options in recording.choices.items()
            if path not in forced
            for option in options
        ]
    for name in refused:
        notes.properties.pop(name, None)
    return notes.schema()


def _values_around(forced: Mapping[str, str], path: str) -> dict[str, str]:
    """Return the forced values in the objects around the path, needed for reaching it."""
    holder = path.rpartition(".")[0]
    parents = ((name, name.rpartition(".")[0]) for name in forced)
    return {name: forced[name] for name, parent in parents if holder.startswith(parent)}
