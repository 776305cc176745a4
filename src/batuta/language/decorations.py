"""Decorations around an answer that carry no meaning: end-of-turn tokens, trailing ticks, emoji."""

from __future__ import annotations

import re

TICKS = "\u2713\u2714\u2705\u2611"
_MARKER = (
    r"(?:<\|[\w/-]{1,40}\|>|<\uff5c[^\uff5c<>\n]{1,40}\uff5c>|</s>"
    r"|<(?:eos|EOS|pad|end_of_turn|end_of_text|endoftext|im_end)>|\[(?:EOS|/INST)\])"
)
_END_MARKERS = re.compile(rf"(?:{_MARKER}(?:\s*(?:assistant|model|user)(?=\s*(?:\Z|<)))?\s*)+\Z")
DOUBTFUL = "\u2753\u2754\u26a0\u26d4\u274c\u274e\U0001f914\U0001f44e\U0001f6ab\U0001f937"
"""Emoji that express denial or doubt."""
_SIGN = (
    rf"(?>(?![{DOUBTFUL}])[\u2728\u2b50\u2605\u263a\u2764\u2757\u203c\u26a1\u2600"
    r"\U0001f1e6-\U0001f1ff\U0001f300-\U0001f6ff\U0001f900-\U0001faff]"
    r"[\ufe0e\ufe0f\U0001f3fb-\U0001f3ff]?(?:\u200d[^\s\w][\ufe0f]?){0,9})"
)
_SIGNS_BEHIND = re.compile(
    rf"(?<=\S)[ \t]{{0,9}}+{_SIGN}(?:[ \t]{{0,9}}+{_SIGN}){{0,20}}+(?P<stop>[.!]?)"
    r"(?=[*_]{0,9}[ \t]{0,9}$)",
    re.MULTILINE,
)
"""The number of signs is bounded: a longer row is no ornament, and would be scanned repeatedly."""
_TICKS_BEHIND = re.compile(
    rf"(?<=\S)[ \t]*[{TICKS}][\ufe0e\ufe0f]?(?=[.!]?[*_]*[ \t]*$)", re.MULTILINE
)
_HAS_SIGN = re.compile("[\u2000-\u2bff\U0001f000-\U0001faff]")


def without_end_tokens(text: str) -> str:
    """Return the text without the tokens of a chat template that end it."""
    found = _END_MARKERS.search(text)
    if found is None or ("</s>" in found[0] and "<s>" in text):  # HTML's tag that strikes text out
        return text
    return text[: found.start()].rstrip()


def without_emoji(text: str) -> str:
    """Return the text without emoji at the ends of its lines, but for ticks and for what denies."""
    return _SIGNS_BEHIND.sub(_stop_behind, text) if _HAS_SIGN.search(text) else text


def _stop_behind(found: re.Match[str]) -> str:
    """Return the full stop behind emoji, unless one stands before them already."""
    return "" if found.string[found.start() - 1] in ".!?" else found["stop"]


def without_decorations(text: str) -> str:
    """Return the text without ticks and emoji at the ends of its lines."""
    if not _HAS_SIGN.search(text):
        return text
    return without_emoji(_TICKS_BEHIND.sub("", without_emoji(text)))
