"""A fake server of chat completions that refuses requests as some providers do, in their words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiohttp import web

from fakes.openai import FakeOpenAI
from fakes.server import Received

Rule = Callable[[dict[str, Any]], Any]
"""Returns a body's refusal, with status 400 or as a status and a body; None or False: none."""


class RefusingServer(FakeOpenAI):
    """Answers requests that no rule refuses; `refused` counts the refusals."""

    def __init__(self, *rules: Rule, reply: Any = "Fine.", responses: Any = None) -> None:
        """`responses` is the refusal of every request of the Responses API."""
        super().__init__(reply, strict_openai=False, check=False)
        self.rules: tuple[Rule, ...] = (*rules, lambda body: "input" in body and responses)
        self.refused = 0

    def routes(self) -> list[web.RouteDef]:
        return [*super().routes(), web.post("/v1/responses", self.handle)]

    async def _answer(self, request: web.Request, received: Received) -> web.StreamResponse:
        for rule in self.rules:
            told = rule(received.body)
            if told:
                self.refused += 1
                status, body = told if isinstance(told, tuple) else (400, told)
                if isinstance(body, str):
                    return web.Response(status=status, text=body)
                return web.json_response(body, status=status)
        return await super()._answer(request, received)

    @property
    def taken(self) -> dict[str, Any]:
        """The last body, which was not refused."""
        return self.requests[-1].body


def error(message: str, **more: Any) -> dict[str, Any]:
    """OpenAI's form of an error."""
    return {"error": {"message": message, "type": "invalid_request_error", **more}}


def without(name: str, told: Any) -> Rule:
    """Refuses a field of the body."""
    return lambda body: told if name in body else None


def roles(body: dict[str, Any]) -> list[str]:
    return [message["role"] for message in body["messages"]]
