"""Tell what a request says of itself, by which its run is found later. Pure."""

from __future__ import annotations

from typing import Any, cast

import orjson

from batuta.gateway.http.body import Fields
from batuta.store.run_labels import NO_LABELS, RequestLabels

MOST_PAIRS = 16
"""Pairs of a request's metadata that are kept."""
_LONGEST_USER = 4000
_ACCOUNTS = ("account_uuid", "user_id", "device_id")
_IN_USER_ID = "_session_"


def request_labels(body: Fields) -> RequestLabels:
    """The end user and the metadata of a request in any dialect; what is no text is left out."""
    raw = body.raw
    said = raw.get("metadata")
    metadata = cast("dict[str, Any]", said) if isinstance(said, dict) else {}
    user = raw.get("safety_identifier") or raw.get("user") or metadata.get("user_id")
    pairs = [(name, value) for name, value in metadata.items() if isinstance(value, str)]
    tags = tuple(f"{name}={value}" for name, value in pairs[:MOST_PAIRS] if name != "user_id")
    if not tags and not user:
        return NO_LABELS
    return RequestLabels(user=_short_user(user), tags=tags)


def _short_user(user: object) -> str:
    """Return the user without the session that Claude Code writes behind it."""
    if not isinstance(user, str) or len(user) > _LONGEST_USER:
        return ""
    if not user.startswith("{"):
        return user.partition(_IN_USER_ID)[0]
    try:
        known: Any = orjson.loads(user)
    except (orjson.JSONDecodeError, UnicodeEncodeError):
        return user
    named = (cast("dict[str, Any]", known).get(name) for name in _ACCOUNTS)
    return next((name for name in named if isinstance(name, str) and name), "")
