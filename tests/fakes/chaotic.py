"""A provider that fails at random, and keeps the books of what it served."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from fakes.openai import FakeOpenAI
from fakes.server import Fault, Received, Said

REFUSED = (Fault.RATE_LIMIT, Fault.SERVER_ERROR, Fault.OVERLOADED)
"""Nothing was done, so nothing is owed."""
BROKEN = (
    Fault.SILENCE,
    Fault.SILENCE_AFTER,
    Fault.CUT,
    Fault.EARLY_END,
    Fault.MALFORMED,
    Fault.MISSHAPEN,
)
"""The prompt was taken and no usage was told, so what is owed can only be estimated."""


class Chaotic(FakeOpenAI):
    """Each request fails with probability `rate`, in one of the ways of `kinds`; seeded."""

    def __init__(
        self, text: Any, seed: int, rate: float, kinds: Sequence[Fault] = (*REFUSED, *BROKEN)
    ) -> None:
        super().__init__(self._said)
        self._text = text
        self._rng = random.Random(seed)
        self._rate = rate
        self._kinds = kinds
        self._fault: Fault | None = None
        self.served: list[tuple[int, int]] = []
        """Input and output tokens of every call that was answered whole."""
        self.broken = 0
        self.refused = 0

    async def _answer(self, request: web.Request, received: Received) -> web.StreamResponse:
        fault = self._rng.choice(self._kinds) if self._rng.random() < self._rate else None
        if fault is Fault.EARLY_END and not self.streams(received):
            fault = Fault.CUT  # only a stream can end early and yet cleanly
        self.broken += fault in BROKEN
        self.refused += fault in REFUSED
        self.faults = [fault]  # taken from there before anything else can happen
        if fault is None:
            tokens = (self._rng.randint(20, 4000), self._rng.randint(1, 2000))
            self.served.append(tokens)
            received.body["tokens"] = tokens
            self.check = False  # our own note is not the client's fault
        return await super()._answer(request, received)

    def _said(self, body: dict[str, Any]) -> Said:
        given, made = body.get("tokens", (1, 1))
        usage = {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made}
        text = self._text(self._rng) if callable(self._text) else self._text
        return Said(text, usage=usage)  # pyright: ignore[reportArgumentType]
