"""Wakes those who wait for a job to tell something."""

from __future__ import annotations

from typing import final

import anyio


@final
class Notifier:
    """One bell a job, there only while somebody listens."""

    def __init__(self) -> None:
        self._notifier: dict[str, anyio.Event] = {}

    async def notify(self, job_id: str) -> None:
        """Wakes everyone who waits for the job."""
        bell = self._notifier.pop(job_id, None)
        if bell is not None:
            bell.set()

    async def wait(self, job_id: str, seconds: float) -> None:
        """Until the bell rings, or that long."""
        bell = self._notifier.setdefault(job_id, anyio.Event())
        with anyio.move_on_after(seconds):
            await bell.wait()
