"""A language model writes the workflow (Conductor paper, section 3).

Deviation: after a malformed draft the engine samples again, a bounded number of times, and then
lets the best single worker answer; the authors' server returns an empty reply.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

import anyio

from batuta.core import (
    Accepted,
    Brief,
    Client,
    Decision,
    Draft,
    Failure,
    Listener,
    Malformed,
    Plan,
    Request,
    Sampling,
    Usage,
    Worker,
)
from batuta.core.conductor import SILENT
from batuta.core.estimate import tokens_in
from batuta.core.usage import FREE, ZERO, cost_of
from batuta.errors import ClientError, LimitReached, WorkflowError
from batuta.language import Rendering, conductor_request, parse

PAPER_SAMPLING = Sampling(temperature=1.0, max_tokens=1024)
"""Completion at most 1,024 tokens at temperature 1 (paper, section 4.1)."""


@dataclass(frozen=True, slots=True)
class Learned:
    """Any Client as the conductor's model."""

    name: str
    client: Client
    rendering: Rendering = Rendering()
    sampling: Sampling = PAPER_SAMPLING
    rounds: int | None = None
    """Rounds that the model has learned to write; after so many the answer stands, and it is not
    asked. None: any."""
    worker: Worker | None = None
    """Whose model it is: what a call of it may cost follows from that. None: it costs nothing."""

    async def plan(self, brief: Brief, listener: Listener = SILENT) -> Decision:
        """Ask the model once, read what it wrote."""
        if self.rounds is not None and len(brief.previous) >= self.rounds:
            return Accepted()
        seed = (brief.seed * 1_000_003 + brief.sample) % 2**31
        sampling = replace(self.sampling, seed=seed)
        request = conductor_request(brief, self.rendering, sampling)
        try:
            if self.worker is not None:
                request = await listener.admit(request, self.worker)
        except LimitReached as error:
            return Malformed(Draft(), str(error), outage=True)
        try:
            reply = await self.client.complete(request, listener)
        except anyio.get_cancelled_exc_class():
            await self._lost(request, listener)
            raise
        except LimitReached as error:
            return Malformed(Draft(request=request), str(error), outage=True)
        except ClientError as error:
            lost = Draft("", error.usage or ZERO, error.cost or FREE, request)
            return Malformed(lost, f"the conductor's model failed: {error}", outage=True)
        draft = Draft(reply.text, reply.usage, reply.cost, request)
        try:
            revise = bool(brief.previous)
            read = parse(reply.text, brief.pool, max_steps=brief.max_steps, revise=revise)
        except WorkflowError as error:
            return Malformed(draft, str(error))
        return Accepted(draft) if isinstance(read, Accepted) else Plan(read, draft)

    async def _lost(self, request: Request, listener: Listener) -> None:
        """Tell what the cut call is likely to have consumed."""
        usage = Usage(calls=1, input=tokens_in(request), estimated=1)
        cost = cost_of(usage, self.worker.price if self.worker else None)
        failure = Failure("cancelled", "planning was cancelled", usage=usage, cost=cost)
        with suppress(LimitReached):  # there is no further attempt to forbid
            await listener.failed(failure)
