"""Tell which session a request belongs to: one conversation of a tenant with a client. Pure."""

from __future__ import annotations

import hashlib
from typing import Any, cast

import orjson

from batuta.core import Question, Role
from batuta.gateway.http.body import Fields

SESSION_HEADER = "x-batuta-session"
LONGEST_NAME = 400
"""Characters of a client's own name of a session, at most; a longer one is none."""
_LONGEST_USER_ID = 4000
_IN_USER_ID = "_session_"
"""Before the session in the user ids of older versions of Claude Code."""


def client_session(body: Fields) -> str:
    """The client's own name of the session; empty: it says none.

    It is the first there is of a header (`http.session_headers`), `prompt_cache_key`, and the
    session in `metadata.user_id`. What cannot be a name is none and no error.
    """
    said = body.raw
    named = body.session or _short_text(said.get("prompt_cache_key"))
    return named or _session_of_user(said.get("metadata"))


def session_id(tenant: str, named: str, question: Question) -> str:
    """The session's id: `ses_` and a digest that no two tenants share and nothing can be read from.

    Args:
        tenant: whose session it is.
        named: the client's own name of it; empty: what the conversation begins with is its name.
        question: the conversation.
    """
    digest = hashlib.sha256(f"{len(tenant)} {tenant} ".encode("utf-8", "replace"))
    if named:
        digest.update(b"named " + named.encode("utf-8", "replace"))
    else:
        for text in _first_texts(question):
            digest.update(f"said {len(text)} {text}".encode("utf-8", "replace"))
    return f"ses_{digest.hexdigest()[:32]}"


def _first_texts(question: Question) -> list[str]:
    """Return what stays the same in a conversation: all up to the user's first words."""
    said: list[str] = []
    for message in question.messages:
        said.append(message.text)
        if message.role is Role.USER:
            break
    return said


def _session_of_user(metadata: object) -> str:
    """The session that Claude Code writes into the id of its user; empty: there is none."""
    if not isinstance(metadata, dict):
        return ""
    user = cast("dict[str, Any]", metadata).get("user_id")
    if not isinstance(user, str) or len(user) > _LONGEST_USER_ID:
        return ""
    if not user.startswith("{"):
        return _short_text(user.rpartition(_IN_USER_ID)[2]) if _IN_USER_ID in user else ""
    try:
        known: Any = orjson.loads(user)
    except (orjson.JSONDecodeError, UnicodeEncodeError):
        return ""
    return _short_text(cast("dict[str, Any]", known).get("session_id"))


def _short_text(value: object) -> str:
    return value if isinstance(value, str) and len(value) <= LONGEST_NAME else ""
