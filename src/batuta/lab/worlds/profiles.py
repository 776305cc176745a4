"""The workers of world 1; `world1.toml` has their skills and prices."""

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
    """A worker's traits. A skill is the probability of doing one elementary step correctly."""

    name: str
    description: str
    """The description in a conductor's prompt."""
    skill: Mapping[str, float]
    knows: float
    """Share of the knowledge base's facts that it knows."""
    planning: float
    """Probability that a plan of three steps has no error."""
    checking: float
    """Probability of noticing its own misunderstanding when it reads another result."""
    care: float
    """0: all text that it reads distracts it; 1: none does. Also for noticing a wrong plan."""
    span: int
    """Steps that it can do without a plan before errors increase."""
    price: Price
    pace: float
    """Seconds that a reply takes at time scale 1."""
    strength: float
    """Measured accuracy alone, over all families."""
    refuses: Mapping[InstructionKind, float] = field(default_factory=dict[InstructionKind, float])
    """Probability of not understanding an instruction, by kind."""
    helpful: bool = True
    """If it does not understand the instruction: True solves the question, False says so."""
    candid: bool = True
    """True if it marks its guesses."""
    invents: float = 0.0
    """Probability of inventing a fact that it does not know when it looks facts up."""
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
"""The seven workers of the shipped pool, in its order."""
SHIFTED_PROFILES = tuple(
    replace(profile, **WORDS["degraded"].get(name, {})) for name, profile in _WORKERS.items()
)
"""The same world after a change: one worker has degraded, which its description and its strength do
not show, and another has joined."""
