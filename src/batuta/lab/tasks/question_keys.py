"""Keys that are equal for questions that differ only in case, spaces and punctuation."""

from __future__ import annotations

import re
import unicodedata

_WORDS = re.compile(r"[^\W_]+")


def text_key(question: str) -> str:
    """Return the words and numbers of a question in order; near-duplicates have the same key.

    The key of a question without words or numbers is its text, stripped.
    """
    plain = question if question.isascii() else unicodedata.normalize("NFKC", question)
    return " ".join(_WORDS.findall(plain.casefold())) or question.strip()
