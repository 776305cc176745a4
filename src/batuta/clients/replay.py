"""A client that replays recorded replies at no cost."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Self, final

import anyio.lowlevel
import orjson

from batuta.clients.scripted_client import split_reply
from batuta.core import CallListener, Failure, Reply, Request, Run
from batuta.core.conductor import NULL_LISTENER
from batuta.errors import BadRequestError, ClientError, UnsupportedFieldError
from batuta.usage import ZERO_COST

_NO_CAP_SUFFIX = b',"max_output":null}'
_NO_CHOICES = b',"choices":null,"logprobs":null,"dimensions":null}'
_DEFAULT_SAMPLING_END = b',"frequency_penalty":null,"presence_penalty":null,"top_k":null}'
"""End of a serialized sampling whose fields added after the first version have their defaults; some
further fields are in `_NO_CHOICES`."""


@final
class RunReplayClient:
    """Answers a request with the reply recorded for exactly this request.

    Equal requests receive their replies in recorded order, each once. A request does not name its
    model, so each worker needs its own replay client.
    """

    def __init__(self, recorded: Iterable[tuple[Request, Reply | Failure]]) -> None:
        self._recorded: dict[bytes, deque[Reply | Failure]] = {}
        for request, result in recorded:
            self._recorded.setdefault(request_fingerprint(request), deque()).append(result)

    @classmethod
    def of(cls, runs: Iterable[Run], worker_id: str) -> Self:
        """Return a client that replays the replies and failures of a worker's steps in `runs`."""
        steps = (step for run in runs for step in run.steps if step.worker == worker_id)
        return cls((step.request, step.result) for step in steps if step.request is not None)

    def __repr__(self) -> str:
        return f"Replay({sum(map(len, self._recorded.values()))} replies left)"

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        """Return the recorded reply, with its usage and no cost.

        Raises:
            ClientError: the recorded result is a failure, or no (further) reply was recorded.
        """
        await anyio.lowlevel.checkpoint()
        left = self._recorded.get(request_fingerprint(request))
        if not left:
            raise BadRequestError(
                "no reply was recorded for this request, or all of them were used"
            )
        result = left.popleft()
        if isinstance(result, Failure):
            raise _error_from_failure(result)
        usage = replace(result.usage, calls=max(result.usage.calls, 1))
        reply = replace(result, usage=usage, cost=ZERO_COST)
        if listener.streaming:
            for delta in split_reply(reply, 0):
                await listener.on_delta(delta)
        return reply


_ADDED_FIELDS = (b',"cache":null', b',"thoughts":[]', b',"tokens":[]', b',"words_suffice":true')
"""Fields with default values that did not exist when the oldest calls were recorded."""


def request_fingerprint(request: Request) -> bytes:
    """Return a hash of everything in `request`; equal requests have equal hashes."""
    text = orjson.dumps(request, option=orjson.OPT_SORT_KEYS)
    # Drop the defaults of fields added later, so that older recordings keep their fingerprints.
    text = text.replace(_NO_CHOICES, b"}").replace(_DEFAULT_SAMPLING_END, b"}")
    for name in _ADDED_FIELDS:  # within texts quotes are escaped, so these are fields
        text = text.replace(name, b"")
    if request.max_output is None:
        text = text.removesuffix(_NO_CAP_SUFFIX) + b"}"
    return hashlib.blake2b(text, digest_size=16).digest()


def _error_from_failure(failure: Failure) -> ClientError:
    kinds = {kind.code: kind for kind in (*ClientError.__subclasses__(), UnsupportedFieldError)}
    kind = kinds.get(failure.code, ClientError)
    return kind(failure.message, usage=failure.usage, cost=ZERO_COST)
