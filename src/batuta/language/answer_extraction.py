r"""Finds the answer in a model's text: `\boxed{}`, an answer tag, `####` or "the answer is …".

`stated_answer` does not guess: an answer without a mark, or in an unclosed `\boxed{`, is not found.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from itertools import pairwise

TICKS = "\u2713\u2714\u2705\u2611"
_MARKER = (
    r"(?:<\|[\w/-]{1,40}\|>|<\uff5c[^\uff5c<>\n]{1,40}\uff5c>|</s>"
    r"|<(?:eos|EOS|pad|end_of_turn|end_of_text|endoftext|im_end)>|\[(?:EOS|/INST)\])"
)
_MARKERS = re.compile(rf"(?:{_MARKER}(?:\s*+(?:assistant|model|user)(?=\s*+(?:\Z|<)))?+\s*+)++")
"""A run of consecutive markers, matched as a whole so that a search reads each marker once."""
DOUBTFUL = (
    "\u2717\u2718\u2753\u2754\u26a0\u26d4\u274c\u274e\U0001f914\U0001f44e\U0001f6ab\U0001f937"
)
"""Crosses and emoji that express denial or doubt."""
_SIGN = (
    rf"(?>(?![{DOUBTFUL}])[\u2728\u2b50\u2605\u263a\u2764\u2757\u203c\u26a1\u2600"
    r"\U0001f1e6-\U0001f1ff\U0001f300-\U0001f6ff\U0001f900-\U0001faff]"
    r"[\ufe0e\ufe0f\U0001f3fb-\U0001f3ff]?(?:\u200d[^\s\w][\ufe0f]?){0,9})"
)
_SIGNS_BEHIND = re.compile(
    rf"(?<=\S)[ \t]{{0,9}}+{_SIGN}(?:[ \t]{{0,9}}+{_SIGN}){{0,20}}+(?P<stop>[.!]?)"
    r"(?=[*_]{0,9}[ \t]{0,9}$)",
    re.MULTILINE,
)
"""The number of signs is bounded: a longer row is not decoration and would be rescanned."""
_TICKS_BEHIND = re.compile(
    rf"(?<=\S)[ \t]*[{TICKS}][\ufe0e\ufe0f]?(?=[.!]?[*_]*[ \t]*$)", re.MULTILINE
)
_HAS_SIGN = re.compile("[\u2000-\u2bff\U0001f000-\U0001faff]")


def without_end_tokens(text: str) -> str:
    """Return the text without chat-template tokens at its end."""
    markers = next((run for run in _MARKERS.finditer(text) if run.end() == len(text)), None)
    if markers is None or ("</s>" in markers[0] and "<s>" in text):  # HTML's strikethrough tag
        return text
    return text[: markers.start()].rstrip()


def without_emoji(text: str) -> str:
    """Return the text without emoji at line ends, except ticks and signs of denial or doubt."""
    return _SIGNS_BEHIND.sub(_stop_behind, text) if _HAS_SIGN.search(text) else text


def _stop_behind(found: re.Match[str]) -> str:
    """Return the full stop after the emoji; none if the text before them ends a sentence."""
    return "" if found.string[found.start() - 1] in ".!?" else found["stop"]


def without_decorations(text: str) -> str:
    """Return the text without ticks and emoji at the ends of its lines."""
    if not _HAS_SIGN.search(text):
        return text
    return without_emoji(_TICKS_BEHIND.sub("", without_emoji(text)))


MAX_TAIL = 20_000
"""Maximum number of characters at the end of a text that are searched."""

MAX_BARE_ANSWER = 200
"""Maximum number of characters of a text that counts as a bare answer."""

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
_JOINT = re.compile(
    r"[\s$.]*[,;]?(?:[\s$]*(?:and|or|\\text\{\s*(?:and|or)\s*\}|\\quad))?[\s$]*(?:[a-z]=)?"
)
_BARE_NUMBER = re.compile(r"-?\d+(?:[.,]\d+)*")
_QUOTE_MARK = re.compile(r"^\s*(?:>\s+)+")
_LINE_MARK = re.compile(r"^\s*(?:#+|[*+-])\s+")
_CODE_MARKS = (re.compile(r"`([^`\n]{1,500})`"), re.compile(r"\$\$?([^$\n]{1,500})\$\$?"))
_EMPHASIS_MARKS = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?<![\w*])\*(?![\s*])([^*\n]{1,500})(?<!\s)\*(?!\w)",
        r"(?<![\w*])\*\*(?![\s*])([^*\n]{1,500})(?<!\s)\*\*",
        r"(?<![\w*])\*\*\*(?![\s*])([^*\n]{1,500})(?<!\s)\*\*\*",
        r"(?<!\w)_(?![\s_])([^\n]{1,200}?)(?<![\s_])_(?!\w)",
        r"(?<!\w)__(?![\s_])([^\n]{1,200}?)(?<![\s_])__(?!\w)",
    )
)
"""Matches text in emphasis marks, with no white space inside them and no letter outside."""
MAX_JOINT = 60
"""Maximum number of characters between two boxes that are one answer."""
MAX_BOXES_IN_BOXES = 3
"""Maximum nesting of boxes that is unwrapped."""
_PLACEHOLDERS = frozenset({"", "...", r"\ldots", "answer", "your answer"})


def visible_text(text: str, longest: int = MAX_TAIL) -> str:
    """Return the text after the last `</think>`, up to any later `<think>`.

    Without these tags return the whole text; with only a `<think>`, an empty text. Chat-template
    tokens at the end are removed.

    Args:
        text: the model's whole output.
        longest: maximum number of characters to return, from the end.
    """
    _, closed, after = text.rpartition("</think>")
    shown, opened, _ = after.partition("<think>")
    return without_end_tokens(shown[-longest:]) if closed or not opened else ""


def has_box(text: str) -> bool:
    r"""Return True if there is a `\boxed`, closed or not."""
    return _BOX.search(text) is not None


def boxed_answer(text: str) -> str | None:
    r"""Return the content of the last `\boxed{}`; None without a box or if the last is unclosed.

    Adjacent boxes, joined by no more than a comma and a word, are one answer, so that a pair is not
    reduced to its last element. An empty box, or one with a placeholder such as `...`, is skipped.
    """
    contents: list[str] = []
    later = len(text)
    for start, end, content in reversed(list(_find_boxes(text))):
        if content is None and not contents:
            return None
        if content is None or (contents and not _is_joint(text[end:later])):
            break
        if content.strip().casefold() in _PLACEHOLDERS:
            continue
        if content not in contents:
            contents.append(content)
        later = start
    return ", ".join(reversed(contents)) or None


def _is_joint(between: str) -> bool:
    return len(between) <= MAX_JOINT and _JOINT.fullmatch(between) is not None


def _find_boxes(text: str) -> Iterator[tuple[int, int, str | None]]:
    """Yield start, end and content of every outermost box; an unclosed box has the content None."""
    done = 0
    for match in _BOX.finditer(text):
        if match.start() < done:
            continue
        end, content = _group_after(text, match.end())
        for _ in range(MAX_BOXES_IN_BOXES):
            if content is not None and (inner := _BOX.match(content)):
                content = _group_after(content, inner.end())[1]
        yield match.start(), end, content
        done = end


def _group_after(text: str, after: int) -> tuple[int, str | None]:
    """Return the end and the content of the argument after a command.

    The content is None if the argument is unclosed, and empty if there is no argument.
    """
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
    """Return the position of the brace that closes the one at `at`; None if there is none."""
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
    """Return the content of the last complete `<answer>`, `<choice>` or `<option>` element.

    Return None if there is no such element or if it is empty.
    """
    tags = list(_TAG.finditer(text))
    pairs = [(one, two) for one, two in pairwise(tags) if not one[1] and two[1]]
    return text[pairs[-1][0].end() : pairs[-1][1].start()].strip() or None if pairs else None


def announced_answer(text: str) -> str | None:
    """Return the text after the last "the answer is", "Answer:" or the like, to the line's end.

    Return None if there is none.
    """
    answers = [match[1] for match in _ANNOUNCEMENT.finditer(text)]
    return answers[-1].strip(" *_`").strip() or None if answers else None


def answer_after_hashes(text: str) -> str | None:
    """Return the text after `####` in the last line, as in GSM8K; None if that line has no `####`.

    In other lines `####` is a heading.
    """
    match = _HASHES.search(text)
    return match[1].strip() if match else None


def stated_answer(text: str) -> str | None:
    """Return the marked answer: a tag, a box, `####` or a sentence.

    Return None without a mark, if the last box is unclosed, or if all boxes are empty. A mark in a
    tag is preferred to the tag; without such a mark the tag's whole content is the answer.
    """
    shown = without_decorations(visible_text(text))
    tagged = tagged_answer(shown)
    marked = tagged or shown
    if has_box(marked):
        return boxed_answer(marked)
    return answer_after_hashes(marked) or announced_answer(marked) or tagged


def final_answer(text: str) -> str | None:
    """Return the stated answer, else the last line.

    Return None if the last box is unclosed, if all boxes are empty, or for a text without content.
    """
    shown = without_decorations(visible_text(text))
    stated = stated_answer(text)
    if stated is not None or has_box(shown):
        return stated
    return last_line(shown) or bare_answer(shown)


def answer_readings(text: str) -> tuple[str, ...]:
    """Return the final answer as written, and without Markdown marks around it; empty if none.

    `*args` is kept, since its mark is not closed; `**args**` may also mean `args`.
    """
    shown = visible_text(text)
    readings = (*_marked_readings(shown), *_marked_readings(without_decorations(shown)))
    return tuple(dict.fromkeys(readings))


def _marked_readings(text: str) -> list[str]:
    tagged = tagged_answer(text)
    shown = tagged or text
    if has_box(shown):
        boxed = boxed_answer(shown)
        answers = [] if boxed is None else [boxed]
    elif hashed := answer_after_hashes(shown):
        answers = [hashed]
    else:
        answers = _announced_readings(shown) or [tagged or _last_line(shown)]
    return [form.strip() for text in answers for form in unmarked_forms(text) if form.strip()]


def _announced_readings(text: str) -> list[str]:
    """Return the last announced answer, with and without the Markdown marks of its line."""
    last = next(iter(deque(_ANNOUNCEMENT.finditer(text), maxlen=1)), None)
    if last is None:
        return []
    line = text[text.rfind("\n", 0, last.start()) + 1 : last.end() + len(last[1])]
    whole = (unmarked_forms(part) for part in line.split("\n"))
    return [
        form[found.end() - _open_marks(form[: found.end()]) : found.end() + len(found[1])]
        for form in map("\n".join, zip(*whole, strict=True))
        for found in deque(_ANNOUNCEMENT.finditer(form), maxlen=1)
    ]


def _open_marks(text: str) -> int:
    """Return the number of emphasis or code marks at the end, which open before the answer."""
    return len(text) - len(text.rstrip("*_`"))


def _last_line(text: str) -> str:
    """Return the last line with a letter or digit, without the marks of a list or a quotation."""
    lines = [line for line in reversed(text.splitlines()) if line.strip()]
    line = next((line for line in lines if any(map(str.isalnum, line))), lines[0] if lines else "")
    return _LINE_MARK.sub("", _QUOTE_MARK.sub("", line))


def unmarked_forms(text: str) -> tuple[str, ...]:
    """Return four forms of a line: as written, without code and math marks, then without emphasis.

    The last form has emphasis marks removed twice, for marks within marks.
    """
    plain = _without_marks(text, _CODE_MARKS)
    once = _without_marks(plain, _EMPHASIS_MARKS)
    return text, plain, once, _without_marks(once, _EMPHASIS_MARKS)


def without_emphasis(text: str) -> str:
    """Return the text without paired emphasis marks, including marks within marks."""
    return _without_marks(_without_marks(text, _EMPHASIS_MARKS), _EMPHASIS_MARKS)


def _without_marks(text: str, marks: tuple[re.Pattern[str], ...]) -> str:
    for pattern in marks:
        text = pattern.sub(r"\1", text)
    return text


def last_line(text: str) -> str | None:
    """Return the last line with a letter or digit, without marks around it; None without one."""
    lines = (_QUOTE_MARK.sub("", line).strip(" \t*_`#") for line in reversed(text.splitlines()))
    return next((line for line in lines if any(map(str.isalnum, line))), None)


def concluded_formula(text: str) -> str | None:
    """Return the displayed formula after "Therefore" or the like at the end of the text.

    Return None if there is no such formula or if it is an equation.
    """
    match = _CONCLUSION.search(text)
    return next(filter(None, match.groups())).strip() or None if match else None


def bare_answer(text: str) -> str | None:
    """Return the text itself, without emphasis around it, if it is one short line; else None."""
    line = text.strip().strip("*_`").strip()
    return line if line and "\n" not in line and len(line) <= MAX_BARE_ANSWER else None
