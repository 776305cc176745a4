"""Embeddings: `POST {base_url}/embeddings` of OpenAI and compatible servers."""

from __future__ import annotations

import math
from typing import Any, final

from batuta.clients.call import ProviderClient
from batuta.clients.decoding import ErrorReply, ProviderReply, as_count, as_string
from batuta.clients.http_target import Secret
from batuta.clients.openai.client import ChatDialect, openai_target
from batuta.clients.openai.stream import OpenAIStreamAccumulator, parse_usage
from batuta.clients.stream_reading import StreamAccumulator
from batuta.clients.transport import HttpTransport
from batuta.core import CallListener, Message, Reply, Request, Text, Worker
from batuta.core.conductor import NULL_LISTENER
from batuta.errors import BadRequestError


@final
class EmbeddingClient(ProviderClient):
    """The client of a worker that replies with a vector for each message, and no text."""

    def __init__(
        self,
        worker: Worker,
        http: HttpTransport,
        *,
        base_url: str,
        key: Secret,
        dialect: ChatDialect,
    ) -> None:
        """Create the client; no connection is opened yet.

        Raises:
            ConfigError: `base_url` is not an http(s) URL.
        """
        target = openai_target(base_url, "/embeddings", key, dialect)
        adapter = EmbeddingAdapter(worker.model)
        super().__init__("Embedding", worker, http, adapter=adapter, target=target)

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        """Return a reply with the vectors; the listener receives nothing.

        Raises:
            ClientError: the call failed, or did not give one vector for each message, each of the
                requested dimensions.
        """
        reply = await super().complete(request)
        mismatch = _find_mismatch(reply, request)
        if mismatch:
            raise BadRequestError(
                f"{self.worker.model} gave {mismatch}", usage=reply.usage, cost=reply.cost
            )
        return reply


def _find_mismatch(reply: Reply, request: Request) -> str:
    """Return how the vectors differ from what was requested; empty if they do not."""
    if len(reply.vectors) != len(request.messages):
        return f"{len(reply.vectors)} vectors for {len(request.messages)} texts"
    size, wanted = len(reply.vectors[0]), request.sampling.dimensions
    if wanted in {None, size}:
        return ""
    return f"vectors of {size} dimensions and not of {wanted}: leave out 'dimensions'"


@final
class EmbeddingAdapter:
    """Translates requests to this API and parses its replies; pure functions."""

    supports_prefill = False

    def __init__(self, model: str) -> None:
        self._model = model

    def build_body(self, request: Request, *, stream: bool) -> dict[str, Any]:
        """Return the JSON to send; `stream` makes no difference."""
        inputs = [_message_input(message) for message in request.messages]
        body = {"model": self._model, "input": inputs, "encoding_format": "float"}
        dimensions = request.sampling.dimensions
        return body if dimensions is None else {**body, "dimensions": dimensions}

    def parse_reply(self, data: Any) -> ProviderReply:
        """Parse a complete reply; its vectors are in the order of their indices.

        Raises:
            ErrorReply: `data` is an error object.
            AttributeError, KeyError, TypeError or ValueError: a vector is malformed, empty, not
                finite or longer than another, or `data` has no list of them.
        """
        if data.get("error"):
            raise ErrorReply(data)
        rows = sorted(data["data"], key=lambda row: as_count(row.get("index")))
        vectors = tuple(tuple(map(float, row["embedding"])) for row in rows)
        if len({len(vector) for vector in vectors}) > 1 or not all(vectors):
            raise ValueError("the vectors are empty, or of several lengths")
        if not all(math.isfinite(sum(vector)) for vector in vectors):
            raise ValueError("a vector has a number that is not finite")
        reply = Reply(text="", vectors=vectors, model=as_string(data.get("model")))
        return ProviderReply(reply=reply, usage=parse_usage(data.get("usage")))

    def new_accumulator(self) -> StreamAccumulator:
        """Return an accumulator for the usage of a faulty reply; vectors are not streamed."""
        return OpenAIStreamAccumulator()


def _message_input(message: Message) -> str | list[int]:
    """Return the ids of the message's tokens if it was sent as tokens, else its text."""
    tokens = [token for part in message.parts if isinstance(part, Text) for token in part.tokens]
    return tokens or message.text
