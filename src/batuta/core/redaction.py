"""Removes providers' keys and addresses from messages that are recorded or shown to clients.

A message of a provider may repeat its address in many forms. The clients hide the parts of the
called address, which they know, and anything that looks like an address. The engine hides the
latter once more, for plugged-in clients.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from urllib.parse import unquote, urlsplit

HIDDEN_ADDRESS = "[address]"
HIDDEN_KEY = "***"
MAX_CHARACTERS = 4000
"""Maximum number of characters of a text that are kept; the rest is dropped."""
_TOP_LEVEL_DOMAINS = (
    "com|net|org|io|ai|dev|cloud|app|co|info|biz|tech|edu|gov|eu|de|uk|us|fr|nl|ch|at|es|pt|br|it"
    "|cn|jp|kr|in|ru|ca|au|internal|local|localdomain|lan|corp|home|intranet|private|svc|cluster"
    "|consul|arpa|onion|example|test|invalid"
)
_ADDRESS_LIKE = re.compile(
    r"(?<![\w+.-])[a-z][a-z0-9+.-]*+:/{2}\S*"  # a URL
    r"|(?<![\w.-])\d{1,3}(?:\.\d{1,3}){3}(?![\w.])(?::\d+)?"
    r"|\[(?=[0-9a-f.%]*+:)[0-9a-f:.%]*+\](?::\d+)?"
    r"|(?<![\w:])(?:(?:[0-9a-f]{1,4}:){3,7}[0-9a-f]{0,4}"
    r"|(?:(?:[0-9a-f]{1,4}:){1,7}|:):[0-9a-f:.]{1,45})(?![\w:])"
    rf"|(?<![\w.-])(?:[\w-]++\.)+(?:{_TOP_LEVEL_DOMAINS})\b(?:\.(?![\w-]))?(?::\d+)?(?:/[^\s\"'<>]*)?"
    r"|(?<![\w.-])(?:localhost|-*+\w++[.-][\w.-]*+:\d{2,5})\b(?::\d+)?"
    r"|\bport\b\W{0,3}\d{2,5}\b",
    re.IGNORECASE,
)
"""Matches in linear time: repetitions backtrack by at most a bounded number of characters, and the
lookbehinds prevent a match from starting again within the same word."""
_KEY_LIKE = re.compile(
    r"\b(?:sk|pk|rk|gsk|xai|hf)[-_][A-Za-z0-9_\-*.]{6,}"  # OpenAI, Anthropic, OpenRouter, others
    r"|\bAIza[A-Za-z0-9_\-]{10,}"  # Google
    r"|\bBearer\s+\S+",
    re.IGNORECASE,
)
_URL = re.compile(r"(https?://)(?:[^\s/?#\"'<>]*@)?([^\s/?#\"'<>@]+)[^\s\"'<>]*", re.IGNORECASE)


def hide_keys(text: str) -> str:
    """Return the text with anything like a key hidden.

    HTTP URLs are reduced to scheme, host and port.
    """
    return _URL.sub(r"\1\2", _KEY_LIKE.sub(HIDDEN_KEY, text))


def clean_message(text: str) -> str:
    """Return an error message without anything that looks like a key or an address.

    Of a long message only the first words are returned.
    """
    return hide_addresses(hide_keys(first_words(text)))


def first_words(text: str, most: int = MAX_CHARACTERS) -> str:
    """Return the text, or the whole words within its first `most` characters.

    A truncated key or address would not match its pattern. The result is empty if the text is
    longer and has no space among these characters.
    """
    return text if len(text) <= most else text[:most].rpartition(" ")[0]


@lru_cache(256)
def address_parts(url: str) -> tuple[str, ...]:
    """Return the parts of a URL that must not be shown, the longest first."""
    split = urlsplit(url)
    host, path = split.hostname or "", split.path.rstrip("/")
    ends = [at for at, letter in enumerate(path) if letter == "/" and at] + [len(path)]
    parts = {url, url.partition("://")[2], split.netloc, split.netloc.rpartition("@")[2], host}
    parts |= {path[:end] for end in ends} | {split.query, split.username or ""}
    parts |= {split.password or "", unquote(split.password or "")}
    parts |= {f":{split.port}"} if split.port else set()
    return tuple(sorted((part for part in parts if len(part) > 1), key=len, reverse=True))


def hide_addresses(text: str, known: Sequence[str] = ()) -> str:
    """Return the text without the known parts of an address and without anything like an address.

    Of a long text only the first words are returned.

    Args:
        text: a provider's message.
        known: parts of the called address, the longest first.
    """
    text = first_words(text)
    if known:
        text = _parts_pattern(tuple(known)).sub(HIDDEN_ADDRESS, text)
    return _ADDRESS_LIKE.sub(HIDDEN_ADDRESS, text)


@lru_cache(256)
def _parts_pattern(parts: tuple[str, ...]) -> re.Pattern[str]:
    """Return a pattern that matches any of the parts, but only as whole words."""
    each = "|".join(
        (r"(?<![\w-])" if part[0].isalnum() else "")
        + re.escape(part)
        + (r"(?![\w-])" if part[-1].isalnum() else "")
        for part in parts
    )
    return re.compile(each, re.IGNORECASE)
