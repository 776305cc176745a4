"""Replaces option letters of other scripts and shapes by the Latin letters that they stand for."""

from __future__ import annotations

import re
import unicodedata

_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufe00-\ufe0f\ufeff]")
_STRUCK_OUT = re.compile(r"~~[^~\n]*~~|<(s|del|strike)>[^<\n]*</\1>", re.IGNORECASE)

_SERIES = (
    ("أبجد", "\u0600-\u06ff"), ("אבגד", "\u0590-\u05ff"), ("কখগঘ", "\u0980-\u09ff"),
    ("অবডঢ", "\u0980-\u09ff"), ("कखगघ", "\u0900-\u097f"), ("अबसद", "\u0900-\u097f"),
    ("กขคง", "\u0e00-\u0e7f"), ("アイウエオ", "ァ-ヿ"), ("가나다라마", "가-힣"), ("ㄱㄴㄷㄹㅁ", "가-힣ㄱ-ㅣ"),
    ("甲乙丙丁", "一-鿿"), ("ΑΒΓΔΕ", "\u0370-\u03ff"),
)  # fmt: skip
"""Letters in the order of options, and their script. A letter beside another character of the
script is part of a word, not an option."""

_RULES = tuple(
    (
        re.compile(f"(?<![{script}A-Za-z0-9])[{series}](?![{script}])"),
        dict(zip(series, "ABCDE", strict=False)),
    )
    for series, script in _SERIES
)  # fmt: skip
_ALEF = re.compile("(?<![\u0600-\u06ff])(?:الف|ا)(?![\u0600-\u06ff])")
_CYRILLIC = re.compile("(?<![а-яёА-ЯЁіїєґІЇЄҐ])[АБВГДЕС](?![а-яёА-ЯЁіїєґІЇЄҐ])")
_CYRILLIC_WORD = re.compile("[а-яёіїєґ]{2}")
_LATIN_WORD = re.compile("[a-z]{2}")
_IN_ORDER = {"А": "A", "Б": "B", "Г": "D", "Д": "E", "С": "C"}
_LOOKALIKES = {"А": "A", "Б": "B", "В": "B", "Г": "D", "Е": "E", "С": "C"}

_CIRCLED = {chr(0x2460 + index): chr(ord("A") + index) for index in range(10)}
_SQUARED = {
    chr(start + index): chr(ord("A") + index)
    for start in (0x1F130, 0x1F150, 0x1F170)
    for index in range(26)
}
_SHAPES = str.maketrans(
    _SQUARED
    | dict.fromkeys("【「『〔", "(")
    | dict.fromkeys("】」』〕", ")")
    | {"¬": " not ", "。": ". ", "、": ", ", "−": "-", "\u2011": "-"}
)


def without_invisible(text: str) -> str:
    """Return `text` without invisible characters: zero-width spaces, direction marks."""
    return _INVISIBLE.sub("", text)


def as_latin(text: str, *, circled: bool = True) -> str:
    """Return `text` in NFKC, with Latin letters for option letters of other scripts and shapes.

    The Cyrillic letter that looks like B is read as B only in Latin text; elsewhere it may be the
    third option, and is left unchanged. Struck-out text is removed. With `circled`, ② is read as B.
    """
    text = _STRUCK_OUT.sub(" ", without_invisible(text))
    if circled:
        text = text.translate(str.maketrans(_CIRCLED))
    text = unicodedata.normalize("NFKC", text.translate(_SHAPES))
    if text.isascii():
        return text
    for pattern, latin in _RULES:
        text = pattern.sub(lambda found, latin=latin: latin[found[0]], text)
    return _from_cyrillic(_ALEF.sub("A", text))


def _from_cyrillic(text: str) -> str:
    ordered = _CYRILLIC_WORD.search(text) or not _LATIN_WORD.search(text)
    known = _IN_ORDER if ordered else _LOOKALIKES
    return _CYRILLIC.sub(lambda found: known.get(found[0], found[0]), text)
