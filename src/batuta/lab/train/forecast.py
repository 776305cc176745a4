"""The forecast of a training: expected figures, notes, and what is missing."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedFigure:
    """One expected number."""

    name: str
    value: float | None
    """None if it is unknown, which is not 0."""
    unit: str
    """`count`, `bytes`, `tokens`, `usd` or `seconds`."""
    source: str
    """How it was measured, or what was assumed."""


@dataclass(slots=True)
class Preflight:
    """The forecast of a training, and what prevents it from starting."""

    figures: list[ExpectedFigure] = field(default_factory=list[ExpectedFigure])
    missing: list[str] = field(default_factory=list[str])
    """Each sentence names something that prevents a start; empty if nothing does."""
    notes: list[str] = field(default_factory=list[str])
    """Remarks that do not prevent a start."""

    @property
    def is_ready(self) -> bool:
        """True if the training can start."""
        return not self.missing

    def add(self, name: str, value: float | None, unit: str, source: str) -> None:
        """Append an expected figure."""
        self.figures.append(ExpectedFigure(name=name, value=value, unit=unit, source=source))
