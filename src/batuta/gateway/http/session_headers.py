"""The headers in which clients name their sessions. Pure."""

from __future__ import annotations

from collections.abc import Iterable

SESSION_HEADERS = (b"x-session-id", b"x-claude-code-session-id", b"session-id", b"session_id")
"""Whatever any client sends, opencode's too; Claude Code's; Codex's, now and before."""
_LONGEST = 400


def session_header(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The session that the headers name; empty: none, or nothing that is a name."""
    found = {name: value for name, value in headers if name in SESSION_HEADERS}
    for name in SESSION_HEADERS:
        value = found.get(name, b"").strip()
        if 0 < len(value) <= _LONGEST:
            return value.decode("latin-1")
    return ""
