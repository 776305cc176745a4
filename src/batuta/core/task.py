"""What is asked and how it is judged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType, Protocol

from batuta.core.message import Message, PromptCache, ResponseFormat, Role, Tool, user_message
from batuta.core.worker import AUDIO, FILES, VISION, Sampling

TaskId = NewType("TaskId", str)
_TAGS = (("image", VISION), ("file", FILES), ("audio", AUDIO))
"""The tag of who can be shown a part of that kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A conversation that wants an answer, and what the answer must be like."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: str | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    sampling: Sampling = Sampling()
    """Wishes for the visible answer; they bind the last step only."""
    cache: PromptCache | None = None
    """Wishes for the providers' caches of prompts; they go to every worker."""

    def __post_init__(self) -> None:
        if not self.messages:
            raise ValueError("a question needs at least one message")

    @property
    def needed_tags(self) -> tuple[str, ...]:
        """The tags of the workers that can be shown all that is attached."""
        kinds = {part.kind for message in self.messages for part in message.attachments}
        return tuple(tag for kind, tag in _TAGS if kind in kinds)

    @staticmethod
    def of(text: str) -> Question:
        """A question of one user message."""
        return Question(messages=(user_message(text),))

    @property
    def text(self) -> str:
        """The text of the last user message, or of the last message if no user spoke."""
        spoken = [message for message in self.messages if message.role is Role.USER]
        return (spoken or self.messages)[-1].text


@dataclass(frozen=True, slots=True)
class Grade:
    """A judged answer. A wrong answer is a grade; no judgement is `score=None`."""

    score: float | None
    """In [0, 1]; None: undecided."""
    extracted: str | None = None
    """What the grader took for the answer."""
    reason: str = ""


class Grader(Protocol):
    """Judges an answer."""

    async def grade(self, answer: str, target: str) -> Grade:
        """The grade of `answer`; never raises for a wrong or strange answer."""
        ...


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Task:
    """A question with a known answer."""

    id: TaskId
    """The same on every machine."""
    question: str
    target: str
    grader: str
    """The grader's name."""
    tags: tuple[str, ...] = ()
    difficulty: float | None = None
    data: str = ""
    """What the grader needs beyond the target, as JSON: the tests of a program, the options."""
    private: bool = False
    """True: its text is never logged, stored or published; `repr` hides it."""

    def __repr__(self) -> str:
        if self.private:
            return f"Task({self.id!r}, private)"
        return f"Task({self.id!r}, {self.question!r}, {self.target!r}, {self.grader!r})"
