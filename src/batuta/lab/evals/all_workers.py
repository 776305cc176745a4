"""Systems that ask every worker: the vote, and the bounds that no router can exceed.

`Vote` takes the answer that most workers give. `AllWorkers` asks every worker n times and chooses
no answer; the evaluation grades all replies:

- The oracle (n = 1) is correct if any worker is.
- The repeatable-skill oracle (n > 1) takes the worker that did best on the other samples of the
  same question. What the oracle gains beyond that is sampling luck, which no router can exploit.

A reply of a substitute for a failed worker does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import anyio

from batuta.conductors import FixedConductor
from batuta.core import Question, Reply, Run, StepRun, WorkerId, Workflow
from batuta.engine.solver import run_conductor, with_final_reply
from batuta.lab.baselines import SolverContext, majority_reply
from batuta.lab.baselines.parallel_answers import ask_workers_in_parallel, build_parallel_workflow

RECORDED_TAG = "recorded"
"""The tag of a worker that replays recorded answers."""

WorkerScore = tuple[WorkerId, float]
"""A worker and the score of its reply."""

UpperBound = Callable[[Sequence[WorkerScore]], float]
"""Returns the score of a reference line on a question, from the scores of all replies."""


@dataclass(frozen=True, slots=True)
class AllWorkers:
    """Asks every worker that `Pool.ranked` returns n times."""

    samples: int = 1
    calls: None = None
    """None: the number depends on the pool."""

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ValueError(f"every worker is asked at least once, not {self.samples} times")

    @property
    def name(self) -> str:
        """The system's name, with the number of samples."""
        return f"each@{self.samples}"

    async def answer(self, question: Question, context: SolverContext, seed: int) -> Run:
        """Make all calls concurrently; the best worker's steps are the first of the run."""
        workers = [worker.id for worker in context.pool.ranked()]
        if all(RECORDED_TAG in worker.tags for worker in context.pool):
            return await self._ask_in_one_run(workers, question, context, seed)
        runs: dict[WorkerId, Run] = {}

        async def ask(worker: WorkerId) -> None:
            conductor = FixedConductor(
                self.name, lambda _: build_parallel_workflow([worker] * self.samples)
            )
            alone = context.restrict_to(worker)
            runs[worker] = await run_conductor(
                question, conductor, context=alone, seed=seed, max_steps=self.samples
            )

        async with anyio.create_task_group() as group:
            for worker in workers:
                group.start_soon(ask, worker)
        return _join_runs([runs[worker] for worker in workers])

    async def _ask_in_one_run(
        self, workers: Sequence[WorkerId], question: Question, context: SolverContext, seed: int
    ) -> Run:
        """Ask all workers in one workflow, which takes less time than a run for each worker.

        Replies of substitutes, which cost nothing on a record, are left out.
        """
        asked = [worker for worker in workers for _ in range(self.samples)]
        run = await ask_workers_in_parallel(
            self.name, question, context=context, seed=seed, workers=asked
        )
        (round_,) = run.rounds
        own = [step for step in round_.steps if step.worker == step.planned]
        own.sort(key=lambda step: step.index)
        return replace(run, rounds=(replace(round_, steps=tuple(own)),))


@dataclass(frozen=True, slots=True)
class Vote:
    """Takes the most frequent answer; in a tie, that of the best-ranked worker."""

    name: str = "vote"
    calls: None = None
    """None: the number depends on the pool."""

    async def answer(self, question: Question, context: SolverContext, seed: int) -> Run:
        """Ask every worker once and vote."""
        run = await AllWorkers().answer(question, context, seed)
        replies = [step.result for step in run.steps if isinstance(step.result, Reply)]
        return with_final_reply(run, majority_reply(replies))


def _join_runs(runs: Sequence[Run]) -> Run:
    """Join the runs into one run of concurrent steps, with the first answer that exists."""
    first = next((run for run in runs if run.answer is not None), runs[0])
    flows = [(round_.workflow, round_) for run in runs for round_ in run.rounds if round_.workflow]
    if not flows:
        return first
    steps: list[StepRun] = []
    offset = 0
    for flow, round_ in flows:
        steps += (replace(step, index=offset + step.index) for step in round_.steps)
        offset += len(flow)
    whole = Workflow(tuple(step for flow, _ in flows for step in flow.steps))
    round_ = replace(flows[0][1], workflow=whole, steps=tuple(steps))
    return replace(first, rounds=(round_,), seconds=max(run.seconds for run in runs))


def oracle_score(scores: Sequence[WorkerScore]) -> float:
    """Return the best score of all replies; 0 without replies."""
    return max((score for _, score in scores), default=0.0)


def skill_oracle_score(scores: Sequence[WorkerScore]) -> float:
    """Return the mean score of the worker that did best on the other samples.

    Each sample is left out once, and the mean is over the samples left out. The first of equally
    good workers counts. Workers with fewer samples than another are ignored. The score is 0 if
    there are fewer than two samples.
    """
    by_worker: dict[WorkerId, list[float]] = {}
    for worker, score in scores:
        by_worker.setdefault(worker, []).append(score)
    depth = max(map(len, by_worker.values()), default=0)
    kept = [own for own in by_worker.values() if len(own) == depth]
    if depth < 2:  # noqa: PLR2004 - there is no other sample
        return 0.0
    earned = [max(kept, key=lambda own, at=at: sum(own) - own[at])[at] for at in range(depth)]
    return sum(earned) / depth
