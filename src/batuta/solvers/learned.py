"""A language model writes the workflow (Conductor paper, section 3).

Deviation: after a malformed draft the engine samples again, a bounded number of times, and then
lets the best single worker answer; the authors' server returns an empty reply.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from batuta.core import (
    Accepted,
    Brief,
    Client,
    Decision,
    Draft,
    Listener,
    Malformed,
    Plan,
    Sampling,
)
from batuta.core.conductor import SILENT
from batuta.core.usage import FREE, ZERO
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

    async def plan(self, brief: Brief, listener: Listener = SILENT) -> Decision:
        """Ask the model once, read what it wrote."""
        seed = (brief.seed * 1_000_003 + brief.sample) % 2**31
        sampling = replace(self.sampling, seed=seed)
        request = conductor_request(brief, self.rendering, sampling)
        try:
            reply = await self.client.complete(request, listener)
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
