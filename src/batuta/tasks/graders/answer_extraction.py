r"""Where the answer stands in what a model said: the box, the tag, the sentence.

Nothing here guesses: an answer that is not marked as one, or whose mark is cut, is not found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

MAX_TAIL = 20_000
"""Characters at the end of a text that are searched."""

MAX_BARE_ANSWER = 200
"""Characters of a text that may be the answer itself."""

_BOX = re.compile(r"\\(?:boxed|fbox|framebox)\b")
_TAG = re.compile(r"<(/?)(?:(?:final|correct)[_ -]?)?(?:answer|choice|option)>", re.IGNORECASE)
_ANNOUNCEMENT = re.compile(
    r"\b(?:answer|result)\b[^.:=\n]{0,80}?(?::|=|\bis\b|\bwould be\b)[\s:*_]*(?=(\S[^\n]*))",
    re.IGNORECASE,
)
_CONCLUSION = re.compile(
    r"\b(?:therefore|thus|hence|so|finally)\b[^\n.=$\\]{0,60}\n\s*(?:\$\$([^$=<>]+)\$\$"
    r"|\\\[((?:(?!\\\])[^=<>])+)\\\])[\s.]*\Z",
    re.IGNORECASE,
)
_HASHES = re.compile(r"^####\s*(\S.*)\s*\Z", re.MULTILINE)
_JOINT = re.compile(r"[\s$.]*(?:,|;|and|or|\\text\{\s*(?:and|or)\s*\}|\\quad)?[\s$]*(?:[a-z]=)?")
_BARE_NUMBER = re.compile(r"-?\d+(?:[.,]\d+)*")
_QUOTE_MARK = re.compile(r"^\s*(?:>\s+)+")
MAX_JOINT = 60
MAX_BOXES_IN_BOXES = 3
_PLACEHOLDERS = frozenset({"", "...", r"\ldots", "answer", "your answer"})


def visible_text(text: str, longest: int = MAX_TAIL) -> str:
    """What follows the model's thoughts; nothing, if they never end.

    Args:
        text: all that the model wrote.
        longest: characters, from the end.
    """
    _, closed, after = text.rpartition("</think>")
    return after[-longest:] if closed or "<think>" not in text else ""


def has_box(text: str) -> bool:
    """Whether there is a box, cut or not."""
    return _BOX.search(text) is not None


def boxed_answer(text: str) -> str | None:
    r"""What the last `\boxed{}` holds; None without a box or where the last one is cut.

    Boxes that stand side by side, joined by no more than a comma or a word, are one answer:
    neither the last of two guesses nor the half of a pair is taken for the whole.
    """
    held: list[str] = []
    later = len(text)
    for start, end, content in reversed(list(_find_boxes(text))):
        if content is None and not held:
            return None
        if content is None or (held and not _is_joint(text[end:later])):
            break
        if content.strip().casefold() in _PLACEHOLDERS:
            continue
        if content not in held:
            held.append(content)
        later = start
    return ", ".join(reversed(held)) or None


def _is_joint(between: str) -> bool:
    return len(between) <= MAX_JOINT and _JOINT.fullmatch(between) is not None


def _find_boxes(text: str) -> Iterator[tuple[int, int, str | None]]:
    """Every outermost box: where it starts, where it ends, what it holds; None if it is cut."""
    done = 0
    for found in _BOX.finditer(text):
        if found.start() < done:
            continue
        end, content = _group_after(text, found.end())
        for _ in range(MAX_BOXES_IN_BOXES):
            if content is not None and (inner := _BOX.match(content)):
                content = _group_after(content, inner.end())[1]
        yield found.start(), end, content
        done = end


def _group_after(text: str, after: int) -> tuple[int, str | None]:
    """Where the group behind a command ends and what it holds: nothing, if there is no group."""
    at = after
    while at < len(text) and text[at] in " \t\n":
        at += 1
    if at == len(text):
        return at, None
    if text[at] != "{":
        bare = _BARE_NUMBER.match(text, at)
        return (bare.end(), bare[0]) if bare else (after, "")
    end = closing_brace(text, at)
    return (len(text), None) if end is None else (end + 1, text[at + 1 : end].strip())


def closing_brace(text: str, at: int) -> int | None:
    """Where the brace that opens at `at` is closed; None if it never is."""
    depth = 0
    escaped = False
    for index in range(at, len(text)):
        character = text[index]
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = True
        elif character in "{}":
            depth += 1 if character == "{" else -1
            if depth == 0:
                return index
    return None


def tagged_answer(text: str) -> str | None:
    """What the last whole `<answer>` holds."""
    tags = list(_TAG.finditer(text))
    pairs = [(one, two) for one, two in pairwise(tags) if not one[1] and two[1]]
    return text[pairs[-1][0].end() : pairs[-1][1].start()].strip() or None if pairs else None


def announced_answer(text: str) -> str | None:
    """What the last "the answer is" or "Answer:" announces, to the end of its line."""
    found = [match[1] for match in _ANNOUNCEMENT.finditer(text)]
    return found[-1].strip(" *_`").strip() or None if found else None


def answer_after_hashes(text: str) -> str | None:
    """What stands behind `####` in the last line, as in GSM8K; elsewhere it is a heading."""
    found = _HASHES.search(text)
    return found[1].strip() if found else None


def final_answer(text: str) -> str | None:
    """The answer by its mark, whichever there is: tag, box, `####`, sentence, or its own line.

    Nothing if the last box is cut.
    """
    shown = visible_text(text)
    shown = tagged_answer(shown) or shown
    if has_box(shown):
        return boxed_answer(shown)
    return (
        answer_after_hashes(shown)
        or announced_answer(shown)
        or last_line(shown)
        or bare_answer(shown)
    )


def last_line(text: str) -> str | None:
    """The last line that is more than marks, without those around it."""
    lines = (_QUOTE_MARK.sub("", line).strip(" \t*_`#") for line in reversed(text.splitlines()))
    return next((line for line in lines if any(map(str.isalnum, line))), None)


def concluded_formula(text: str) -> str | None:
    """The displayed formula that a text ends with, behind "Therefore:"; no equation."""
    found = _CONCLUSION.search(text)
    return next(filter(None, found.groups())).strip() or None if found else None


def bare_answer(text: str) -> str | None:
    """The text itself, where it is no more than an answer: one short line."""
    line = text.strip().strip("*_`").strip()
    return line if line and "\n" not in line and len(line) <= MAX_BARE_ANSWER else None
