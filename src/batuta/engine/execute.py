"""Plays one workflow: each step starts as soon as the steps it reads have ended."""

from __future__ import annotations

import asyncio

from batuta.core import Workflow
from batuta.engine.context import RunContext
from batuta.engine.resumption import pending_calls
from batuta.engine.step import StepExecution


async def execute_workflow(stage: RunContext, workflow: Workflow, number: int) -> None:
    """Play `workflow` as this run's round `number`; every step ends in a `StepFinished` event.

    A step that asks for the client's tools holds back those that read it. Of a workflow that an
    earlier run began, the steps that have ended are not played again, and one that waits is
    played when its results are there.
    """
    done, held = _resumed_steps(stage, number)
    if workflow.depth == len(workflow):  # a chain: nothing to run at the same time
        for index in sorted(set(range(len(workflow))) - done):
            if index in held or not await _run_step(stage, workflow, number, index):
                return
        return
    missing = [set(step.access) - done for step in workflow.steps]
    ready = [i for i, needs in enumerate(missing) if not needs and i not in done | held]

    async def follow(index: int | None) -> None:
        """Play a step, then one that waited for it; others that did get tasks of their own."""
        while index is not None and await _run_step(stage, workflow, number, index):
            index = start(_newly_ready_steps(missing, index))

    def start(ready: list[int]) -> int | None:
        for other in ready[1:]:
            group.create_task(follow(other))
        return ready[0] if ready else None

    # The standard library's group keeps the same promise at a third of the cost (bench/engine.py).
    async with asyncio.TaskGroup() as group:
        await follow(start(ready))


def _resumed_steps(stage: RunContext, number: int) -> tuple[set[int], set[int]]:
    """The steps that runs before this one have ended, and those that wait for results."""
    before = stage.earlier_steps(number)
    done = {index for index, step in before.items() if not pending_calls(step)}
    held = {i for i, step in before.items() if i not in done and not stage.has_results(step)}
    return done, held


async def _run_step(stage: RunContext, workflow: Workflow, number: int, index: int) -> bool:
    """Plays the step; False if it waits for the client's tools."""
    ended = await StepExecution(stage, workflow, number, index).run()
    return not pending_calls(ended)


def _newly_ready_steps(missing: list[set[int]], ended: int) -> list[int]:
    """The steps that waited for nothing but `ended`; forgets that they wait for it."""
    ready: list[int] = []
    for index, needs in enumerate(missing):
        if ended in needs:
            needs.discard(ended)
            if not needs:
                ready.append(index)
    return ready
