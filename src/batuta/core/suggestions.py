"""Suggestions for an unknown name: the most similar known name, or all of them."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

_CUTOFF = 0.7
"""Minimum similarity of a suggested name, from 0 to 1."""


def suggest_names(wrong: str, known: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown name.

    It is `did you mean …?`, `choose among: …` or, without any known name, `there are none`.
    """
    names = list(dict.fromkeys(known))
    if near := find_similar(wrong, names):
        return f"did you mean {near}?"
    return f"choose among: {', '.join(names)}" if names else "there are none"


def find_similar(wrong: str, known: Iterable[str]) -> str | None:
    """Return the known name most similar to `wrong`; None if none is similar enough."""
    folded = {name.casefold(): name for name in known}
    near = get_close_matches(wrong.casefold(), folded, n=1, cutoff=_CUTOFF)
    return folded[near[0]] if near else None
