"""The runs that the page has asked for and that have not ended."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import NamedTuple, final

import anyio

from batuta.gateway.errors import APIError
from batuta.gateway.ui.session import WebSession

_SECONDS_TO_END = 5.0
"""How long a run that was stopped may take to be stored, to whoever opens it at once."""


class AskedRun(NamedTuple):
    """Whose it is, and what is set when it is stored."""

    tenant: str | None
    ended: anyio.Event


@final
class AskedRuns:
    """Remembers them, for whoever stops a run and opens it before its end is stored."""

    def __init__(self) -> None:
        self._runs: dict[str, AskedRun] = {}

    @contextmanager
    def track(self, run_id: str, session: WebSession) -> Generator[None]:
        """The block in which the run goes on, and at whose end it is stored."""
        asked = self._runs[run_id] = AskedRun(session.tenant, anyio.Event())
        try:
            yield
        finally:
            del self._runs[run_id]
            asked.ended.set()

    async def wait_for_end(self, run_id: str, session: WebSession) -> None:
        """Nothing, once the visitor's run of that id is stored, or if none goes on.

        Raises:
            APIError: it does not end within seconds.
        """
        asked = self._runs.get(run_id)
        if asked is None or session.tenant not in {None, asked.tenant}:
            return
        with anyio.move_on_after(_SECONDS_TO_END):
            await asked.ended.wait()
        if not asked.ended.is_set():
            raise APIError(409, "conflict", "This run goes on; reload the page when it has ended.")
