"""The settings of the audit trail, and of how sure answers are."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from batuta.config.settings_file import StrictModel


class AuditSetting(StrictModel):
    """The audit trail of what administrators did."""

    kept_days: float | None = Field(default=None, gt=0)
    """How long its records are kept; None: for ever."""


class ConfidenceSetting(StrictModel):
    """How sure answers are."""

    file: str | None = None
    """`batuta eval --calibrate` wrote this file, from the settings' folder; None: it is to be.
    """
    samples: int = Field(default=0, ge=0, le=10)
    """A question that has an answer is asked again so often, to see whether that agrees."""
    sampler: str | None = None
    """This worker is asked again; None: the one that wrote the answer is."""
    unsure: Literal["mark", "refuse"] = "mark"
    """Says whether an answer less sure than was asked for is marked, or refused with a 422."""

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.samples:
            self.refuse_settings(("sampler",), "needs `samples` of at least 1")
            if self.file is None:
                raise ValueError("needs `file`, or `samples` for one that is to be fitted")
        if self.file is None:
            self.refuse_settings(("unsure",), "needs `file`")
        return self
