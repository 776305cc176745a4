"""Family: manipulations of a short text."""

from __future__ import annotations

import re
from random import Random

from batuta.lab.worlds.grammar import (
    QuestionFamily,
    QuestionStyle,
    StepLayout,
    draw_steps,
    register_family,
)
from batuta.lab.worlds.problem import Problem, StepKind, StepValue, register_kinds, solve_problem

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


def _split_words(value: StepValue) -> list[str]:
    if isinstance(value, str):
        return value.split()
    raise TypeError(f"not a text: {value!r}")


def _caesar_shift(value: StepValue, by: int) -> str:
    return " ".join("".join(_shift_letter(c, by) for c in word) for word in _split_words(value))


def _shift_letter(letter: str, by: int) -> str:
    base = ord("A") if letter.isupper() else ord("a")
    return chr(base + (ord(letter) - base + by) % 26) if letter.isascii() else letter


def _swap_ends(value: StepValue) -> str:
    first, *middle, last = _split_words(value)
    return " ".join([last, *middle, first])


def _capitalize_alternate(value: StepValue, parity: int) -> str:
    words = _split_words(value)
    return " ".join(w.upper() if i % 2 == parity else w for i, w in enumerate(words))


def _drop_letters(value: StepValue, letters: str) -> str:
    return " ".join(
        "".join(c for c in word if c.lower() not in letters) for word in _split_words(value)
    )


_CONSONANTS = "bcdfghjklmnpqrstvwxyz"

_TEXT_KINDS = (
    StepKind(
        name="reverse words",
        skill="text",
        phrases=(
            "reverse the order of the words",
            "put the words in opposite order",
            "turn the word order around",
            "arrange the words backwards",
            "say the words from last to first",
        ),
        apply=lambda v: " ".join(_split_words(v)[::-1]),
        ranges=(),
        confusable_with=("sort words", "swap ends"),
    ),
    StepKind(
        name="reverse letters",
        skill="text",
        phrases=(
            "reverse the letters of every word",
            "spell each word backwards",
            "reverse each word",
            "write every word from its end",
            "mirror each word",
        ),
        apply=lambda v: " ".join(w[::-1] for w in _split_words(v)),
        ranges=(),
        confusable_with=("reverse words",),
    ),
    StepKind(
        name="capitals",
        skill="text",
        phrases=(
            "write every second word in capitals",
            "put every other word in upper case",
            "capitalise every second word",
            "uppercase the second, fourth and so on word",
            "let each second word shout",
        ),
        apply=lambda v: _capitalize_alternate(v, 1),
        ranges=(),
        confusable_with=("odd capitals",),
    ),
    StepKind(
        name="odd capitals",
        skill="text",
        phrases=(
            "write the first, third and so on word in capitals",
            "put the words at odd places in upper case",
            "capitalise the first, third and so on word",
            "uppercase every word at an odd position",
            "let the words at odd places shout",
        ),
        apply=lambda v: _capitalize_alternate(v, 0),
        ranges=(),
        confusable_with=("capitals",),
    ),
    StepKind(
        name="shift",
        skill="text",
        phrases=(
            "shift every letter # places forward in the alphabet",
            "apply a Caesar shift of #",
            "encode it with a Caesar cipher of #",
            "replace every letter by the one # later",
            "move each letter # on in the alphabet",
        ),
        apply=_caesar_shift,
        ranges=((1, 5),),
    ),
    StepKind(
        name="drop vowels",
        skill="text",
        phrases=(
            "delete all vowels",
            "leave out every vowel",
            "remove the vowels",
            "write it without vowels",
            "strike out the vowels",
        ),
        apply=lambda v: _drop_letters(v, "aeiou"),
        ranges=(),
        confusable_with=("capitals",),
    ),
    StepKind(
        name="sort words",
        skill="text",
        phrases=(
            "sort the words alphabetically",
            "put the words in alphabetical order",
            "arrange the words alphabetically",
            "sort it word by word",
            "order the words from A to Z",
        ),
        apply=lambda v: " ".join(sorted(_split_words(v), key=str.lower)),
        ranges=(),
        confusable_with=("reverse words",),
    ),
    StepKind(
        name="swap ends",
        skill="text",
        phrases=(
            "swap the first and the last word",
            "exchange the outer two words",
            "switch the first word with the last",
            "exchange first and last word",
            "let the outer words trade places",
        ),
        apply=_swap_ends,
        ranges=(),
        confusable_with=("reverse words",),
    ),
    StepKind(
        name="drop word",
        skill="text",
        phrases=(
            "drop the first word",
            "remove the word at the front",
            "delete the first word",
            "leave out the first word",
            "strike out the opening word",
        ),
        apply=lambda v: " ".join(_split_words(v)[1:]),
        ranges=(),
        confusable_with=("swap ends",),
    ),
    StepKind(
        name="initials",
        skill="text",
        phrases=(
            "take the first letter of every word",
            "form the acronym",
            "write the first letters only",
            "abbreviate it to first letters",
            "keep only the initials",
        ),
        apply=lambda v: "".join(w[0] for w in _split_words(v)),
        ranges=(),
        confusable_with=(),
        is_final=True,
    ),
    StepKind(
        name="count vowels",
        skill="text",
        phrases=(
            "count the vowels",
            "say how many vowels there are",
            "count all vowels",
            "find how many vowels it has",
            "give the number of vowels",
        ),
        apply=lambda v: sum(c in "aeiouAEIOU" for w in _split_words(v) for c in w),
        ranges=(),
        confusable_with=("count consonants",),
        is_final=True,
    ),
    StepKind(
        name="count consonants",
        skill="text",
        phrases=(
            "count the consonants",
            "say how many consonants there are",
            "count all consonants",
            "find how many consonants it has",
            "give the number of consonants",
        ),
        apply=lambda v: sum(c.lower() in _CONSONANTS for w in _split_words(v) for c in w),
        ranges=(),
        confusable_with=("count vowels",),
        is_final=True,
    ),
)

