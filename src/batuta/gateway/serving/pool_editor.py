"""Changes of the pool while it is served: written to its file, served, and in the audit trail."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import final

import anyio
from anyio.to_thread import run_sync

from batuta.config.pool_file import PoolFile
from batuta.errors import BatutaError, ConfigError
from batuta.gateway.serving.models import Catalogue
from batuta.store import Store
from batuta.store.audit import AuditEntry


@final
class PoolEditor:
    """Changes the workers in the settings file of this process, one after another."""

    def __init__(
        self,
        file: PoolFile,
        catalogue: Catalogue,
        store: Store,
        reread: Callable[[], Awaitable[Catalogue]],
    ) -> None:
        """Change nothing yet.

        Args:
            file: the settings.
            catalogue: is replaced by what the changed settings serve.
            store: has the audit trail.
            reread: what the settings serve now.
        """
        self.file = file
        self._catalogue = catalogue
        self._store = store
        self._reread = reread
        self._lock = anyio.Lock()

    async def change(self, edit: Callable[[str], str], *, worker: str, what: str, by: str) -> None:
        """Write what `edit` makes of the settings, and serve it.

        Raises:
            BatutaError: the changed settings cannot be used; the file is as it was.
        """
        async with self._lock:
            before = await run_sync(self.file.read)
            after = edit(before)
            if after == before:
                return
            await run_sync(lambda: self.file.write(before, after, what=what, by=by))
            await self._serve_or_undo()
            await self._record(worker, what, by)

    async def undo(self, *, by: str) -> None:
        """Take the latest change back.

        Raises:
            BatutaError: it cannot be taken back, or the settings before it cannot be used now.
        """
        async with self._lock:
            after = await run_sync(self.file.read)
            change = await run_sync(self.file.undo)
            try:
                self._catalogue.replace_by(await self._reread())
            except BatutaError:
                await run_sync(
                    lambda: self.file.write(change.before, after, what=change.what, by=change.by)
                )
                raise
            await self._record("", f"took back: {change.what}", by)

    async def _serve_or_undo(self) -> None:
        try:
            self._catalogue.replace_by(await self._reread())
        except BatutaError as error:
            await run_sync(self.file.undo)
            raise ConfigError(f"{error}; nothing was changed") from None

    async def _record(self, worker: str, what: str, by: str) -> None:
        entry = AuditEntry(
            actor=by, action="pool.changed", subject=worker or "pool", details={"what": what}
        )
        await self._store.audit.append(entry)
