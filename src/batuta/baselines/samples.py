"""Several answers to the bare question at the same time, as a workflow."""

from __future__ import annotations

from collections.abc import Sequence

from batuta.core import Step, WorkerId, Workflow


def sampled(workers: Sequence[WorkerId]) -> Workflow:
    """Each answers the question as it stands; the engine gives every step a seed of its own."""
    return Workflow(tuple(Step("", worker) for worker in workers))
