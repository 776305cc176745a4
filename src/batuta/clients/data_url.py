"""Pictures given as `data:` URLs, in the spellings that clients and providers use."""

from __future__ import annotations

import base64
import binascii
import re
from urllib.parse import unquote

from batuta.core import Image
from batuta.errors import BadRequestError

_HEAD = re.compile(r"data:([\w.+-]+/[\w.+*-]+)?((?:;[\w.+-]+(?:=[\w.+\"-]*)?)*),", re.IGNORECASE)
_PLAIN = re.compile(r"data:(image/[\w.+-]+);base64,")
_HEAD_CHARACTERS = 256
"""The most characters that the head of a URL may have."""
_SPELLINGS = {
    "image/jpg": "image/jpeg",
    "image/pjpeg": "image/jpeg",
    "image/jfif": "image/jpeg",
    "image/x-png": "image/png",
    "image/x-webp": "image/webp",
}
_MARKS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)
"""First bytes of a file, and the type that they show."""
_OF_NO_TYPE = {"", "application/octet-stream", "binary/octet-stream", "image/*"}
_SPACES = re.compile(r"\s+")
_URL_SAFE = str.maketrans("-_", "+/")
_WRONG = "a picture must be an https: URL or a base64 data: URL of an image type"


def split_data_url(url: str) -> tuple[str, str] | None:
    """Return media type and base64 text of a `data:` URL; None for any other URL.

    Raises:
        BadRequestError: a `data:` URL that is no base64 image, or a URL that is not `https:`.
    """
    plain = plain_picture_url(url)
    head = _PLAIN.match(plain)
    return None if head is None else (head[1], plain[head.end() :])


def plain_picture_url(url: str) -> str:
    """Write the URL as every provider reads it.

    Of a `data:` URL the media type is that of the bytes where they tell one, the base64 is of the
    usual alphabet, padded and without spaces. Base64 alone is taken for a picture too.

    Raises:
        BadRequestError: it is neither an http(s) URL nor a base64 picture.
    """
    stripped = url.strip()
    start = stripped[:8].lower()
    if start.startswith(("https://", "http://")):
        colon = stripped.index("://")
        return start[:colon] + stripped[colon:]
    if not start.startswith("data:"):
        return picture_data_url("", stripped)
    head = _HEAD.match(stripped, 0, _HEAD_CHARACTERS)
    if head is None or ";base64" not in head[2].lower():
        raise BadRequestError(_WRONG)
    return picture_data_url(head[1] or "", stripped[head.end() :])


def picture_data_url(media_type: str, data: str) -> str:
    """Write the `data:` URL of a picture given as base64, perhaps as such a URL itself.

    Raises:
        BadRequestError: it is no base64, or no picture.
    """
    if data[:5].lower() == "data:":
        return plain_picture_url(data)
    text = _plain_base64(data)
    named = media_type.lower().partition(";")[0].strip()
    kind = _type_of_bytes(text) or _SPELLINGS.get(named, named)
    if kind in _OF_NO_TYPE or not kind.startswith("image/"):
        raise BadRequestError(_WRONG)
    return f"data:{kind};base64,{text}"


def shown_picture_url(url: str) -> str:
    """Write the URL as `plain_picture_url` does; empty if it is no `https:` URL and no picture."""
    try:
        plain = plain_picture_url(url)
    except BadRequestError:
        return ""
    return plain if plain.startswith(("https://", "data:image/")) else ""


def read_picture(data: str, media_type: str = "") -> Image:
    """Return a picture that a provider tells as base64.

    Raises:
        ValueError: it is none.
    """
    try:
        return Image(url=picture_data_url(media_type, data))
    except BadRequestError:
        raise ValueError("a picture of the reply is no base64 of a picture") from None


def read_picture_address(url: str) -> Image:
    """Return a picture that a provider tells as a `data:` or `https:` address.

    Raises:
        ValueError: it is neither.
    """
    plain = shown_picture_url(url)
    if not plain:
        raise ValueError("a picture of the reply has no address that can be shown")
    return Image(url=plain)


def _plain_base64(data: str) -> str:
    text = unquote(data) if "%" in data else data
    if any(space in text for space in " \n\r\t"):
        text = _SPACES.sub("", text)
    if "-" in text or "_" in text:
        text = text.translate(_URL_SAFE)
    text = text.rstrip("=")
    if not text or len(text) % 4 == 1:
        raise BadRequestError(_WRONG)
    return text + "=" * (-len(text) % 4)


def _type_of_bytes(text: str) -> str | None:
    """Return the media type that the first bytes tell, or None if they tell none."""
    try:
        first = base64.b64decode(text[:64], validate=True)
    except (binascii.Error, ValueError):
        raise BadRequestError(_WRONG) from None
    for mark, kind in _MARKS:
        if first.startswith(mark):
            return kind
    return "image/webp" if first[:4] == b"RIFF" and first[8:12] == b"WEBP" else None
