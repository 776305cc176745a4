"""The recipe's questions: five families of reasoning-gym at easy settings, three of its own.

    python recipes/small-models/questions.py recipes/small-models

writes `test.jsonl` (300 questions that nothing is trained or tuned on, then 96 to calibrate on) and
`tune.jsonl`. Specialists are trained on the same families from other seeds, other countries, other
words; no text of one part is in another.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import facts
from reasoning_gym.arithmetic.leg_counting import ANIMALS

from batuta.lab.tasks.datasets.reasoning_gym import generate_tasks

SEEDS = {"train": 11, "tune": 12, "test": 13}
TEST_EACH = {
    "sums": 40, "legs": 40, "gcd": 30, "letters": 40, "backward": 40, "facts": 40, "odd": 30,
    "capital-letters": 40,
}  # fmt: skip
TUNE_EACH = 42
CALIBRATE_EACH = 12
"""Of `tune.jsonl`, which stand behind the test questions, where `batuta eval` calibrates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A question, its answer, and how each specialist is taught to go about it."""

    family: str
    question: str
    answer: str
    program: str = ""
    """A Python program that prints the answer; empty: none is taught."""
    worked: str = ""
    """The answer with its steps in words; empty: none is taught."""
    fact: str = ""
    """What has to be looked up, as a sentence."""

    @property
    def row(self) -> dict[str, Any]:
        """A line of a task file."""
        return {
            "question": self.question,
            "answer": self.answer,
            "grader": "integer" if self.answer.lstrip("-").isdigit() else "exact",
            "tags": [self.family],
        }


def _gym(family: str, count: int, part: str, **config: Any) -> list[tuple[str, str, Any]]:
    tasks = generate_tasks(family, count, SEEDS[part], config)
    return [(t.question.strip(), t.target, json.loads(t.data)["metadata"]) for t in tasks]


def sums(count: int, part: str) -> list[Example]:
    """Two or three numbers of one or two digits, added and subtracted."""
    found: list[Example] = []
    asked = _gym("chain_sum", count, part, min_terms=2, max_terms=3, min_digits=1, max_digits=2)
    for question, answer, known in asked:
        first, *rest = known["expression"].split()
        total, steps = int(first), list[str]()
        for sign, number in zip(rest[::2], rest[1::2], strict=True):
            after = total + int(number) if sign == "+" else total - int(number)
            steps.append(f"{total} {sign} {number} = {after}")
            total = after
        found.append(
            Example(
                family="sums",
                question=question,
                answer=answer,
                program=f"print({known['expression']})",
                worked=f"{'; '.join(steps)}. Answer: {answer}",
            )
        )
    return found


def legs(count: int, part: str) -> list[Example]:
    """The legs of one or two kinds of animal."""
    found: list[Example] = []
    asked = _gym(
        "leg_counting", count, part, min_animals=1, max_animals=2, min_instances=1, max_instances=9
    )
    for question, answer, known in asked:
        animals: dict[str, int] = known["animals"]
        terms = [f"{many} * {ANIMALS[name]}" for name, many in animals.items()]
        steps = [
            f"{name}: {many} x {ANIMALS[name]} = {many * ANIMALS[name]}"
            for name, many in animals.items()
        ]
        found.append(
            Example(
                family="legs",
                question=question,
                answer=answer,
                program=f"print({' + '.join(terms)})",
                worked=f"{'; '.join(steps)}. Answer: {answer}",
            )
        )
    return found


def gcd(count: int, part: str) -> list[Example]:
    """The greatest common divisor of two numbers up to 60."""
    found: list[Example] = []
    asked = _gym("gcd", count, part, min_numbers=2, max_numbers=2, min_value=1, max_value=60)
    for question, answer, known in asked:
        a, b = known["numbers"]
        big, small, steps = max(a, b), min(a, b), list[str]()
        while small:
            steps.append(f"{big} mod {small} = {big % small}")
            big, small = small, big % small
        found.append(
            Example(
                family="gcd",
                question=question,
                answer=answer,
                program=f"import math\nprint(math.gcd({a}, {b}))",
                worked=f"{'; '.join(steps)}. Answer: {answer}",
            )
        )
    return found


def letters(count: int, part: str) -> list[Example]:
    """How often a letter comes in three to five words."""
    found: list[Example] = []
    for question, answer, known in _gym("letter_counting", count, part, min_words=3, max_words=5):
        letter, words = known["target_letter"], known["span"]
        steps = [f"{word} {word.lower().count(letter)}" for word in words]
        found.append(
            Example(
                family="letters",
                question=question,
                answer=answer,
                program=f'print("{" ".join(words)}".lower().count("{letter}"))',
                worked=f"{', '.join(steps)}. Answer: {answer}",
            )
        )
    return found


def backward(count: int, part: str) -> list[Example]:
    """A word of three to seven letters, backward."""
    return [
        Example(
            family="backward",
            question=question,
            answer=answer,
            program=f'print("{known["word"]}"[::-1])',
            worked=f"{' '.join(known['word'])}, backward {' '.join(answer)}. Answer: {answer}",
        )
        for question, answer, known in _gym(
            "spell_backward", count, part, min_word_len=3, max_word_len=7
        )
    ]


_FACT_KINDS: tuple[tuple[Callable[[str], list[facts.Fact]], str, str], ...] = (
    (
        facts.capitals,
        "What is the capital of {}? Answer with its name alone.",
        "The capital of {} is {}.",
    ),
    (
        facts.continents,
        "On which continent is {}? Answer with its name alone.",
        "{} is in {}.",
    ),
    (
        facts.symbols,
        "What is the chemical symbol of {}? Answer with the symbol alone.",
        "The chemical symbol of {} is {}.",
    ),
)


def capital_facts(count: int, part: str) -> list[Example]:
    """Capitals, continents, chemical symbols."""
    found = [
        Example(
            family="facts",
            question=question.format(name),
            answer=answer,
            fact=fact.format(name, answer),
        )
        for known, question, fact in _FACT_KINDS
        for name, answer in known(part)
    ]
    return Random(f"facts {part}").sample(found, min(count, len(found)))


def odd(count: int, part: str) -> list[Example]:
    """Three words of one kind and one of another."""
    rng, kinds = Random(f"odd {part}"), facts.kinds(part)
    found: list[Example] = []
    for _ in range(count):
        kind, other = rng.sample(kinds, 2)
        stranger = rng.choice(other)
        words = rng.sample([*rng.sample(kind, min(3, len(kind))), stranger], 4)
        asked = f"Which word does not belong with the others: {', '.join(words)}?"
        found.append(
            Example(family="odd", question=f"{asked} Answer with that word alone.", answer=stranger)
        )
    return found


_CAPITAL_KINDS: tuple[tuple[str, str, Callable[[str], str]], ...] = (
    (
        "How many letters does the name of the capital of {} have? Answer with the number.",
        'print(len("{}"))',
        lambda name: str(len(name)),
    ),
    (
        "Spell the name of the capital of {} backward, in small letters.",
        'print("{}".lower()[::-1])',
        lambda name: name.lower()[::-1],
    ),
    (
        "With which letter does the name of the capital of {} end? Answer with the letter.",
        'print("{}"[-1])',
        lambda name: name[-1],
    ),
)


def capital_letters(count: int, part: str) -> list[Example]:
    """About the letters of a capital whose name is not said: a fact first, then a count."""
    found: list[Example] = []
    for name, capital in facts.capitals(part):
        for question, program, solve in _CAPITAL_KINDS:
            answer = solve(capital)
            spelt = " ".join(capital.lower())
            found.append(
                Example(
                    family="capital-letters",
                    question=question.format(name),
                    answer=answer,
                    program=program.format(capital),
                    worked=f"{capital}: {spelt}. Answer: {answer}",
                    fact=f"The capital of {name} is {capital}.",
                )
            )
    return Random(f"capital letters {part}").sample(found, min(count, len(found)))


FAMILIES: dict[str, Callable[[int, str], list[Example]]] = {
    "sums": sums,
    "legs": legs,
    "gcd": gcd,
    "letters": letters,
    "backward": backward,
    "facts": capital_facts,
    "odd": odd,
    "capital-letters": capital_letters,
}


def draw(family: str, count: int, part: str, without: Sequence[str] = ()) -> list[Example]:
    """So many different examples of that part, none of them among the texts `without`.

    A family that has fewer gives those it has.
    """
    seen, found = set(without), list[Example]()
    for example in FAMILIES[family](2 * count + 80, part):
        if example.question not in seen:
            seen.add(example.question)
            found.append(example)
    return found[:count]


def _mix(examples: list[Example], seed: str) -> list[Example]:
    return Random(seed).sample(examples, len(examples))


def test_and_tune() -> tuple[list[Example], list[Example], list[Example]]:
    """The questions that judge, those to calibrate on, and those to tune on (the former among)."""
    test = _mix([e for f, n in TEST_EACH.items() for e in draw(f, n, "test")], "test")
    texts = [e.question for e in test]
    by_family = [draw(f, TUNE_EACH, "tune", texts) for f in FAMILIES]
    calibrate = _mix([e for own in by_family for e in own[:CALIBRATE_EACH]], "calibrate")
    return test, calibrate, _mix([e for own in by_family for e in own], "tune")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    out: Path = parser.parse_args().out
    test, calibrate, tune = test_and_tune()
    for name, examples in (("test", [*test, *calibrate]), ("tune", tune)):
        lines = [json.dumps(e.row, ensure_ascii=False) for e in examples]
        (out / f"{name}.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
        print(name, len(lines))


if __name__ == "__main__":
    main()
