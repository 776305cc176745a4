"""What a worker hears: its prompt, taken apart, and the replies of others that stand in it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from batuta.core import Request, Role
from batuta.language.prompt import LAST_STEP
from batuta.rehearsal.problem import ProblemStep, read_step


class InstructionKind(StrEnum):
    """What an instruction asks for."""

    SOLVE = "solve"
    PLAN = "plan"
    LOOK_UP = "look up"
    SECOND = "second opinion"
    VERIFY = "verify"
    REPAIR = "repair"
    COMPARE = "compare"
    FORMAT = "format"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class StepClaim:
    """A step that somebody says came out so."""

    after: str
    guess: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedReply:
    """A reply of another worker, as far as it can be understood."""

    steps: dict[tuple[str, str], StepClaim]
    """(what was done, to what value) to what came out."""
    facts: dict[tuple[str, str], str]
    """(relation, subject) to object."""
    plan: tuple[ProblemStep, ...] | None
    answer: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedPrompt:
    """A prompt, understood."""

    question: str
    instruction: str | None
    """None: a bare question."""
    replies: tuple[ParsedReply, ...]
    is_last_step: bool
    """Whether the reply goes to the user."""
    read_chars: int
    """Characters of other workers' text."""
    text: str
    """The whole prompt."""


_TASK = re.compile(r"<overall_task>\n(.*?)\n</overall_task>", re.DOTALL)
_SECTION = re.compile(r'<agent_response step="\d+">\n(.*?)\n</agent_response>', re.DOTALL)
_SUBTASK = "Your assigned subtask: "
_STEP = re.compile(r"^Step \d+, ([^:\n]+): (.*?) -> (.*?)( \(a guess\))?$", re.MULTILINE)
_FACT = re.compile(r"^- (.+?) of (.+?): (.+)$", re.MULTILINE)
_PLAN_LINE = re.compile(r"^\d+\. (.+)$", re.MULTILINE)
_ANSWER = re.compile(r"^Answer: (.+)$", re.MULTILINE)


def parse_prompt(request: Request) -> ParsedPrompt:
    """What the last user message of the request says."""
    spoken = [message for message in request.messages if message.role is Role.USER]
    text = (spoken or request.messages)[-1].text
    task = _TASK.search(text)
    if task is None:
        return ParsedPrompt(
            question=text.strip(),
            instruction=None,
            replies=(),
            is_last_step=True,
            read_chars=0,
            text=text,
        )
    responses = _SECTION.findall(text, task.end())
    tail = text[max(text.rfind("</agent_response>"), task.end()) :]
    _, found, instruction = tail.partition(_SUBTASK)
    last = tail.endswith(LAST_STEP)
    return ParsedPrompt(
        question=_unescape_tags(task[1]),
        instruction=instruction.removesuffix(LAST_STEP).strip() if found else "",
        replies=tuple(parse_reply(_unescape_tags(response)) for response in responses),
        is_last_step=last,
        read_chars=sum(map(len, responses)),
        text=text,
    )


def _unescape_tags(text: str) -> str:
    return text.replace("&lt;", "<")


@lru_cache(maxsize=16_384)
def parse_reply(text: str) -> ParsedReply:
    """What a reply says, line by line; what is not understood is passed over."""
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


_NEGATED_CLAUSES = re.compile(r"\b(?:do not|don't|without|never|nor)\b[^.;,]*", re.IGNORECASE)
_INSTRUCTION_WORDS: dict[InstructionKind, tuple[str, ...]] = {
    InstructionKind.PLAN: (
        r"(?:make|write|draft|devise|give|draw up) (?:a|the|an) (?:\w+ )?(?:plan|outline)",
        r"plan|outline|break down|break \w+(?: \w+)? down|decompose|list the (?:\w+ )?steps",
    ),
    InstructionKind.LOOK_UP: (
        r"look up|look for|recall|retrieve|gather|collect|research|what do you know",
        r"name (?:the|every|all)|state (?:the|what|all)",
        r"(?:find|list) (?:the |all |every )?(?:\w+ )?facts?",
    ),
    InstructionKind.SECOND: (
        r"second opinion|independent(?:ly)?|another way|(?:a )?different (?:way|method)",
        r"from scratch|afresh|on your own",
    ),
    InstructionKind.VERIFY: (
        r"verif\w*|check\w*|review|inspect|audit|examine|test|validate",
        r"criticise|critique|prove",
    ),
    InstructionKind.REPAIR: (r"repair|correct|fix|refine|improve|revise|amend|polish|mend",),
    InstructionKind.COMPARE: (
        r"compare|decide|choose|pick|weigh|judge|vote|select|reconcile",
        r"majority|consensus|combine|merge|aggregate|synthesi[sz]e",
    ),
    InstructionKind.FORMAT: (
        r"format|rewrite|restate|repeat|report|summari[sz]e|present",
        r"state the final|give (?:only )?the final answer|output the",
    ),
    InstructionKind.SOLVE: (
        r"solve|compute|calculate|answer|work (?:it |this |the \w+ )?out",
        r"carry (?:it |them )?out|execute|evaluate|follow|find|determine|do|run|use|apply",
        r"complete|write|perform|from the (?:\w+ )?(?:facts|plan|lengths)",
    ),
}
"""What each kind of instruction is called; patterns of words."""
_INSTRUCTION_PATTERNS = {
    verb: re.compile(rf"\b(?:{'|'.join(words)})\b", re.IGNORECASE)
    for verb, words in _INSTRUCTION_WORDS.items()
}
_OBJECT_PHRASES = re.compile(
    r"\b(?:according to|following|using|with|from|of|on|by|to|in|and|against|as in)\s+"
    r"(?:the|that|this|a|an|your|each|both|these|those|all|any)\s+"
    r"(?:\w+\s+)?(?:plan|outline|answers?|solutions?|review|test|facts?|check|verification)\b",
    re.IGNORECASE,
)


@lru_cache(maxsize=16_384)
def classify_instruction(instruction: str) -> InstructionKind:
    """What the instruction asks for first; nothing said means solve."""
    if not instruction.strip():
        return InstructionKind.SOLVE
    said = _OBJECT_PHRASES.sub(" ", _NEGATED_CLAUSES.sub(" ", instruction))
    found: dict[InstructionKind, int] = {}
    for verb, pattern in _INSTRUCTION_PATTERNS.items():
        if match := pattern.search(said):
            found[verb] = match.start()
    if not found:
        return InstructionKind.UNKNOWN
    if (
        InstructionKind.SECOND in found
        and InstructionKind.COMPARE not in found
        and InstructionKind.VERIFY not in found
    ):
        return InstructionKind.SECOND
    first = min(found, key=lambda verb: found[verb])
    return (
        InstructionKind.REPAIR
        if first is InstructionKind.VERIFY and InstructionKind.REPAIR in found
        else first
    )
