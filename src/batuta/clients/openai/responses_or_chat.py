"""A client for a model that needs the Responses API, at a server that may lack that API."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import final

from batuta.clients.openai.client import OpenAIChatClient
from batuta.clients.openai.responses import OpenAIResponsesClient
from batuta.core import CallListener, Reply, Request
from batuta.core.conductor import NULL_LISTENER
from batuta.errors import ClientError

_NO_SUCH_API = {HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED}
_OF_THE_API = re.compile(
    r"/responses|responses? (?:api|endpoint)|invalid url|unknown (?:request )?url|not implemented"
)
"""Matches a refusal of the address rather than of the request."""
_OF_THE_MODEL = re.compile(r"\bmodel\b|deployment")


@final
class ResponsesOrChatClient:
    """Uses responses, or chat completions once the server has said that it has nothing else."""

    def __init__(self, responses: OpenAIResponsesClient, chat: OpenAIChatClient) -> None:
        self.worker = responses.worker
        self._responses = responses
        self._chat = chat
        self._has_responses = True

    def __repr__(self) -> str:
        return repr(self._responses if self._has_responses else self._chat)

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        """Return the model's reply.

        Raises:
            ClientError: the call gave no usable reply.
        """
        if self._has_responses:
            try:
                return await self._responses.complete(request, listener)
            except ClientError as error:
                if not _has_no_responses(error):
                    raise
        reply = await self._chat.complete(request, listener)
        self._has_responses = False
        return reply


def _has_no_responses(error: ClientError) -> bool:
    """Tell whether the refusal is of the Responses API itself."""
    words = error.words.lower()
    if error.usage is not None or error.status is None:
        return False
    if _OF_THE_API.search(words):
        return error.status >= HTTPStatus.BAD_REQUEST
    return error.status in _NO_SUCH_API and not _OF_THE_MODEL.search(words)
