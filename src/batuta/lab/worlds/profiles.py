"""The seven workers, of whom `world1.toml` says what each is good at and what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from batuta.core import Price
from batuta.lab.worlds.words import WORDS
from batuta.language.instructions import InstructionKind


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerProfile:
    """A worker's character. Skills are the chance to get one elementary step right."""

    name: str
    description: str
    """The honest line that a conductor is shown."""
    skill: Mapping[str, float]
    knows: float
    """Share of the chronicle's facts that it knows."""
    planning: float
    """Chance that a plan of three steps has no error in it."""
    checking: float
    """Chance to see through an own misunderstanding once another result is on the table."""
    care: float
    """0: every page read distracts; 1: none does. Also the chance to notice a wrong plan."""
    span: int
    """Steps that it keeps in its head without a plan."""
    price: Price
    pace: float
    """Seconds that a reply takes at time scale 1."""
    strength: float
    """Measured share of right answers, alone, over all families."""
    refuses: Mapping[InstructionKind, float] = field(default_factory=dict[InstructionKind, float])
    """How often it does not understand such an instruction."""
    helpful: bool = True
    """Solves what it does not understand; False: says so."""
    candid: bool = True
    """Marks a guess as a guess."""
    invents: float = 0.0
    """Chance that it makes up a fact it does not know when it looks facts up."""
    opening: str = "Let me work through it."


def _read_profile(name: str, traits: Mapping[str, Any]) -> WorkerProfile:
    read, written = map(Decimal, traits["price"])
    refuses = {InstructionKind(kind): share for kind, share in traits.get("refuses", {}).items()}
    facts: dict[str, Any] = {
        **traits,
        "price": Price(input=read, output=written),
        "refuses": refuses,
    }
    return WorkerProfile(name=name, **facts)


_JOINING = "celesta"
_WORKERS = {name: _read_profile(name, traits) for name, traits in WORDS["workers"].items()}
PROFILES = tuple(profile for name, profile in _WORKERS.items() if name != _JOINING)
"""All of them, in the order of the shipped pool."""
SHIFTED_PROFILES = tuple(
    replace(profile, **WORDS["degraded"].get(name, {})) for name, profile in _WORKERS.items()
)
"""The same world after a change: one worker has degraded, which its description and its believed
strength do not say, and another has joined."""
