"""Parses a worker's prompt and the other workers' replies in it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from batuta.core import Request, Role
from batuta.lab.worlds.problem import ProblemStep, read_step
from batuta.language.prompt import LAST_STEP


@dataclass(frozen=True, slots=True)
class StepClaim:
    """The result that a reply claims for a step."""

    after: str
    guess: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedReply:
    """The parts of another worker's reply that can be parsed."""

    steps: dict[tuple[str, str], StepClaim]
    """The claimed result by the step's phrase and the value before the step."""
    facts: dict[tuple[str, str], str]
    """The stated object by relation and subject."""
    plan: tuple[ProblemStep, ...] | None
    """The numbered steps; None if there are none."""
    answer: str | None
    """The rest of the last line that starts with "Answer: "; None if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedPrompt:
    """A parsed prompt."""

    question: str
    text: str
    """The whole prompt."""
    instruction: str | None = None
    """The subtask; empty if a step has none, None if the prompt is a bare question."""
    replies: tuple[ParsedReply, ...] = ()
    is_last_step: bool = True
    """True if the reply goes to the user."""
    read_chars: int = 0
    """Number of characters of other workers' text."""


_TASK = re.compile(r"<overall_task>\n(.*?)\n</overall_task>", re.DOTALL)
_SECTION = re.compile(r'<agent_response step="\d+">\n(.*?)\n</agent_response>', re.DOTALL)
_SUBTASK = "Your assigned subtask: "
_STEP = re.compile(r"^Step \d+, ([^:\n]+): (.*?) -> (.*?)( \(a guess\))?$", re.MULTILINE)
_FACT = re.compile(r"^- (.+?) of (.+?): (.+)$", re.MULTILINE)
_PLAN_LINE = re.compile(r"^\d+\. (.+)$", re.MULTILINE)
_ANSWER = re.compile(r"^Answer: (.+)$", re.MULTILINE)


def parse_prompt(request: Request) -> ParsedPrompt:
    """Parse the last user message of the request, or its last message if the user wrote none."""
    spoken = [message for message in request.messages if message.role is Role.USER]
    text = (spoken or request.messages)[-1].text
    task = _TASK.search(text)
    if task is None:
        return ParsedPrompt(question=text.strip(), text=text)
    responses = _SECTION.findall(text, task.end())
    tail = text[max(text.rfind("</agent_response>"), task.end()) :]
    _, found, instruction = tail.partition(_SUBTASK)
    return ParsedPrompt(
        question=_unescape_tags(task[1]),
        instruction=instruction.removesuffix(LAST_STEP).strip() if found else "",
        replies=tuple(parse_reply(_unescape_tags(response)) for response in responses),
        is_last_step=tail.endswith(LAST_STEP),
        read_chars=sum(map(len, responses)),
        text=text,
    )


def _unescape_tags(text: str) -> str:
    return text.replace("&lt;", "<")


@lru_cache(maxsize=16_384)
def parse_reply(text: str) -> ParsedReply:
    """Parse a reply line by line; lines in no known form are skipped."""
    steps = {
        (what, before): StepClaim(after, bool(guess))
        for what, before, after, guess in _STEP.findall(text)
    }
    facts = {(relation, subject): found for relation, subject, found in _FACT.findall(text)}
    clauses = [read_step(clause) for clause in _PLAN_LINE.findall(text)]
    ops = tuple(op for op in clauses if op is not None)
    answers = _ANSWER.findall(text)
    return ParsedReply(
        steps=steps, facts=facts, plan=ops or None, answer=answers[-1] if answers else None
    )
