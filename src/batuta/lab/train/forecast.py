"""The forecast of a training: expected figures, remarks, and what is missing."""

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


@dataclass(slots=True)
class Preflight:
    """The forecast of a training, and what it lacks."""

    figures: list[ExpectedFigure] = field(default_factory=list[ExpectedFigure])
    missing: list[str] = field(default_factory=list[str])
    """One sentence each; empty: it can start."""
    notes: list[str] = field(default_factory=list[str])
    """Remarks that are worth knowing and forbid nothing."""

    @property
    def is_ready(self) -> bool:
        """True if the training can start."""
        return not self.missing

    def add(self, name: str, value: float | None, unit: str, source: str) -> None:
        """Add an expected number."""
        self.figures.append(ExpectedFigure(name=name, value=value, unit=unit, source=source))
