"""Family: manipulations of a short text."""

from __future__ import annotations

import re
from random import Random

from batuta.rehearsal.grammar import Family, Layout, Style, chain, enroll
from batuta.rehearsal.problem import Kind, Problem, Value, register, solve

_VOCABULARY = (
    "amber",
    "anchor",
    "basket",
    "blanket",
    "bridge",
    "candle",
    "canyon",
    "carpet",
    "copper",
    "dragon",
    "engine",
    "falcon",
    "forest",
    "garden",
    "harbor",
    "island",
    "jacket",
    "kettle",
    "ladder",
    "lantern",
    "marble",
    "meadow",
    "needle",
    "orchard",
    "paper",
    "pepper",
    "planet",
    "pocket",
    "rabbit",
    "river",
    "rocket",
    "saddle",
    "silver",
    "spider",
    "summer",
    "temple",
    "thunder",
    "ticket",
    "tunnel",
    "velvet",
    "violin",
    "window",
    "winter",
    "yellow",
)


def _words(value: Value) -> list[str]:
    if isinstance(value, str):
        return value.split()
    raise TypeError(f"not a text: {value!r}")


def _shifted(value: Value, by: int) -> str:
    return " ".join("".join(_turned(c, by) for c in word) for word in _words(value))


def _turned(letter: str, by: int) -> str:
    base = ord("A") if letter.isupper() else ord("a")
    return chr(base + (ord(letter) - base + by) % 26) if letter.isascii() else letter


def _swapped(value: Value) -> str:
    first, *middle, last = _words(value)
    return " ".join([last, *middle, first])


def _capitals(value: Value, parity: int) -> str:
    words = _words(value)
    return " ".join(w.upper() if i % 2 == parity else w for i, w in enumerate(words))


def _without(value: Value, letters: str) -> str:
    return " ".join("".join(c for c in word if c.lower() not in letters) for word in _words(value))


_CONSONANTS = "bcdfghjklmnpqrstvwxyz"

_KINDS = (
    Kind(
        "reverse words",
        "text",
        (
            "reverse the order of the words",
            "put the words in opposite order",
            "turn the word order around",
            "arrange the words backwards",
            "say the words from last to first",
        ),
        lambda v: " ".join(_words(v)[::-1]),
        (),
        ("sort words", "swap ends"),
    ),
    Kind(
        "reverse letters",
        "text",
        (
            "reverse the letters of every word",
            "spell each word backwards",
            "reverse each word",
            "write every word from its end",
            "mirror each word",
        ),
        lambda v: " ".join(w[::-1] for w in _words(v)),
        (),
        ("reverse words",),
    ),
    Kind(
        "capitals",
        "text",
        (
            "write every second word in capitals",
            "put every other word in upper case",
            "capitalise every second word",
            "uppercase the second, fourth and so on word",
            "let each second word shout",
        ),
        lambda v: _capitals(v, 1),
        (),
        ("odd capitals",),
    ),
    Kind(
        "odd capitals",
        "text",
        (
            "write the first, third and so on word in capitals",
            "put the words at odd places in upper case",
            "capitalise the first, third and so on word",
            "uppercase every word at an odd position",
            "let the words at odd places shout",
        ),
        lambda v: _capitals(v, 0),
        (),
        ("capitals",),
    ),
    Kind(
        "shift",
        "text",
        (
            "shift every letter # places forward in the alphabet",
            "apply a Caesar shift of #",
            "encode it with a Caesar cipher of #",
            "replace every letter by the one # later",
            "move each letter # on in the alphabet",
        ),
        _shifted,
        ((1, 5),),
    ),
    Kind(
        "drop vowels",
        "text",
        (
            "delete all vowels",
            "leave out every vowel",
            "remove the vowels",
            "write it without vowels",
            "strike out the vowels",
        ),
        lambda v: _without(v, "aeiou"),
        (),
        ("capitals",),
    ),
    Kind(
        "sort words",
        "text",
        (
            "sort the words alphabetically",
            "put the words in alphabetical order",
            "arrange the words alphabetically",
            "sort it word by word",
            "order the words from A to Z",
        ),
        lambda v: " ".join(sorted(_words(v), key=str.lower)),
        (),
        ("reverse words",),
    ),
    Kind(
        "swap ends",
        "text",
        (
            "swap the first and the last word",
            "exchange the outer two words",
            "switch the first word with the last",
            "exchange first and last word",
            "let the outer words trade places",
        ),
        _swapped,
        (),
        ("reverse words",),
    ),
    Kind(
        "drop word",
        "text",
        (
            "drop the first word",
            "remove the word at the front",
            "delete the first word",
            "leave out the first word",
            "strike out the opening word",
        ),
        lambda v: " ".join(_words(v)[1:]),
        (),
        ("swap ends",),
    ),
    Kind(
        "initials",
        "text",
        (
            "take the first letter of every word",
            "form the acronym",
            "write the first letters only",
            "abbreviate it to first letters",
            "keep only the initials",
        ),
        lambda v: "".join(w[0] for w in _words(v)),
        (),
        (),
        final=True,
    ),
    Kind(
        "count vowels",
        "text",
        (
            "count the vowels",
            "say how many vowels there are",
            "count all vowels",
            "find how many vowels it has",
            "give the number of vowels",
        ),
        lambda v: sum(c in "aeiouAEIOU" for w in _words(v) for c in w),
        (),
        ("count consonants",),
        final=True,
    ),
    Kind(
        "count consonants",
        "text",
        (
            "count the consonants",
            "say how many consonants there are",
            "count all consonants",
            "find how many consonants it has",
            "give the number of consonants",
        ),
        lambda v: sum(c.lower() in _CONSONANTS for w in _words(v) for c in w),
        (),
        ("count vowels",),
        final=True,
    ),
)

