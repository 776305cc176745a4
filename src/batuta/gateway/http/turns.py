"""Requests that come at once begin a few at a time, so that others are served between them."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import final

from starlette.types import Message, Receive

MOST_BEGUN = 8
"""Requests that go on with their bodies in one turn of the loop; each takes it for about 1 ms."""


@final
class LoopTurns:
    """Hands out the turns of the event loop.

    What is ready runs to its next wait before the loop looks at its sockets again. Hundreds of
    requests that come at once would all be read and prepared in one such turn, in which nobody
    else is served.
    """

    def __init__(self, most: int = MOST_BEGUN) -> None:
        self._most = most
        self._begun = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        """Go on at once, or in a later turn if enough others do so in this one."""
        loop = asyncio.get_running_loop()
        if self._begun < self._most and not self._waiting:
            if not self._begun:
                loop.call_soon(self._begin_turn, loop)
            self._begun += 1
            return
        woken: asyncio.Future[None] = loop.create_future()
        self._waiting.append(woken)
        await woken

    def paced(self, receive: Receive) -> Receive:
        """Return `receive`, which hands out the end of a body in its turn."""
        has_come = False

        async def in_turn() -> Message:
            nonlocal has_come
            message = await receive()
            if not has_come and not message.get("more_body", False):
                has_come = True
                await self.take()
            return message

        return in_turn

    def _begin_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        self._begun = 0
        while self._waiting and self._begun < self._most:
            woken = self._waiting.popleft()
            if not woken.done():  # else its request has ended
                woken.set_result(None)
                self._begun += 1
        if self._begun:
            loop.call_soon(self._begin_turn, loop)
