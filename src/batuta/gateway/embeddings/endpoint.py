"""POST /v1/embeddings: parses the inputs and returns a worker's vectors."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from typing import Any, cast, final

import numpy as np
from starlette.types import Receive, Scope, Send

from batuta.core import Message, Question, Reply, Role, Run, Sampling, Text
from batuta.gateway.access.caller import caller_of
from batuta.gateway.errors import invalid_type, invalid_value, unsupported_parameter
from batuta.gateway.http.body import Fields, parse_fields, read_fields
from batuta.gateway.serving.admission import PreparedCall
from batuta.gateway.serving.deliver import AnswerDelivery
from batuta.gateway.serving.parsed_call import ParsedCall
from batuta.guardrails import GuardrailStage

MAX_INPUTS = 2048
_MAX_TOKENS = 300_000
"""Maximum number of token ids of one input."""
_MAX_DIMENSIONS = 65_536
_MAX_TOKEN_ID = 2**31 - 1
_USED_FIELDS = {"model", "input", "dimensions", "encoding_format"}
_ACCEPTED_FIELDS = {"user"}
"""Known fields that have no effect and are reported as ignored."""
REFUSED_FIELDS: dict[str, str] = {}
"""Known fields that are refused: none."""
_MAX_IGNORED = 20
"""Maximum number of ignored fields that are named in the response's header."""


@dataclass(frozen=True, slots=True)
class EmbeddingCall:
    """A parsed request for embeddings."""

    call: ParsedCall
    as_base64: bool = False
    """Whether vectors are returned as base64 of little-endian 32-bit floats."""


def parse_embedding(body: Fields) -> EmbeddingCall:
    """Parse the body.

    Raises:
        APIError: the body is invalid; the error names the path of an invalid field.
    """
    model = body.need_text("model")
    body.need("input")
    parts = _parse_input(body.get("input"))
    body.text("user")
    question = Question(
        messages=tuple(Message(role=Role.USER, parts=(part,)) for part in parts),
        # Embeddings have no output tokens, so almost none are reserved.
        sampling=Sampling(max_tokens=1, dimensions=body.whole("dimensions", 1, _MAX_DIMENSIONS)),
    )
    ignored = body.unused(_USED_FIELDS | _ACCEPTED_FIELDS, _ACCEPTED_FIELDS)
    call = ParsedCall(
        model=model,
        question=question,
        store=False,
        embeds=True,
        ignored=tuple(ignored[:_MAX_IGNORED]),
    )
    form = body.choice("encoding_format", ("float", "base64"))
    return EmbeddingCall(call, as_base64=form == "base64")


def _parse_input(given: Any) -> list[Text]:
    """Parse a string, an array of token ids, or an array of strings and arrays of token ids."""
    if isinstance(given, str):
        return [_parse_text(given, "input")]
    if not isinstance(given, list):
        raise invalid_type("input", "a string or an array", given)
    entries = cast("list[Any]", given)
    if not entries:
        raise invalid_value("input", "it must not be empty.")
    if isinstance(entries[0], int):
        return [_parse_tokens(entries, "input")]
    if len(entries) > MAX_INPUTS:
        reason = f"it has {len(entries)} entries and at most {MAX_INPUTS} are allowed."
        raise invalid_value("input", reason)
    return [_parse_entry(entry, f"input[{index}]") for index, entry in enumerate(entries)]


def _parse_entry(entry: Any, path: str) -> Text:
    if isinstance(entry, list):
        return _parse_tokens(cast("list[Any]", entry), path)
    if not isinstance(entry, str):
        raise invalid_type(path, "a string or an array of integers", entry)
    return _parse_text(entry, path)


def _parse_text(text: str, path: str) -> Text:
    if not text:
        raise invalid_value(path, "it must not be empty.")
    return Text(text)


def _parse_tokens(entries: list[Any], path: str) -> Text:
    if not entries or len(entries) > _MAX_TOKENS:
        raise invalid_value(path, f"it must have 1 to {_MAX_TOKENS} tokens.")
    for index, entry in enumerate(entries):
        if isinstance(entry, bool) or not isinstance(entry, int):
            raise invalid_type(f"{path}[{index}]", "an integer", entry)
        if not 0 <= entry <= _MAX_TOKEN_ID:
            raise invalid_value(f"{path}[{index}]", "it is not a token id.")
    return Text("", tokens=tuple(entries))


@final
class EmbeddingsEndpoint:
    """Passes texts or token ids to an embedding worker."""

    def __init__(self, delivery: AnswerDelivery) -> None:
        self._delivery = delivery

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request.

        Raises:
            APIError: the request is invalid or refused, or its run has no answer.
            StoreError: the database fails before the call is run.
            ClientGone: the client disconnects before the body is read.
        """
        body = await read_fields(scope, receive)
        request = await parse_fields(parse_embedding, body)

        async def render(run: Run, reply: Reply) -> dict[str, Any]:
            return embedding_list(request, run, reply)

        service = self._delivery.service
        async with service.prepare_call(request.call, caller_of(scope)) as prepared:
            _check_policies(prepared)
            await self._delivery.send_answer(prepared, render, receive, send)


def _check_policies(prepared: PreparedCall) -> None:
    """Refuse token ids if a guardrail checks inputs, because guardrails can only read text.

    Raises:
        APIError: token ids are refused.
    """
    messages = prepared.call.question.messages
    tokens = any(getattr(part, "tokens", ()) for message in messages for part in message.parts)
    if tokens and GuardrailStage.INPUT in prepared.guardrails.stages:
        raise unsupported_parameter("input", "a policy reads text: send text, not token ids.")


def embedding_list(request: EmbeddingCall, run: Run, reply: Reply) -> dict[str, Any]:
    """Return the body of the response: the vectors of a run, in the order of the inputs."""
    rows = [
        {"object": "embedding", "index": index, "embedding": _encode_vector(vector, request)}
        for index, vector in enumerate(reply.vectors)
    ]
    usage = {"prompt_tokens": reply.usage.input, "total_tokens": run.usage.total}
    return {"object": "list", "data": rows, "model": request.call.model, "usage": usage}


def _encode_vector(vector: tuple[float, ...], request: EmbeddingCall) -> list[float] | str:
    if not request.as_base64:
        return list(vector)
    return b64encode(np.asarray(vector, dtype="<f4").tobytes()).decode()
