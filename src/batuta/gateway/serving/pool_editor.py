"""Changes the pool while it is served: edits its file, reloads it and records the change."""

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
    """Edits the workers in the settings file of this process, one change at a time."""

    def __init__(
        self,
        file: PoolFile,
        catalogue: Catalogue,
        store: Store,
        reread: Callable[[], Awaitable[Catalogue]],
    ) -> None:
        """Connect the file and the catalogue.

        Args:
            file: the settings file.
            catalogue: the served catalogue, which is updated after a change.
            store: the store with the audit trail.
            reread: returns the catalogue of the file's current settings.
        """
        self.file = file
        self._catalogue = catalogue
        self._store = store
        self._reread = reread
        self._lock = anyio.Lock()

    async def change(self, edit: Callable[[str], str], *, worker: str, what: str, by: str) -> None:
        """Apply `edit` to the settings file, serve the result and record the change.

        Do nothing if `edit` changes nothing.

        Args:
            edit: returns the changed text of the file.
            worker: the id of the changed worker, for the audit trail; empty: the pool.
            what: a description of the change.
            by: the actor, for the audit trail.

        Raises:
            BatutaError: the file cannot be changed, the changed settings cannot be used (then the
                file is restored), or the change cannot be recorded (then it stays).
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
        """Undo the latest change, serve the earlier settings and record this.

        Raises:
            BatutaError: the change cannot be undone, the earlier settings cannot be used now (then
                the change stays), or the undoing cannot be recorded (then it stays undone).
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
        """Serve the file's settings; if that fails, restore the file.

        Raises:
            ConfigError: the settings cannot be used.
        """
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
