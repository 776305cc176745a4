"""POST /v1/embeddings."""

from __future__ import annotations

from base64 import b64encode
from typing import Any, final

import numpy as np
from starlette.types import Receive, Scope, Send

from batuta.core import Reply, Run
from batuta.gateway.access.caller import caller_of
from batuta.gateway.embeddings.request import EmbeddingCall, parse_embedding
from batuta.gateway.errors import unsupported_parameter
from batuta.gateway.http.body import read_fields
from batuta.gateway.serving.admission import PreparedCall
from batuta.gateway.serving.deliver import AnswerDelivery
from batuta.guardrails import GuardrailStage


@final
class EmbeddingsEndpoint:
    """Passes texts through to a worker that embeds."""

    def __init__(self, delivery: AnswerDelivery) -> None:
        self._delivery = delivery

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request.

        Raises:
            APIError: before anything was said.
        """
        body = await read_fields(scope, receive)
        asked = parse_embedding(body)

        async def render(run: Run, reply: Reply) -> dict[str, Any]:
            return embedding_list(asked, run, reply)

        service = self._delivery.service
        async with service.prepare_call(asked.call, caller_of(scope)) as prepared:
            _check_policies(prepared)
            await self._delivery.send_answer(prepared, render, receive, send)


def _check_policies(prepared: PreparedCall) -> None:
    """Return if guardrails can read what is to be embedded, else raise.

    Raises:
        APIError: token ids, which none can read.
    """
    messages = prepared.call.question.messages
    tokens = any(getattr(part, "tokens", ()) for message in messages for part in message.parts)
    if tokens and GuardrailStage.INPUT in prepared.guardrails.stages:
        raise unsupported_parameter("input", "a policy reads text: send text, not token ids.")


def embedding_list(asked: EmbeddingCall, run: Run, reply: Reply) -> dict[str, Any]:
    """The vectors of a run, in the order of the texts."""
    rows = [
        {"object": "embedding", "index": index, "embedding": _encode_vector(vector, asked)}
        for index, vector in enumerate(reply.vectors)
    ]
    usage = {"prompt_tokens": reply.usage.input, "total_tokens": run.usage.total}
    return {"object": "list", "data": rows, "model": asked.call.model, "usage": usage}


def _encode_vector(vector: tuple[float, ...], asked: EmbeddingCall) -> list[float] | str:
    if not asked.as_base64:
        return list(vector)
    return b64encode(np.asarray(vector, dtype="<f4").tobytes()).decode()
