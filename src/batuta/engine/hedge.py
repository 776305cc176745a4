"""A race between two calls of a step: a second worker is asked beside one that stays silent."""

from __future__ import annotations

import anyio

from batuta.core import Failure, Reply, Worker
from batuta.engine.call import HEDGE_LOSS, StepState, WorkerCall
from batuta.errors import LimitReachedError


class Hedge:
    """A call, and a second one beside it if the first stays silent; whoever is first answers.

    Where a reader sees the words as they come, the first to speak has the floor and the other
    is cut; elsewhere the first whole reply counts. What the loser costs is in the record.
    """

    def __init__(
        self, step: StepState, first: WorkerCall, others: list[Worker], silence: float
    ) -> None:
        self.step = step
        self.calls = [first]
        self.others = others
        self.delay = silence
        self.speaker: WorkerCall | None = None
        """The call whose words are streamed."""
        self.winner: WorkerCall | None = None
        self.results: dict[WorkerCall, Reply | Failure] = {}
        self.ended = anyio.Event()
        self._add_call(first)

    def may_emit(self, call: WorkerCall) -> bool:
        """Return True if the call's words may be streamed."""
        if self.speaker is None:
            self.speaker = call
            if self.step.context.shows_answer(self.step.number):
                self._cancel_all_but(call)
        return self.speaker is call

    async def run(self) -> Reply | Failure:
        """The first usable reply; else the failure of the first worker."""
        first = self.calls[0]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._run_call, first)
            with anyio.move_on_after(self.delay):
                await self.ended.wait()
            second = (
                None
                if self.ended.is_set() or first.has_received
                else await self._start_second_call()
            )
            if second is not None:
                tasks.start_soon(self._run_call, second)
        answering = self.winner or self.speaker or first
        for call in self.calls:
            if call is not answering:
                await self.step.record_attempt(self._loser_failure(call), call.worker.id)
        self.step.worker, self.step.request = answering.worker.id, answering.request
        return self.results[answering]

    async def _run_call(self, call: WorkerCall) -> None:
        result = self.results[call] = await call.run(None)
        if isinstance(result, Reply) and self.winner is None:
            self.winner = call
            self._cancel_all_but(call)
        self.ended.set()

    async def _start_second_call(self) -> WorkerCall | None:
        """The best other worker, if there is money for two; the first may answer meanwhile."""
        worker, budget = self.others[0], self.step.context.budget
        request = self.step.build_request(worker)
        try:
            hold = await budget.reserve(request, worker, whole=True, waits=False)
        except LimitReachedError:
            return None
        if self.ended.is_set() or self.calls[0].has_received:
            budget.release(hold)
            return None
        del self.others[0]
        call = WorkerCall(self.step, worker, hold)
        self.calls.append(call)
        self._add_call(call)
        return call

    def _add_call(self, call: WorkerCall) -> None:
        call.hedge, call.scope = self, anyio.CancelScope()

    def _cancel_all_but(self, call: WorkerCall) -> None:
        for other in self.calls:
            if other is not call and other not in self.results and other.scope is not None:
                other.scope.cancel()

    def _loser_failure(self, call: WorkerCall) -> Failure:
        """Return the cost of the call that does not count, as a failure."""
        result = self.results[call]
        if isinstance(result, Failure):
            return result
        return Failure(
            code=HEDGE_LOSS[0], message=HEDGE_LOSS[1], usage=result.usage, cost=result.cost
        )
