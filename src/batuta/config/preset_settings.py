"""Settings of models of one's own, `[models.NAME]`."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from batuta.config.settings_file import StrictModel
from batuta.config.worker_settings import EffortWord
from batuta.core import MAX_ROUNDS, MAX_STEPS


class PresetLimits(StrictModel):
    """Limits of a preset's runs, within those of the whole file; a request can lower them."""

    max_steps: int | None = Field(default=None, ge=1, le=MAX_STEPS)
    max_rounds: int | None = Field(default=None, ge=1, le=MAX_ROUNDS)
    max_tokens: int | None = Field(default=None, ge=0)
    max_cost_usd: float | None = Field(default=None, ge=0)
    deadline_s: float | None = Field(default=None, gt=0)


class PresetSetting(StrictModel):
    """A preset serves a conductor, a workflow or a baseline under a name."""

    conductor: str | None = None
    """It names a worker, a fixed conductor or the folder of a trained one."""
    workflow: str | None = None
    """A file with a workflow, as a conductor writes it; from the settings' folder."""
    baseline: str | None = None
    """The name of a published method, without `baseline/`."""
    workers: tuple[str, ...] = ()
    """The workers that may answer; empty: all of the pool."""
    limits: PresetLimits = PresetLimits()
    effort: EffortWord | None = None
    """The effort of a request that names none."""
    min_confidence: float | None = Field(default=None, ge=0, le=1)
    """Answers below this probability are marked `unsure`, after one more worker was asked."""
    description: str = ""

    @model_validator(mode="after")
    def _one_of_three(self) -> Self:
        given = [one for one in (self.conductor, self.workflow, self.baseline) if one]
        if len(given) != 1:
            raise ValueError("name a `conductor`, a `workflow` or a `baseline`, and one alone")
        if self.baseline:
            self.refuse_settings(("effort", "min_confidence"), "is of a conductor or a workflow")
            own = ("max_steps", "max_rounds")
            self.limits.refuse_settings(own, "is not of a baseline, which has its own")
        return self
