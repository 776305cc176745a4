"""One model at several addresses: shares by weight, a pause for who fails, the next one instead."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import final

from batuta.core import CallListener, Client, Reply, Request, Role
from batuta.core.conductor import NULL_LISTENER
from batuta.core.run import Failure
from batuta.errors import (
    BadRequestError,
    CircuitOpenError,
    ClientError,
    ContextLengthError,
    NotRecordedError,
)

_OF_THE_REQUEST = (BadRequestError, ContextLengthError, NotRecordedError)
"""Errors that every deployment would repeat."""
_CLIPPED = 2_000
"""Characters of a message by which a conversation is known."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """A model at one address."""

    client: Client
    weight: float = 1.0
    """Share of the calls beside the others'; with 0 it is called only when the others fail."""

    def __post_init__(self) -> None:
        if not 0 <= self.weight < math.inf:
            raise ValueError("a weight must not be negative")


@final
class Deployments:
    """Calls one of the deployments, and another one if it fails.

    A conversation stays at its deployment, where its prompt is cached. Who has failed is left
    alone by the breaker around its client.
    """

    def __init__(self, members: Sequence[Deployment]) -> None:
        if not members:
            raise ValueError("a model needs at least one deployment")
        self._members = tuple(members)

    def __repr__(self) -> str:
        return f"Deployments({len(self._members)})"

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        """The reply of the first deployment that gives one.

        Raises:
            ClientError: the request is at fault, or the last deployment failed too.
            LimitReachedError: another attempt may not be paid for.
        """
        *others, last = self._in_order(request)
        for member in others:
            try:
                return await member.client.complete(request, listener)
            except _OF_THE_REQUEST:
                raise
            except CircuitOpenError:
                continue  # nothing was sent
            except ClientError as error:
                failure = Failure.of(error)
            await listener.on_failure(failure)
        return await last.client.complete(request, listener)

    def _in_order(self, request: Request) -> list[Deployment]:
        """Every deployment; who comes first is drawn by weight, the same for a conversation."""
        rng = Random(_conversation_beginning(request))
        drawn = [
            (rng.expovariate(member.weight) if member.weight else math.inf, number)
            for number, member in enumerate(self._members)
        ]
        return [self._members[number] for _, number in sorted(drawn)]


def _conversation_beginning(request: Request) -> str:
    """Return the part of a request that stays the same while a conversation goes on."""
    if request.cache is not None and request.cache.key is not None:
        return request.cache.key
    said: list[str] = []
    for message in request.messages:
        said.append(message.text[:_CLIPPED])
        if message.role is Role.USER:
            break
    return "\0".join(said)
