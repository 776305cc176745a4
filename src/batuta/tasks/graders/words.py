"""Whether two short texts in words say the same: names, lists, yes and no, spellings."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

from batuta.tasks.graders.letters import without_invisible

_ACCENTS = frozenset(map(chr, range(0x300, 0x370)))
_ARTICLE = re.compile(r"^(?:an?|the)\s+")
_LEAD = re.compile(r"^(?:it|this|that|he|she|they|these) (?:is|was|are|were)\s+(?:the |an? )?")
_COMMAND = re.compile(
    r"\\(?:text(?:bf|rm|it)?|math(?:rm|bf|it|cal)|ce|operatorname)\s*\{([^{}]*)\}"
)
_LETTERS = str.maketrans(
    {"−": "-", "ł": "l", "Ł": "L", "ø": "o", "Ø": "O", "đ": "d", "Đ": "D", "ı": "i", "ð": "d",
     "æ": "ae", "Æ": "Ae", "œ": "oe", "Œ": "Oe", "þ": "th"}
)  # fmt: skip
_UMLAUTS = str.maketrans(
    {"ä": "ae", "ö": "oe", "ü": "ue", "Ä": "Ae", "Ö": "Oe", "Ü": "Ue", "å": "aa", "ø": "oe"}
)
_KEPT_SIGNS = frozenset("+-.%<>≤≥±≠=^")
_INFINITE = re.compile(r"\+?(?:∞|\\infty|infinity|infinite)", re.IGNORECASE)
_COMPASS = {"n": "north", "s": "south", "e": "east", "w": "west", "ne": "northeast",
            "nw": "northwest", "se": "southeast", "sw": "southwest"}  # fmt: skip
_FORMULA = re.compile(r"(?:[A-Z][a-z]?\d*|\((?:[A-Z][a-z]?\d*)+\)\d*)+")
_HYPHEN = re.compile(r"(?<=[^\W\d_])[-‐‑–](?=[^\W\d_])")

_YES = "yes|yeah|yep|yup|true|correct|affirmative|indeed|right"
_NO = "no|nope|false|incorrect|wrong|negative|untrue"
_NO_IDIOM = " (?:one|longer|doubt|matter|problem|wonder)\\b"
"""What makes "no" the beginning of another word."""
_SAYS = re.compile(
    r"(?:(?:it|that|this|the (?:statement|claim|answer)) (?:is|'s) |that's |it's )?(?P<not>not )?"
    rf"(?:(?P<yes>{_YES})|(?P<no>{_NO}))(?P<rest>\W.*)?",
    re.DOTALL,
)
_PLAIN_NO = re.compile(r"(?:it is not|not at all|no way|not so|it isn't)\W*")
_SO = re.compile(
    rf".*[,;.]\s*(?:so|thus|hence|therefore)[:,]?\s+(?P<truth>{_YES}|{_NO})", re.DOTALL
)
"""A reason, and at its end the yes or no that follows from it."""
_GOES_ON = re.compile(
    r"\W*\Z|\s*[,.;:!)—–-]|\s+(?:it|this|that|because|since|as|they|he|she|we|there|the|both|n|x)\b"
)
_EITHER = re.compile(r"\b(?:or|maybe|perhaps|unclear|possibly)\b|\?")
_SHORT = {"y": True, "t": True, "n": False, "f": False}
_TRUTHS = {**dict.fromkeys(_YES.split("|"), True), **dict.fromkeys(_NO.split("|"), False)}

_TITLES = frozenset(
    [
        "dr",
        "prof",
        "professor",
        "sir",
        "mr",
        "mrs",
        "ms",
        "st",
        "lord",
        "lady",
        "president",
        "king",
        "queen",
    ]
)
_DATES_BEHIND = re.compile(r"\s*\(\d{4}\s*[-–]\s*\d{4}\)\s*\Z")
_NAME = re.compile(r"[A-Z][^\W\d_]*\.?(?:[ -]?[A-Z][^\W\d_]*\.?){1,3}")
_WORD_GAPS = re.compile(r"[\s*]+")
_MIN_JOINED = 6
_ITEM = re.compile(r"\s*(?:,\s*(?:and|&)\s+|[,;\n]|\s(?:and|&)\s)\s*")
_PLAIN_SENTENCE = re.compile(
    r"(?:the|its|his|her|their|it|this|that) (?:[a-z]+ ){0,6}(?:is|was|are|were) (?:called |named )?"
)
_TURNS = frozenset(
    [
        "not",
        "no",
        "never",
        "nor",
        "or",
        "but",
        "either",
        "neither",
        "maybe",
        "possibly",
        "perhaps",
        "probably",
        "if",
        "unless",
        "except",
        "wrong",
        "incorrect",
        "false",
        "unlikely",
        "opposite",
        "former",
        "other",
    ]
)
"""Words with which a sentence need not say what it ends with."""
_BULLET = re.compile(r"^\s*(?:[-*•]|\d+[.)])\s+", re.MULTILINE)


def normal_words(text: str) -> str:
    """Letters and digits in one form, without article, accents and marks."""
    text = _COMMAND.sub(r"\1", without_invisible(text)).translate(_LETTERS)
    text = re.sub(r"[\\_{}](?=\w)|_(?=\{)|[{}$]", "", text).replace("\\", " ")
    text = unicodedata.normalize("NFKD", re.sub(r"(?<=\w)['’](?=s\b)", "", text)).casefold()
    text = re.sub(
        r"(?<=\d)\s*([/:])\s*(?=\d)", lambda found: "over" if found[1] == "/" else "to", text
    )
    text = "".join(c if c.isalnum() or c in _KEPT_SIGNS else " " for c in text if c not in _ACCENTS)
    kept = re.sub(r"-(?!\d)|(?<=[a-z])-", " ", text).strip(" .")
    return _ARTICLE.sub("", " ".join(kept.split()))


def is_infinite(text: str) -> bool:
    """Whether a text says infinity."""
    return _INFINITE.fullmatch(text.strip(" .$")) is not None


def is_same_words(found: str, target: str) -> bool:
    """Whether two texts are the same, but for spelling, a leading "it is", or a hyphen."""
    if is_infinite(target):
        return is_infinite(found)
    if _differs_as_formula(found, target):
        return False
    one, other = normal_words(found), normal_words(target)
    if not other:
        return False
    if other in {one, _LEAD.sub("", one)}:
        return True
    if normal_words(found.translate(_UMLAUTS)) == normal_words(target.translate(_UMLAUTS)):
        return True
    if one.startswith("o ") and other.startswith("o ") and "(" in target:
        return _WORD_GAPS.sub("", one) == _WORD_GAPS.sub("", other)
    hyphen = _HYPHEN.search(found) or _HYPHEN.search(target)
    joined = other.replace(" ", "")
    if hyphen and len(joined) >= _MIN_JOINED and one.replace(" ", "") == joined:
        return True
    return one in _COMPASS and _COMPASS[one] == joined and len(one) > 1


def _differs_as_formula(found: str, target: str) -> bool:
    """Whether both are formulas of chemistry, where capitals count: CO is not Co."""
    one, other = found.strip(" ."), target.strip()
    formulas = _FORMULA.fullmatch(one) and _FORMULA.fullmatch(other)
    return bool(formulas) and one != other and one.casefold() == other.casefold()


def is_same_truth(found: str, target: str) -> bool | None:
    """Whether an answer says the yes or no that the target is; None where one is no such word."""
    wanted = _TRUTHS.get(normal_words(target))
    said = None if wanted is None else _read_truth(found)
    return None if said is None else said == wanted


def _read_truth(found: str) -> bool | None:
    text = " ".join(found.casefold().replace("’", "'").split()).strip(" *_`.!\"'")
    if text in _SHORT:
        return _SHORT[text]
    if _PLAIN_NO.fullmatch(text):
        return False
    says = _SAYS.fullmatch(text)
    if says is None:
        so = _SO.fullmatch(text)
        return None if so is None or _EITHER.search(text) else _TRUTHS[so["truth"]]
    rest = says["rest"] or ""
    yes = (says["yes"] is not None) != (says["not"] is not None)
    against = re.search(rf"\b(?:{_NO if yes else _YES})\b(?!{_NO_IDIOM})", rest)
    if against or _EITHER.search(rest) or not _GOES_ON.match(rest):
        return None
    return yes


def is_same_person(found: str, target: str) -> bool:
    """Whether a person's full name is given, with initials or a title or surname first."""
    if not _NAME.fullmatch(target.strip()):
        return False
    found = _DATES_BEHIND.sub("", found).strip(" .")
    if re.fullmatch(r"[^\W\d_]+, [^,]+", found):
        last, first = found.split(", ")
        found = f"{first} {last}"
    found = re.sub(r"^(?:It|He|She) (?:is|was) ", "", found)
    given, wanted = _name_parts(found), _name_parts(target)
    if len(given) < len(wanted) - 1 or not given or given[-1] != wanted[-1] or len(given) < 2:  # noqa: PLR2004
        return False
    if len(given) > len(wanted) or given[0][0] != wanted[0][0]:
        return False
    first = _name_part_matches(given[0], wanted[0])
    middle = given[1:-1], wanted[1:-1]
    same = all(_name_part_matches(one, other) for one, other in zip(*middle, strict=False))
    return first and same


