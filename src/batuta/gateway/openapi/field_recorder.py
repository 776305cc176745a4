"""Turns the reads of a parser into a JSON schema: the parser is run, and its reads are noted.

A recorder stands where a body would: whatever is read from it is noted with its type and bounds.
What is needed is there, what is optional is not; so that a parser's branches are seen it is run
once more for each value that a field may have. Fields that a parser takes as they come (a string
or an array) are left open.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any

from batuta.gateway.errors import APIError
from batuta.gateway.http.body import Fields

Json = dict[str, Any]
_MAX_RUNS = 500
_TEXT = "x"


class _ObjectNotes:
    """The reads of the object at one path, over all runs."""

    def __init__(self) -> None:
        self.properties: dict[str, Json] = {}
        self.objects: dict[str, _ObjectNotes] = {}
        """The objects within it, or within an array of it, by name."""
        self.required: set[str] | None = None
        """The fields that every run needed which came to its end."""
        self.open_names: set[str] = set()
        """Fields that were taken as they come."""

    def schema(self) -> Json:
        """Return the object's schema."""
        properties = {name: self._property(name, noted) for name, noted in self.properties.items()}
        required = sorted(self.required or ())
        body: Json = {"type": "object", "properties": properties}
        return body | ({"required": required} if required else {})

    def _property(self, name: str, noted: Json) -> Json:
        if name in self.open_names:
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
        """Strings that stand in the body, by their paths."""
        self.forced = forced
        """The value that a field has in this run, by its path."""
        self.choices: dict[str, tuple[str, ...]] = {}
        """The values of each field with a choice."""
        self.needed: dict[int, tuple[_ObjectNotes, set[str]]] = {}


class FieldRecorder(Fields):
    """Stands where a body would, and notes what is read of it."""

    __slots__ = ("_needed", "_notes", "_recording")

    def __init__(self, notes: _ObjectNotes, recording: _Recording, where: str = "") -> None:
        super().__init__({}, where)
        self._notes = notes
        self._recording = recording
        self._needed = recording.needed.setdefault(id(notes), (notes, set()))[1]

    @property
    def raw(self) -> Mapping[str, Any]:
        """Every field that was needed, as it was given."""
        return dict.fromkeys(self._needed, _TEXT)

    def _note(self, name: str, **schema: Any) -> None:
        self._notes.properties.setdefault(name, {}).update(schema)

    def _inner(self, name: str, path: str) -> FieldRecorder:
        notes = self._notes.objects.setdefault(name, _ObjectNotes())
        return FieldRecorder(notes, self._recording, path)

    def mentions(self, names: Collection[str]) -> bool:
        """Return True: all of them are to be noted."""
        return True

    def get(self, name: str) -> Any:
        """Return a string if it is there; the field is left open."""
        self._notes.properties.setdefault(name, {})
        self._notes.open_names.add(name)
        there = self._recording.given.get(self.path(name))
        return _TEXT if there is None and name in self._needed else there

    def need(self, name: str) -> Any:
        """Return something; the field is needed."""
        self._needed.add(name)
        return _TEXT

    def text(self, name: str) -> str | None:
        """Return a string, if it is needed."""
        self._note(name, type="string")
        there = self._recording.given.get(self.path(name))
        return _TEXT if there is None and name in self._needed else there

    def need_text(self, name: str) -> str:
        """Return a string."""
        self._note(name, type="string", minLength=1)
        self._needed.add(name)
        return _TEXT

    def flag(self, name: str) -> bool | None:
        """Note a flag; return None."""
        self._note(name, type="boolean")
        return None

    def number(self, name: str, low: float, high: float) -> float | None:
        """Note a number; return the least if it is needed, else None."""
        self._note(name, type="number", minimum=low, maximum=high)
        return low if name in self._needed else None

    def whole(self, name: str, low: int, high: int) -> int | None:
        """Note a whole number; return the least if it is needed, else None."""
        self._note(name, type="integer", minimum=low, maximum=high)
        return low if name in self._needed else None

    def choice(self, name: str, options: Collection[str]) -> str | None:
        """Return the value of this run; else the first, if it is needed."""
        known = self._notes.properties.get(name, {}).get("enum", [])
        self._note(name, type="string", enum=list(dict.fromkeys((*known, *options))))
        path = self.path(name)
        self._recording.choices[path] = tuple(options)
        forced = self._recording.forced.get(path)
        if forced in options:
            return forced
        return next(iter(options)) if name in self._needed else None

    def array(self, name: str, most: int) -> list[Any] | None:
        """Return an empty one."""
        self._note(name, type="array", maxItems=most)
        return [] if name in self._needed else None

    def texts(self, name: str, most: int) -> tuple[str, ...] | None:
        """Note a list of texts; return None."""
        self._note(name, type="array", maxItems=most, items={"type": "string", "minLength": 1})
        return None

    def object(self, name: str) -> Fields | None:
        """Return one whose reads are noted too."""
        self._note(name, type="object")
        return self._inner(name, self.path(name))

    def need_object(self, name: str) -> Fields:
        """Return the same; the field is needed."""
        self._note(name, type="object")
        self._needed.add(name)
        return self._inner(name, self.path(name))

    def objects(self, name: str, most: int) -> list[Fields] | None:
        """Return one object, whose reads are noted too."""
        self._note(name, type="array", maxItems=most)
        return [self._inner(name, f"{self.path(name)}[]")]


def body_schema(
    parse: Callable[[Fields], Any],
    given: Mapping[str, str] | None = None,
    needed: Collection[str] = (),
    refused: Collection[str] = (),
) -> Json:
    """Return the schema of the bodies that `parse` reads.

    Args:
        parse: reads a body.
        given: strings that the body is given, by their paths, so that the parser goes on.
        needed: fields that are needed in another way than by `Fields.need`.
        refused: fields that are known and refused.
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
            {**_path_prefixes(forced, path), path: option}
            for path, options in recording.choices.items()
            if path not in forced
            for option in options
        ]
    for name in refused:
        notes.properties.pop(name, None)
    notes.required = (notes.required or set()) | set(needed)
    return notes.schema()


def _path_prefixes(forced: Mapping[str, str], path: str) -> dict[str, str]:
    """Return the forced values of objects around the path: its branch depends on them."""
    holder = path.rpartition(".")[0]
    around = ((name, name.rpartition(".")[0]) for name in forced)
    return {name: forced[name] for name, place in around if holder.startswith(place)}
