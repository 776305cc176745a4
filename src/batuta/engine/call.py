"""One call of one worker for a step: the listener of its client, and a race between two."""

from __future__ import annotations

import logging
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

import anyio

from batuta.core import (
    Cost,
    Delta,
    Failure,
    Place,
    Reply,
    Request,
    Spoke,
    ToolCall,
    Usage,
    Worker,
    call_id,
)
from batuta.core.estimate import tokens_in, tokens_of_weight, weight_of
from batuta.core.run import OUTRUN
from batuta.core.usage import cost_of
from batuta.engine.ask import is_empty, lacks_call, needs_call
from batuta.engine.budget import Hold
from batuta.errors import ClientError, Interrupted, LimitReached, RateLimited

if TYPE_CHECKING:
    from batuta.engine.play import StepPlay

logger = logging.getLogger(__name__)

LONGEST_PAUSE = 2.0
"""Seconds that a step waits for a worker whose provider asks to slow down, if others can play."""
_OUTRUN = (OUTRUN, "another worker was faster")


class Call:
    """A call while it lasts; it is the listener of the worker's client."""

    def __init__(self, play: StepPlay, worker: Worker, hold: Hold) -> None:
        self.play = play
        self.stage = play.stage
        self.worker = worker
        self.request: Request = hold.request
        self.hold: Hold | None = hold
        """What is reserved for the present attempt; None: it was charged."""
        self.streaming = play.stage.emit is not None
        self.heard = 0
        """What came of the present attempt, as `weight_of` counts."""
        self._held = self._holding()
        """What is told once a tool is called; None: everything is told at once."""
        self.told = False
        """Whether anything of the present attempt was told."""
        self.settled = False
        """Whether the failure that ends the call was already noted and charged."""
        self.race: Race | None = None
        self.scope: anyio.CancelScope | None = None
        """Of a call that may be cut before the run is."""
        self.result: Reply | Failure | None = None
        """Once it is there, and charged."""
        self._indices: dict[int, int | None] = {}
        """The client's tools that are called: the worker's index to ours; None: not a tool of
        the client's, so nobody is told of it."""
        # What one worker alone is asked may go on with it: then its own ids are as good.
        self._renames = len(play.workflow) > 1 or len(play.stage.pool) > 1

    # -- the listener ---------------------------------------------------------------------

    async def admit(self, request: Request, worker: Worker) -> Request:
        """The request as it is: a worker's call was reserved before it was made."""
        return request

    async def spoke(self, delta: Delta) -> None:
        """A fragment: count it, pass it on."""
        pieces = filter(None, (delta.text, delta.reasoning, delta.tool_arguments))
        self.heard += sum(map(weight_of, pieces))
        if self.race is not None and not self.race.may_speak(self):
            return
        if delta.tool_index is not None:
            named = self._named(delta, delta.tool_index)
            if named is None:
                return
            delta = named
        elif self._held is not None:
            self._held.append(delta)
            return
        held, self._held = self._held or [], None
        self.told = True
        if self.scope is not None and self.exposed:
            self.scope.deadline = inf
        for each in (*held, delta):
            await self.stage.tell(Spoke(self.play.number, self.play.index, each))

    async def failed(self, failure: Failure) -> None:
        """An attempt failed and the client wants to try again: charge it, permit or forbid.

        Raises:
            LimitReached: the budget forbids another attempt.
            Interrupted: the reader has already seen a part of this answer.
            RateLimited: the provider wants to be left alone, and others can be asked.
        """
        if self._is_slowed(failure) and self.play.has_others():  # charged and noted at its end
            usage, cost = failure.usage, failure.cost
            wait = failure.retry_after
            raise RateLimited(failure.message, retry_after=wait, usage=usage, cost=cost)
        self._charge(failure.usage, failure.cost)
        await self.play.note(failure, self.worker.id)
        if self.exposed:
            self.settled = True
            raise Interrupted(failure.message)
        self.hold = await self.stage.reserve(self.request, self.worker, whole=True)
        self.heard, self.told, self._held = 0, False, self._holding()
        self._indices.clear()

    @staticmethod
    def _is_slowed(failure: Failure) -> bool:
        """Whether the provider asks for a pause that is longer than another worker needs."""
        wait = failure.retry_after
        return failure.code == RateLimited.code and wait is not None and wait > LONGEST_PAUSE

    # -- calling --------------------------------------------------------------------------

    @property
    def exposed(self) -> bool:
        """Whether a reader has seen a part of what this call says."""
        seen = self.race is None or self.race.speaker is self
        return self.stage.live and self.play.last and self.told and seen

    def _holding(self) -> list[Delta] | None:
        """Where a tool must be called a reader sees nothing until one is: it may never be."""
        return [] if needs_call(self.request) else None

    async def run(self, patience: float | None) -> Reply | Failure:
        """The reply or the failure; either is charged.

        Args:
            patience: seconds after which the call is given up, unless a reader has seen a part
                of what it says; None: never.
        """
        self.play.calls.append(self)
        if patience is None and self.race is None:
            self.result = await self._complete()
        else:
            await self._within(patience)
        if self.result is None:
            late = f"no reply within {patience or 0:g} s"
            result = self.cut("timed_out", late) if self.race is None else self.cut(*_OUTRUN)
        else:
            result = self.result
            self._charge(result.usage, result.cost)
        if isinstance(result, Reply):
            result = await self.play.screened(result)
        elif self.exposed:
            self.stage.exposed = result
        self.play.calls.remove(self)
        return result

    async def _within(self, patience: float | None) -> None:
        """Calls, until it is answered, its time is up or its rival was faster."""
        self.scope = scope = self.scope or anyio.CancelScope()
        if patience is not None:
            scope.deadline = anyio.current_time() + patience
        with scope:
            self.result = await self._complete()

    def cut(self, code: str, message: str) -> Failure:
        """The failure of a call that was cut, with what it has cost or is likely to have cost."""
        if self.result is not None:
            return Failure(code, message, usage=self.result.usage, cost=self.result.cost)
        if self.hold is None:  # between two attempts: the first is charged, the next is not made
            return Failure(code, message)
        output = tokens_of_weight(self.heard)
        usage = Usage(calls=1, input=tokens_in(self.request), output=output, estimated=1)
        cost = cost_of(usage, self.worker.price)
        self._charge(usage, cost)
        return Failure(code, message, usage=usage, cost=cost)

    def _charge(self, usage: Usage, cost: Cost) -> None:
        """Counts what the present attempt consumed, in the place of what was reserved for it."""
        self.stage.budget.charge(usage, cost, self.hold)
        self.hold = None

    async def _complete(self) -> Reply | Failure:
        """One call with its client's own retries."""
        try:
            reply = await self.stage.clients[self.worker.id].complete(self.request, self)
        except LimitReached as error:
            return Failure("limit", str(error))
        except ClientError as error:
            return Failure(error.code, str(error)) if self.settled else Failure.of(error)
        except Exception as error:  # a fault of ours or of a client must not lose the run
            logger.exception("the client of %s raised %s", self.worker.id, type(error).__name__)
            return Failure("internal_error", f"{type(error).__name__} inside the client")
        own = self._declared(reply)
        fault = self._fault(own, undeclared=len(own.tool_calls) < len(reply.tool_calls))
        return own if fault is None else Failure(*fault, usage=reply.usage, cost=reply.cost)

    def _fault(self, reply: Reply, *, undeclared: bool) -> tuple[str, str] | None:
        """Why the reply cannot be used, as a code and a sentence; None if it can."""
        if undeclared and is_empty(reply):
            return "unknown_tool", "it calls a tool that was not offered"
        if lacks_call(self.request, reply):
            return "no_tool_call", "it does not call the tool that it must call"
        if not is_empty(reply):
            return None
        return None if self.play.may_be_empty(reply) else ("empty_reply", "the reply is empty")

    # -- tools ----------------------------------------------------------------------------

    def _offered(self, name: str) -> bool:
        """Only tools that the client declared reach the client."""
        if self.request.tool_choice == "none":
            return False
        return any(tool.name == name for tool in self.request.tools)

    def _named(self, delta: Delta, index: int) -> Delta | None:
        """The fragment of a tool call under our index and id; None: it is no tool of theirs."""
        if index not in self._indices:
            taken = sum(mine is not None for mine in self._indices.values())
            self._indices[index] = taken if self._offered(delta.tool_name) else None
        mine = self._indices[index]
        if mine is None:
            return None
        return replace(
            delta, tool_index=mine, tool_id=self._id(delta.tool_id, mine) if delta.tool_id else ""
        )

    def _declared(self, reply: Reply) -> Reply:
        """The reply without calls of tools that were not offered, under our ids."""
        if not reply.tool_calls:
            return reply
        offered = [call for call in reply.tool_calls if self._offered(call.name)]
        calls = tuple(
            ToolCall(self._id(call.id, number), call.name, call.arguments)
            for number, call in enumerate(offered)
        )
        return replace(reply, tool_calls=calls)

    def _id(self, given: str, number: int) -> str:
        if not self._renames:
            return given
        played = self.stage.offset + self.play.number
        return call_id(Place(self.stage.run_id, played, self.play.index, number))


