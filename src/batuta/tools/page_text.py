"""Extracts text from untrusted web pages and PDFs, in a process that can be killed.

The functions take and return JSON values, and import their libraries when they are called.
"""

from __future__ import annotations

import base64
import io
from typing import Any

MAX_PDF_PAGES = 200
"""Maximum number of pages of a PDF that are read."""


def html_text(data: str, url: str, most: int) -> dict[str, str]:
    """Return a page's `title`, `date`, and `text`: the main text as Markdown, else all its text.

    Args:
        data: the page in Base64.
        url: the page's URL, to which its links are relative.
        most: maximum number of characters of text to return.
    """
    import trafilatura  # noqa: PLC0415 - loaded only in the separate process

    page: Any = base64.b64decode(data)
    found: Any = trafilatura.extract_with_metadata(
        page, url=url, output_format="markdown", include_links=True, include_formatting=True
    )
    head: Any = found or trafilatura.extract_metadata(page, default_url=url)
    text = (found.text or "") if found is not None else ""
    text = text or trafilatura.html2txt(page) or ""
    return {"title": head.title or "", "date": head.date or "", "text": _strip_head(text)[:most]}


def _strip_head(text: str) -> str:
    """Return the Markdown without the metadata header that the library may add."""
    return text.split("\n---\n", 1)[-1] if text.startswith("---\n") else text


def pdf_text(data: str, url: str, most: int) -> dict[str, str]:
    """Return the text of a PDF's first pages, each after a header line; see `html_text`."""
    del url  # a PDF has no relative links
    import pypdf  # noqa: PLC0415 - loaded only in the separate process

    reader = pypdf.PdfReader(io.BytesIO(base64.b64decode(data)))
    texts: list[str] = []
    size = 0
    for number, page in enumerate(reader.pages[:MAX_PDF_PAGES], 1):
        texts.append(f"[page {number}]\n{page.extract_text().strip()}")
        size += len(texts[-1])
        if size > most:
            break
    title = reader.metadata.title if reader.metadata else ""
    return {"title": str(title or ""), "date": "", "text": "\n\n".join(texts)[:most]}
