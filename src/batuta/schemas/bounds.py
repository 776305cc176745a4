"""Measures a JSON schema in time linear in its size, before it is compiled.

With definitions that refer to each other several times, a schema of 2 kB can require 10^7 checks of
one value. A subschema's size with all references followed is computed once and then reused, so
measuring takes linear time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import unquote

MAX_CHARACTERS = 128_000
"""Maximum number of characters in all names and strings together."""
MAX_VALUES = 12_000
"""Maximum number of JSON values."""
MAX_DEPTH = 64
"""Maximum nesting of values."""
MAX_REFERENCES = 1_000
"""Maximum number of references."""
MAX_BRANCHES = 2_000
"""Maximum number of entries of all `anyOf`, `oneOf` and `allOf`."""
MAX_PROPERTIES = 5_000
"""Maximum number of entries of all `properties`."""
MAX_PATTERNS = 100
"""Maximum number of regular expressions."""
MAX_PATTERN_CHARACTERS = 1_000
"""Maximum number of characters in a regular expression."""
MAX_EXPANDED = 100_000
"""Maximum number of subschemas, plus entries of their lists, with all references followed; a
recursive reference counts once."""
MAX_CHAIN = 200
"""Maximum nesting of subschemas, with all references followed."""

_SCHEMA_MAPS = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
)
_SCHEMA_LISTS = frozenset({"allOf", "anyOf", "oneOf"})
_DEFINITION_KEYWORDS = frozenset({"$defs", "definitions"})
_SUBSCHEMA_KEYWORDS = frozenset(
    {
        *("items", "additionalItems", "prefixItems", "contains", "additionalProperties"),
        *("propertyNames", "not", "if", "then", "else", "unevaluatedItems"),
        *("unevaluatedProperties", "contentSchema"),
    }
)
_REFERENCE_KEYWORDS = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})
_LINEAR_KEYWORDS = frozenset(
    {
        *_DEFINITION_KEYWORDS,
        *("$schema", "$comment", "$ref", "title", "description", "default", "examples"),
        *("deprecated", "readOnly", "writeOnly", "type", "enum", "const", "properties", "required"),
        *("additionalProperties", "items", "prefixItems", "anyOf", "oneOf", "allOf", "not"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength"),
        *("minItems", "maxItems", "minProperties", "maxProperties", "format"),
    }
)
"""Keywords whose checks take at most the number of values times the number of subschemas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaSize:
    """The size of a schema."""

    values: int
    """Number of JSON values in the schema."""
    expanded: int
    """Number of subschemas, plus entries of their lists, with all references followed."""
    chain: int
    """Depth of nested subschemas, with all references followed."""
    is_linear: bool
    """Whether checking takes at most `expanded` steps per value: there are no recursive or external
    references, and only keywords of known cost."""


def measure_schema(schema: Mapping[str, Any]) -> SchemaSize:
    """Measure the schema without compiling it.

    Raises:
        ValueError: the schema is too large; the message says in which way.
    """
    values = _count_values(schema)
    expansion = _Expansion(schema)
    expanded, chain = expansion.measure(schema)
    _check_bound(expanded, MAX_EXPANDED, "subschemas once its references are followed")
    _check_bound(chain, MAX_CHAIN, "levels of subschemas once its references are followed")
    return SchemaSize(values=values, expanded=expanded, chain=chain, is_linear=expansion.is_linear)


def measure_json(value: object, *, values: int, depth: int) -> int:
    """Return the number of JSON values in a schema that is only forwarded, and never compiled.

    Raises:
        ValueError: there are more than `values`, or objects and lists are nested deeper than
            `depth`.
    """
    count = level = 0
    on_level: list[Any] = [value]
    while on_level:
        _check_bound(count + len(on_level), values, "values")
        count += len(on_level)
        level += 1
        inside: list[Any] = []
        for one in on_level:
            if isinstance(one, dict):
                inside += cast("dict[str, Any]", one).values()
            elif isinstance(one, list):
                inside += one
            else:
                continue
            _check_bound(level, depth, "levels")
        on_level = inside
    return count


class _Totals:
    """The totals that are counted over a whole schema."""

    def __init__(self) -> None:
        self.characters = 0
        self.references = 0
        self.branches = 0
        self.properties = 0
        self.patterns = 0

    def add(self, name: str, value: object) -> None:
        """Count a keyword; raise ValueError if a pattern is too long."""
        self.characters += len(name)
        if isinstance(value, str):
            if name in _REFERENCE_KEYWORDS:
                self.references += 1
            elif name == "pattern":
                self._pattern(value)
        elif isinstance(value, list) and name in _SCHEMA_LISTS:
            self.branches += len(cast("list[object]", value))
        elif isinstance(value, Mapping):
            self._mapping(name, cast("Mapping[str, object]", value))

    def check(self) -> None:
        """Raise ValueError if a total exceeds its bound."""
        _check_bound(self.characters, MAX_CHARACTERS, "characters")
        _check_bound(self.references, MAX_REFERENCES, "references")
        _check_bound(self.branches, MAX_BRANCHES, "branches")
        _check_bound(self.properties, MAX_PROPERTIES, "properties")
        _check_bound(self.patterns, MAX_PATTERNS, "patterns")

    def _mapping(self, name: str, value: Mapping[str, object]) -> None:
        if name == "properties":
            self.properties += len(value)
        elif name == "patternProperties":
            for pattern in value:
                self._pattern(pattern)

    def _pattern(self, pattern: str) -> None:
        self.patterns += 1
        _check_bound(len(pattern), MAX_PATTERN_CHARACTERS, "characters in a pattern")


