"""Images of a stored run, served at our own URLs, as required by the page's security policy."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from typing import final

from starlette.requests import Request
from starlette.responses import Response

from batuta.clients.data_url import split_data_url
from batuta.core import Run
from batuta.core.small_number import read_small_number
from batuta.errors import BadRequestError
from batuta.gateway.errors import not_found
from batuta.gateway.serving.attachments import IMAGE_TYPES
from batuta.gateway.ui.page_runs import PageRuns
from batuta.gateway.ui.playground import load_run
from batuta.gateway.ui.rendering import PAGE_HEADERS
from batuta.gateway.ui.run_view import answer_pictures, find_step, step_pictures
from batuta.gateway.ui.session import WebSession
from batuta.store import Store


@final
class RunPictures:
    """Serves the images that a run's models and programs generated."""

    def __init__(self, store: Store | None, page_runs: PageRuns) -> None:
        self._store = store
        self._page_runs = page_runs

    async def send(self, request: Request, session: WebSession) -> Response:
        """Send the image at the path's `place`, such as `answer.0` or `0.2.1` (round, step, image).

        Raises:
            APIError: the run cannot be shown, or the image does not exist.
        """
        run_id: str = request.path_params["id"]
        run = await load_run(self._store, self._page_runs, run_id, session)
        place: str = request.path_params["place"]
        urls, number = _find_pictures(run, place)
        try:
            data = split_data_url(urls[number])
        except (IndexError, BadRequestError):
            data = None
        if data is None or data[0] not in IMAGE_TYPES:
            raise not_found(f"The picture '{place[:20]}'")
        return Response(b64decode(data[1]), media_type=data[0], headers=PAGE_HEADERS)


def _find_pictures(run: Run, place: str) -> tuple[Sequence[str], int]:
    """Return the images of the answer or the step at that place, and the index of the image."""
    where, _, last = place.rpartition(".")
    number = read_small_number(last)
    if number is None:
        return (), 0
    if where == "answer":
        return answer_pictures(run), number
    step = find_step(run, where)
    return (step_pictures(step) if step else ()), number
