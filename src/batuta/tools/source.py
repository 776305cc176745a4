"""A tool source: something that is called with arguments and answers, and is no language model."""

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
    """A call of a tool that gave no output; the sentence says why, for a model to read."""

    def __init__(self, message: str, *, cost: Cost = ZERO_COST) -> None:
        super().__init__(message)
        self.cost = cost
        """Dollars that the broken call cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolLimits:
    """Limits of one call."""

    seconds: float = 30.0
    characters: int = 20_000
    """Characters of its output's texts together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """For whom a tool is called."""

    domains: DomainRules = ANY_DOMAIN
    """The caller's own rules, beside the operator's."""
    first_number: int | None = None
    """The number of its first result, where results are cited by numbers; None: a search counts
    from 1, and a page has none."""
    named_in: str | None = None
    """The texts that named addresses so far; no other address is read. None: any may be."""


NO_CONTEXT = ToolContext()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutput:
    """The answer of a tool."""

    parts: tuple[Text | Image, ...]
    citations: tuple[Citation, ...] = ()
    """Where it is from."""
    cost: Cost = ZERO_COST
    files: tuple[WrittenFile, ...] = ()
    """The files that a program wrote."""
    failure: str = ""
    """The error of a program that ran; the parts are what came out before."""

    @property
    def text(self) -> str:
        """The text parts, one after another."""
        return "".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def pictures(self) -> tuple[str, ...]:
        """The pictures, as `data:` addresses."""
        return tuple(part.url for part in self.parts if isinstance(part, Image))


class ToolSource(Protocol):
    """A tool that can be called.

    Laws, of a call by `call_tool`: arguments that do not fit the schema are refused before anything
    is called or paid for; it ends within its limits, by an output or by `ToolError`, and nothing
    else is raised; its texts are no longer than is allowed; its cost is its price, or one call of
    unknown price; a source that observes may be called twice with the same arguments.
    """

    @property
    def name(self) -> str:
        """The name by which models know it."""
        ...

    @property
    def description(self) -> str:
        """A sentence or two for models."""
        ...

    @property
    def schema(self) -> Mapping[str, Any]:
        """The JSON schema of its arguments, an object."""
        ...

    @property
    def kind(self) -> ToolClass:
        """Tell whether it changes something."""
        ...

    @property
    def price(self) -> Decimal | None:
        """Dollars a call; None: unknown, which is not free."""
        ...

    @property
    def limits(self) -> ToolLimits:
        """The limits of one call."""
        ...

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Return the output for arguments that fit the schema.

        Raises:
            ToolError: there is none.
        """
        ...


def call_cost(source: ToolSource) -> Cost:
    """Return what one call costs."""
    return Cost(unpriced_calls=1) if source.price is None else Cost(source.price)


async def call_tool(
    source: ToolSource, arguments: str, context: ToolContext = NO_CONTEXT
) -> ToolOutput:
    """Call the tool within its limits.

    Args:
        source: the tool.
        arguments: JSON, as a model wrote it; what does not fit the tool's schema is refused.
        context: for whom it is called.

    Raises:
        ToolError: there is no output.
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
    return replace(output, parts=_cut_parts(output.parts, source.limits.characters), cost=cost)


def _cut_parts(parts: tuple[Text | Image, ...], most: int) -> tuple[Text | Image, ...]:
    """Return the parts whose texts fit, the last one cut."""
    kept: list[Text | Image] = []
    for part in parts:
        if not isinstance(part, Text):
            kept.append(part)
        elif most > 0:
            kept.append(Text(part.text[:most]))
            most -= len(part.text)
    return tuple(kept)