register_kinds(_TEXT_KINDS)

_MIN_WORDS, _MAX_WORDS = 4, 6


def _draw_text(rng: Random, difficulty: int) -> Problem | None:
    start = " ".join(rng.sample(_VOCABULARY, rng.randint(_MIN_WORDS, _MAX_WORDS)))
    ends = difficulty > 1 and rng.random() < 0.4  # noqa: PLR2004  (some end in a count)
    ops = draw_steps(
        rng, [kind.name for kind in _TEXT_KINDS if not kind.is_final], difficulty - ends
    )
    if ends:
        ops += draw_steps(rng, [kind.name for kind in _TEXT_KINDS if kind.is_final], 1)
    names = [op.kind for op in ops]
    if len(set(names)) < len(names) or (ends and "drop vowels" in names):
        return None
    problem = Problem("text", start, ops)
    value = solve_problem(problem)
    return problem if value not in (None, "", start) else None


def _read_start(text: str) -> StepValue | None:
    return text if re.fullmatch(r"[A-Za-z]+(?: [A-Za-z]+){1,15}", text) else None


TEXT_FAMILY = register_family(
    QuestionFamily(
        name="text",
        skill="text",
        styles=(
            QuestionStyle('Start with the text "{start}". {steps} What text do you get?'),
            QuestionStyle(
                'Take the words "{start}", then {steps}. What is the result?', StepLayout.THEN
            ),
            QuestionStyle(
                'Edit "{start}" as follows:\n{steps}\nGive the outcome.', StepLayout.LINES
            ),
            QuestionStyle('From "{start}": {steps}. What remains?', StepLayout.SEMICOLONS),
            QuestionStyle(
                'The label says "{start}": {steps}. What does it say now?', StepLayout.ARROWS
            ),
            QuestionStyle(
                'Somebody typed "{start}". {steps} What is on the screen?', StepLayout.SENTENCES
            ),
            QuestionStyle('Given "{start}", {steps}. Spell the result.', StepLayout.THEN),
            QuestionStyle('Sign: "{start}".\n{steps}\nWrite the new sign.', StepLayout.LINES),
            QuestionStyle('Copy "{start}"; {steps}. Read it out.', StepLayout.SEMICOLONS),
            QuestionStyle(
                'A note with "{start}" is changed: {steps}. How does it end?', StepLayout.ARROWS
            ),
            QuestionStyle(
                'A telegram reads "{start}". The clerk works like this: {steps}. What is sent?',
                StepLayout.ARROWS,
            ),
            QuestionStyle(
                'On the wall is written "{start}". {steps} What can be read at the end?',
                StepLayout.SENTENCES,
            ),
        ),
        draw=_draw_text,
        read_start=_read_start,
        grader=lambda _, value: "integer" if isinstance(value, int) else "exact",
    )
)
