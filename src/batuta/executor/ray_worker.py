"""The part of the Ray executor that lives in the cluster's processes. It does not import Ray."""

from __future__ import annotations

import pickle
import socket
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import anyio

from batuta.distribution import package_version
from batuta.errors import ExecutorError
from batuta.executor.protocol import ExecutorJob

LINGER = 0.005
"""Seconds in which results that end together are sent together."""

Ended = tuple[int, Any, Exception | None]
"""An item's place, its result, and the error in its place; place -1: the job's own error."""


@dataclass(slots=True, kw_only=True)
class _Session:
    """One `run_all` of one driver."""

    token: str
    inbox: deque[tuple[int, Any]]
    outbox: list[Ended]
    arrived: anyio.Event
    """Set when the inbox has something, or is closed."""
    ended: anyio.Event
    """Set when the outbox has something."""
    finished: anyio.Event
    """Set when nothing is played any more and the job is closed."""
    closed: bool = False

    def put(self, place: int, result: Any, error: Exception | None) -> None:
        self.outbox.append((place, result, error))
        self.ended.set()

    def close(self) -> None:
        self.closed = True
        self.arrived.set()


@final
class RayWorker:
    """An actor: plays what its driver sends and gives back what has ended.

    `serve` holds the job open for as long as the driver works on it; `exchange` is called over and
    over meanwhile. A worker that was restarted serves nobody and says so.
    """

    def __init__(self) -> None:
        self._session: _Session | None = None
        self._arrived = anyio.Event()

    async def describe(self) -> tuple[str, str]:
        """The machine's name and the version of Batuta there."""
        return socket.gethostname(), package_version()

    async def serve(self, token: str, job: ExecutorJob[Any, Any]) -> None:
        """Hold the job open until `end`; its errors are delivered by `exchange`.

        Args:
            token: names the driver's session; one before it ends here.
            job: what plays an item.
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
            async with job.open() as play, anyio.create_task_group() as group:

                async def play_item(place: int, item: Any) -> None:
                    try:
                        session.put(place, await play(item), None)
                    except Exception as error:  # noqa: BLE001 - delivered to the driver
                        session.put(place, None, portable_error(error))

                while not session.closed:
                    await session.arrived.wait()
                    session.arrived = anyio.Event()
                    while session.inbox:
                        group.start_soon(play_item, *session.inbox.popleft())
                group.cancel_scope.cancel()
        except Exception as error:  # noqa: BLE001 - delivered to the driver
            session.put(-1, None, portable_error(error))
        finally:
            session.finished.set()

    async def is_serving(self, token: str, within: float) -> bool:
        """Whether the session is served here, now or within so many seconds."""
        with anyio.move_on_after(within):
            while self._session is None or self._session.token != token:
                await self._arrived.wait()
        return self._session is not None and self._session.token == token

    async def exchange(self, token: str, items: Sequence[tuple[int, Any]]) -> list[Ended] | None:
        """Take these items; wait until something ends and give it back.

        Returns:
            What ended since the last time; None: this session is not served here.
        """
        session = self._session
        if session is None or session.token != token:
            return None
        session.inbox.extend(items)
        if items:
            session.arrived.set()
        await session.ended.wait()
        await anyio.sleep(LINGER)
        session.ended = anyio.Event()
        ended, session.outbox = session.outbox, []
        return ended

    async def end(self, token: str) -> None:
        """Cancel what the session still plays, close its job, and wait for both."""
        if self._session is not None and self._session.token == token:
            self._session.close()
            await self._session.finished.wait()


def portable_error(error: Exception) -> Exception:
    """The error itself if it survives the journey to another process, else its words."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    except Exception:  # noqa: BLE001 - whatever an error's own pickling raises
        return ExecutorError(f"{type(error).__name__} in a worker process: {error}")
    return error
