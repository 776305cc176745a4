"""A provider's reply before it is counted and priced, or the error in its place."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from batuta.core import Reply, Usage


class ErrorReply(Exception):
    """An error object in a reply of status 200: adapters raise it, `call_provider` catches it."""

    def __init__(self, payload: Any) -> None:
        super().__init__("an error object in a reply")
        self.payload = payload


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderReply:
    """A provider's reply, before it is counted and priced."""

    reply: Reply
    usage: Usage | None = None
    """None: the provider sent none."""
    usage_is_partial: bool = False
    """True if the usage came before the reply had ended."""
    usd: Decimal | None = None
    """The cost in dollars, if the provider states it."""
    hour_cache_write: int = 0
    """Tokens written to a cache that keeps them for an hour, a part of those written to a cache."""
    audio_input: int = 0
    """Tokens of recordings in the prompt that did not come from a cache."""
