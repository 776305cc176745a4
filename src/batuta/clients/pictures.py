"""Pictures that models make, read from what providers send."""

from __future__ import annotations

from typing import Any

from batuta.clients.data_url import picture_data_url, plain_picture_url
from batuta.clients.decoding import as_array, as_object, as_string
from batuta.core import Image
from batuta.errors import BadRequestError


def read_picture(data: str, media_type: str = "") -> Image:
    """Return a picture that is told as base64.

    Raises:
        ValueError: it is none.
    """
    try:
        return Image(url=picture_data_url(media_type, data))
    except BadRequestError:
        raise ValueError("a picture of the reply is no base64 of a picture") from None


def read_picture_address(url: str) -> Image:
    """Return a picture that is told as a `data:` or `https:` address.

    Raises:
        ValueError: it is neither.
    """
    try:
        plain = plain_picture_url(url)
    except BadRequestError:
        plain = ""
    if not plain.startswith(("https://", "data:image/")):
        raise ValueError("a picture of the reply has no address that can be shown")
    return Image(url=plain)


def read_pictures(message: dict[str, Any]) -> tuple[Image, ...]:
    """Return the pictures of a message of chat completions, each once.

    Providers tell them in the field `images`, or among the parts of the content.

    Raises:
        ValueError: one of them cannot be shown.
    """
    images, content = message.get("images"), message.get("content")
    if images is None and (content is None or isinstance(content, str)):
        return ()
    rows = [as_object(row) for row in (*as_array(images), *as_array(content))]
    urls = [_picture_address(row) for row in rows if "image_url" in row]
    return tuple(dict.fromkeys(read_picture_address(url) for url in urls))


def _picture_address(row: dict[str, Any]) -> str:
    """Return the address of one row, which may stand in an object of its own."""
    named = row["image_url"]
    return named if isinstance(named, str) else as_string(as_object(named).get("url"))
