"""The JSON format of a workflow, a list of steps, for providers with schema-constrained output.

`parser.read_lists` converts the steps to the paper's three lists, so that there is one parser.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, cast

from batuta.core import Pool, ResponseFormat, Workflow
from batuta.language.literal import MAX_DEPTH, LiteralValue

_SURROGATE = re.compile("[\ud800-\udfff]")
_THINK = re.compile(r"<(?=/?think)", re.IGNORECASE)
_STEPS = re.compile(r'"steps"\s*:\s*\[')
_NUMBER = re.compile(r"\s*[+-]?[0-9]+\s*")


@dataclass(frozen=True, slots=True)
class TextBounds:
    """Maximum numbers of characters of a draft's texts, if the provider can bound their length."""

    thoughts: int = 2000
    subtask: int = 2000


BRIEF_BOUNDS = TextBounds(thoughts=160, subtask=200)
"""Bounds for a small model, which may not stop by itself."""


def called_by_name(pool: Pool) -> bool:
    """Return True if a draft can name the workers by id: no id looks like a number."""
    return not any(_NUMBER.fullmatch(worker.id) for worker in pool)


def draft_format(
    pool: Pool,
    max_steps: int,
    *,
    revise: bool,
    bounds: Collection[str],
    texts: TextBounds = TextBounds(),
    names: bool = False,
    words_suffice: bool = True,
) -> ResponseFormat:
    """Return the response format of a draft: brief thoughts, then the steps.

    Args:
        pool: the workers that the draft may name.
        max_steps: maximum number of steps of a workflow.
        revise: whether the draft may have no steps, which accepts an earlier answer.
        bounds: those of `minItems`, `maxItems` and `maxLength` that the provider supports.
        texts: maximum numbers of characters of the draft's texts.
        names: whether workers are named by id; else by number.
        words_suffice: see `ResponseFormat`.
    """
    earlier = [str(index) for index in range(max_steps - 1)]
    called = [worker.id if names else str(number) for number, worker in enumerate(pool)]
    access = {"type": "array", "items": {"type": "string", "enum": [*earlier, "all"]}}
    step = closed_object(
        model_id={"type": "string", "enum": called},
        subtask=with_bounds({"type": "string"}, bounds, maxLength=texts.subtask),
        access_list=with_bounds(access, bounds, maxItems=max(max_steps - 1, 1)),
    )
    steps = {"type": "array", "items": step}
    minimum = {} if revise else {"minItems": 1}
    schema = closed_object(
        thoughts=with_bounds({"type": "string"}, bounds, maxLength=texts.thoughts),
        steps=with_bounds(steps, bounds, maxItems=max_steps, **minimum),
    )
    return ResponseFormat(
        kind="json_schema",
        name="workflow",
        schema=schema,
        strict=True,
        words_suffice=words_suffice,
    )


def render_steps(workflow: Workflow, pool: Pool, thoughts: str, *, names: bool = False) -> str:
    """Return the workflow as a JSON draft, on one line.

    Raises:
        KeyError: a step's worker is not in the pool.
    """
    steps = [
        {
            "model_id": step.worker if names else str(pool.number(step.worker)),
            "subtask": step.subtask,
            "access_list": ["all"] if step.previous else [str(read) for read in step.access],
        }
        for step in workflow.steps
    ]
    return dump_json({"thoughts": thoughts, "steps": steps})


def dump_json(value: object) -> str:
    """Return the value as JSON in which any tag of hidden reasoning is escaped."""
    return _THINK.sub(r"\\u003c", json.dumps(value, ensure_ascii=False))


def lists_of_steps(text: str) -> tuple[list[LiteralValue], ...] | None:
    """Return the three lists of a JSON draft; None if the text is not a JSON draft.

    A model without constrained output may put the object in a code block. A field that a step
    omits becomes an empty string: an invalid worker, an empty subtask, or no access.
    """
    if _STEPS.search(text) is None:
        return None
    try:
        draft, _ = json.JSONDecoder().raw_decode(text, text.index("{"))
    except (ValueError, RecursionError):
        return None
    steps = cast("dict[str, Any]", draft).get("steps") if isinstance(draft, dict) else None
    return _lists_of(cast("list[object]", steps)) if isinstance(steps, list) else None


def lists_of_truncated_draft(text: str) -> tuple[list[LiteralValue], ...] | None:
    """Return the lists of the complete steps of a truncated JSON draft; None if it has none."""
    opened = _STEPS.search(text) if "{" in text else None
    if opened is None:
        return None
    decoder, steps, at = json.JSONDecoder(), list[object](), opened.end()
    while (begins := text.find("{", at)) >= 0 and not text[at:begins].strip(" \t\r\n,"):
        try:
            step, at = decoder.raw_decode(text, begins)
        except (ValueError, RecursionError):
            break
        steps.append(step)
    return _lists_of(steps) if steps else None


def _lists_of(steps: list[object]) -> tuple[list[LiteralValue], ...]:
    rows = [cast("dict[str, object]", step) if isinstance(step, dict) else {} for step in steps]
    return (
        [_plain_value(row.get("model_id", "")) for row in rows],
        [_plain_value(row.get("subtask", "")) for row in rows],
        [_plain_value(row.get("access_list", "")) for row in rows],
    )


def _plain_value(value: object, depth: int = 0) -> LiteralValue:
    """Return the value, with everything but integers and nested lists as strings."""
    if isinstance(value, list) and depth < MAX_DEPTH:
        return [_plain_value(each, depth + 1) for each in cast("list[object]", value)]
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return _SURROGATE.sub("\ufffd", str(cast("object", value)))


def closed_object(**properties: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an object with exactly these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def with_bounds(schema: dict[str, Any], bounds: Collection[str], **limits: int) -> dict[str, Any]:
    """Return the schema with the limits that the provider supports: their keywords in `bounds`."""
    return {**schema, **{name: limit for name, limit in limits.items() if name in bounds}}
