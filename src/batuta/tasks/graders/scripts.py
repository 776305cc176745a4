"""Which language a text is in, told by its script and its commonest words."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter

_SCRIPT_LANGUAGES = {
    "KANNADA": ("kn",), "GURMUKHI": ("pa",), "TELUGU": ("te",), "GUJARATI": ("gu",),
    "TAMIL": ("ta",), "BENGALI": ("bn",), "THAI": ("th",), "HANGUL": ("ko",), "HEBREW": ("he",),
    "GREEK": ("el",), "MALAYALAM": ("ml",), "GEORGIAN": ("ka",), "ARMENIAN": ("hy",),
    "DEVANAGARI": ("hi", "mr", "ne"), "ARABIC": ("ar", "fa", "ur"), "CYRILLIC": ("ru", "bg", "uk"),
    "HIRAGANA": ("ja",), "KATAKANA": ("ja",), "CJK": ("zh", "zh-cn", "zh-tw", "ja"),
}  # fmt: skip
"""A script that several languages share tells no more than these."""
_COMMON_WORDS = {
    "en": "the of and to in is that it for was with as are this be have not you they from",
    "de": "der die und das ist nicht ein eine zu den von mit auf für sich es dem im auch wir",
    "fr": "le la les des et est un une du que qui dans pour pas sur il elle au avec sont",
    "es": "el la los las de que y en un una es por con para se del no su como más",
    "pt": "o a os as de que e em um uma é por com para se do da não são mais",
    "it": "il la i gli di che e in un una è per con non si del della sono anche più",
    "nl": "de het een en van is dat in te op niet zijn met voor die er aan ook als",
    "fi": "ja on ei se että hän oli mutta kun niin joka ovat myös tai kuin mitä tämä",
    "sw": "na ya wa kwa ni katika za la kuwa hii yake cha watu hiyo pia kama lakini",
    "vi": "và là của có không được cho một những trong người với các này đã khi để",
    "pl": "i w nie na się jest z że do to jak po co ale o są przez od dla",
    "sv": "och att det i en som är på för av med inte den till om har de ett",
    "tr": "ve bir bu da için ile ne gibi çok daha olarak değil en kadar ama",
    "id": "yang dan di itu dengan untuk tidak ini dari dalam akan pada juga saya adalah",
}
_LEAST_LETTERS = 8
_LEAST_SHARE = 0.5
_LEAST_WORDS = 2


def find_language(text: str) -> frozenset[str] | None:
    """The ISO 639-1 codes of the languages that the text may be in; None: unknown."""
    scripts = Counter(_script_of(letter) for letter in text if letter.isalpha())
    total = sum(scripts.values())
    if total < _LEAST_LETTERS:
        return None
    if scripts["HIRAGANA"] + scripts["KATAKANA"] > 0 and scripts["LATIN"] < total / 2:
        return frozenset({"ja"})
    script, count = scripts.most_common(1)[0]
    if count < _LEAST_SHARE * total:
        return None
    if script == "LATIN":
        return _latin_language(text)
    known = _SCRIPT_LANGUAGES.get(script)
    return None if known is None else frozenset(known)


def _script_of(letter: str) -> str:
    return unicodedata.name(letter, "").partition(" ")[0]


def _latin_language(text: str) -> frozenset[str] | None:
    """The language of which most of the commonest words occur, if that is one."""
    words = Counter(re.findall(r"\w+", text.casefold()))
    found = {
        code: sum(words[word] for word in common.split()) for code, common in _COMMON_WORDS.items()
    }
    first, second = sorted(found.values(), reverse=True)[:2]
    if first < _LEAST_WORDS or first == second:
        return None
    return frozenset({max(found, key=lambda code: found[code])})
