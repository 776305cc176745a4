"""The runs that the page has asked for and that have not ended."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import NamedTuple, final

import anyio

from batuta.gateway.ui.session import WebSession


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

    async def wait_for_end(self, run_id: str, session: WebSession, seconds: float) -> bool:
        """Whether the visitor's run still goes on after so many seconds, or until it has ended."""
        asked = self._runs.get(run_id)
        if asked is None or session.tenant not in {None, asked.tenant}:
            return False
        with anyio.move_on_after(seconds):
            await asked.ended.wait()
        return not asked.ended.is_set()
