"""The seven workers: what each is good at, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal

from batuta.core import Price
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


def _make_price(into: str, out: str) -> Price:
    return Price(input=Decimal(into), output=Decimal(out))


def _skill_table(
    arithmetic: float, code: float, facts: float, text: float, *, calendar: float
) -> Mapping[str, float]:
    return {
        "arithmetic": arithmetic, "code": code, "facts": facts, "text": text, "calendar": calendar,
    }  # fmt: skip


PROFILES: tuple[WorkerProfile, ...] = (
    WorkerProfile(
        name="cello",
        description=(
            "Excellent at arithmetic; good at list programs and planning; fair at dates and "
            "checking; weak at facts and text. Middle price."
        ),
        skill=_skill_table(0.985, 0.90, facts=0.92, text=0.66, calendar=0.76),
        knows=0.5,
        planning=0.96,
        checking=0.80,
        care=0.6,
        span=3,
        price=_make_price("0.60", "2.40"),
        pace=0.09,
        strength=0.41,
        refuses={InstructionKind.LOOK_UP: 0.5},
        opening="I take it number by number.",
    ),
    WorkerProfile(
        name="oboe",
        description=(
            "Excellent at list programs; good at text and planning; fair at arithmetic and "
            "checking; weak at facts and dates. Middle price."
        ),
        skill=_skill_table(0.80, 0.985, facts=0.92, text=0.91, calendar=0.66),
        knows=0.4,
        planning=0.96,
        checking=0.82,
        care=0.5,
        span=3,
        price=_make_price("0.50", "2.00"),
        pace=0.08,
        strength=0.39,
        helpful=False,
        refuses={InstructionKind.PLAN: 0.1, InstructionKind.LOOK_UP: 0.6},
        opening="I run it step by step.",
    ),
    WorkerProfile(
        name="harp",
        description=(
            "Excellent at facts and their look-up; good at planning; fair at dates and text; weak "
            "at arithmetic, list programs and checking. Low price."
        ),
        skill=_skill_table(0.72, 0.66, facts=0.985, text=0.78, calendar=0.80),
        knows=0.74,
        planning=0.96,
        checking=0.65,
        care=0.5,
        span=4,
        price=_make_price("0.30", "1.20"),
        pace=0.07,
        strength=0.47,
        refuses={InstructionKind.PLAN: 0.1},
        opening="I consult the chronicle.",
    ),
    WorkerProfile(
        name="viola",
        description=(
            "Excellent at dates and units and at text; good at planning and checking; fair at "
            "arithmetic; weak at list programs and facts. Middle price."
        ),
        skill=_skill_table(0.82, 0.68, facts=0.92, text=0.98, calendar=0.985),
        knows=0.50,
        planning=0.96,
        checking=0.85,
        care=0.6,
        span=3,
        price=_make_price("0.60", "2.40"),
        pace=0.08,
        strength=0.44,
        refuses={InstructionKind.LOOK_UP: 0.4},
        opening="I read closely and go in order.",
    ),
    WorkerProfile(
        name="tuba",
        description=(
            "Good at facts and their look-up, at planning and at comparing answers; careful with "
            "long context; fair at list programs and dates; weak at arithmetic and text. Low "
            "price, slow."
        ),
        skill=_skill_table(0.70, 0.82, facts=0.98, text=0.68, calendar=0.82),
        knows=0.70,
        planning=0.96,
        checking=0.88,
        care=0.95,
        span=3,
        price=_make_price("0.25", "1.00"),
        pace=0.12,
        strength=0.38,
        opening="Slowly and in order.",
    ),
    WorkerProfile(
        name="flute",
        description=(
            "Fast and very cheap; fair at short arithmetic, list programs, text, dates and "
            "planning; weak at facts and checking; does not say when it guesses."
        ),
        skill=_skill_table(0.84, 0.83, facts=0.90, text=0.83, calendar=0.84),
        knows=0.50,
        planning=0.95,
        checking=0.60,
        care=0.2,
        span=2,
        price=_make_price("0.05", "0.20"),
        pace=0.03,
        strength=0.39,
        refuses={InstructionKind.COMPARE: 0.3, InstructionKind.REPAIR: 0.3},
        candid=False,
        invents=0.3,
        opening="Quickly:",
    ),
    WorkerProfile(
        name="piano",
        description=(
            "Excellent at planning; good at facts, at checking and comparing, and at arithmetic "
            "and list programs in pieces; fair at text and dates. High price."
        ),
        skill=_skill_table(0.92, 0.90, facts=0.94, text=0.84, calendar=0.86),
        knows=0.70,
        planning=0.985,
        checking=0.93,
        care=0.8,
        span=2,
        price=_make_price("2.50", "10.00"),
        pace=0.12,
        strength=0.39,
        opening="I keep to the structure of the question.",
    ),
)
"""All of them, in the order of the shipped pool."""

_DEGRADED_WORKER = "harp"
"""The best at facts, with whom most workflows of the shipped conductor begin."""

CELESTA = WorkerProfile(
    name="celesta",
    description=(
        "Excellent at facts and their look-up; good at planning; fair at dates and text; weak at "
        "arithmetic, list programs and checking. Low price."
    ),
    skill=_skill_table(0.74, 0.70, facts=0.985, text=0.80, calendar=0.82),
    knows=0.90,
    planning=0.85,
    checking=0.35,
    care=0.6,
    span=4,
    price=_make_price("0.35", "1.40"),
    pace=0.07,
    strength=0.47,
    refuses={InstructionKind.REPAIR: 0.3},
    opening="I open the registers.",
)
"""The worker that joins."""


def _degrade_worker(profile: WorkerProfile) -> WorkerProfile:
    """Return the worker as its provider serves it after the shift; nobody was told."""
    return replace(
        profile,
        skill=_skill_table(0.60, 0.55, facts=0.80, text=0.60, calendar=0.62),
        knows=0.25,
        planning=0.30,
        checking=0.15,
        care=0.3,
        span=2,
    )


SHIFTED_PROFILES: tuple[WorkerProfile, ...] = (
    *(
        _degrade_worker(profile) if profile.name == _DEGRADED_WORKER else profile
        for profile in PROFILES
    ),
    CELESTA,
)
"""The same world after a change: one worker has degraded, which its description and its believed
strength do not say, and another has joined."""