def _name_parts(name: str) -> list[str]:
    words = normal_words(re.sub(r"\.(?=\S)", ". ", name)).replace(".", " ").split()
    return [word for word in words if word not in _TITLES]


def _name_part_matches(one: str, other: str) -> bool:
    return one == other or (min(len(one), len(other)) == 1 and one[0] == other[0])


def is_same_items(found: str, target: str, same: Callable[[str, str], bool]) -> bool | None:
    """Whether two lists have the same items, in any order but in brackets that mean one.

    None where the target is no list, and where an item is not there.
    """
    wanted, given = _split_items(target), _split_items(found)
    if len(wanted) < 2:  # noqa: PLR2004
        return None
    if target.strip()[0] in "[(":
        pairs = zip(given, wanted, strict=False)
        alike = len(given) == len(wanted) and all(same(one, item) for one, item in pairs)
        return alike or None
    left = list(given)
    for item in wanted:
        match = next((one for one in left if same(one, item)), None)
        if match is None:
            return None
        left.remove(match)
    return None if left else True


def lacks_items(found: str, target: str, same: Callable[[str, str], bool]) -> bool:
    """Whether an answer is a list of some of the target's items, each once, and not of all."""
    wanted, given = _split_items(target), _split_items(found)
    if not 2 <= len(given) < len(wanted) or target.strip()[0] in "[(":  # noqa: PLR2004 - a list
        return False
    left = list(wanted)
    for one in given:
        match = next((item for item in left if same(one, item)), None)
        if match is None:
            return False
        left.remove(match)
    return True


