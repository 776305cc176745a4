"""The part of the Ray executor that runs in the cluster's processes. It does not import Ray."""

from __future__ import annotations

import pickle
import socket
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

import anyio

from batuta.distribution import package_version
from batuta.errors import ExecutorError
from batuta.lab.executor.protocol import ExecutorJob, set_answer

LINGER = 0.005
"""Seconds to wait for further results, to send them in the same message."""

Ended = tuple[int, Any, Exception | None]
"""An item's index, its result, and its error or None; the index -1 is that of the job itself."""


class Exchange(NamedTuple):
    """An actor's message to its driver."""

    ended: list[Ended]
    """The results of the items that have ended since the previous message."""
    asked: list[tuple[int, Any]]
    """Questions of running items, each with the number that identifies its answer."""


@dataclass(slots=True, kw_only=True)
class _Answer:
    """An answer of the driver that an item awaits."""

    arrived: anyio.Event = field(default_factory=anyio.Event)
    result: Any = None
    error: Exception | None = None


@dataclass(slots=True, kw_only=True)
class _ServedJob:
    """The job of a driver's `run_all`, as this actor runs it."""

    token: str
    """Identifies the opening of the job, which the driver repeats after a restart."""
    inbox: deque[tuple[int, Any]] = field(default_factory=deque[tuple[int, Any]])
    """The items that have not been started, each with its index."""
    outbox: list[Ended] = field(default_factory=list[Ended])
    """The results that have not been sent to the driver."""
    arrived: anyio.Event = field(default_factory=anyio.Event)
    """Set when the inbox has items, or when the job is to be closed."""
    ended: anyio.Event = field(default_factory=anyio.Event)
    """Set when the outbox has results, or when a question is asked."""
    finished: anyio.Event = field(default_factory=anyio.Event)
    """Set when no item runs any more and the job is closed."""
    closed: bool = False
    """Whether the job is to be closed."""
    asked: list[tuple[int, Any]] = field(default_factory=list[tuple[int, Any]])
    """The questions that have not been sent to the driver."""
    answers: dict[int, _Answer] = field(default_factory=dict[int, "_Answer"])
    """The awaited answers, by the question's number."""
    questions: int = 0
    """The number of questions asked so far."""

    async def ask(self, question: Any) -> Any:
        """Return the driver's answer, or raise the error that the driver sends instead."""
        self.questions += 1
        number, answer = self.questions, _Answer()
        self.answers[number] = answer
        self.asked.append((number, question))
        self.ended.set()
        await answer.arrived.wait()
        if answer.error is not None:
            raise answer.error
        return answer.result

    def put(self, index: int, result: Any, error: Exception | None) -> None:
        """Add a result or an error to the next message to the driver."""
        self.outbox.append((index, result, error))
        self.ended.set()

    def close(self) -> None:
        """Have `RayWorker.serve` cancel the running items and close the job."""
        self.closed = True
        self.arrived.set()


@final
class RayWorker:
    """An actor, which runs the items that its driver sends and returns their results.

    While `serve` holds the job open, the driver calls `exchange` repeatedly. After a restart
    `exchange` returns None, because no job is open.
    """

    def __init__(self) -> None:
        self._served: _ServedJob | None = None
        self._arrived = anyio.Event()

    async def describe(self) -> tuple[str, str]:
        """Return the machine's name and the version of Batuta there."""
        return socket.gethostname(), package_version()

    async def serve(self, token: str, job: ExecutorJob[Any, Any]) -> None:
        """Hold the job open until `end` is called or the job raises an error.

        `exchange` delivers the error. The token identifies the opening of the job by the driver.
        The job that was served before is closed.
        """
        if self._served is not None:
            self._served.close()
        served = self._served = _ServedJob(token=token)
        self._arrived.set()
        self._arrived = anyio.Event()
        try:
            async with job.open() as execute, anyio.create_task_group() as group:

                async def run_item(index: int, item: Any) -> None:
                    set_answer(served.ask)
                    try:
                        served.put(index, await execute(item), None)
                    except Exception as error:  # noqa: BLE001 - delivered to the driver
                        served.put(index, None, portable_error(error))

                while not served.closed:
                    await served.arrived.wait()
                    served.arrived = anyio.Event()
                    while served.inbox:
                        group.start_soon(run_item, *served.inbox.popleft())
                group.cancel_scope.cancel()
        except Exception as error:  # noqa: BLE001 - delivered to the driver
            served.put(-1, None, portable_error(error))
        finally:
            served.finished.set()

    async def is_serving(self, token: str, within: float) -> bool:
        """Return whether the token's job is the last one served here.

        Wait up to `within` seconds until it is.
        """
        with anyio.move_on_after(within):
            while self._served is None or self._served.token != token:
                await self._arrived.wait()
        return self._served is not None and self._served.token == token

    async def exchange(
        self, token: str, items: Sequence[tuple[int, Any]], *, more: bool
    ) -> Exchange | None:
        """Take these items; wait until an item ends or asks a question, unless `more` items follow.

        Returns:
            The results and questions since the previous message; None if no job was served here,
            or the last one has another token.
        """
        served = self._served
        if served is None or served.token != token:
            return None
        served.inbox.extend(items)
        if items:
            served.arrived.set()
        if not more:
            await served.ended.wait()
            await anyio.sleep(LINGER)
        served.ended = anyio.Event()
        found = Exchange(served.outbox, served.asked)
        served.outbox, served.asked = [], []
        return found

    async def answer(self, token: str, number: int, result: Any, error: Exception | None) -> None:
        """Pass the answer to a question, or the error, to the item that awaits it.

        Nothing happens if the token is not the job's, or if no item awaits the answer.
        """
        served = self._served
        if served is None or served.token != token or number not in served.answers:
            return
        answer = served.answers.pop(number)
        answer.result, answer.error = result, error
        answer.arrived.set()

    async def end(self, token: str) -> None:
        """Cancel the running items of the token's job, close the job, and wait until it is closed.

        Nothing happens if the last job that was served here is another, or if there was none.
        """
        if self._served is not None and self._served.token == token:
            self._served.close()
            await self._served.finished.wait()


def portable_error(error: Exception) -> Exception:
    """Return the error if it can be pickled, else an ExecutorError with its type and message."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    except Exception:  # noqa: BLE001 - whatever an error's own pickling raises
        return ExecutorError(f"{type(error).__name__} in another process: {error}")
    return error
