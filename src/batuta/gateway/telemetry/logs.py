"""Structured logs: one JSON object per line, with secrets in its message redacted.

Fields that a caller adds are written unchanged, so callers must leave secrets and content out.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any, final

import orjson

from batuta.clients import redact_secrets
from batuta.config.settings import LogFormat
from batuta.core.formatting import escape_json_controls


@final
class JsonLogFormatter(logging.Formatter):
    """Formats a record as one JSON object; `extra={"about": {…}}` adds fields that are not None."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line of JSON; of an exception it has only the type."""
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "time": when,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact_secrets(record.getMessage()),
        }
        about: dict[str, Any] = getattr(record, "about", {})
        line |= {name: value for name, value in about.items() if value is not None}
        if record.exc_info and record.exc_info[0] is not None:
            line["fault"] = record.exc_info[0].__name__
        return escape_json_controls(orjson.dumps(line, default=str).decode())


def start_logs(form: LogFormat) -> None:
    """Log to stderr as JSON, in place of other handlers; `QUIET` changes nothing.

    Batuta's loggers write from INFO, all others from WARNING. The program calls this, and the
    library never does.
    """
    if form is LogFormat.QUIET:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLogFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("batuta").setLevel(logging.INFO)
