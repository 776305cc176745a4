"""The form of a compact draft as llama.cpp's grammar (GBNF): three lists of one length.

Guided decoding (Willard and Louf 2023, arXiv:2307.09702). A line of thought may come before the
lists; workers are the listed ones, and a step reads earlier steps only.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from batuta.core import MAX_STEPS

_SHARED = r"""
thought ::= [^\n"=]{1,200} "\n"
text ::= "\"" sign{0,300} "\""
sign ::= [^"\\\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4})
"""
"""A text is any string of JSON, of a length that an untrained policy ends within its tokens; an
empty one has a step answer the question as it stands."""


def draft_grammar(names: Sequence[str], max_steps: int = MAX_STEPS) -> str:
    """Every draft of one to `max_steps` steps over the workers of these names, and nothing else.

    Args:
        names: ids of the workers that may be called, at least one.
        max_steps: of a workflow.
    """
    lengths = range(1, max_steps + 1)
    rules = [f"root ::= thought? ({' | '.join(f'lists{n}' for n in lengths)})", _SHARED.strip()]
    rules.append(
        f"name ::= {' | '.join(_quote_terminal(json.dumps(n, ensure_ascii=False)) for n in names)}"
    )
    rules += [f"read{step} ::= {_list_readings(step)}" for step in range(max_steps)]
    for n in lengths:
        texts, called = (_join_rules([rule] * n) for rule in ("text", "name"))
        read = _join_rules([f"read{step}" for step in range(n)])
        rules.append(
            f'lists{n} ::= "subtasks = [" {texts} "]\\nmodel_id = [" {called} '
            f'"]\\naccess_list = [" {read} "]"'
        )
    return "\n".join(rules) + "\n"


def _list_readings(step: int) -> str:
    """Any of the earlier steps, in their order, or none."""
    sets = [
        [str(earlier) for earlier in range(step) if mask >> earlier & 1] for mask in range(2**step)
    ]
    return " | ".join(_quote_terminal(f"[{', '.join(one)}]") for one in sets)


def _join_rules(rules: Sequence[str]) -> str:
    return ' ", " '.join(rules)


def _quote_terminal(text: str) -> str:
    """The text as a terminal of the grammar."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
