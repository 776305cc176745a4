"""Files and recordings of a request's body, whatever dialect they came in."""

from __future__ import annotations

import binascii
import mimetypes
import re
from base64 import b64decode

from batuta.clients.data_url import plain_picture_url
from batuta.core import Audio, File, Text
from batuta.errors import BadRequestError
from batuta.gateway.errors import invalid_value, unsupported_parameter
from batuta.gateway.http.body import Fields

_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)(?:;charset=[\w-]+)?;base64,", re.IGNORECASE)
_PDF = "application/pdf"
_TEXT_TYPES = ("text/", "application/json", "application/xml", "application/x-yaml")
"""Beginnings of the types whose files are shown to every worker as text."""


def parse_file(holder: Fields, name: str, title: str) -> File | Text:
    """A file that is given as a data URL, or as base64 whose type its title tells.

    Args:
        holder: the object that has the data.
        name: the field of the data.
        title: the file's own name, or nothing.

    Raises:
        APIError: it is no base64, or of a type that no worker is given.
    """
    data = holder.need_text(name)
    head = _DATA_URL.match(data)
    if head is not None:
        return read_file(holder.path(name), head[1].lower(), data[head.end() :], title)
    if data.startswith("data:"):
        raise invalid_value(holder.path(name), "it must be a base64 data URL.")
    return read_file(holder.path(name), mimetypes.guess_type(title)[0] or _PDF, data, title)


def read_file(path: str, media_type: str, data: str, title: str) -> File | Text:
    """A file of that type; of a text, its text.

    Raises:
        APIError: it is no base64, or of a type that no worker is given.
    """
    if media_type != _PDF and not media_type.startswith(_TEXT_TYPES):
        reason = f"files of the type '{media_type}' are not passed on; PDF and text are."
        raise unsupported_parameter(path, reason)
    content = _decode_base64(path, data)
    if media_type == _PDF:
        if not content.lstrip()[:5] == b"%PDF-":
            raise invalid_value(path, "it is not a PDF.")
        return File(media_type=media_type, data=data, name=title)
    try:
        return text_under_title(title, content.decode())
    except UnicodeDecodeError:
        raise invalid_value(path, "its text must be UTF-8.") from None


def text_under_title(title: str, text: str) -> Text:
    """A text file as a part that every worker can read."""
    return Text(f"File {title}:\n{text}" if title else text)


def picture_url(path: str, url: str) -> str:
    """Return the URL of a picture, in the spelling that every provider reads.

    Raises:
        APIError: it is neither an `https:` URL nor a base64 picture.
    """
    try:
        plain = plain_picture_url(url)
    except BadRequestError:
        plain = ""
    if not plain.startswith(("https://", "data:image/")):
        raise invalid_value(path, "it must begin with 'https://' or 'data:image/'.")
    return plain


def parse_audio(part: Fields) -> Audio:
    """A recording.

    Raises:
        APIError: it is no base64, or of another format.
    """
    given = part.need_object("input_audio")
    data = given.need_text("data")
    given.need("format")
    form = given.choice("format", ("wav", "mp3")) or ""
    _decode_base64(given.path("data"), data)
    return Audio(data=data, format=form)


def _decode_base64(path: str, data: str) -> bytes:
    try:
        return b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise invalid_value(path, "it must be base64.") from None
