"""The settings of the audit trail and of confidence."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from batuta.config.settings_file import StrictModel


class AuditSetting(StrictModel):
    """Retention of the audit trail of administrators' actions."""

    kept_days: float | None = Field(default=None, gt=0)
    """Days for which the records are kept; None: forever."""


class ConfidenceSetting(StrictModel):
    """The probability that an answer is correct, and how it is estimated."""

    file: str | None = None
    """The file that `batuta eval --calibrate` or `batuta tune` wrote, relative to the settings'
    folder; None: nothing is fitted yet, and samples are only collected."""
    samples: int = Field(default=0, ge=0, le=10)
    """Number of times that an answered question is asked again, to see whether answers agree."""
    sampler: str | None = None
    """The worker that is asked again; None: the worker that answered."""
    unsure: Literal["mark", "refuse"] = "mark"
    """Whether an answer below the requested confidence is marked, or refused with a 422."""

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        if not self.samples:
            self.refuse_settings(("sampler",), "needs `samples` of at least 1")
            if self.file is None:
                raise ValueError("needs `file`, or `samples` to collect data for a fit")
        if self.file is None:
            self.refuse_settings(("unsure",), "needs `file`")
        return self
