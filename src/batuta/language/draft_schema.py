"""A workflow as JSON, for providers that can hold a model to a schema: a list of steps.

The steps become the paper's three lists in `parser.read_lists`, so that there is one parser.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any, cast

from batuta.core import Pool, ResponseFormat
from batuta.language.literal import MAX_DEPTH, LiteralValue

_SURROGATE = re.compile("[\ud800-\udfff]")
MOST_TEXT = 2000
"""Characters of the thoughts, and of a subtask, where their length can be bounded."""
DRAFT_FORM = """\
Write the lists as one JSON object: {"thoughts": "…", "steps": [{"model_id": "0", "subtask": "…", \
"access_list": ["all"]}]}, a member of `steps` for each step."""
"""The prompt's words about the form to which the provider holds the model."""


def draft_format(
    pool: Pool, max_steps: int, *, revise: bool, bounds: Collection[str]
) -> ResponseFormat:
    """The form of a draft: brief thoughts, then the steps.

    Args:
        pool: the numbers of its workers are the only ones that can be written.
        max_steps: steps that a workflow may have.
        revise: whether no step at all lets an earlier answer stand.
        bounds: of the keywords `minItems`, `maxItems` and `maxLength` those that the provider
            takes in a schema.
    """
    earlier = [str(index) for index in range(max_steps - 1)]
    text = _with_bounds({"type": "string"}, bounds, maxLength=MOST_TEXT)
    access = {"type": "array", "items": {"type": "string", "enum": [*earlier, "all"]}}
    step = _closed_object(
        model_id={"type": "string", "enum": [str(number) for number in range(len(pool))]},
        subtask=text,
        access_list=_with_bounds(access, bounds, maxItems=max(max_steps - 1, 1)),
    )
    steps = {"type": "array", "items": step}
    least = {} if revise else {"minItems": 1}
    schema = _closed_object(
        thoughts=text, steps=_with_bounds(steps, bounds, maxItems=max_steps, **least)
    )
    return ResponseFormat(kind="json_schema", name="workflow", schema=schema, strict=True)


def lists_of_steps(text: str) -> tuple[list[LiteralValue], ...] | None:
    """The three lists of a draft in that form; None: it has another.

    What a step leaves out is an empty text, and a step without a number has a worker that is none.
    """
    text = text.strip()
    if not text.startswith("{"):
        return None
    try:
        draft = json.loads(text)
    except (ValueError, RecursionError):
        return None
    steps = cast("dict[str, Any]", draft).get("steps") if isinstance(draft, dict) else None
    if not isinstance(steps, list):
        return None
    rows = [
        cast("dict[str, object]", step) if isinstance(step, dict) else {}
        for step in cast("list[object]", steps)
    ]
    return (
        [_plain_value(row.get("model_id", "")) for row in rows],
        [_plain_value(row.get("subtask", "")) for row in rows],
        [_plain_value(row.get("access_list", "")) for row in rows],
    )


def _plain_value(value: object, depth: int = 0) -> LiteralValue:
    """The value as `literal` would read it; what that does not know becomes its text."""
    if isinstance(value, list) and depth < MAX_DEPTH:
        return [_plain_value(each, depth + 1) for each in cast("list[object]", value)]
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return _SURROGATE.sub("\ufffd", str(cast("object", value)))


def _closed_object(**properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _with_bounds(schema: dict[str, Any], bounds: Collection[str], **limits: int) -> dict[str, Any]:
    return {**schema, **{name: most for name, most in limits.items() if name in bounds}}
