"""The questions of world 2: they are drawn, worded, and parsed from their text.

`world2.toml` has the wordings, which are fixed with the world (design/0015-world-2.md).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path
from random import Random

from batuta.core.formatting import join_words
from batuta.lab.worlds.drawn_tasks import MAX_QUESTION
from batuta.lab.worlds.seeded_random import hash_parts, seeded_generator, uniform_number


@dataclass(frozen=True, slots=True)
class FamilyWordings:
    """The templates of a family, with a `{slot}` for each part that is drawn."""

    training: tuple[str, ...]
    """Wordings for training; empty if the family is held out as a whole."""
    held_out: tuple[str, ...]


WORDINGS: Mapping[str, FamilyWordings] = {
    family: FamilyWordings(tuple(worded.get("training", ())), tuple(worded["held_out"]))
    for family, worded in tomllib.loads(
        Path(__file__).with_name("world2.toml").read_text(encoding="utf-8")
    ).items()
}
"""Wordings by family, in the order of `KINDS`."""


MAX_LEVEL = 6
Slots = Mapping[str, str]
"""The texts in the slots of a wording."""
ReadSlots = Callable[[Slots], "tuple[tuple[str, ...], str] | None"]
"""Returns a question's elements and answer from its slots; None if they cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionKind:
    """A family of world 2; `draw` returns the slots of a random question of a level."""

    name: str
    base: float
    """The family's ease for an average worker at the middle level, in probits."""
    grader: str
    draw: Callable[[Random, int], Slots]
    read: ReadSlots
    plan_helps: bool = True
    """True if a plan helps to answer."""
    facts_help: bool = False
    """True if facts help to answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World2Question:
    """A parsed question of world 2."""

    kind: QuestionKind
    text: str
    elements: tuple[str, ...]
    """The parts of the question, to be processed in order."""
    answer: str

    @property
    def level(self) -> int:
        """The difficulty; 1 to 6 for drawn questions."""
        extra = _EXTRA_ELEMENTS.get(self.kind.name, 0)
        return max(1, len(self.elements) - extra)


_EXTRA_ELEMENTS = {"letters": 2, "walks": 1, "ranks": 1, "shifts": 2}
"""Number of elements by which a question exceeds its level, by family; 0 for other families."""
_THINGS = ("pens", "apples", "stamps", "candles", "ribbons", "lemons", "marbles", "buttons")
_DOINGS = ("walking", "waiting", "reading", "lunch", "cycling", "talks", "packing", "music")
_WORDS = (
    "river", "garden", "window", "copper", "yellow", "basket", "market", "thunder", "orange",
    "winter", "tiger", "pencil", "mountain", "silk", "bread", "island", "violin", "castle",
    "forest", "bridge", "lantern", "harbour", "meadow", "pepper", "school", "anchor", "velvet",
    "planet", "saddle", "crystal",
)  # fmt: skip
_TOWNS = (
    "Arden", "Belmar", "Corvo", "Dunmore", "Elsin", "Farrow", "Gadwall", "Hestia", "Inver",
    "Jorvik", "Kelda", "Lorne", "Marrow", "Nairn", "Ostby", "Pellan", "Quill", "Rosmar", "Selwick",
    "Tarn", "Ulver", "Vesper", "Wyre", "Yarrow", "Zennor", "Brae", "Calder", "Drift", "Eska",
    "Fenwick",
    "Glim", "Harrow", "Islay", "Juno", "Kirk", "Lunna", "Mull", "Norrin", "Orrin", "Pike",
)  # fmt: skip
_PEOPLE = (
    "Ada", "Ben", "Cleo", "Dov", "Eva", "Finn", "Gus", "Hana", "Ira", "Jon", "Kim", "Lea", "Max",
    "Nora", "Otis", "Pia", "Quin", "Rosa", "Sam", "Tess",
)  # fmt: skip
_VESSELS = ("jug", "cup", "bottle", "glass", "can", "flask", "bowl", "kettle")
_DIRECTIONS: Mapping[str, tuple[int, int]] = {
    "north": (0, 1), "south": (0, -1), "east": (1, 0), "west": (-1, 0),
}  # fmt: skip
_LIGHTHOUSES = 40
_DAY = 24 * 60


def _split_words(text: str) -> list[str]:
    return re.split(r", | and ", text)


def _draw_bill(rng: Random, level: int) -> Slots:
    things = rng.sample(_THINGS, level)
    return {
        "items": join_words(
            [f"{rng.randint(2, 12)} {t} at {rng.randint(3, 95)} cents each" for t in things]
        )
    }


def _read_bill(slots: Slots) -> tuple[tuple[str, ...], str] | None:
    parts = _split_words(slots["items"])
    found = [re.fullmatch(r"(\d+) (\w+) at (\d+) cents each", part) for part in parts]
    if not all(found):
        return None
    return tuple(parts), str(sum(int(m[1]) * int(m[3]) for m in found if m))


def _draw_clock(rng: Random, level: int) -> Slots:
    start = rng.randrange(5 * 60, 20 * 60, 5)
    stages = [f"{rng.randint(4, 95)} minutes of {d}" for d in rng.sample(_DOINGS, level)]
    return {"start": _format_time(start), "stages": join_words(stages)}


def _read_clock(slots: Slots) -> tuple[tuple[str, ...], str] | None:
    began = re.fullmatch(r"(\d\d):(\d\d)", slots["start"])
    parts = _split_words(slots["stages"])
    found = [re.fullmatch(r"(\d+) minutes of (\w+)", part) for part in parts]
    if began is None or not all(found):
        return None
    minutes = int(began[1]) * 60 + int(began[2]) + sum(int(m[1]) for m in found if m)
    return tuple(parts), _format_time(minutes % _DAY)


def _format_time(minutes: int) -> str:
    return f"{minutes // 60:02}:{minutes % 60:02}"


def _draw_letters(rng: Random, level: int) -> Slots:
    return {"words": join_words(rng.sample(_WORDS, level + 2))}


def _read_letters(slots: Slots) -> tuple[tuple[str, ...], str] | None:
    words = _split_words(slots["words"])
    if not all(word in _WORDS for word in words):
        return None
    return tuple(words), "".join(word[-1] for word in words)


def _draw_almanac(rng: Random, level: int) -> Slots:
    return {"towns": join_words(rng.sample(_TOWNS, level))}


def _read_almanac(slots: Slots) -> tuple[tuple[str, ...], str] | None:
    towns = _split_words(slots["towns"])
    if not all(town in _TOWNS for town in towns):
        return None
    return tuple(towns), str(sum(map(count_lighthouses, towns)))


def count_lighthouses(town: str) -> int:
    """Return the number of lighthouses of a town."""
    return 1 + int(_LIGHTHOUSES * uniform_number("world 2 lighthouses", town))


def _draw_walk(rng: Random, level: int) -> Slots:
    legs: list[str] = []
    while len(legs) < level + 1:
        way = rng.choice(tuple(_DIRECTIONS))
        if not legs or not legs[-1].endswith(way):
            legs.append(f"{rng.randint(2, 15)} steps {way}")
    return {"legs": join_words(legs)}


def _read_walk(slots: Slots) -> tuple[tuple[str, ...], str] | None:
    parts = _split_words(slots["legs"])
    found = [re.fullmatch(r"(\d+) steps (\w+)", part) for part in parts]
    x = y = 0
    for match in found:
        if match is None or match[2] not in _DIRECTIONS:
            return None
        dx, dy = _DIRECTIONS[match[2]]
        x, y = x + dx * int(match[1]), y + dy * int(match[1])
    return tuple(parts), str(abs(x) + abs(y))


def _draw_ranks(rng: Random, level: int) -> Slots:
    people = rng.sample(_PEOPLE, level + 2)
    facts = [f"{a} is taller than {b}" for a, b in pairwise(people)]
    rng.shuffle(facts)
    return {"facts": join_words(facts), "which": rng.choice(("tallest", "shortest"))}


def _read_ranks(slots: Slots) -> tuple[tuple[str, ...], str] | None:
    parts = _split_words(slots["facts"])
    found = [re.fullmatch(r"(\w+) is taller than (\w+)", part) for part in parts]
    if not all(found) or slots["which"] not in {"tallest", "shortest"}:
        return None
    above, below = {m[1] for m in found if m}, {m[2] for m in found if m}
    found_people = above - below if slots["which"] == "tallest" else below - above
    return (tuple(parts), found_people.pop()) if len(found_people) == 1 else None


def _draw_mixture(rng: Random, level: int) -> Slots:
    vessels = rng.sample(_VESSELS, level)
    amounts = [
        f"{rng.randint(1, 9)}.{rng.randint(1, 9)} litres"
        if rng.random() < 0.5  # noqa: PLR2004 - a coin
        else f"{rng.randint(20, 900)} millilitres"
        for _ in vessels
    ]
    named = [f"{a} from the {v}" for a, v in zip(amounts, vessels, strict=True)]
    return {"vessels": join_words(named)}


def _read_mixture(slots: Slots) -> tuple[tuple[str, ...], str] | None:
    parts = _split_words(slots["vessels"])
    found = [
        re.fullmatch(r"(?:(\d+)\.(\d) litres|(\d+) millilitres) from the \w+", part)
        for part in parts
    ]
    if not all(found):
        return None
    total = sum(int(m[3]) if m[3] else int(m[1]) * 1000 + int(m[2]) * 100 for m in found if m)
    return tuple(parts), str(total)


def _draw_shift(rng: Random, level: int) -> Slots:
    word = "".join(rng.choice("abcdefghijklmnoprstuvw") for _ in range(level + 2))
    return {"word": word, "places": str(rng.randint(2, 4))}


def _read_shift(slots: Slots) -> tuple[tuple[str, ...], str] | None:
    word = slots["word"]
    if not re.fullmatch("[a-z]{3,8}", word) or not slots["places"].isdecimal():
        return None
    places = int(slots["places"])
    return tuple(word), "".join(chr((ord(c) - 97 + places) % 26 + 97) for c in word)


KINDS: Mapping[str, QuestionKind] = {
    kind.name: kind
    for kind in (
        QuestionKind(name="bills", base=0.3, grader="integer", draw=_draw_bill, read=_read_bill),
        QuestionKind(name="clock", base=0.1, grader="exact", draw=_draw_clock, read=_read_clock),
        QuestionKind(
            name="letters", base=0.0, grader="exact", draw=_draw_letters, read=_read_letters
        ),
        QuestionKind(
            name="almanac",
            base=-0.3,
            grader="integer",
            draw=_draw_almanac,
            read=_read_almanac,
            plan_helps=False,
            facts_help=True,
        ),
        QuestionKind(name="walks", base=0.1, grader="integer", draw=_draw_walk, read=_read_walk),
        QuestionKind(
            name="ranks",
            base=0.2,
            grader="exact",
            draw=_draw_ranks,
            read=_read_ranks,
            plan_helps=False,
        ),
        QuestionKind(
            name="mixtures", base=0.1, grader="integer", draw=_draw_mixture, read=_read_mixture
        ),
        QuestionKind(name="shifts", base=-0.1, grader="exact", draw=_draw_shift, read=_read_shift),
    )
}
"""Every family, by name."""
TRAINING_KINDS = tuple(name for name, worded in WORDINGS.items() if worded.training)
"""The families that training draws from."""
HELD_OUT_KINDS = tuple(name for name in WORDINGS if name not in TRAINING_KINDS)
"""The families that training does not draw from."""


@lru_cache(maxsize=65_536)
def read_world2_question(text: str) -> World2Question | None:
    """Return the question that a text states; None if it is not of this world."""
    stripped = text.strip()
    if len(stripped) > MAX_QUESTION:
        return None
    for name, pattern in _wording_patterns():
        if (found := pattern.fullmatch(stripped)) is None:
            continue
        kind = KINDS[name]
        if (meant := kind.read(found.groupdict())) is not None:
            return World2Question(kind=kind, text=stripped, elements=meant[0], answer=meant[1])
    return None


@cache
def _wording_patterns() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple(
        (name, re.compile(re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>.+?)", re.escape(template))))
        for name, worded in WORDINGS.items()
        for template in (*worded.training, *worded.held_out)
    )


def draw_world2_question(
    family: str, key: tuple[int, int], *, held_out: bool = False, level: int | None = None
) -> World2Question:
    """Return a fresh question, the same on every machine.

    `key` is (seed, number); equal keys and levels give the same question in any wording. `level` is
    1 to 6; None: random. With `held_out`, or if the family has no other, the wording is one that
    training never uses.
    """
    rng = seeded_generator("world 2 question", family, *key, level)
    worded = WORDINGS[family]
    slots = KINDS[family].draw(rng, level or rng.randint(1, MAX_LEVEL))
    template = rng.choice(worded.held_out if held_out or not worded.training else worded.training)
    text = template.format_map(slots)
    found = read_world2_question(text)
    if found is None:
        raise AssertionError(f"world 2 cannot parse its own question: {text}")
    return found


def make_wrong_answer(question: World2Question, pick: float) -> str:
    """Return a wrong answer in the form of the correct one, chosen by `pick` in [0, 1)."""
    answer = question.answer
    if question.kind.name == "ranks":
        people = sorted(set(re.findall(r"[A-Z]\w+", " ".join(question.elements))) - {answer})
        return people[int(pick * len(people))]
    if question.kind.name == "clock":
        hour, minute = map(int, answer.split(":"))
        passed = hour * 60 + minute + _pick_offset(pick)
        return _format_time(passed % _DAY)
    if question.kind.grader == "integer":
        value, change = int(answer), _pick_offset(pick)
        return str(value + (abs(change) if value + change < 0 else change))
    at = int(pick * len(answer))
    letter = "abcdefghijklmnopqrstuvwxyz"[int(pick * 25 * len(answer)) % 25]
    return answer[:at] + (letter if letter != answer[at] else "z") + answer[at + 1 :]


def _pick_offset(pick: float) -> int:
    """Return a number from -40 to 40 that is not 0, chosen by `pick` in [0, 1)."""
    offset = int(pick * 80) - 40
    return offset if offset < 0 else offset + 1


def world2_task_id(question: World2Question) -> str:
    """Return the id of the question's task, the same for equal texts."""
    digest = hash_parts(question.text).hex()[:12]
    return f"world2-{question.kind.name}-{question.level}-{digest}"
