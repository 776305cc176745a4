"""A client that gives back what was recorded, at no cost."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Self, final

import anyio.lowlevel
import orjson

from batuta import errors
from batuta.clients.scripted import fragments
from batuta.core import Failure, Listener, Reply, Request, Run
from batuta.core.conductor import SILENT
from batuta.core.usage import FREE
from batuta.errors import BadRequest, ClientError

_UNCAPPED = b',"max_output":null}'


@final
class Replay:
    """Answers a request with the reply recorded for exactly this request.

    Equal requests get their replies in the order of the recording, each once. A request does not
    say which model it is for, so each worker has its own Replay.
    """

    def __init__(self, recorded: Iterable[tuple[Request, Reply | Failure]]) -> None:
        self._recorded: dict[bytes, deque[Reply | Failure]] = {}
        for request, result in recorded:
            self._recorded.setdefault(fingerprint(request), deque()).append(result)

    @classmethod
    def of(cls, runs: Iterable[Run], worker_id: str) -> Self:
        """What the worker of that id answered in `runs`."""
        steps = (step for run in runs for step in run.steps if step.worker == worker_id)
        return cls((step.request, step.result) for step in steps if step.request is not None)

    def __repr__(self) -> str:
        return f"Replay({sum(map(len, self._recorded.values()))} replies left)"

    async def complete(self, request: Request, listener: Listener = SILENT) -> Reply:
        """The recorded reply, with its usage and no cost.

        Raises:
            ClientError: what was recorded is a failure, or nothing (more) was recorded.
        """
        await anyio.lowlevel.checkpoint()
        left = self._recorded.get(fingerprint(request))
        if not left:
            raise BadRequest("no reply was recorded for this request, or all were given back")
        result = left.popleft()
        if isinstance(result, Failure):
            raise _error_of(result)
        usage = replace(result.usage, calls=max(result.usage.calls, 1))
        reply = replace(result, usage=usage, cost=FREE)
        if listener.streaming:
            for delta in fragments(reply, 0):
                await listener.spoke(delta)
        return reply


def fingerprint(request: Request) -> bytes:
    """A hash of everything in `request`; equal requests have equal ones."""
    text = orjson.dumps(request, option=orjson.OPT_SORT_KEYS)
    if request.max_output is None:  # what was recorded before there were caps is found again
        text = text.removesuffix(_UNCAPPED) + b"}"
    return hashlib.blake2b(text, digest_size=16).digest()


def _error_of(failure: Failure) -> ClientError:
    kinds = {kind.code: kind for kind in ClientError.__subclasses__()}
    kind = kinds.get(failure.code, errors.ClientError)
    return kind(failure.message, usage=replace(failure.usage), cost=FREE)
