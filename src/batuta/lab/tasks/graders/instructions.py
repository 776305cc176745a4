"""Grades whether answers follow instructions of format: the 25 kinds of IFEval, each a rule.

Zhou et al., "Instruction-Following Evaluation for Large Language Models" (arXiv 2311.07911),
section 2 and table 1, strict accuracy: the answer is checked as it is, without thoughts.

Deviations
- Sentences end at `.`, `!` or `?` before a space or the end, and words in capitals are found by a
  pattern; no model splits the text.
- The language is detected from the script, and among languages of one script from their most common
  words or, for Chinese, from characters. If these do not decide, or the required language is
  unknown, the grade is undecided.
- The instructions on case do not check that the answer is in English.
"""

from __future__ import annotations

import json
import operator
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from batuta.core import Grade
from batuta.errors import SourceError
from batuta.lab.tasks.graders.limits import MAX_SHOWN
from batuta.language import answer_extraction

_SCRIPT_LANGUAGES = {
    "KANNADA": ("kn",), "GURMUKHI": ("pa",), "TELUGU": ("te",), "GUJARATI": ("gu",),
    "TAMIL": ("ta",), "BENGALI": ("bn",), "THAI": ("th",), "HANGUL": ("ko",), "HEBREW": ("he",),
    "GREEK": ("el",), "MALAYALAM": ("ml",), "GEORGIAN": ("ka",), "ARMENIAN": ("hy",),
    "DEVANAGARI": ("hi", "mr", "ne"), "ARABIC": ("ar", "fa", "ur"), "CYRILLIC": ("ru", "bg", "uk"),
    "HIRAGANA": ("ja",), "KATAKANA": ("ja",), "CJK": ("zh", "zh-cn", "zh-tw", "ja"),
}  # fmt: skip
"""The languages of scripts other than Latin."""
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
"""A text of at least this many Han characters and without kana is not Japanese."""
_MIN_LETTERS, _MIN_SHARE, _MIN_WORDS = 8, 0.5, 2
"""Minimum number of letters of a text, share of its letters in one script, and number of common
words, for its language to be detected."""


def find_language(text: str) -> frozenset[str] | None:
    """Return the languages, as in `KNOWN_LANGUAGES`, that the text may be in; None if unknown."""
    scripts = Counter(_script_of(letter) for letter in text if letter.isalpha())
    total = sum(scripts.values())
    if total < _MIN_LETTERS:
        return None
    if scripts["HIRAGANA"] + scripts["KATAKANA"] > 0 and scripts["LATIN"] < total / 2:
        return frozenset({"ja"})
    script, count = scripts.most_common(1)[0]
    if count < _MIN_SHARE * total:
        return None
    if script == "LATIN":
        return _latin_language(text)
    known = _SCRIPT_LANGUAGES.get(script)
    if known is None:
        return None
    return _han_languages(text, count) if script == "CJK" else _likely_languages(text, known)


def _script_of(letter: str) -> str:
    return unicodedata.name(letter, "").partition(" ")[0]


def _han_languages(text: str, count: int) -> frozenset[str]:
    """Return Chinese with the regions that fit the text; also Japanese if the text is short."""
    simple, old = (sum(map(text.count, signs)) for signs in (_SIMPLIFIED, _TRADITIONAL))
    regions = {"zh-cn": not (old and not simple), "zh-tw": not (simple and not old)}
    found = {"zh", *(code for code, fits in regions.items() if fits)}
    return frozenset(found if count >= _KANA_EXPECTED else found | {"ja"})


def _likely_languages(text: str, codes: tuple[str, ...]) -> frozenset[str]:
    """Return the language with the most common words in the text; all `codes` if unclear."""
    if len(codes) == 1:
        return frozenset(codes)
    words = Counter(word.strip(".,;:!?،؛؟।()«»\"'") for word in text.casefold().split())
    return _most_frequent(words, {code: _WORDS_OF_SCRIPTS[code] for code in codes}) or frozenset(
        codes
    )


def _latin_language(text: str) -> frozenset[str] | None:
    """Return the language with the most common words in the text; None if unclear."""
    return _most_frequent(Counter(re.findall(r"\w+", text.casefold())), _COMMON_WORDS)


def _most_frequent(words: Counter[str], tables: dict[str, str]) -> frozenset[str] | None:
    found = {code: sum(words[word] for word in common.split()) for code, common in tables.items()}
    first, second = sorted(found.values(), reverse=True)[:2]
    if first < _MIN_WORDS or first == second:
        return None
    return frozenset({max(found, key=lambda code: found[code])})


