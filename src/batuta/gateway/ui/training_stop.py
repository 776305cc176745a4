"""Stopping a training from the page, by a file that the training looks for after each step."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import final

from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import Response

from batuta.gateway.errors import APIError, not_found
from batuta.gateway.serving.models import Catalogue
from batuta.gateway.ui.learning import STOP_FILE, find_trainings, folder_by_mark
from batuta.gateway.ui.rendering import redirect_to
from batuta.gateway.ui.session import WebSession, read_form
from batuta.store import Store
from batuta.store.audit import AuditEntry


@final
class TrainingStopForm:
    """Handles the stop button on a training's screen."""

    def __init__(self, catalogue: Catalogue, store: Store | None) -> None:
        self._catalogue = catalogue
        self._store = store

    async def stop(self, request: Request, session: WebSession) -> Response:
        """Ask the training to stop after its current step, and show its screen again.

        Raises:
            APIError: the visitor is not an operator, the training does not exist, its folder cannot
                be written, or the form is not from one of our pages.
        """
        if not session.is_operator:
            raise not_found(f"The screen {request.url.path[:80]}")
        await read_form(request, session)
        known = await run_sync(find_trainings, self._catalogue.page_context.folders)
        found = folder_by_mark(known, request.path_params["mark"])
        if found is None:
            raise not_found("The training")
        try:
            await run_sync(ask_to_stop, found.path)
        except OSError as error:
            reason = f"This server cannot write to the training's folder: {error.strerror}."
            raise APIError(409, "conflict", reason) from None
        if self._store is not None:
            entry = AuditEntry(
                actor=session.caller.actor, action="training.stopped", subject=found.name
            )
            await self._store.audit.append(entry)
        return redirect_to(f"/ui/learning/training/{found.mark}")


def ask_to_stop(folder: Path) -> None:
    """Create the stop file in the training's folder; an existing file or link is left untouched.

    Raises:
        OSError: the folder cannot be written.
    """
    with suppress(FileExistsError):
        (folder / STOP_FILE).open("x").close()
