"""How a job goes from a thread of DBOS to the event loop, and its ending back to the thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Future
from dataclasses import dataclass
from math import inf
from typing import final

import anyio

from batuta.jobs.dbos_runner import JobInterrupted
from batuta.jobs.protocol import Job, Json


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job that waits to be run, and the thread that waits for its ending."""

    job: Job
    ending: Future[Json]


@final
class JobQueue:
    """Jobs that wait on the event loop, and the threads that wait for their endings."""

    def __init__(self) -> None:
        self._waiting: set[Future[Json]] = set()
        self._send, self._receive = anyio.create_memory_object_stream[QueuedJob](inf)

    def __aiter__(self) -> AsyncIterator[QueuedJob]:
        """The jobs in the order in which they came, until `close`."""
        return self._receive

    def hand_over(self, loop: asyncio.AbstractEventLoop, body: Json) -> Json:
        """Runs in a thread of DBOS: gives the job to the loop and waits for its ending.

        Raises:
            JobInterrupted: the queue was closed before the job ended.
            JobFailed: a fault ended it.
        """
        order = QueuedJob(Job(body["id"], body["tenant"], body["body"]), Future())
        self._waiting.add(order.ending)
        try:
            loop.call_soon_threadsafe(self._take, order)
            return order.ending.result()
        finally:
            self._waiting.discard(order.ending)

    def close(self) -> None:
        """Takes no more jobs, and lets the threads go: their jobs stay unfinished."""
        self._send.close()
        self._receive.close()
        for waiting in tuple(self._waiting):
            resolve_future(waiting, JobInterrupted())

    def _take(self, order: QueuedJob) -> None:
        try:
            self._send.send_nowait(order)
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            resolve_future(order.ending, JobInterrupted())


def resolve_future(waiting: Future[Json], outcome: Json | BaseException) -> None:
    """Lets the thread go on that waits for a job; one that was told already is skipped."""
    if waiting.done():
        return
    if isinstance(outcome, BaseException):
        waiting.set_exception(outcome)
    else:
        waiting.set_result(outcome)
