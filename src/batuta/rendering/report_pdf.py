"""Renders a report as a PDF, from the HTML of `render_report`, with fpdf2 (extra `pdf`).

Nothing is fetched, since the HTML has no pictures. A font for many scripts is searched for on this
machine; without one, only Latin-1 is shown. Question marks replace characters that are not shown.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from batuta.rendering.documents import render_report
from batuta.rendering.markdown import MAX_CHARACTERS

_FONT_FOLDERS = (
    "/usr/share/fonts/truetype/dejavu",
    "/usr/share/fonts/dejavu-sans-fonts",
    "/usr/share/fonts/TTF",
    "/Library/Fonts",
    "C:/Windows/Fonts",
)
_FACES = {"": "DejaVuSans", "B": "DejaVuSans-Bold", "I": "DejaVuSans-Oblique"}
_BODY = re.compile(r"<body>(.*)</body>", re.DOTALL)
_UNKNOWN_TAGS = re.compile(r"</?(?:div|span)\b[^>]*>")
_LATIN_END = 256
LOST = "Some characters cannot be shown here and are replaced by question marks."


def has_pdf() -> bool:
    """Return True if the library is installed."""
    return find_spec("fpdf") is not None


def find_font_folder() -> Path | None:
    """Return a folder with the DejaVu font; None if this machine has none."""
    folders = [Path(folder) for folder in _FONT_FOLDERS]
    if (plots := find_spec("matplotlib")) is not None and plots.origin:
        folders.append(Path(plots.origin).parent / "mpl-data" / "fonts" / "ttf")
    return next((each for each in folders if (each / "DejaVuSans.ttf").is_file()), None)


def render_report_pdf(title: str, text: str, read: Collection[str]) -> bytes:
    """Return a Markdown report as a PDF that ends with a list of the cited pages not in `read`.

    `read` are the URLs of the pages that were found by a search, or read. Formulas are shown as
    LaTeX. Of a long text, only the first `MAX_CHARACTERS` characters are rendered.
    """
    from fpdf import FPDF, FontFace, TextStyle  # noqa: PLC0415 - from an extra

    pdf = FPDF(format="A4")
    pdf.set_title(title)
    pdf.set_margin(20)
    pdf.set_auto_page_break(auto=True, margin=20)
    pdf.add_page()
    folder = find_font_folder()
    if folder is None:
        pdf.set_font("Helvetica", size=11)
    else:
        for style, face in _FACES.items():
            path = folder / f"{face}.ttf"
            pdf.add_font("Body", style, path if path.is_file() else folder / "DejaVuSans.ttf")
        pdf.set_font("Body", size=11)
    found = _BODY.search(render_report(title, text[:MAX_CHARACTERS], read, as_latex=True))
    html = _UNKNOWN_TAGS.sub("", found[1] if found else "")
    font: Any = pdf.current_font
    code_points = None if folder is None else font.cmap
    shown = "".join(sign if _is_shown(code_points, sign) else "?" for sign in html)
    family = pdf.font_family  # the default font of code lacks most scripts
    pdf.write_html(
        shown + (f"<p>{LOST}</p>" if shown != html else ""),
        tag_styles={"code": FontFace(family=family), "pre": TextStyle(font_family=family)},
    )
    return bytes(pdf.output())


def _is_shown(code_points: Collection[int] | None, sign: str) -> bool:
    """Return True if the font has the character; `code_points` is None for a Latin-1 font."""
    if code_points is None:
        return ord(sign) < _LATIN_END
    return ord(sign) in code_points or sign.isspace()


def render_report_base64(title: str, text: str, read: list[str]) -> str:
    """Return `render_report_pdf` as Base64, which can be sent between processes."""
    return base64.b64encode(render_report_pdf(title, text, read)).decode()
