"""The chronicle: an invented country with facts that some workers know and others do not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from batuta.lab.worlds.seeded_random import seeded_generator
from batuta.lab.worlds.words import WORDS


@dataclass(frozen=True, slots=True)
class Relation:
    """A function from one kind of thing to another, such as from a town to its mayor."""

    name: str
    subject: str
    """The kind of thing that the relation maps from."""
    object: str
    """The kind of thing that the relation maps to, or `number`."""


Fact = str | int

THINGS: Mapping[str, tuple[str, ...]] = {
    kind: tuple(names) for kind, names in WORDS["things"].items()
}
"""Every named thing, by kind."""

RELATIONS: Mapping[str, Relation] = {
    name: Relation(name, subject, object_)
    for name, subject, object_ in (
        ("home town", "person", "town"),
        ("guild", "person", "guild"),
        ("teacher", "person", "person"),
        ("favourite river", "person", "river"),
        ("river", "town", "river"),
        ("mayor", "town", "person"),
        ("founding year", "town", "number"),
        ("founder", "guild", "person"),
        ("seat", "guild", "town"),
        ("patron mountain", "guild", "mountain"),
        ("source", "river", "mountain"),
        ("bridge builder", "river", "person"),
        ("length in kilometres", "river", "number"),
        ("first climber", "mountain", "person"),
        ("nearest town", "mountain", "town"),
        ("height in metres", "mountain", "number"),
    )
}
"""Every relation, by name."""

KINDS_OF: Mapping[str, str] = {thing: kind for kind, names in THINGS.items() for thing in names}
"""The kind of every thing."""

_NUMBERS = {
    "founding year": (1120, 1780),
    "length in kilometres": (90, 640),
    "height in metres": (900, 3200),
}


def _generate_facts() -> Mapping[tuple[str, str], Fact]:
    facts: dict[tuple[str, str], Fact] = {}
    for relation in RELATIONS.values():
        rng = seeded_generator("chronicle", relation.name)
        for subject in THINGS[relation.subject]:
            if relation.object == "number":
                facts[relation.name, subject] = rng.randint(*_NUMBERS[relation.name])
            else:
                others = [thing for thing in THINGS[relation.object] if thing != subject]
                facts[relation.name, subject] = rng.choice(others)
    return facts


FACTS: Mapping[tuple[str, str], Fact] = _generate_facts()
"""All true facts: the object of each (relation, subject)."""


def relations_of(kind: str) -> tuple[Relation, ...]:
    """Return the relations that can be asked of a thing of that kind."""
    return tuple(relation for relation in RELATIONS.values() if relation.subject == kind)


def mistaken_fact(relation: str, subject: str, pick: float) -> Fact:
    """Return a plausible but false object of the relation, chosen by `pick` in [0, 1)."""
    truth = FACTS.get((relation, subject))
    kind = RELATIONS[relation].object
    if kind == "number":
        base = truth if isinstance(truth, int) else sum(_NUMBERS[relation]) // 2
        return base + (-20, -10, -1, 1, 10, 20)[int(pick * 6)]
    others = [thing for thing in THINGS[kind] if thing not in (truth, subject)]
    return others[int(pick * len(others))]
