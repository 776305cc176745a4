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
    """The traits of a worker."""

    name: str
    description: str
    """The description in a conductor's prompt."""
    skill: Mapping[str, float]
    """Probability of doing one elementary step correctly, by skill."""
    knows: float
    """Share of the knowledge base's facts that the worker knows."""
    planning: float
    """Probability that a plan of three steps has no error other than a repeated step."""
    checking: float
    """Probability that the worker notices its own misunderstanding when it reads another result."""
    care: float
    """0: all text that the worker reads distracts it; 1: none does. A careful worker also notices
    wrong plans and differing results more often."""
    span: int
    """Number of steps that the worker can do without a plan before errors increase."""
    price: Price
    pace: float
    """Seconds that a call of 500 tokens, prompt and reply together, takes at time scale 1."""
    strength: float
    """Measured accuracy of the worker alone, over all families; 0 if not measured."""
    refuses: Mapping[InstructionKind, float] = field(default_factory=dict[InstructionKind, float])
    """Probability of not understanding an instruction, by kind."""
    helpful: bool = True
    """True if the worker solves the question when it does not understand its instruction; otherwise
    it says that it does not understand."""
    candid: bool = True
    """True if the worker marks its guesses."""
    invents: float = 0.0
    """Probability of inventing an unknown fact when the worker looks facts up."""
    opening: str = "Let me work through it."


def _read_profile(name: str, traits: Mapping[str, Any]) -> WorkerProfile:
    read, written = map(Decimal, traits["price"])
    refuses = {InstructionKind(kind): share for kind, share in traits.get("refuses", {}).items()}
    price = Price(input=read, output=written)
    fields: dict[str, Any] = {**traits, "price": price, "refuses": refuses}
    return WorkerProfile(name=name, **fields)


_JOINING = "celesta"
_WORKERS = {name: _read_profile(name, traits) for name, traits in WORDS["workers"].items()}
PROFILES = tuple(profile for name, profile in _WORKERS.items() if name != _JOINING)
"""The seven workers of the shipped pool, in its order."""
SHIFTED_PROFILES = tuple(
    replace(profile, **WORDS["degraded"].get(name, {})) for name, profile in _WORKERS.items()
)
"""The workers after the change: one has degraded, which its description and strength do not show,
and another has joined."""