register(_KINDS)

_FEWEST, _MOST = 4, 6


def _draw(rng: Random, difficulty: int) -> Problem | None:
    start = " ".join(rng.sample(_VOCABULARY, rng.randint(_FEWEST, _MOST)))
    ends = difficulty > 1 and rng.random() < 0.4  # noqa: PLR2004  (some end in a count)
    ops = chain(rng, [kind.name for kind in _KINDS if not kind.final], difficulty - ends)
    if ends:
        ops += chain(rng, [kind.name for kind in _KINDS if kind.final], 1)
    names = [op.kind for op in ops]
    if len(set(names)) < len(names) or (ends and "drop vowels" in names):
        return None
    problem = Problem("text", start, ops)
    value = solve(problem)
    return problem if value not in (None, "", start) else None


def _read(text: str) -> Value | None:
    return text if re.fullmatch(r"[A-Za-z]+(?: [A-Za-z]+){1,15}", text) else None


TEXT = enroll(
    Family(
        "text",
        "text",
        (
            Style('Start with the text "{start}". {steps} What text do you get?'),
            Style('Take the words "{start}", then {steps}. What is the result?', Layout.THEN),
            Style('Edit "{start}" as follows:\n{steps}\nGive the outcome.', Layout.LINES),
            Style('From "{start}": {steps}. What remains?', Layout.SEMICOLONS),
            Style('The label says "{start}": {steps}. What does it say now?', Layout.ARROWS),
            Style('Somebody typed "{start}". {steps} What is on the screen?', Layout.SENTENCES),
            Style('Given "{start}", {steps}. Spell the result.', Layout.THEN),
            Style('Sign: "{start}".\n{steps}\nWrite the new sign.', Layout.LINES),
            Style('Copy "{start}"; {steps}. Read it out.', Layout.SEMICOLONS),
            Style('A note with "{start}" is changed: {steps}. How does it end?', Layout.ARROWS),
            Style(
                'A telegram reads "{start}". The clerk works like this: {steps}. What is sent?',
                Layout.ARROWS,
            ),
            Style(
                'On the wall is written "{start}". {steps} What can be read at the end?',
                Layout.SENTENCES,
            ),
        ),
        _draw,
        _read,
        lambda _, value: "integer" if isinstance(value, int) else "exact",
    )
)
