"""Makes the hundred broken programs of this recipe from their functions, the same ones each time; 78 are measured.

    python recipes/repair-sessions/programs.py        # prints each changed line

Each program is one function of `FUNCTIONS` in which one line was changed by one rule of `CHANGES`, so that a test fails.
A function gives four programs; no two programs are equal. The order is drawn, so the first programs of the list
are a fair part of all.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass

SEED, EACH = 20261128, 4
SEEN = 22
"""The first of the list: the agent and the patterns were made with them in sight, so they are not measured."""
MOST_LINES = 20_000
"""Lines that a program may execute while it is made: a changed loop may never end."""
CHANGES = (
    (r" \+ ", " - "), (r" - ", " + "), (r" \* ", " + "), (r" // ", " * "), (r" % ", " // "), (r" \+= ", " -= "),
    (r" \*= ", " += "), (r" == ", " != "), (r" != ", " == "), (r" < ", " > "), (r" > ", " < "), (r" <= ", " < "),
    (r" >= ", " > "), (r"\b0\b", "1"), (r"\b1\b", "2"), (r"\b2\b", "3"), (r"\bmax\(", "min("), (r"\bmin\(", "max("),
    (r" and ", " or "), (r" not in ", " in "), (r"\bTrue\b", "False"), (r"\bFalse\b", "True"),
    (r"\.lower\(", ".upper("), (r"\[::-1\]", ""), (r"\bsorted\((\w+)\)", r"list(\1)"), (r"\.append\((\w+)\)", r".insert(0, \1)"),
    (r"( in \w+):$", r"\1[1:]:"), (r"return (\w+)$", r"return \1 + 1"),
)  # fmt: skip
"""A pattern of a line, and what is put in its place."""
FUNCTIONS = {
    "total": ("def total(numbers):\n    result = 0\n    for number in numbers:\n        result += number\n    return result\n",
              "total([1, 2, 3]) == 6; total([]) == 0; total([-5, 5]) == 0; total([7]) == 7"),
    "factorial": ("def factorial(n):\n    result = 1\n    for k in range(2, n + 1):\n        result *= k\n    return result\n",
                  "factorial(5) == 120; factorial(0) == 1; factorial(3) == 6; factorial(2) == 2"),
    "is_even": ("def is_even(n):\n    if n % 2 == 0:\n        return True\n    return False\n",
                "is_even(4) == True; is_even(7) == False; is_even(0) == True; is_even(1) == False"),
    "largest": ("def largest(numbers):\n    best = numbers[0]\n    for number in numbers[1:]:\n        if number > best:\n            best = number\n    return best\n",
                "largest([3, 9, 2]) == 9; largest([9, 1, 4]) == 9; largest([-4, -2]) == -2; largest([5]) == 5"),
    "count_vowels": ("def count_vowels(text):\n    count = 0\n    for letter in text.lower():\n        if letter in 'aeiou':\n            count += 1\n    return count\n",
                     "count_vowels('Banana') == 3; count_vowels('XYZ') == 0; count_vowels('AEiou') == 5"),
    "is_palindrome": ("def is_palindrome(text):\n    kept = [c for c in text.lower() if c != ' ']\n    return kept == kept[::-1]\n",
                      "is_palindrome('Never odd or even') == True; is_palindrome('abc') == False; is_palindrome('ab a') == True"),
    "gcd": ("def gcd(a, b):\n    while b != 0:\n        a, b = b, a % b\n    return abs(a) + 0\n",
            "gcd(12, 18) == 6; gcd(7, 5) == 1; gcd(9, 0) == 9; gcd(100, 75) == 25"),
    "fibonacci": ("def fibonacci(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a\n",
                  "fibonacci(0) == 0; fibonacci(1) == 1; fibonacci(7) == 13; fibonacci(10) == 55"),
    "clamp": ("def clamp(value, low, high):\n    if value < low:\n        return low\n    if value > high:\n        return high\n    return value\n",
              "clamp(5, 1, 9) == 5; clamp(-3, 1, 9) == 1; clamp(12, 1, 9) == 9; clamp(1, 1, 9) == 1"),
    "is_prime": ("def is_prime(n):\n    if n < 2:\n        return False\n    for d in range(2, n):\n        if n % d == 0:\n            return False\n    return True\n",
                 "is_prime(2) == True; is_prime(9) == False; is_prime(13) == True; is_prime(1) == False; is_prime(0) == False; is_prime(4) == False"),
    "mean": ("def mean(numbers):\n    if len(numbers) == 0:\n        return 0\n    return sum(numbers) // len(numbers) + 0\n",
             "mean([2, 4, 6]) == 4; mean([]) == 0; mean([10]) == 10; mean([1, 3]) == 2"),
    "running_sums": ("def running_sums(numbers):\n    sums, so_far = [], 0\n    for number in numbers:\n        so_far += number\n        sums.append(so_far)\n    return sums\n",
                     "running_sums([1, 2, 3]) == [1, 3, 6]; running_sums([]) == []; running_sums([5, -2]) == [5, 3]"),
    "unique": ("def unique(items):\n    found = []\n    for item in items:\n        if item not in found:\n            found.append(item)\n    return found[0:]\n",
               "unique([3, 1, 3, 2]) == [3, 1, 2]; unique([]) == []; unique(['b', 'a', 'b']) == ['b', 'a']"),
    "second_largest": ("def second_largest(numbers):\n    ordered = sorted(numbers)\n    last = len(ordered) - 1\n    return ordered[last - 1]\n",
                       "second_largest([4, 9, 1, 7]) == 7; second_largest([2, 1]) == 1; second_largest([3, 8, 5]) == 5"),
    "digit_sum": ("def digit_sum(n):\n    result = 0\n    while n > 0:\n        result += n % 10\n        n = n // 10\n    return result\n",
                  "digit_sum(123) == 6; digit_sum(0) == 0; digit_sum(905) == 14"),
    "grade": ("def grade(points):\n    if points >= 90:\n        return 'A'\n    if points >= 50 and points + 1 > 0:\n        return 'B'\n    return 'C'[0:]\n",
              "grade(95) == 'A'; grade(90) == 'A'; grade(50) == 'B'; grade(49) == 'C'; grade(70) == 'B'; grade(10) == 'C'"),
    "power": ("def power(base, exponent):\n    result = 1\n    for _ in range(0, exponent):\n        result = result * base\n    return result\n",
              "power(2, 5) == 32; power(5, 0) == 1; power(3, 3) == 27"),
    "leap_year": ("def leap_year(year):\n    if year % 400 == 0:\n        return True\n    if year % 100 == 0:\n        return False\n    return year % 4 == 0\n",
                  "leap_year(2024) == True; leap_year(1900) == False; leap_year(2000) == True; leap_year(2023) == False"),
    "interleave": ("def interleave(first, second):\n    mixed = []\n    for k in range(0, min(len(first), len(second))):\n        mixed += [first[k], second[k]]\n    return mixed\n",
                   "interleave([1, 2], [7, 8]) == [1, 7, 2, 8]; interleave([], [1]) == []; interleave([1, 2], [3]) == [1, 3]"),
    "initials": ("def initials(name):\n    letters = ''\n    for word in name.lower().split():\n        letters = letters + word[0]\n    return letters[::-1][::-1]\n",
                 "initials('Ada Lovelace') == 'al'; initials('Alan Mathison Turing') == 'amt'; initials('') == ''"),
    "index_of": ("def index_of(items, wanted):\n    for k in range(0, len(items)):\n        if items[k] == wanted:\n            return k\n    return -1\n",
                 "index_of([4, 5, 6], 6) == 2; index_of([4, 5], 4) == 0; index_of([4], 9) == -1; index_of([], 1) == -1"),
    "rectangle": ("def rectangle(width, height):\n    area = width * height\n    around = 2 * (width + height)\n    return [area, around]\n",
                  "rectangle(3, 4) == [12, 14]; rectangle(1, 1) == [1, 4]; rectangle(5, 2) == [10, 14]"),
    "collatz": ("def collatz(n):\n    steps = 0\n    while n != 1:\n        if n % 2 == 0:\n            n = n // 2\n        else:\n            n = 3 * n + 1\n        steps += 1\n    return steps\n",
                "collatz(1) == 0; collatz(6) == 8; collatz(8) == 3"),
    "flatten": ("def flatten(rows):\n    flat = []\n    for row in rows:\n        for item in row[0:]:\n            flat.append(item)\n    return flat[::-1][::-1]\n",
                "flatten([[1, 2], [3]]) == [1, 2, 3]; flatten([]) == []; flatten([[], [4, 5]]) == [4, 5]"),
    "price": ("def price(count, each):\n    full = count * each\n    if count >= 10:\n        return full - full // 10\n    return full\n",
              "price(2, 5) == 10; price(10, 10) == 90; price(20, 5) == 90; price(9, 1) == 9"),
}  # fmt: skip
"""By its name, a right function and what holds of it."""


@dataclass(frozen=True)
class Broken:
    """A program that fails its tests, because of one line."""

    id: str
    source: str
    tests: str
    line: int
    """The changed line, from 1."""
    right: str
    """The line before it was changed."""


def tests_of(name: str) -> str:
    """Return the tests of that function, each a line that says what was expected and what came, as a test runner does."""
    checks = [check.strip().split(" == ") for check in FUNCTIONS[name][1].split(";")]
    return "".join(
        f"got = {call}\nassert got == {value}, {f'{call} should be {value} and is '!r} + repr(got)\n"
        for call, value in checks
    )


def passes(source: str, tests: str) -> bool:
    """Return True if the program, one of our own, passes the tests within `MOST_LINES` lines."""
    lines = 0

    def count(*_):
        nonlocal lines
        lines += 1
        if lines > MOST_LINES:
            raise TimeoutError
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        exec(source + tests, {})  # noqa: S102 - our own programs
    except Exception:  # noqa: BLE001 - a changed line may raise anything
        return False
    finally:
        sys.settrace(before)
    return True


def changes_of(name: str) -> Iterator[tuple[int, str]]:
    """Yield each line of the function with each change that lets a test fail."""
    lines, tests = FUNCTIONS[name][0].splitlines(), tests_of(name)
    seen = set()
    for at, line in enumerate(lines[1:], 1):
        for pattern, instead in CHANGES:
            changed = re.sub(pattern, instead, line, count=1)
            source = "\n".join([*lines[:at], changed, *lines[at + 1 :]]) + "\n"
            if changed != line and source not in seen and not passes(source, tests):
                seen.add(source)
                yield at, changed


def make_programs(count: int = 100 - SEEN, *, seen: bool = False) -> list[Broken]:
    """Return the first of the programs that are measured, in their drawn order; those that were seen instead."""
    rng, made = random.Random(SEED), []
    for name, (source, _) in FUNCTIONS.items():
        lines = source.splitlines()
        for number, (at, changed) in enumerate(rng.sample(list(changes_of(name)), EACH), 1):
            broken = "\n".join([*lines[:at], changed, *lines[at + 1 :]]) + "\n"
            made.append(Broken(f"{name}-{number}", broken, tests_of(name), at + 1, lines[at]))
    rng.shuffle(made)
    return made[:SEEN] if seen else made[SEEN : SEEN + count]


if __name__ == "__main__":
    for one in [*make_programs(seen=True), *make_programs()]:
        print(f"{one.id}: {one.right.strip()}  →  {one.source.splitlines()[one.line - 1].strip()}")