def is_sentence_with(found: str, target: str) -> bool:
    """Whether an answer is a plain sentence that ends in the target: "The capital is Paris"."""
    said, wanted = normal_words(found), normal_words(target)
    if re.fullmatch(rf"it (?:is|was) {re.escape(wanted)} (?:who|that|which)(?: \w+){{1,6}}", said):
        return bool(wanted) and _TURNS.isdisjoint(said.split()) and "?" not in found
    subject = without_invisible(found).strip().casefold()
    if not wanted or not said.endswith(f" {wanted}") or "?" in found:
        return False
    head = " ".join(subject.split())[: -len(target.strip(" .")) or None]
    before = said.removesuffix(wanted)
    return (
        _PLAIN_SENTENCE.match(head) is not None
        and re.search(r" (?:is|was|are|were)(?: called| named)?(?: an?| the)? $", f" {before}")
        is not None
        and _TURNS.isdisjoint(before.split())
    )


def denies_target(found: str, target: str) -> bool:
    """Whether an answer names another thing and denies the target: "B, not A", "not A but B"."""
    wanted = normal_words(target)
    if not wanted or not re.search(r"[^\W\d]{2}", wanted):
        return False
    said, name = normal_words(found), re.escape(wanted)
    return bool(
        re.fullmatch(rf"(?!.*\b(?:or|not)\b.* not ).*\w not (?:the |an? )?{name}", said)
        or re.fullmatch(
            rf"(?:(?:\w+ ){{1,4}}(?:is|was) )?"
            rf"not (?:the |an? )?{name} but (?!also\b)\w.*",
            said,
        )
    )


def _split_items(text: str) -> list[str]:
    bare = re.sub(r"^[\[{(\\]+|[\]})\\.]+$", "", text.strip())
    return [item.strip(" '\"") for item in _ITEM.split(bare) if item.strip(" '\"")]


def join_bullets(text: str) -> str | None:
    """The items of a text that is nothing but a bulleted list; None if it is more."""
    lines = [line for line in text.strip().splitlines() if line.strip()]
    if len(lines) < 2 or not all(_BULLET.match(line) for line in lines):  # noqa: PLR2004
        return None
    return ", ".join(_BULLET.sub("", line).strip() for line in lines)
