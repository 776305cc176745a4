"""Images of a stored run, at URLs of this server because the page may load no others."""

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
from batuta.gateway.ui.conversation import list_pictures
from batuta.gateway.ui.page_runs import PageRuns
from batuta.gateway.ui.playground import load_run
from batuta.gateway.ui.rendering import PAGE_HEADERS
from batuta.gateway.ui.run_view import answer_pictures, find_step, step_pictures
from batuta.gateway.ui.session import WebSession
from batuta.store import Store


@final
class RunPictures:
    """Serves the images of a run's question, and those that its models and programs generated."""

    def __init__(self, store: Store | None, page_runs: PageRuns) -> None:
        self._store = store
        self._page_runs = page_runs

    async def send_asked(self, request: Request, session: WebSession) -> Response:
        """Send the image of the question's conversation with the path's `number`, from 0.

        Raises:
            APIError: the run cannot be shown, or has no such image that may be sent.
        """
        run = await self._load(request, session)
        urls = [image.url for image in list_pictures(run.header.question)]
        return _send_picture(urls, request.path_params["number"])

    async def send_made(self, request: Request, session: WebSession) -> Response:
        """Send the image at the path's `place`, such as `answer.0` or `0.2.1` (round, step, image).

        Raises:
            APIError: the run cannot be shown, or has no such image that may be sent.
        """
        run = await self._load(request, session)
        where, _, number = request.path_params["place"].rpartition(".")
        if where == "answer":
            return _send_picture(answer_pictures(run), number)
        step = find_step(run, where)
        return _send_picture(step_pictures(step) if step else (), number)

    async def _load(self, request: Request, session: WebSession) -> Run:
        return await load_run(self._store, self._page_runs, request.path_params["id"], session)


def _send_picture(urls: Sequence[str], number: str) -> Response:
    """Return the image with that index.

    Raises:
        APIError: there is no such image, or it is not base64 of a type that is sent to browsers.
    """
    index = read_small_number(number)
    try:
        data = None if index is None else split_data_url(urls[index])
    except (IndexError, BadRequestError):
        data = None
    if data is None or data[0] not in IMAGE_TYPES:
        raise not_found("The picture")
    return Response(b64decode(data[1]), media_type=data[0], headers=PAGE_HEADERS)
