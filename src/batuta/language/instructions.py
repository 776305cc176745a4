"""Classifies subtasks by their words: solve, verify, compare and others."""

from __future__ import annotations

import re
from enum import StrEnum
from functools import lru_cache


class InstructionKind(StrEnum):
    """The kind of work that an instruction asks for."""

    SOLVE = "solve"
    PLAN = "plan"
    LOOK_UP = "look up"
    SECOND = "second opinion"
    VERIFY = "verify"
    REPAIR = "repair"
    COMPARE = "compare"
    FORMAT = "format"
    UNKNOWN = "unknown"


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
"""Patterns of the words that name each kind of instruction."""
_INSTRUCTION_PATTERNS = {
    kind: re.compile(rf"\b(?:{'|'.join(words)})\b", re.IGNORECASE)
    for kind, words in _INSTRUCTION_WORDS.items()
}
# "according to the plan" does not ask for a plan.
_OBJECT_PHRASES = re.compile(
    r"\b(?:according to|following|using|with|from|of|on|by|to|in|and|against|as in)\s+"
    r"(?:the|that|this|a|an|your|each|both|these|those|all|any)\s+"
    r"(?:\w+\s+)?(?:plan|outline|answers?|solutions?|review|test|facts?|check|verification)\b",
    re.IGNORECASE,
)


@lru_cache(maxsize=16_384)
def classify_instruction(instruction: str) -> InstructionKind:
    """Return the kind of work that the instruction asks for first.

    It is `UNKNOWN` if no word names a kind. An empty instruction asks to solve. A second opinion
    counts wherever it is mentioned, unless the instruction also asks to compare or verify; "verify
    and repair" is a repair.
    """
    if not instruction.strip():
        return InstructionKind.SOLVE
    clauses = _OBJECT_PHRASES.sub(" ", _NEGATED_CLAUSES.sub(" ", instruction))
    positions = {
        kind: match.start()
        for kind, pattern in _INSTRUCTION_PATTERNS.items()
        if (match := pattern.search(clauses))
    }
    if not positions:
        return InstructionKind.UNKNOWN
    if InstructionKind.SECOND in positions and positions.keys().isdisjoint(
        {InstructionKind.COMPARE, InstructionKind.VERIFY}
    ):
        return InstructionKind.SECOND
    first = min(positions, key=lambda kind: positions[kind])
    if first is InstructionKind.VERIFY and InstructionKind.REPAIR in positions:
        return InstructionKind.REPAIR
    return first
