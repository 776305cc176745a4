"""What a worker hears: its prompt, taken apart, and the replies of others that stand in it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from batuta.core import Request, Role
from batuta.language.prompt import LAST_STEP
from batuta.rehearsal.problem import Op, read_op


class Verb(StrEnum):
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
class Claim:
    """A step that somebody says came out so."""

    after: str
    guess: bool


@dataclass(frozen=True, slots=True)
class Sheet:
    """A reply of another worker, as far as it can be understood."""

    steps: dict[tuple[str, str], Claim]
    """(what was done, to what value) to what came out."""
    facts: dict[tuple[str, str], str]
    """(relation, subject) to object."""
    plan: tuple[Op, ...] | None
    answer: str | None


@dataclass(frozen=True, slots=True)
class Heard:
    """A prompt, understood."""

    question: str
    instruction: str | None
    """None: a bare question."""
    sheets: tuple[Sheet, ...]
    last: bool
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
_PLANNED = re.compile(r"^\d+\. (.+)$", re.MULTILINE)
_ANSWER = re.compile(r"^Answer: (.+)$", re.MULTILINE)


def hear(request: Request) -> Heard:
    """What the last user message of the request says."""
    spoken = [message for message in request.messages if message.role is Role.USER]
    text = (spoken or request.messages)[-1].text
    task = _TASK.search(text)
    if task is None:
        return Heard(text.strip(), None, (), last=True, read_chars=0, text=text)
    responses = _SECTION.findall(text, task.end())
    tail = text[max(text.rfind("</agent_response>"), task.end()) :]
    _, found, instruction = tail.partition(_SUBTASK)
    last = tail.endswith(LAST_STEP)
    return Heard(
        _unescape(task[1]),
        instruction.removesuffix(LAST_STEP).strip() if found else "",
        tuple(read_sheet(_unescape(response)) for response in responses),
        last=last,
        read_chars=sum(map(len, responses)),
        text=text,
    )


def _unescape(text: str) -> str:
    return text.replace("&lt;", "<")


@lru_cache(maxsize=16_384)
def read_sheet(text: str) -> Sheet:
    """What a reply says, line by line; what is not understood is passed over."""
    steps = {
        (what, before): Claim(after, bool(guess))
        for what, before, after, guess in _STEP.findall(text)
    }
    facts = {(relation, subject): found for relation, subject, found in _FACT.findall(text)}
    clauses = [read_op(clause) for clause in _PLANNED.findall(text)]
    ops = tuple(op for op in clauses if op is not None)
    answers = _ANSWER.findall(text)
    return Sheet(steps, facts, ops or None, answers[-1] if answers else None)


_FORBIDDEN = re.compile(r"\b(?:do not|don't|without|never|nor)\b[^.;,]*", re.IGNORECASE)
_WORDS: dict[Verb, tuple[str, ...]] = {
    Verb.PLAN: (
        r"(?:make|write|draft|devise|give|draw up) (?:a|the|an) (?:\w+ )?(?:plan|outline)",
        r"plan|outline|break down|break \w+(?: \w+)? down|decompose|list the (?:\w+ )?steps",
    ),
    Verb.LOOK_UP: (
        r"look up|look for|recall|retrieve|gather|collect|research|what do you know",
        r"name (?:the|every|all)|state (?:the|what|all)",
        r"(?:find|list) (?:the |all |every )?(?:\w+ )?facts?",
    ),
    Verb.SECOND: (
        r"second opinion|independent(?:ly)?|another way|(?:a )?different (?:way|method)",
        r"from scratch|afresh|on your own",
    ),
    Verb.VERIFY: (
        r"verif\w*|check\w*|review|inspect|audit|examine|test|validate",
        r"criticise|critique|prove",
    ),
    Verb.REPAIR: (r"repair|correct|fix|refine|improve|revise|amend|polish|mend",),
    Verb.COMPARE: (
        r"compare|decide|choose|pick|weigh|judge|vote|select|reconcile",
        r"majority|consensus|combine|merge|aggregate|synthesi[sz]e",
    ),
    Verb.FORMAT: (
        r"format|rewrite|restate|repeat|report|summari[sz]e|present",
        r"state the final|give (?:only )?the final answer|output the",
    ),
    Verb.SOLVE: (
        r"solve|compute|calculate|answer|work (?:it |this |the \w+ )?out",
        r"carry (?:it |them )?out|execute|evaluate|follow|find|determine|do|run|use|apply",
        r"complete|write|perform|from the (?:\w+ )?(?:facts|plan|lengths)",
    ),
}
"""What each kind of instruction is called; patterns of words."""
_VERBS = {
    verb: re.compile(rf"\b(?:{'|'.join(words)})\b", re.IGNORECASE) for verb, words in _WORDS.items()
}
_NOUNS = re.compile(
    r"\b(?:according to|following|using|with|from|of|on|by|to|in|and|against|as in)\s+"
    r"(?:the|that|this|a|an|your|each|both|these|those|all|any)\s+"
    r"(?:\w+\s+)?(?:plan|outline|answers?|solutions?|review|test|facts?|check|verification)\b",
    re.IGNORECASE,
)


@lru_cache(maxsize=16_384)
def understand(instruction: str) -> Verb:
    """What the instruction asks for first; nothing said means solve."""
    if not instruction.strip():
        return Verb.SOLVE
    said = _NOUNS.sub(" ", _FORBIDDEN.sub(" ", instruction))
    found: dict[Verb, int] = {}
    for verb, pattern in _VERBS.items():
        if match := pattern.search(said):
            found[verb] = match.start()
    if not found:
        return Verb.UNKNOWN
    if Verb.SECOND in found and Verb.COMPARE not in found and Verb.VERIFY not in found:
        return Verb.SECOND
    first = min(found, key=lambda verb: found[verb])
    return Verb.REPAIR if first is Verb.VERIFY and Verb.REPAIR in found else first
