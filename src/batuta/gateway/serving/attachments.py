"""Files, pictures and recordings in request bodies, for all dialects."""

from __future__ import annotations

import binascii
import mimetypes
import re
from base64 import b64decode
from dataclasses import replace
from pathlib import PurePosixPath

from batuta.clients.data_url import shown_picture_url
from batuta.core import Audio, File, Part, Question, Text
from batuta.gateway.errors import invalid_value, unsupported_parameter
from batuta.gateway.http.body import Fields
from batuta.language.material import wrap_fetched

_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)(?:;charset=[\w-]+)?;base64,", re.IGNORECASE)
IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""Media types of images in Anthropic's API, in stored files and on the web pages; SVG is excluded
because it can contain scripts."""
_PDF = "application/pdf"
_OFFICE = "application/vnd.openxmlformats-officedocument"
OFFICE_ENDINGS = {
    f"{_OFFICE}.wordprocessingml.document": ".docx",
    f"{_OFFICE}.spreadsheetml.sheet": ".xlsx",
}
"""Extensions of the supported Office files, by media type."""
MAX_OFFICE_FILES = 20
MAX_OFFICE_CHARACTERS = 400_000
"""Maximum number of characters of an Office file's text; the rest is cut off."""
_TEXT_TYPES = ("text/", "application/json", "application/xml", "application/x-yaml")
"""Prefixes of media types that are passed to every worker as text."""


def parse_file(holder: Fields, name: str, title: str) -> File | Text:
    """Parse a file given as a data URL, or as base64 whose type is guessed from the title.

    Args:
        holder: the object with the data.
        name: the name of the field with the data.
        title: the file's name; may be empty. Base64 counts as a PDF if the name tells no type.

    Raises:
        APIError: the data is missing, not base64 or not of its type, or the type is not supported.
    """
    data = holder.need_text(name)
    head = _DATA_URL.match(data)
    if head is not None:
        return read_file(holder.path(name), head[1].lower(), data[head.end() :], title)
    if data.startswith("data:"):
        raise invalid_value(holder.path(name), "it must be a base64 data URL.")
    return read_file(holder.path(name), mimetypes.guess_type(title)[0] or _PDF, data, title)


def read_file(path: str, media_type: str, data: str, title: str) -> File | Text:
    """Return a PDF or an Office file, or the text of a text file, which must be UTF-8.

    Args:
        path: the path of the data in the body, for error messages.
        media_type: the media type.
        data: the content as base64.
        title: the file's name; may be empty.

    Raises:
        APIError: the data is not base64 or not of this type, or the type is not supported.
    """
    plain = media_type == _PDF or media_type.startswith(_TEXT_TYPES)
    office = "" if plain else OFFICE_ENDINGS.get(media_type) or _office_ending(title)
    if not plain and not office:
        kinds = "send PDF, DOCX, XLSX or text"
        reason = f"files of the type '{media_type}' are not supported; {kinds}."
        raise unsupported_parameter(path, reason)
    content = _decode_base64(path, data)
    if office:
        if not content.startswith(b"PK\x03\x04"):
            raise invalid_value(path, f"it is not a {office[1:].upper()}.")
        kind = next(kind for kind, ending in OFFICE_ENDINGS.items() if ending == office)
        return File(media_type=kind, data=data, name=title)
    if media_type == _PDF:
        if not content.lstrip()[:5] == b"%PDF-":
            raise invalid_value(path, "it is not a PDF.")
        return File(media_type=media_type, data=data, name=title)
    try:
        return text_under_title(title, content.decode())
    except UnicodeDecodeError:
        raise invalid_value(path, "its text must be UTF-8.") from None


def _office_ending(title: str) -> str:
    """Return the extension of a supported Office file's name; empty for other files."""
    ending = PurePosixPath(title.lower()).suffix
    return ending if ending in OFFICE_ENDINGS.values() else ""


async def read_office_files(question: Question) -> Question:
    """Return the question with its Office files replaced by their texts, cut if they are too long.

    Raises:
        APIError: a file cannot be read, or there are too many.
    """
    files = [part for message in question.messages for part in message.parts if _is_office(part)]
    if not files:
        return question
    if len(files) > MAX_OFFICE_FILES:
        raise invalid_value("file", f"at most {MAX_OFFICE_FILES} Office files are allowed.")
    messages = [
        replace(message, parts=tuple([await _read_office(part) for part in message.parts]))
        for message in question.messages
    ]
    return replace(question, messages=tuple(messages))


def _is_office(part: Part) -> bool:
    return isinstance(part, File) and part.media_type in OFFICE_ENDINGS


async def _read_office(part: Part) -> Part:
    if not isinstance(part, File) or part.media_type not in OFFICE_ENDINGS:
        return part
    from batuta.tools.parsing import read_document  # noqa: PLC0415 - only when one was sent
    from batuta.tools.source import ToolError  # noqa: PLC0415 - same

    name = f"file{OFFICE_ENDINGS[part.media_type]}"
    try:
        text = await read_document(name, b64decode(part.data), MAX_OFFICE_CHARACTERS)
    except ToolError as error:
        raise invalid_value("file", f"{part.name or name} cannot be read: {error}.") from None
    return Text(f"File {part.name or name}:\n{wrap_fetched(text or '')}", cache=part.cache)


def text_under_title(title: str, text: str) -> Text:
    """Return the text of a file as a part that every worker can read, with the title if any."""
    return Text(f"File {title}:\n{text}" if title else text)


def picture_url(path: str, url: str) -> str:
    """Return the URL of a picture, normalised for all providers.

    Raises:
        APIError: the URL is neither an `https` URL nor a picture in base64.
    """
    plain = shown_picture_url(url)
    if not plain:
        raise invalid_value(path, "it must be an https URL, or a base64 data URL of a picture.")
    return plain


def parse_audio(part: Fields) -> Audio:
    """Parse a recording.

    Raises:
        APIError: the data is missing or not base64, or the format is neither wav nor mp3.
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
