"""The part of the Ray executor that lives in the cluster's processes. It does not import Ray."""

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
"""Seconds in which results that end together are sent together."""

Ended = tuple[int, Any, Exception | None]
"""An item's place, its result, and the error in its place; place -1: the job's own error."""


class Exchange(NamedTuple):
    """An actor's message to its driver."""

    ended: list[Ended]
    asked: list[tuple[int, Any]]
    """Questions of items under way, each with the number under which it is answered."""


@dataclass(slots=True, kw_only=True)
class _Answer:
    """The place of one answer."""

    arrived: anyio.Event = field(default_factory=anyio.Event)
    result: Any = None
    error: Exception | None = None


@dataclass(slots=True, kw_only=True)
class _Session:
    """One `run_all` of one driver."""

    token: str
    inbox: deque[tuple[int, Any]]
    outbox: list[Ended]
    arrived: anyio.Event
    """Set when the inbox has something, or is closed."""
    ended: anyio.Event
    """Set when the outbox has something, or something is asked."""
    finished: anyio.Event
    """Set when nothing is run any more and the job is closed."""
    closed: bool = False
    asked: list[tuple[int, Any]] = field(default_factory=list[tuple[int, Any]])
    """The questions that the driver was not told yet."""
    answers: dict[int, _Answer] = field(default_factory=dict[int, "_Answer"])
    """The awaited answers, by the question's number."""
    questions: int = 0
    """Asked so far."""

    async def ask(self, question: Any) -> Any:
        """Return the driver's answer."""
        self.questions += 1
        number, answer = self.questions, _Answer()
        self.answers[number] = answer
        self.asked.append((number, question))
        self.ended.set()
        await answer.arrived.wait()
        if answer.error is not None:
            raise answer.error
        return answer.result

    def put(self, place: int, result: Any, error: Exception | None) -> None:
        self.outbox.append((place, result, error))
        self.ended.set()

    def close(self) -> None:
        self.closed = True
        self.arrived.set()


@final
class RayWorker:
    """An actor: runs what its driver sends and gives back what has ended.

    `serve` holds the job open for as long as the driver works on it; `exchange` is called over and
    over meanwhile. A worker that was restarted serves nobody and says so.
    """

    def __init__(self) -> None:
        self._session: _Session | None = None
        self._arrived = anyio.Event()

    async def describe(self) -> tuple[str, str]:
        """Return the machine's name and the version of Batuta there."""
        return socket.gethostname(), package_version()

    async def serve(self, token: str, job: ExecutorJob[Any, Any]) -> None:
        """Hold the job open until `end`; its errors are delivered by `exchange`.

        The token names the driver's session; one before it ends here.
        """
        if self._session is not None:
            self._session.close()
        session = _Session(
            token=token,
            inbox=deque(),
            outbox=[],
            arrived=anyio.Event(),
            ended=anyio.Event(),
            finished=anyio.Event(),
        )
        self._session = session
        self._arrived.set()
        self._arrived = anyio.Event()
        try:
            async with job.open() as execute, anyio.create_task_group() as group:

                async def run_item(place: int, item: Any) -> None:
                    set_answer(session.ask)
                    try:
                        session.put(place, await execute(item), None)
                    except Exception as error:  # noqa: BLE001 - delivered to the driver
                        session.put(place, None, portable_error(error))

                while not session.closed:
                    await session.arrived.wait()
                    session.arrived = anyio.Event()
                    while session.inbox:
                        group.start_soon(run_item, *session.inbox.popleft())
                group.cancel_scope.cancel()
        except Exception as error:  # noqa: BLE001 - delivered to the driver
            session.put(-1, None, portable_error(error))
        finally:
            session.finished.set()

    async def is_serving(self, token: str, within: float) -> bool:
        """Return True if the session is served here, now or within so many seconds."""
        with anyio.move_on_after(within):
            while self._session is None or self._session.token != token:
                await self._arrived.wait()
        return self._session is not None and self._session.token == token

    async def exchange(
        self, token: str, items: Sequence[tuple[int, Any]], *, more: bool
    ) -> Exchange | None:
        """Take these items; wait until something ends or is asked, and give it back.

        Returns:
            What ended and was asked since the last time; None: this session is not served here.
        """
        session = self._session
        if session is None or session.token != token:
            return None
        session.inbox.extend(items)
        if items:
            session.arrived.set()
        if not more:
            await session.ended.wait()
            await anyio.sleep(LINGER)
        session.ended = anyio.Event()
        found = Exchange(session.outbox, session.asked)
        session.outbox, session.asked = [], []
        return found

    async def answer(self, token: str, number: int, result: Any, error: Exception | None) -> None:
        """Send the answer to a question, or the error in its place.

        Nothing if nobody waits for it.
        """
        session = self._session
        if session is None or session.token != token or number not in session.answers:
            return
        answer = session.answers.pop(number)
        answer.result, answer.error = result, error
        answer.arrived.set()

    async def end(self, token: str) -> None:
        """Cancel what the session still runs, close its job, and wait for both."""
        if self._session is not None and self._session.token == token:
            self._session.close()
            await self._session.finished.wait()


def portable_error(error: Exception) -> Exception:
    """Return the error itself if it survives the journey to another process, else its words."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    except Exception:  # noqa: BLE001 - whatever an error's own pickling raises
        return ExecutorError(f"{type(error).__name__} in a worker process: {error}")
    return error
