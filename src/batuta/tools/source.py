"""A tool source: called with arguments it returns output, without a language model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Protocol

import anyio

from batuta.core import Citation, Image, Text, WrittenFile
from batuta.core.tool_classes import ToolClass
from batuta.errors import BatutaError
from batuta.schemas import SchemaTimeoutError, validator_for
from batuta.tools.domains import ANY_DOMAIN, DomainRules
from batuta.usage import ZERO_COST, Cost


class ToolError(BatutaError):
    """A tool call gave no output; the message says why, for a model to read."""

    def __init__(self, message: str, *, cost: Cost = ZERO_COST) -> None:
        super().__init__(message)
        self.cost = cost
        """The cost of the failed call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolLimits:
    """Limits of one call."""

    seconds: float = 30.0
    characters: int = 20_000
    """Maximum number of characters of all the output's texts together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """The caller's rules for one tool call, and the number of its first result."""

    domains: DomainRules = ANY_DOMAIN
    """The caller's rules, in addition to the operator's."""
    first_number: int | None = None
    """The number of the call's first result, if results are cited by number; None: the results of a
    search are numbered from 1, and a page has no number."""
    named_in: str | None = None
    """The texts that name the URLs that may be read; None: any URL may be read."""


NO_CONTEXT = ToolContext()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutput:
    """The output of a tool."""

    parts: tuple[Text | Image, ...]
    citations: tuple[Citation, ...] = ()
    """The sources of the output."""
    cost: Cost = ZERO_COST
    """The cost of the call, which `call_tool` sets."""
    files: tuple[WrittenFile, ...] = ()
    """The files that a program wrote."""
    failure: str = ""
    """The error of a program that ran, whose output before the error is in `parts`; else empty."""

    @property
    def text(self) -> str:
        """The text parts, one after another."""
        return "".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def pictures(self) -> tuple[str, ...]:
        """The pictures, as `data:` URLs."""
        return tuple(part.url for part in self.parts if isinstance(part, Image))


class ToolSource(Protocol):
    """A tool that can be called.

    `call_tool` refuses arguments that do not fit the schema before anything is called or paid for,
    ends the call within its limits, and charges the price, or one call of unknown price. A source
    raises only `ToolError`.

    The docstring of `batuta.tools` lists where a new source is registered.
    """

    @property
    def name(self) -> str:
        """The name that models use."""
        ...

    @property
    def description(self) -> str:
        """The description of the tool for models, in one or two sentences."""
        ...

    @property
    def schema(self) -> Mapping[str, Any]:
        """The JSON schema of its arguments, which form an object."""
        ...

    @property
    def kind(self) -> ToolClass:
        """Whether a call may change something."""
        ...

    @property
    def price(self) -> Decimal | None:
        """Dollars per call; None if unknown, which is not free."""
        ...

    @property
    def limits(self) -> ToolLimits:
        """The limits of one call."""
        ...

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Return the output for arguments that fit the schema.

        Raises:
            ToolError: the call gave no output.
        """
        ...


def call_cost(source: ToolSource) -> Cost:
    """Return the cost of one call of the source."""
    return Cost(unpriced_calls=1) if source.price is None else Cost(source.price)


async def call_tool(
    source: ToolSource, arguments: str, context: ToolContext = NO_CONTEXT
) -> ToolOutput:
    """Call the tool within its limits.

    Args:
        source: the tool.
        arguments: JSON, as a model wrote it; refused if it does not fit the tool's schema.
        context: the caller's rules.

    Raises:
        ToolError: the arguments do not fit, or the call gave no output in time.
    """
    try:
        fault = await validator_for(source.schema).find_fault(arguments)
    except (SchemaTimeoutError, ValueError):
        fault = "they cannot be checked"
    if fault is not None:
        raise ToolError(f"the arguments of {source.name} do not fit: {fault}")
    cost = call_cost(source)
    try:
        with anyio.fail_after(source.limits.seconds):
            output = await source.call(json.loads(arguments), context)
    except TimeoutError:
        took = f"{source.name} took more than {source.limits.seconds:g} seconds"
        raise ToolError(took, cost=cost) from None
    return replace(output, parts=_truncate_parts(output.parts, source.limits.characters), cost=cost)


def _truncate_parts(parts: tuple[Text | Image, ...], most: int) -> tuple[Text | Image, ...]:
    """Return the parts, with their texts truncated to `most` characters in total."""
    kept: list[Text | Image] = []
    for part in parts:
        if not isinstance(part, Text):
            kept.append(part)
        elif most > 0:
            kept.append(Text(part.text[:most]))
            most -= len(part.text)
    return tuple(kept)
