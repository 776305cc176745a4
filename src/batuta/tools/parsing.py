"""Reads untrusted documents; parsers run in processes that are killed after a time limit."""

from __future__ import annotations

import atexit
import base64
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath

from batuta.clients.decoding import join_halves
from batuta.distribution import install_hint
from batuta.offload import (
    ProcessDiedError,
    ProcessFailedError,
    ProcessPool,
    ProcessStartError,
    ProcessTimeoutError,
)
from batuta.tools.office_text import docx_text, xlsx_text
from batuta.tools.page_text import html_text, pdf_text
from batuta.tools.source import ToolError

PARSE_CPU_SECONDS = 10.0
"""Maximum seconds of CPU time for a document, including the import of the libraries."""
PARSE_SECONDS = 20.0
"""Maximum seconds of wall time for a document."""
PDF_MARK = b"%PDF-"
ZIP_MARK = b"PK\x03\x04"
_PARSERS = ProcessPool()
"""A separate pool, so that hostile pages do not delay schema checks or graders."""
atexit.register(_PARSERS.close)
Parser = Callable[[str, str, int], dict[str, str]]
"""Takes the document in Base64, its URL, and the maximum number of characters to return."""
_BY_ENDING: Mapping[str, tuple[Parser, str]] = {
    ".docx": (docx_text, "lxml"),
    ".xlsx": (xlsx_text, "lxml"),
    ".html": (html_text, "trafilatura"),
    ".htm": (html_text, "trafilatura"),
}


async def parse_apart(
    parse: Parser, library: str, document: bytes, most: int, *, url: str = "", what: str = "page"
) -> Mapping[str, str]:
    """Parse a document in a separate process; return its title, date and text.

    Args:
        parse: the parser of the document's kind.
        library: the package that it needs, named in the error if it is missing.
        document: the document's bytes.
        most: maximum number of characters of text to return.
        url: the document's URL.
        what: the word for the document in errors.

    Raises:
        ToolError: the document cannot be read, takes too long, or needs a missing package.
    """
    data = base64.b64encode(document).decode()
    try:
        read: Mapping[str, str] = await _PARSERS.call(
            parse, data, url, most, cpu_seconds=PARSE_CPU_SECONDS, wall_seconds=PARSE_SECONDS
        )
    except ProcessFailedError as error:
        if error.kind == "ModuleNotFoundError":
            missing = f"{library} is not installed on the server: {install_hint('tools')}"
            raise ToolError(missing) from None
        raise ToolError(f"the {what} could not be read: it is malformed") from None
    except (ProcessTimeoutError, ProcessDiedError):
        raise ToolError(
            f"the {what} could not be read: that takes too much time or memory"
        ) from None
    except ProcessStartError as error:
        raise ToolError(f"the {what} could not be read: {error}") from None
    # Lone surrogates, which some PDFs have, can be neither indexed nor sent.
    return {name: join_halves(text) for name, text in read.items()}


async def read_document(name: str, document: bytes, most: int) -> str | None:
    """Return a file's text; None if it is of a kind that cannot be read.

    Args:
        name: the file's name, whose ending may show the kind.
        document: the file's bytes.
        most: maximum number of characters of text to return.

    Raises:
        ToolError: the file is of a known kind, but cannot be read or needs a missing package.
    """
    ending = PurePosixPath(name.lower()).suffix
    if document.lstrip()[:5] == PDF_MARK:
        read = await parse_apart(pdf_text, "pypdf", document, most, what="file")
        return read["text"]
    if ending in _BY_ENDING and (document.startswith(ZIP_MARK) or ending.startswith(".htm")):
        parse, library = _BY_ENDING[ending]
        read = await parse_apart(parse, library, document, most, what="file")
        return read["text"]
    if b"\0" in document[:8192]:
        return None
    try:
        return document.decode("utf-8-sig")[:most]
    except UnicodeDecodeError:
        return None