def _count_values(schema: Mapping[str, Any]) -> int:
    """Return the number of JSON values in the schema; raise ValueError if a bound is exceeded."""
    totals = _Totals()
    count = 0
    left: list[tuple[object, int]] = [(schema, 1)]
    while left:
        value, depth = left.pop()
        count += 1
        _check_bound(depth, MAX_DEPTH, "levels")
        _check_bound(count + len(left), MAX_VALUES, "values")
        if isinstance(value, Mapping):
            for name, inner in cast("Mapping[str, object]", value).items():
                totals.add(name, inner)
                left.append((inner, depth + 1))
            totals.check()
        elif isinstance(value, list):
            left += [(inner, depth + 1) for inner in cast("list[object]", value)]
        elif isinstance(value, str):
            totals.characters += len(value)
    totals.check()
    return count


_SubSchema = Mapping[str, Any]


class _Expansion:
    """Computes the size of a schema with its references followed, once for each subschema."""

    def __init__(self, root: _SubSchema) -> None:
        self.is_linear = True
        self._root = root
        self._anchors: dict[str, _SubSchema] | None = None
        self._known: dict[int, tuple[int, int]] = {}
        """The number of subschemas and the depth, by the subschema's `id`."""
        self._open: set[int] = set()
        """The ids of the subschemas on the stack."""
        self._left: list[tuple[_SubSchema, list[_SubSchema], list[_SubSchema]]] = []
        """The stack of open subschemas: (subschema, its children, its unvisited children)."""

    def measure(self, schema: _SubSchema) -> tuple[int, int]:
        """Return the number of subschemas, plus entries of their lists, and the depth.

        The number may stop at `MAX_EXPANDED + 1`.

        The function is iterative, since the schema's author determines the depth.
        """
        self._enter(schema)
        while self._left:
            subschema, inside, waiting = self._left[-1]
            if waiting:
                inner = waiting.pop()
                if id(inner) in self._open:
                    self.is_linear = False  # recursive: the cost depends on the value's depth
                elif id(inner) not in self._known:
                    self._enter(inner)
                continue
            self._left.pop()
            self._open.discard(id(subschema))
            size, depth = _subschema_width(subschema), 0
            for one in inside:
                count, below = self._known.get(id(one), (1, 1))
                size += count
                depth = max(depth, below)
            self._known[id(subschema)] = (min(size, MAX_EXPANDED + 1), depth + 1)
        return self._known[id(schema)]

    def _enter(self, subschema: _SubSchema) -> None:
        self._open.add(id(subschema))
        if not _LINEAR_KEYWORDS.issuperset(subschema):
            self.is_linear = False
        inside = list(self._inside(subschema))
        self._left.append((subschema, inside, inside.copy()))

    def _inside(self, subschema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """Yield the inner subschemas against which a value, or a part of it, may be checked."""
        for name, value in subschema.items():
            if name in _REFERENCE_KEYWORDS:
                target = self._target(value)
                if target is None:
                    self.is_linear = False
                else:
                    yield target
            elif name not in _DEFINITION_KEYWORDS:
                yield from _schemas_in(name, value)

    def _target(self, reference: object) -> Mapping[str, Any] | None:
        """Return the object that a reference refers to; None if this schema has no such object."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            return None
        if not reference.startswith("#/"):
            return self._named(reference[1:]) if len(reference) > 1 else self._root
        value: Any = self._root
        for part in unquote(reference[2:]).split("/"):
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(value, list):
                entries = cast("list[Any]", value)
                exists = name.isascii() and name.isdigit() and int(name[:9]) < len(entries)
                value = entries[int(name[:9])] if exists else None
            else:
                value = cast("dict[str, Any]", value).get(name) if _is_map(value) else None
        return cast("Mapping[str, Any]", value) if _is_map(value) else None

    def _named(self, name: str) -> _SubSchema | None:
        """Return the subschema with that anchor; None if there is none."""
        if self._anchors is None:
            self._anchors = dict(_find_anchors(self._root))
        return self._anchors.get(name)


def _subschema_width(subschema: Mapping[str, Any]) -> int:
    """Return 1 for the subschema itself, plus the entries of the lists in it, such as `enum`."""
    return 1 + sum(
        len(cast("list[Any]", one)) for one in subschema.values() if isinstance(one, list)
    )


def _schemas_in(name: str, value: object) -> Iterator[Mapping[str, Any]]:
    """Yield the subschemas in a keyword's value."""
    if name in _SCHEMA_MAPS and isinstance(value, Mapping):
        entries: Any = cast("Mapping[str, object]", value).values()
    elif (name in _SCHEMA_LISTS or name in _SUBSCHEMA_KEYWORDS) and isinstance(value, list):
        entries = cast("list[object]", value)
    elif name in _SUBSCHEMA_KEYWORDS:
        entries = (value,)
    else:
        return
    yield from (entry for entry in entries if isinstance(entry, Mapping))


def _find_anchors(root: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the anchors and the subschemas that have them."""
    left: list[Any] = [root]
    while left:
        value = left.pop()
        if isinstance(value, Mapping):
            subschema = cast("Mapping[str, Any]", value)
            for keyword in ("$anchor", "$dynamicAnchor"):
                if isinstance(subschema.get(keyword), str):
                    yield subschema[keyword], subschema
            left += subschema.values()
        elif isinstance(value, list):
            left += cast("list[Any]", value)


def _is_map(value: object) -> bool:
    return isinstance(value, Mapping)


def _check_bound(count: int, most: int, what: str) -> None:
    if count > most:
        raise ValueError(f"the schema has more than {most} {what}")
