"""Tells text inside brackets from text outside them, as `normalize_latex` spells it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from collections.abc import Set as AbstractSet

_TOKEN = re.compile(r"\\(?:begin|end)\{[a-zA-Z]+\}|\\[a-zA-Z]+|\\.|.", re.DOTALL)
OPENING = frozenset({"(", "[", "{", r"\{", r"\langle", r"\lfloor", r"\lceil"})
CLOSING = frozenset({")", "]", "}", r"\}", r"\rangle", r"\rfloor", r"\rceil"})


def outer_tokens(text: str) -> Iterator[tuple[int, str]]:
    """Yield the tokens outside brackets and the outermost brackets, each with its position."""
    depth = 0
    for found in _TOKEN.finditer(text):
        token = found[0]
        opens = token in OPENING or token.startswith(r"\begin")
        closes = token in CLOSING or token.startswith(r"\end")
        depth -= closes
        if depth <= 0:
            yield found.start(), token
        depth += opens


def split_outside(text: str, separators: AbstractSet[str]) -> list[str]:
    """Return the parts of `text` between those separators that are outside brackets."""
    cuts = [(at, at + len(token)) for at, token in outer_tokens(text) if token in separators]
    starts = [0, *(end for _, end in cuts)]
    ends = [*(at for at, _ in cuts), len(text)]
    return [text[start:end].strip() for start, end in zip(starts, ends, strict=True)]