KNOWN_LANGUAGES = frozenset(_COMMON_WORDS).union(*_SCRIPT_LANGUAGES.values())
"""ISO 639-1 codes of the languages that can be detected, with `zh-cn` and `zh-tw`."""


MAX_LENGTH = 100_000
"""Maximum number of characters read of an answer, counted from its end."""

Arguments = Mapping[str, Any]
Rule = Callable[[str, Arguments], bool | None]
"""Returns whether an answer follows an instruction; None if that cannot be decided."""

_WORD = re.compile(r"\w+")
_SENTENCE_END = re.compile(r"(?<![.!?])[.!?]++(?=\s|$)")
_BULLET = re.compile(r"^[^\S\n]*+(?:\*[^*\n].*|-.*)$", re.MULTILINE)
_HIGHLIGHT = re.compile(r"(\*\*?+)[^\S\n]*+[^\s*][^\n*]*+\1")
_PLACEHOLDER = re.compile(r"\[[^\[\]\n]*+\]")
_FENCE = re.compile(r"\A```(?:json)?[^\S\n]*+\n(.*)\n```\Z", re.DOTALL | re.IGNORECASE)
_RELATIONS: Mapping[str, Callable[[int, int], bool]] = {
    "less than": operator.lt,
    "at least": operator.ge,
}
_STATED = ("My answer is yes.", "My answer is no.", "My answer is maybe.")


@final
class InstructionsGrader:
    """Scores 1 if an answer follows every instruction, 0 if it breaks one, None if undecided."""

    def __init__(self, instructions: Sequence[tuple[str, Arguments]]) -> None:
        """Take the instructions, each with its id, such as `length_constraints:number_words`.

        Raises:
            SourceError: there are no instructions, or one has an unknown id or relation.
        """
        unknown = [name for name, _ in instructions if name not in RULES]
        if unknown or not instructions:
            problem = (
                f"unknown instruction: {unknown[0]}" if unknown else "there are no instructions"
            )
            raise SourceError(problem)
        for name, arguments in instructions:
            _check_relations(name, arguments)
        self._instructions = tuple(instructions)

    async def grade(self, answer: str, target: str) -> Grade:
        """Return the grade of `answer`; the target is ignored, since the instructions decide."""
        shown = answer_extraction.visible_text(answer, MAX_LENGTH).strip()
        if not shown:
            return Grade(0.0, None, "no answer")
        results = [(name, RULES[name](shown, arguments)) for name, arguments in self._instructions]
        broken = [name for name, followed in results if followed is False]
        unclear = [name for name, followed in results if followed is None]
        if broken:
            return Grade(0.0, shown[:MAX_SHOWN], f"breaks {', '.join(broken)}")
        if unclear:
            return Grade(None, shown[:MAX_SHOWN], f"undecided: {', '.join(unclear)}")
        return Grade(1.0, shown[:MAX_SHOWN], "follows every instruction")


def _check_relations(name: str, arguments: Arguments) -> None:
    for argument, value in arguments.items():
        if argument.endswith("relation") and value not in _RELATIONS:
            known = ", ".join(_RELATIONS)
            raise SourceError(f"{name} has the unknown relation {value!r}; choose among: {known}")


def _compare_count(
    count: Callable[[str, Arguments], int], wanted: str, relation: str = "relation"
) -> Rule:
    """Return a rule that compares a count with the argument `wanted` by the argument `relation`."""
    return lambda text, given: _RELATIONS[given[relation]](count(text, given), int(given[wanted]))


def _with_count(count: Callable[[str, Arguments], int], wanted: str) -> Rule:
    """Return a rule that requires a count of at least the argument `wanted`."""
    return lambda text, given: count(text, given) >= int(given[wanted])


def _count_found(pattern: re.Pattern[str]) -> Callable[[str, Arguments], int]:
    return lambda text, _: len(pattern.findall(text))


def _has_word(text: str, word: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE) is not None


def _count_sections(text: str, arguments: Arguments) -> int:
    splitter = re.escape(str(arguments["section_spliter"]).strip())  # IFEval's own spelling
    return len(re.findall(rf"\s?{splitter}\s?\d+\s?", text))


def _is_in_language(text: str, arguments: Arguments) -> bool | None:
    wanted, found = str(arguments["language"]), find_language(text)
    if found is None or wanted not in KNOWN_LANGUAGES:
        return None
    if wanted not in found:
        return False
    region, language = "-" in wanted, wanted.partition("-")[0]
    rivals = {
        code for code in found if code.partition("-")[0] != language or (region and "-" in code)
    }
    return None if rivals - {wanted} else True


