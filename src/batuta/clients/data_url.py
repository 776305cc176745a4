"""Pictures given as `data:` URLs."""

from __future__ import annotations

import re

from batuta.errors import BadRequestError

_DATA = re.compile(r"data:(image/[\w.+-]+);base64,")


def split_data_url(url: str) -> tuple[str, str] | None:
    """Media type and base64 text of a `data:` URL; None for any other URL.

    Raises:
        BadRequestError: a `data:` URL that is no base64 image, or a URL that is not `https:`.
    """
    if url.startswith(("https://", "http://")):
        return None
    head = _DATA.match(url)
    if head is None:
        raise BadRequestError(
            "a picture must be an https: URL or a base64 data: URL of an image type"
        )
    return head[1], url[head.end() :]
