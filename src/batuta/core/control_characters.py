"""Characters that command a terminal, or that hide or reorder what stands beside them.

Names, questions and answers come from callers and models. Where they are shown, such a character
becomes a visible sign in its place; letters of every script, line ends and tabs stay.
"""

from __future__ import annotations

import re

_UNSEEN = (
    "\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180e\u200b\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0"
    "\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e00ff\U000e01f0-\U000e0fff"
)
"""Characters that are invisible or change the direction of the text after them."""
_PICTURE_SELECTORS = "\ufe0e\ufe0f"
"""Show the character before them, which may be a digit, as text or as a picture."""
_SELECTORS = "\u180b-\u180d\u180f\ufe00-\ufe0d\U000e0100-\U000e01ef"
"""Choose a form of the letter before them; where they do not belong they hide any message."""
_JOINERS = "\u061c\u200c-\u200f"
"""Characters that join or part letters of some scripts; beside other letters they only hide."""
INVISIBLE = (
    f"\x00-\x08\x0e-\x1f\x7f-\x9f{_UNSEEN}{_PICTURE_SELECTORS}{_SELECTORS}{_JOINERS}"
    "\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd\U00013430-\U0001343f"
)
"""Every control and format character and all that show nothing: a part of a set of `re`.

A word with some of them between its letters is read as that word.
"""
_CONTROLS = re.compile(
    f"\r\n|[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff{_UNSEEN}]|(?:(?<=[\x00-\x7f])|^)[{_JOINERS}]+"
    f"|(?<=[\x00-\x7f])[{_SELECTORS}]"
    f"|(?:(?<=[\\s{_SELECTORS}{_PICTURE_SELECTORS}])|^)[{_SELECTORS}{_PICTURE_SELECTORS}]"
)
_BESIDE_TEXT = re.compile(f"[\x7f-\x9f\ud800-\udfff{_UNSEEN}{_JOINERS}{_SELECTORS}]")
_FIRST_PICTURE = 0x2400
_DELETE, _DELETE_PICTURE = "\x7f", "\u2421"
_REPLACEMENT = "\ufffd"
_LAST_OF_PLAIN_PLANE = 0xFFFF


def escape_controls(text: str) -> str:
    """Return the text with a visible sign in the place of each such character.

    A line end of two characters becomes one line feed.
    """
    return text if text.isascii() and text.isprintable() else _CONTROLS.sub(_visible_signs, text)


def escape_json_controls(text: str) -> str:
    """Return a JSON text of the same value in which no such character stands as itself."""
    plain = text.isascii() and _DELETE not in text
    return text if plain else _BESIDE_TEXT.sub(_json_escape, text)


def _visible_signs(found: re.Match[str]) -> str:
    if found[0] == "\r\n":
        return "\n"
    return "".join(map(_visible_sign, found[0]))


def _visible_sign(character: str) -> str:
    if character < " ":
        return chr(_FIRST_PICTURE + ord(character))
    return _DELETE_PICTURE if character == _DELETE else _REPLACEMENT


def _json_escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code <= _LAST_OF_PLAIN_PLANE:
        return f"\\u{code:04x}"
    code -= _LAST_OF_PLAIN_PLANE + 1
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
