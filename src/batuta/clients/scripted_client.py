"""A client with scripted replies; replaces a model in tests and examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import final

import anyio
import anyio.lowlevel

from batuta.core import CallListener, Delta, Price, Reply, Request
from batuta.core.conductor import NULL_LISTENER
from batuta.core.token_estimate import estimate_usage
from batuta.errors import BadRequestError, ClientError
from batuta.usage import ZERO_COST, ZERO_USAGE, usage_cost

ScriptLine = Reply | str | ClientError
Script = Sequence[ScriptLine] | Mapping[str, ScriptLine] | Callable[[Request], ScriptLine]


@final
class ScriptedClient:
    """Replies from a script; errors in the script are raised."""

    def __init__(
        self,
        replies: Script,
        latency: float = 0.0,
        chunk: int = 8,
        price: Price | None = None,
    ) -> None:
        """Create the client.

        Args:
            replies: a sequence, used in order; a mapping, whose first key that occurs in the
                request's text selects the reply; or a function of the request.
            latency: seconds before the reply or the error.
            chunk: characters of a streamed delta; 0: the whole text.
            price: price of the tokens; None: replies without a stated cost are unpriced.
        """
        self._say = _script_function(replies)
        self._latency = latency
        self._chunk = chunk
        self._price = price
        self.requests: list[Request] = []
        """Every request received, in order."""

    def __repr__(self) -> str:
        return f"Scripted({len(self.requests)} requests so far)"

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        """Return the script's reply; usage is estimated from the texts unless the script states it.

        Raises:
            ClientError: the scripted reply is an error, no reply is left, or no key of the mapping
                occurs in the request.
        """
        self.requests.append(request)
        line = self._say(request)
        if self._latency > 0:
            await anyio.sleep(self._latency)
        else:
            await anyio.lowlevel.checkpoint()
        if isinstance(line, ClientError):
            raise line
        reply = self._add_usage(request, Reply(text=line) if isinstance(line, str) else line)
        if listener.streaming:
            for delta in split_reply(reply, self._chunk):
                await listener.on_delta(delta)
        return reply

    def _add_usage(self, request: Request, reply: Reply) -> Reply:
        usage = reply.usage
        if usage == ZERO_USAGE:
            usage = replace(estimate_usage(request, reply), estimated=0)
        cost = usage_cost(usage, self._price) if reply.cost == ZERO_COST else reply.cost
        return replace(reply, usage=usage, cost=cost)


def _script_function(script: Script) -> Callable[[Request], ScriptLine]:
    """Return any form of script as a function of the request."""
    if callable(script):
        return script
    if isinstance(script, Mapping):
        return _replies_by_key(script)
    return _replies_in_order(script)


def _replies_by_key(replies: Mapping[str, ScriptLine]) -> Callable[[Request], ScriptLine]:
    def say(request: Request) -> ScriptLine:
        text = "\n".join(message.text for message in request.messages)
        missing = BadRequestError("the script has no reply to this request")
        return next((line for key, line in replies.items() if key in text), missing)

    return say


def _replies_in_order(replies: Sequence[ScriptLine]) -> Callable[[Request], ScriptLine]:
    left = iter(tuple(replies))

    def say(_: Request) -> ScriptLine:
        return next(left, BadRequestError(f"the script has no reply left after {len(replies)}"))

    return say


def split_reply(reply: Reply, chunk: int) -> list[Delta]:
    """Return `reply` as deltas, like a stream: reasoning, thoughts, text, then each tool call.

    Images and server calls are left out.

    Args:
        reply: the complete reply.
        chunk: characters of a text delta; 0: the whole text. Text with log probabilities is not
            split.
    """
    return [d for at, choice in enumerate(reply.choices) for d in _split_one(choice, chunk, at)]


def _split_one(reply: Reply, chunk: int, number: int) -> list[Delta]:
    deltas = [Delta(reasoning=reply.reasoning, choice=number)] if reply.reasoning else []
    deltas += [Delta(thought=thought, choice=number) for thought in reply.thoughts]
    if reply.logprobs:  # they belong to the whole text
        deltas.append(Delta(text=reply.text, logprobs=reply.logprobs, choice=number))
    else:
        size = chunk if chunk > 0 else max(len(reply.text), 1)
        pieces = [reply.text[at : at + size] for at in range(0, len(reply.text), size)]
        deltas += [Delta(text=piece, choice=number) for piece in pieces]
    for index, call in enumerate(reply.tool_calls):
        begun = Delta(tool_index=index, tool_id=call.id, tool_name=call.name, choice=number)
        deltas += [begun, Delta(tool_index=index, tool_arguments=call.arguments, choice=number)]
    return deltas
