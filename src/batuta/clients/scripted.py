"""A client that says what it is told to; the double of a model in tests and examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import final

import anyio
import anyio.lowlevel

from batuta.core import Delta, Listener, Price, Reply, Request
from batuta.core.conductor import SILENT
from batuta.core.estimate import estimated
from batuta.core.usage import FREE, ZERO, cost_of
from batuta.errors import BadRequest, ClientError

Line = Reply | str | ClientError
Script = Sequence[Line] | Mapping[str, Line] | Callable[[Request], Line]


@final
class Scripted:
    """Replies from a script; an error in the script is raised."""

    def __init__(
        self,
        replies: Script,
        latency: float = 0.0,
        chunk: int = 8,
        price: Price | None = None,
    ) -> None:
        """Learns the script.

        Args:
            replies: a sequence, used up in order; a mapping, whose first key that occurs in the
                request's text gives the reply; or a function of the request.
            latency: seconds before the first fragment.
            chunk: characters of a streamed fragment; 0: all at once.
            price: of the tokens; None: a reply that states no cost counts as unpriced.
        """
        self._say = _speaker(replies)
        self._latency = latency
        self._chunk = chunk
        self._price = price
        self.requests: list[Request] = []
        """Every request received, in order."""

    def __repr__(self) -> str:
        return f"Scripted({len(self.requests)} requests so far)"

    async def complete(self, request: Request, listener: Listener = SILENT) -> Reply:
        """The script's reply; usage is counted from the texts unless the script states it.

        Raises:
            ClientError: the script says so, or has no reply left.
        """
        self.requests.append(request)
        line = self._say(request)
        if self._latency > 0:
            await anyio.sleep(self._latency)
        else:
            await anyio.lowlevel.checkpoint()
        if isinstance(line, ClientError):
            raise line
        reply = self._counted(request, Reply(line) if isinstance(line, str) else line)
        if listener.streaming:
            for delta in fragments(reply, self._chunk):
                await listener.spoke(delta)
        return reply

    def _counted(self, request: Request, reply: Reply) -> Reply:
        usage = reply.usage
        if usage == ZERO:
            usage = replace(estimated(request, reply), estimated=0)
        cost = cost_of(usage, self._price) if reply.cost == FREE else reply.cost
        return replace(reply, usage=usage, cost=cost)


def _speaker(script: Script) -> Callable[[Request], Line]:
    """Any form of script as a function of the request."""
    if callable(script):
        return script
    if isinstance(script, Mapping):
        return _by_key(script)
    return _in_order(script)


def _by_key(replies: Mapping[str, Line]) -> Callable[[Request], Line]:
    def say(request: Request) -> Line:
        said = "\n".join(message.text for message in request.messages)
        missing = BadRequest("the script has no reply to this request")
        return next((line for key, line in replies.items() if key in said), missing)

    return say


def _in_order(replies: Sequence[Line]) -> Callable[[Request], Line]:
    left = iter(tuple(replies))

    def say(_: Request) -> Line:
        return next(left, BadRequest(f"the script has no reply left after {len(replies)}"))

    return say


def fragments(reply: Reply, chunk: int) -> list[Delta]:
    """`reply` as a stream would bring it: reasoning, text, then each tool call.

    Args:
        reply: the whole.
        chunk: characters of a fragment; 0: all at once.
    """
    deltas = [Delta(reasoning=reply.reasoning)] if reply.reasoning else []
    size = chunk if chunk > 0 else max(len(reply.text), 1)
    deltas += [Delta(text=reply.text[at : at + size]) for at in range(0, len(reply.text), size)]
    for index, call in enumerate(reply.tool_calls):
        deltas.append(Delta(tool_index=index, tool_id=call.id, tool_name=call.name))
        deltas.append(Delta(tool_index=index, tool_arguments=call.arguments))
    return deltas
