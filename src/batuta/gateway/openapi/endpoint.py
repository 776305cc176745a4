"""GET /openapi.json."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from batuta.gateway.http.json_body import encode_json
from batuta.gateway.openapi.document import build_document


@final
class DocumentEndpoint:
    """Tells the server's own description, which names no model and no key."""

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        self._routes = routes
        self._body: bytes | None = None
        """Built when it is asked for first; it takes half a second."""
        self._building = anyio.Lock()

    async def send(self, _: Request) -> Response:
        """The document."""
        async with self._building:  # once, however many ask at first
            if self._body is None:
                document = await anyio.to_thread.run_sync(build_document, self._routes)
                self._body = encode_json(document)
        return Response(self._body, media_type="application/json")
