"""What a look before a training finds: expected numbers, and what is missing."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedFigure:
    """One expected number."""

    name: str
    value: float | None
    """None: unknown, which is not 0."""
    unit: str
    """`count`, `bytes`, `tokens`, `usd` or `seconds`."""
    source: str
    """How it is known, or what was assumed."""


@dataclass(frozen=True, slots=True)
class PreflightReport:
    """What a training takes, and what it lacks."""

    figures: tuple[ExpectedFigure, ...]
    missing: tuple[str, ...]
    """One sentence each; empty: it can start."""
    notes: tuple[str, ...]
    """What is worth knowing and forbids nothing."""

    @property
    def is_ready(self) -> bool:
        """Whether the training can start."""
        return not self.missing


@dataclass(slots=True)
class Findings:
    """What was found so far."""

    figures: list[ExpectedFigure] = field(default_factory=list[ExpectedFigure])
    missing: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])

    def add(self, name: str, value: float | None, unit: str, source: str) -> None:
        """Another expected number."""
        self.figures.append(ExpectedFigure(name=name, value=value, unit=unit, source=source))
