"""Images given as `data:` URLs, in the variants that clients and providers use."""

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
"""Maximum number of characters of a `data:` URL before its data."""
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
"""First bytes of files, and the media type that they indicate."""
_GENERIC_TYPES = {"", "application/octet-stream", "binary/octet-stream", "image/*"}
_SPACES = re.compile(r"\s+")
_URL_SAFE = str.maketrans("-_", "+/")
_INVALID_IMAGE = "an image must be an http(s) URL or a base64 data: URL of an image type"


def split_data_url(url: str) -> tuple[str, str] | None:
    """Return media type and base64 text of a `data:` URL or bare base64; None for an http(s) URL.

    Raises:
        BadRequestError: `url` is neither an http(s) URL nor a base64 image.
    """
    plain = plain_picture_url(url)
    head = _PLAIN.match(plain)
    return None if head is None else (head[1], plain[head.end() :])


def plain_picture_url(url: str) -> str:
    """Return the URL in its plain form, which providers accept.

    For `data:` URLs the media type is sniffed from the bytes if possible, and the base64 text uses
    the standard alphabet with padding and without white space. Base64 without `data:` is accepted.

    Raises:
        BadRequestError: `url` is neither an http(s) URL nor a base64 image.
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
        raise BadRequestError(_INVALID_IMAGE)
    return picture_data_url(head[1] or "", stripped[head.end() :])


def picture_data_url(media_type: str, data: str) -> str:
    """Return the `data:` URL of an image, which is given as base64 or already as a `data:` URL.

    Only the beginning of the data and its length are checked. A media type that the data indicates
    takes precedence over `media_type`.

    Raises:
        BadRequestError: `data` is not base64, or not an image.
    """
    if data[:5].lower() == "data:":
        return plain_picture_url(data)
    text = _plain_base64(data)
    named = media_type.lower().partition(";")[0].strip()
    kind = _type_of_bytes(text) or _SPELLINGS.get(named, named)
    if kind in _GENERIC_TYPES or not kind.startswith("image/"):
        raise BadRequestError(_INVALID_IMAGE)
    return f"data:{kind};base64,{text}"


def shown_picture_url(url: str) -> str:
    """Return the URL in its plain form; "" if that is neither `https:` nor a `data:` image."""
    try:
        plain = plain_picture_url(url)
    except BadRequestError:
        return ""
    return plain if plain.startswith(("https://", "data:image/")) else ""


def read_picture(data: str, media_type: str = "") -> Image:
    """Return an image that a provider sent as base64.

    Raises:
        ValueError: `data` is not a base64 image.
    """
    try:
        return Image(url=picture_data_url(media_type, data))
    except BadRequestError:
        raise ValueError("the reply contains an image that is not a base64 image") from None


def read_picture_address(url: str) -> Image:
    """Return an image that a provider sent as a `data:` or `https:` URL, or as bare base64.

    Raises:
        ValueError: `url` is none of these.
    """
    plain = shown_picture_url(url)
    if not plain:
        raise ValueError("the reply contains an image without a valid https: or data: URL")
    return Image(url=plain)


def _plain_base64(data: str) -> str:
    text = unquote(data) if "%" in data else data
    if any(space in text for space in " \n\r\t"):
        text = _SPACES.sub("", text)
    if "-" in text or "_" in text:
        text = text.translate(_URL_SAFE)
    text = text.rstrip("=")
    if not text or len(text) % 4 == 1:
        raise BadRequestError(_INVALID_IMAGE)
    return text + "=" * (-len(text) % 4)


def _type_of_bytes(text: str) -> str | None:
    """Return the media type that the first bytes indicate; None if they indicate none.

    Raises:
        BadRequestError: the text is not base64.
    """
    try:
        first = base64.b64decode(text[:64], validate=True)
    except (binascii.Error, ValueError):
        raise BadRequestError(_INVALID_IMAGE) from None
    for mark, kind in _MARKS:
        if first.startswith(mark):
            return kind
    return "image/webp" if first[:4] == b"RIFF" and first[8:12] == b"WEBP" else None
