"""An error after the first byte ends a response and begins no second one."""

import pytest

from batuta.errors import StoreError
from batuta.gateway.access.caller import Authenticator
from batuta.gateway.access.rate_limit import LocalRateLimiter
from batuta.gateway.errors import APIError
from batuta.gateway.http.middleware import RequestMiddleware
from batuta.gateway.http.request_slots import ConcurrencyLimiter
from batuta.gateway.telemetry.metrics import Metrics

pytestmark = pytest.mark.anyio
SCOPE = {"type": "http", "method": "GET", "path": "/healthz", "headers": [(b"host", b"localhost")]}


@pytest.mark.parametrize("begins", [True, False])
async def test_a_failing_store_begins_no_second_response(begins):
    sent = []

    async def app(scope, receive, send):
        if begins:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        raise StoreError("the disk is full")

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": "http.disconnect"}

    middleware = RequestMiddleware(
        app,
        metrics=Metrics(dict, dict),
        routes=[],
        authenticator=Authenticator(),
        limiter=ConcurrencyLimiter(),
        rate_limiter=LocalRateLimiter(),
        hosts=(),
        origins=(),
        store=None,
        explain=lambda scope, error: APIError(503, "overloaded", "The store cannot be used now."),
    )
    await middleware(dict(SCOPE), receive, send)
    starts = [message["status"] for message in sent if message["type"] == "http.response.start"]
    assert starts == ([200] if begins else [503])