class Race:
    """A call, and a second one beside it if the first stays silent; whoever is first answers.

    Where a reader sees the words as they come, the first to speak has the floor and the other
    is cut; elsewhere the first whole reply counts. What the loser costs is in the record.
    """

    def __init__(self, play: StepPlay, first: Call, others: list[Worker], silence: float) -> None:
        self.play = play
        self.calls = [first]
        self.others = others
        self.silence = silence
        self.speaker: Call | None = None
        """Whose words are told."""
        self.winner: Call | None = None
        self.results: dict[Call, Reply | Failure] = {}
        self.ended = anyio.Event()
        self._enter(first)

    def may_speak(self, call: Call) -> bool:
        """Whether that call's words may be told."""
        if self.speaker is None:
            self.speaker = call
            if self.play.stage.live:
                self._cut_all_but(call)
        return self.speaker is call

    async def run(self) -> Reply | Failure:
        """The first usable reply; else the failure of the first worker."""
        first = self.calls[0]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._follow, first)
            with anyio.move_on_after(self.silence):
                await self.ended.wait()
            second = None if self.ended.is_set() or first.heard else await self._second()
            if second is not None:
                tasks.start_soon(self._follow, second)
        answering = self.winner or self.speaker or first
        for call in self.calls:
            if call is not answering:
                await self.play.note(self._lost(call), call.worker.id)
        self.play.worker, self.play.request = answering.worker.id, answering.request
        return self.results[answering]

    async def _follow(self, call: Call) -> None:
        result = self.results[call] = await call.run(None)
        if isinstance(result, Reply) and self.winner is None:
            self.winner = call
            self._cut_all_but(call)
        self.ended.set()

    async def _second(self) -> Call | None:
        """The best other worker, if there is money for two; the first may answer meanwhile."""
        worker, budget = self.others[0], self.play.stage.budget
        request = self.play.prompt(worker)
        try:
            hold = await budget.reserve(request, worker, whole=True, waits=False)
        except LimitReached:
            return None
        if self.ended.is_set() or self.calls[0].heard:
            budget.release(hold)
            return None
        del self.others[0]
        call = Call(self.play, worker, hold)
        self.calls.append(call)
        self._enter(call)
        return call

    def _enter(self, call: Call) -> None:
        call.race, call.scope = self, anyio.CancelScope()

    def _cut_all_but(self, call: Call) -> None:
        for other in self.calls:
            if other is not call and other not in self.results and other.scope is not None:
                other.scope.cancel()

    def _lost(self, call: Call) -> Failure:
        """What the call that does not count has cost."""
        result = self.results[call]
        if isinstance(result, Failure):
            return result
        return Failure(*_OUTRUN, usage=result.usage, cost=result.cost)
