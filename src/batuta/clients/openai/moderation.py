"""A provider's moderation API: `POST {base_url}/moderations`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from batuta.clients.decoding import as_array, as_object
from batuta.clients.http_target import NO_KEY, HttpTarget, Secret
from batuta.clients.transport import HttpTransport
from batuta.core import Worker
from batuta.errors import InvalidReplyError


@final
class ModerationClient:
    """Calls one provider; its results are returned unchanged."""

    def __init__(
        self, worker: Worker, http: HttpTransport, *, base_url: str, key: Secret = NO_KEY
    ) -> None:
        """Create the client; no connection is opened yet.

        Raises:
            ConfigError: `base_url` is not an http(s) URL.
        """
        headers = {"Authorization": f"Bearer {key.reveal()}"} if key else {}
        self.worker = worker
        self._http = http
        self._target = HttpTarget(
            url=base_url.rstrip("/") + "/moderations", headers=headers, key=key
        )

    def __repr__(self) -> str:
        return f"ModerationClient({self.worker.model!r} at {self._target.host})"

    async def moderate(self, given: Any) -> Mapping[str, Any]:
        """Return the provider's moderation of a string, a list of strings, or text and image parts.

        Raises:
            ClientError: the request failed or the reply has no results.
        """
        body = {"model": self.worker.model, "input": given}
        judgement = as_object(await self._http.post(self._target, body))
        results = as_array(judgement.get("results"))
        if not results or not all(as_object(one) for one in results):
            raise InvalidReplyError("the provider's moderation has no results")
        return judgement