def _divided_parts(text: str, divider: str) -> list[str]:
    """Return the parts between dividers, without an empty first or last part."""
    parts = [part.strip() for part in re.split(divider, text)]
    return [part for index, part in enumerate(parts) if part or 0 < index < len(parts) - 1]


def _has_divided_paragraphs(text: str, arguments: Arguments) -> bool:
    parts = _divided_parts(text, r"\s?\*\*\*\s?")
    return all(parts) and len(parts) == int(arguments["num_paragraphs"])


def _has_first_word(text: str, arguments: Arguments) -> bool:
    parts = [part.strip() for part in text.split("\n\n") if part.strip()]
    number = int(arguments["nth_paragraph"])
    if len(parts) != int(arguments["num_paragraphs"]) or not 1 <= number <= len(parts):
        return False
    first = parts[number - 1].split()[0].strip("\"'([{*_").rstrip(".,?!:;\"')]}*_")
    return first.casefold() == str(arguments["first_word"]).casefold()


def _has_postscript(text: str, arguments: Arguments) -> bool:
    marker = re.escape(str(arguments["postscript_marker"]).rstrip("."))
    loose = marker.replace(r"\.", r"\.\s?")
    return re.search(rf"^\s*{loose}", text, re.IGNORECASE | re.MULTILINE) is not None


def _is_json(text: str, _: Arguments) -> bool:
    fenced = _FENCE.match(text)
    try:
        json.loads(fenced[1] if fenced else text)
    except (ValueError, RecursionError):
        return False
    return True


def _has_title(text: str, _: Arguments) -> bool:
    titles = (line.partition("<<")[2].rpartition(">>")[0] for line in text.split("\n"))
    return any(title.strip() for title in titles)


def _is_two_answers(text: str, _: Arguments) -> bool:
    parts = _divided_parts(text, r"\*{6}")
    return len(parts) == 2 and all(parts) and parts[0] != parts[1]  # noqa: PLR2004 - two answers


RULES: Mapping[str, Rule] = {
    "keywords:existence": lambda text, given: all(
        re.search(re.escape(word), text, re.IGNORECASE) for word in given["keywords"]
    ),
    "keywords:frequency": _compare_count(
        lambda text, given: len(re.findall(re.escape(given["keyword"]), text, re.IGNORECASE)),
        "frequency",
    ),
    "keywords:forbidden_words": lambda text, given: (
        not any(_has_word(text, word) for word in given["forbidden_words"])
    ),
    "keywords:letter_frequency": _compare_count(
        lambda text, given: text.casefold().count(str(given["letter"]).casefold()),
        "let_frequency",
        "let_relation",
    ),
    "language:response_language": _is_in_language,
    "length_constraints:number_sentences": _compare_count(
        lambda text, _: sum(bool(part.strip()) for part in _SENTENCE_END.split(text)),
        "num_sentences",
    ),
    "length_constraints:number_paragraphs": _has_divided_paragraphs,
    "length_constraints:number_words": _compare_count(_count_found(_WORD), "num_words"),
    "length_constraints:nth_paragraph_first_word": _has_first_word,
    "detectable_content:number_placeholders": _with_count(
        _count_found(_PLACEHOLDER), "num_placeholders"
    ),
    "detectable_content:postscript": _has_postscript,
    "detectable_format:number_bullet_lists": lambda text, given: (
        len(_BULLET.findall(text)) == int(given["num_bullets"])
    ),
    "detectable_format:constrained_response": lambda text, _: any(one in text for one in _STATED),
    "detectable_format:number_highlighted_sections": _with_count(
        _count_found(_HIGHLIGHT), "num_highlights"
    ),
    "detectable_format:multiple_sections": _with_count(_count_sections, "num_sections"),
    "detectable_format:json_format": _is_json,
    "detectable_format:title": _has_title,
    "combination:two_responses": _is_two_answers,
    "combination:repeat_prompt": lambda text, given: text.casefold().startswith(
        str(given["prompt_to_repeat"]).strip().casefold()
    ),
    "startend:end_checker": lambda text, given: (
        text.strip("\"' \n").casefold().endswith(str(given["end_phrase"]).strip().casefold())
    ),
    "startend:quotation": lambda text, _: len(text) > 1 and text[0] == text[-1] == '"',
    "change_case:capital_word_frequency": _compare_count(
        lambda text, _: sum(word.isupper() for word in re.findall(r"[\w'-]+", text)),
        "capital_frequency",
        "capital_relation",
    ),
    "change_case:english_capital": lambda text, _: text.isupper(),
    "change_case:english_lowercase": lambda text, _: text.islower(),
    "punctuation:no_comma": lambda text, _: "," not in text,
}
"""Rules by the instruction ids of IFEval."""
