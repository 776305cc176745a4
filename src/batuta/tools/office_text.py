"""Extracts text from untrusted Word and Excel files, in a separate process.

Both are XML in a ZIP archive. A file is refused before anything is unpacked if it has too many
parts or they declare too large a size, and while it is read if a part unpacks to more than it
declares.
"""

from __future__ import annotations

import base64
import io
import zipfile
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from batuta.core.small_number import read_small_number

MAX_UNPACKED = 64 << 20
"""Maximum number of bytes of all parts together, unpacked."""
MAX_PARTS = 2000
"""Maximum number of parts of a file."""
_WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_SPACES = {f"{_WORD}tab": "\t", f"{_WORD}br": "\n", f"{_WORD}cr": "\n"}
_SHEET = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
_PHONETIC = f"{_SHEET}rPh"


def _open_parts(data: str) -> zipfile.ZipFile:
    """Open the ZIP archive of a file; raise ValueError for a ZIP bomb."""
    parts = zipfile.ZipFile(io.BytesIO(base64.b64decode(data)))
    infos = parts.infolist()
    if len(infos) > MAX_PARTS or sum(info.file_size for info in infos) > MAX_UNPACKED:
        raise ValueError("the file has too many parts, or unpacks to too much")
    return parts


def _read_elements(parts: zipfile.ZipFile, name: str, tag: str) -> Iterator[Any]:
    """Yield each complete element with that tag, and free its memory afterwards."""
    etree: Any = import_module("lxml.etree")  # loaded only in the separate process; has no types
    with parts.open(name) as part:
        walk: Any = etree.iterparse(
            part, events=("end",), tag=tag, resolve_entities=False, no_network=True, load_dtd=False
        )
        for _, element in walk:
            yield element
            element.clear()


def docx_text(data: str, url: str, most: int) -> dict[str, str]:
    """Return the paragraphs of a Word file; see `page_text.html_text`."""
    del url
    lines: list[str] = []
    size = 0
    with _open_parts(data) as parts:
        for paragraph in _read_elements(parts, "word/document.xml", f"{_WORD}p"):
            text = "".join(
                _SPACES.get(piece.tag) or piece.text or ""
                for piece in paragraph.iter(f"{_WORD}t", *_SPACES)
            )
            lines.append(text)
            size += len(text) + 1
            if size > most:
                break
    return {"title": "", "date": "", "text": "\n".join(lines)[:most]}


def xlsx_text(data: str, url: str, most: int) -> dict[str, str]:
    """Return the rows of an Excel file's sheets, tab-separated; see `page_text.html_text`."""
    del url
    lines: list[str] = []
    size = 0
    with _open_parts(data) as parts:
        names = parts.namelist()
        shared = _shared_texts(parts) if "xl/sharedStrings.xml" in names else []
        sheets = [name for name in names if name.startswith("xl/worksheets/sheet")]
        sheets.sort(key=lambda name: (len(name), name))  # sheet2.xml before sheet10.xml
        for number, sheet in enumerate(sheets, 1):
            lines.append(f"[sheet {number}]")
            for row in _read_elements(parts, sheet, f"{_SHEET}row"):
                cells = [_cell_text(cell, shared) for cell in row.iter(f"{_SHEET}c")]
                lines.append("\t".join(cells).rstrip())
                size += len(lines[-1]) + 1
                if size > most:
                    break
    return {"title": "", "date": "", "text": "\n".join(lines)[:most]}


def _shared_texts(parts: zipfile.ZipFile) -> list[str]:
    """Return the shared strings, to which cells refer by index."""
    return list(map(_plain_text, _read_elements(parts, "xl/sharedStrings.xml", f"{_SHEET}si")))


def _plain_text(entry: Any) -> str:
    """Return the text of a string without its phonetic guide, as Japanese files have."""
    pieces = (piece for piece in entry.iter(f"{_SHEET}t") if piece.getparent().tag != _PHONETIC)
    return "".join(piece.text or "" for piece in pieces)


def _cell_text(cell: Any, shared: list[str]) -> str:
    if cell.get("t") == "inlineStr":
        return _plain_text(cell)
    value = cell.findtext(f"{_SHEET}v") or ""
    if cell.get("t") != "s":
        return value
    index = read_small_number(value)
    return shared[index] if index is not None and index < len(shared) else ""
