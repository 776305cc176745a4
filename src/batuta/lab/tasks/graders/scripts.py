"""Detects the language of a text from its script and its most common words."""

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
"""The languages of each script; if there are several, their words may tell which one it is."""
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
    "da": "og det er i en at på som af til med den der ikke for har et jeg vi men",
    "no": "og det er i en at på som av til med den ikke for har et jeg vi men etter",
    "ro": "și în de la cu pe un o este nu din că pentru mai sunt ce care al sau fi",
    "ca": "el la els les de i que en un una és per amb no del més són aquest com",
    "cs": "a v se na je že s z do o to jako ale pro jsou by od po tak není",
    "hu": "a az és hogy nem egy is van ez meg volt de csak mint még már el fel ki",
    "id": "yang dan di itu dengan untuk tidak ini dari dalam akan pada juga saya adalah",
}
_WORDS_OF_SCRIPTS = {
    "ru": "и в не на я что он с как это по но из у за был его она так все мы они есть для или",
    "uk": "і в не на що він з як це по але із у за був його вона так ми вони є для або та до від",
    "bg": "и в не на че той с как това по но от у за беше го тя така ние те е са за или да се",
    "ar": "في من على إلى أن هذا هذه التي الذي كان مع عن هو هي لا ما وقد كل بين ذلك",
    "fa": "در از به که این را با است برای آن یک می شود هم او تا ما بود شد خود هر های",
    "ur": "میں کے کی کا سے ہے ہیں اور کو پر یہ وہ نے کہ ایک بھی تھا کر اس جو نہیں",
    "hi": "है में के की का से और को पर यह वह ने कि एक भी था हैं इस जो नहीं लिए",
    "mr": "आहे आणि च्या मध्ये ते हे की एक होते तो ती नाही या केली साठी वर आहेत हा पण असे",
    "ne": "छ र को मा ले हो यो छन् गर्न भने एक पनि थियो लाई तर छैन हुन्छ गरेको बाट यस",
}
_SIMPLIFIED, _TRADITIONAL = "这们国说为时会对过来个没关发学后", "這們國說為時會對過來個沒關發學後"
_KANA_EXPECTED = 15
"""The number of Han characters from which a text without kana is not Japanese."""
_LEAST_LETTERS = 8
_LEAST_SHARE = 0.5
_LEAST_WORDS = 2


def find_language(text: str) -> frozenset[str] | None:
    """Return the ISO 639-1 codes of the languages that the text may be in; None if unknown."""
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
    if known is None:
        return None
    return _han_languages(text, count) if script == "CJK" else _told_apart(text, known)


def _script_of(letter: str) -> str:
    return unicodedata.name(letter, "").partition(" ")[0]


def _han_languages(text: str, count: int) -> frozenset[str]:
    """Return Chinese, simplified or traditional; also Japanese if the text is short."""
    simple, old = (sum(map(text.count, signs)) for signs in (_SIMPLIFIED, _TRADITIONAL))
    regions = {"zh-cn": not (old and not simple), "zh-tw": not (simple and not old)}
    found = {"zh", *(code for code, fits in regions.items() if fits)}
    return frozenset(found if count >= _KANA_EXPECTED else found | {"ja"})


def _told_apart(text: str, codes: tuple[str, ...]) -> frozenset[str]:
    """Return the language whose common words are most frequent; all of them if none stands out."""
    if len(codes) == 1:
        return frozenset(codes)
    words = Counter(word.strip(".,;:!?،؛؟।()«»\"'") for word in text.casefold().split())
    return _most_frequent(words, {code: _WORDS_OF_SCRIPTS[code] for code in codes}) or frozenset(
        codes
    )


def _latin_language(text: str) -> frozenset[str] | None:
    """Return the language whose common words are most frequent; None if none stands out."""
    return _most_frequent(Counter(re.findall(r"\w+", text.casefold())), _COMMON_WORDS)


def _most_frequent(words: Counter[str], tables: dict[str, str]) -> frozenset[str] | None:
    found = {code: sum(words[word] for word in common.split()) for code, common in tables.items()}
    first, second = sorted(found.values(), reverse=True)[:2]
    if first < _LEAST_WORDS or first == second:
        return None
    return frozenset({max(found, key=lambda code: found[code])})


KNOWN_LANGUAGES = frozenset(_COMMON_WORDS).union(*_SCRIPT_LANGUAGES.values())
"""ISO 639-1 codes of the languages that can be detected."""
