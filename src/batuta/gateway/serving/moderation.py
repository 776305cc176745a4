"""POST /v1/moderations: passes texts and pictures to the configured moderation provider."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast, final
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import Response

from batuta.clients.openai.moderation import ModerationClient
from batuta.core import Image, Message, Question, Role, Text
from batuta.core.formatting import as_sentence
from batuta.errors import BadRequestError, ClientError, RateLimitError
from batuta.gateway.access.caller import Caller, caller_of
from batuta.gateway.access.rate_limit import (
    REQUESTS,
    RateLimiter,
    check_rate,
    enter_concurrency,
    retry_headers,
)
from batuta.gateway.errors import (
    APIError,
    invalid_type,
    invalid_value,
    model_not_found,
    require_part,
)
from batuta.gateway.http.body import Fields, json_response, read_fields
from batuta.gateway.serving.admission import check_starts_runs
from batuta.gateway.serving.attachments import picture_url
from batuta.gateway.serving.models import Catalogue
from batuta.gateway.serving.prepare import check_pictures, rule_error
from batuta.guardrails import GuardrailStage, describe_block
from batuta.language.plan_rules import PlanRules

MODERATIONS_PATH = "/v1/moderations"
MAX_INPUTS = 128
"""Maximum number of texts, or of parts, of a request."""
_ID_PATTERN = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


@final
class ModerationEndpoint:
    """Asks the provider for a judgement; stores neither the input nor the judgement."""

    def __init__(self, catalogue: Catalogue, rate_limiter: RateLimiter) -> None:
        self._catalogue = catalogue
        self._rate_limiter = rate_limiter

    async def moderate(self, request: Request) -> Response:
        """Serve one request.

        Raises:
            APIError: no provider is configured, the key may not use the provider or has reached a
                limit, the body is invalid, a guardrail blocks the input, or the provider fails.
            ClientGone: the client disconnects before the body is read.
        """
        missing = "This server has no moderation provider: add [moderation] to its settings."
        client = require_part(self._catalogue.moderation, missing)
        caller = caller_of(request.scope)
        _check_permissions(caller, client, self._catalogue.plan_rules)
        async with self._count_concurrency(caller):
            await self._take_rate(caller)
            return await self._ask_provider(request, client)

    async def _ask_provider(self, request: Request, client: ModerationClient) -> Response:
        body = await read_fields(request.scope, request.receive)
        requested = body.text("model")
        if requested not in {None, client.worker.model}:
            why = f"the moderation model of this server is '{client.worker.model}'"
            raise model_not_found(str(requested), why)
        given = await self._check_policies(self._parse_input(body))
        try:
            judgement = await client.moderate(given)
        except ClientError as error:
            raise _provider_error(error) from None
        name = judgement.get("id")
        known = isinstance(name, str) and _ID_PATTERN.fullmatch(name)
        answer = {"id": name if known else "modr", "model": client.worker.model}
        return json_response({**answer, "results": judgement["results"]})

    @asynccontextmanager
    async def _count_concurrency(self, caller: Caller) -> AsyncGenerator[None]:
        """Count the request towards its key's concurrency within the block.

        Raises:
            APIError: the key has reached its limit of concurrent requests.
        """
        if caller.key is None:
            yield
            return
        token, most = f"moderation-{uuid4().hex}", caller.permissions.concurrency
        await enter_concurrency(self._rate_limiter, caller.key, token, most)
        try:
            yield
        finally:
            await self._rate_limiter.concurrency.leave(caller.key, token)

    async def _take_rate(self, caller: Caller) -> None:
        rpm = caller.permissions.rpm
        if rpm is None or caller.key is None:
            return
        check_rate([await self._rate_limiter.take(REQUESTS, caller.key, rpm)])

    async def _check_policies(self, given: Any) -> Any:
        """Return the input as the input guardrails change it, with texts before pictures.

        Raises:
            APIError: a guardrail blocks the input.
        """
        if GuardrailStage.INPUT not in self._catalogue.guardrails.stages:
            return given
        if isinstance(given, str):
            return (await self._check_texts([given]))[0]
        if isinstance(given[0], str):
            return [(await self._check_texts([text]))[0] for text in given]
        texts = await self._check_texts([part["text"] for part in given if "text" in part])
        pictures = [part for part in given if "text" not in part]
        return [*({"type": "text", "text": text} for text in texts), *pictures]

    async def _check_texts(self, texts: list[str]) -> list[str]:
        """Return the texts of one input as guardrails change them; a match across texts joins them.

        Raises:
            APIError: a guardrail blocks the input.
        """
        if not texts:
            return texts
        message = Message(role=Role.USER, parts=tuple(Text(text) for text in texts))
        question = Question(messages=(message,))
        clean, acts, blocked = await self._catalogue.guardrails.check_question(question)
        if blocked:
            message = as_sentence(describe_block(blocked, acts, "this input"))
            raise APIError(400, "policy_blocked", message, param="input")
        return [part.text for part in clean.messages[0].parts if isinstance(part, Text)]

    def _parse_input(self, body: Fields) -> Any:
        """Return the input for the provider: a string, a list of strings, or a list of parts."""
        given = body.need("input")
        if isinstance(given, str):
            return given
        if not isinstance(given, list):
            raise invalid_type("input", "a string or an array", given)
        entries = cast("list[Any]", given)
        if not 1 <= len(entries) <= MAX_INPUTS:
            raise invalid_value("input", f"it must have 1 to {MAX_INPUTS} entries.")
        if all(isinstance(entry, str) for entry in entries):
            return entries
        return [self._parse_part(part) for part in body.objects("input", MAX_INPUTS) or ()]

    def _parse_part(self, part: Fields) -> dict[str, Any]:
        part.need("type")
        kind = part.choice("type", ("text", "image_url"))
        if kind == "text":
            return {"type": "text", "text": part.need_text("text")}
        image = part.need_object("image_url")
        url = picture_url(image.path("url"), image.need_text("url"))
        message = Message(role=Role.USER, parts=(Image(url=url),))
        check_pictures(Question(messages=(message,)), private=self._catalogue.private_pictures)
        return {"type": "image_url", "image_url": {"url": url}}


def _check_permissions(caller: Caller, client: ModerationClient, rules: PlanRules) -> None:
    """Check that the caller's input may be sent to the provider.

    Args:
        caller: the caller.
        client: the provider's client.
        rules: all plan rules; those of the caller's tenant and tags apply.

    Raises:
        APIError: the caller or a plan rule forbids the provider.
    """
    check_starts_runs(caller)
    permissions, model = caller.permissions, client.worker.model
    if not permissions.allows_model(model) or not permissions.allows_worker(client.worker):
        message = f"This key may not use the model '{model}'."
        raise APIError(403, "model_not_allowed", message, param="model")
    held = rules.of_tenant(caller.tenant).of_tags(permissions.tags)
    if (rule := held.forbidding_rule(client.worker.id)) is not None:
        raise rule_error(rule, 403, "model")


def _provider_error(error: ClientError) -> APIError:
    """Return the error for a failed call; the message contains no addresses and no keys."""
    if isinstance(error, RateLimitError):
        headers = retry_headers(error.retry_after or 1.0)
        message = "The moderation provider limits its rate."
        return APIError(429, "rate_limit_exceeded", message, headers=headers)
    if isinstance(error, BadRequestError):
        message = as_sentence(str(error).rstrip("."))
        return APIError(400, "bad_request", message, param="input")
    return APIError(502, "upstream_error", "The moderation provider gave no usable answer.")
