"""Writes plain text to the terminal; `batuta.rendering.console` writes tables and colours.

Output may contain text of callers and models. Of the control characters in it only tabs and line
feeds reach the terminal (`core.formatting.escape_controls`).
"""

from __future__ import annotations

import json
import logging
import re
import sys
from contextlib import suppress
from typing import final

from batuta.core.formatting import escape_controls, escape_json_controls

_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_TO_LINE_START = "\r\x1b[K"


def write_output(text: str) -> None:
    """Write to standard output."""
    sys.stdout.write(escape_controls(text))
    sys.stdout.flush()


def write_error(text: str) -> None:
    """Write to standard error; a text that nobody reads, or that a full disk refuses, is lost."""
    with suppress(OSError):
        sys.stderr.write(escape_controls(text))
        sys.stderr.flush()


def write_progress(text: str) -> None:
    """Overwrite the current line of standard error, if that is a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(_TO_LINE_START + escape_controls(text))
        sys.stderr.flush()


def write_json(text: str) -> None:
    """Write a JSON text to standard output, with control characters escaped on a terminal.

    If the encoding is not a Unicode one, all non-ASCII characters are written as JSON escapes.
    """
    if not sys.stdout.encoding.lower().startswith("utf"):
        text = _NOT_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], text)
    sys.stdout.write(f"{escape_json_controls(text) if sys.stdout.isatty() else text}\n")
    sys.stdout.flush()


@final
class EscapingFormatter(logging.Formatter):
    """Formats a log record as one line of text."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return escape_controls(super().format(record)).replace("\n", " ")


def escape_logs() -> None:
    """Escape the log messages that Python itself prints if logging is not configured."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(EscapingFormatter())
