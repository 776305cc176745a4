"""Read the present turn of an agent's conversation: the user's words, and the actions since. Pure.

Nothing is read for what it tells to do. Of tools' results it is looked at whether they say that
they failed and whether they are the same; of the worker's text nothing; and words count only where
the user speaks. The work is bounded: the newest actions are looked at, and the ends of results.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from batuta.core import Message, Question, Role, ToolCall, ToolResult

MOST_ACTIONS = 100
"""Actions of a turn that are looked at, the newest."""
_END = 300
"""Characters at the beginning and at the end of a result that are looked at."""
_PICTURES = "What the tool call "
"""The beginning of a message in which the pictures of a tool's result stand."""
_OPENING, _CLOSING = "<system-reminder>", "</system-reminder>"
_FRAME = re.compile(r"\AChunk ID: \w{1,40}\nWall time: [0-9.]{1,20} seconds\n")
"""Codex's own lines before each result, which differ where the results do not."""
_FAILED = re.compile(
    r"\A\s{0,9}(?:<tool_use_error>|\w{0,40}error:|failed:|traceback \()"
    r"|\bexit(?:ed)?(?: with)?[ _](?:code|status)\"?:?\s{0,3}=?\s{0,3}[1-9]",
    re.IGNORECASE,
)
"""A tool's result that says of itself that it failed."""
_LONGEST_GO_ON = 40
_GO_ON = frozenset(
    {
        "carry on", "continue", "continue please", "do it", "go", "go ahead", "go on", "keep going",
        "next", "ok", "okay", "please continue", "please go on", "proceed", "resume", "sure", "y",
        "yes", "yes please", "ja", "weiter", "mach weiter", "oui", "continuez", "si", "s\u00ed",
        "sigue", "contin\u00faa", "continua", "\u7ee7\u7eed", "\u7d9a\u3051\u3066",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Action:
    """It holds the calls of tools that a worker made at once, and what came back."""

    calls: tuple[ToolCall, ...]
    results: tuple[ToolResult, ...]

    @property
    def failures(self) -> tuple[str, ...]:
        """A key of each result that failed; the same failure of the same tool has the same key."""
        names = {call.id: call.name for call in self.calls}
        told = [(names.get(one.call_id, ""), _crop_ends(one.content)) for one in self.results]
        return tuple(
            f"{name} {_digest_texts(_without_numbers(text))}"
            for name, text in told
            if _FAILED.search(text)
        )

    @property
    def key(self) -> str:
        """A key that two actions have in common if they did the same and the same came back."""
        said = [f"{call.name} {call.arguments}" for call in self.calls]
        return _digest_texts(*said, *(_crop_ends(result.content) for result in self.results))


@dataclass(frozen=True, slots=True)
class Turn:
    """The user's words, and the newest actions that followed them."""

    words: str
    actions: tuple[Action, ...]
    """The newest ones, the last one last."""
    is_fresh: bool
    """True if the user has just spoken, and nothing was said after it."""
    key: str
    """A digest that tells the turn from those before it, also where the words are alike.

    It is the same for every request of the turn, and if a request is sent again."""
    thread_key: str
    """A digest of the user's first words, which stay as the conversation grows."""

    @property
    def says_to_go_on(self) -> bool:
        """Whether the user's words set no new task."""
        words = self.words
        return len(words) <= _LONGEST_GO_ON and _plain_words(words) in _GO_ON

    @property
    def new_results(self) -> int:
        """The number of results that this request brings."""
        return len(self.actions[-1].results) if self.actions and not self.is_fresh else 0

    @property
    def failures(self) -> Counter[str]:
        """How often each failure has happened."""
        return Counter(key for action in self.actions for key in action.failures)


def read_turn(question: Question) -> Turn:
    """Read the newest turn of the conversation."""
    first, words, begins, times = "", "", -1, 0
    for index, message in enumerate(question.messages):
        if said := user_words(message):
            first, words, begins, times = first or said, said, index, times + 1
    after = question.messages[begins + 1 :]
    return Turn(
        words=words,
        actions=tuple(_read_actions(after)),
        is_fresh=all(message.role is not Role.ASSISTANT for message in after),
        key=_digest_texts(words, str(times)),
        thread_key=_digest_texts(first),
    )


def user_words(message: Message) -> str:
    """Return what the user says in the message: nothing of what an agent or a tool adds to it."""
    if message.role is not Role.USER or not message.text:
        return ""
    if message.attachments and message.text.startswith(_PICTURES):
        return ""
    return "".join(_outside_reminders(message.text)).strip()


def _outside_reminders(text: str) -> Iterator[str]:
    at = 0
    while (begin := text.find(_OPENING, at)) >= 0:
        end = text.find(_CLOSING, begin)
        if end < 0:
            break
        yield text[at:begin]
        at = end + len(_CLOSING)
    yield text[at:]


def _read_actions(messages: Sequence[Message]) -> list[Action]:
    """The newest actions in these messages, the last one last."""
    actions: list[Action] = []
    results: list[ToolResult] = []
    for message in reversed(messages):
        if message.role is not Role.ASSISTANT:
            results += [part for part in message.parts if isinstance(part, ToolResult)]
            continue
        calls = tuple(part for part in message.parts if isinstance(part, ToolCall))
        if calls:
            actions.append(Action(calls, tuple(reversed(results))))
        results = []
        if len(actions) == MOST_ACTIONS:
            break
    return actions[::-1]


def _crop_ends(text: str) -> str:
    text = _FRAME.sub("", text, count=1)
    return text if len(text) <= 2 * _END else f"{text[:_END]}\n{text[-_END:]}"


def _without_numbers(text: str) -> str:
    """The text with each number as one sign: lines, times and addresses differ between failures."""
    return re.sub(r"[0-9]+", "#", text)


def _plain_words(text: str) -> str:
    return " ".join("".join(c if c.isalpha() else " " for c in text).casefold().split())


def _digest_texts(*texts: str) -> str:
    whole = hashlib.sha256()
    for text in texts:
        whole.update(f"{len(text)} {text}".encode("utf-8", "replace"))
    return whole.hexdigest()[:24]
