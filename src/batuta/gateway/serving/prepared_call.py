"""A call that can be played: everything was looked up and found."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from batuta.core import Client, GuardrailTriggered, Limits, Pool, ResumeState, Run, RunId, WorkerId
from batuta.gateway.access.caller import Caller
from batuta.gateway.errors import APIError
from batuta.gateway.serving.admission import Admission
from batuta.gateway.serving.answer_cache import CACHE_HEADER, RepeatableCall
from batuta.gateway.serving.error_mapping import error_of_run
from batuta.gateway.serving.explore import ChosenArm
from batuta.gateway.serving.models import ServedModel
from batuta.gateway.serving.parsed_call import ParsedCall
from batuta.guardrails import Guardrails, GuardrailStage

_MAX_NAMED = 20
"""Ignored fields that are told; what a client made up does not fill our headers."""
_HEADER_SAFE = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedCall:
    """A call that can be played: everything was looked up and found."""

    call: ParsedCall
    caller: Caller
    served_model: ServedModel
    pool: Pool
    limits: Limits
    clients: Mapping[WorkerId, Client]
    run_id: RunId
    admission: Admission
    """What the call holds of its caller's rates and budgets."""
    guardrails: Guardrails = field(default_factory=Guardrails)
    guarded: tuple[GuardrailTriggered, ...] = ()
    """What policies did to what came with the question."""
    resumed: ResumeState | None = None
    """The workflow that continues with the results of its tools."""
    will_resume: Callable[[], bool] = lambda: False
    """Whether a run that is cancelled now is taken up again by another process."""
    repeatable: RepeatableCall | None = None
    """All that the answer depends on, if it may be given again."""
    earlier: Run | None = None
    """The run whose answer is given again."""
    chosen: ChosenArm | None = None
    """What is played where the system learns while it serves."""

    @property
    def can_stream(self) -> bool:
        """Whether words can be shown as they come: nothing will replace them or forbid them."""
        settled = self.served_model.solver is None
        return (
            self.call.stream and settled and not self.guardrails.applies_to(GuardrailStage.OUTPUT)
        )

    @property
    def headers(self) -> dict[str, str]:
        """What the answer's headers say before anything is played."""
        headers = {"x-batuta-run-id": str(self.run_id), **self.admission.headers}
        if self.repeatable is not None:
            headers[CACHE_HEADER] = "miss" if self.earlier is None else "hit"
        if self.chosen is not None:
            headers.update(self.chosen.headers)
        ignored = [n for n in self.call.ignored if _HEADER_SAFE.fullmatch(n)][:_MAX_NAMED]
        if ignored:
            headers["x-batuta-ignored"] = ", ".join(ignored)
        if lowered := self.call.options.lowered_limits(self.limits):
            headers["x-batuta-lowered"] = ", ".join(f"{n}={v:g}" for n, v in lowered.items())
        return headers

    def error_for(self, run: Run) -> APIError | None:
        """The error that the caller gets; None if the run has an answer."""
        return error_of_run(run, direct=self.served_model.direct)
