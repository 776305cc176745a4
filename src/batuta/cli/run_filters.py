"""The options by which stored runs are found: those of the API's list, in the same words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Annotated, ClassVar

import typer

from batuta.errors import ConfigError
from batuta.store.run_filter import RunFilter, RunFilterError, parse_run_filter


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrder:
    """Options of the order of a list."""

    panel: ClassVar = "Order"

    sort: Annotated[
        str | None, typer.Option(help="created, cost, seconds, tokens or score; default created.")
    ] = None
    order: Annotated[
        str | None, typer.Option(help="desc, the most or newest first (default), or asc.")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWords:
    """Options of what a run was and who asked."""

    panel: ClassVar = "Which runs"

    search: Annotated[
        str | None, typer.Option(help="Words of the question or answer; the start of an id.")
    ] = None
    model: Annotated[str | None, typer.Option(help="The system that was asked.")] = None
    outcome: Annotated[
        str | None, typer.Option(help="How it ended; several as failed,limited.")
    ] = None
    worker: Annotated[str | None, typer.Option(help="A worker that was planned or asked.")] = None
    error: Annotated[str | None, typer.Option(help="The error's code, such as timed_out.")] = None
    session: Annotated[str | None, typer.Option(help="Only those of this session.")] = None
    user: Annotated[str | None, typer.Option(help="The end user that the request named.")] = None
    tag: Annotated[
        list[str] | None, typer.Option(help="A tag, or name=value of metadata; may be repeated.")
    ] = None
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRanges:
    """Options of time, cost, length and judgement."""

    panel: ClassVar = "Ranges"

    since: Annotated[
        str | None, typer.Option(help="24h, 7d, today, yesterday, a day, or a time.")
    ] = None
    until: Annotated[str | None, typer.Option(help="The same; a day counts to its end.")] = None
    min_cost: Annotated[str | None, typer.Option(help="Dollars, at least.")] = None
    max_cost: Annotated[str | None, typer.Option(help="Dollars, at most.")] = None
    min_seconds: Annotated[str | None, typer.Option(help="Seconds, at least.")] = None
    max_seconds: Annotated[str | None, typer.Option(help="Seconds, at most.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures:
    """Options of tokens and judgement."""

    panel: ClassVar = "Tokens and judgement"

    min_tokens: Annotated[str | None, typer.Option(help="Tokens, at least.")] = None
    max_tokens: Annotated[str | None, typer.Option(help="Tokens, at most.")] = None
    min_score: Annotated[str | None, typer.Option(help="The score, at least.")] = None
    max_score: Annotated[str | None, typer.Option(help="The score, at most.")] = None
    judged: Annotated[str | None, typer.Option(help="yes: with a score; no: without.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilterOptions:
    """Every option by which runs are found."""

    words: RunWords
    ranges: RunRanges
    figures: RunFigures
    order: RunOrder

    def read(self) -> RunFilter:
        """Return the filter.

        Raises:
            ConfigError: a value cannot be used.
        """
        try:
            return parse_run_filter(self.given())
        except RunFilterError as error:
            option = "search" if error.name == "q" else error.name.replace("_", "-")
            raise ConfigError(f"--{option}: {str(error).removesuffix('.')}") from None

    def given(self) -> Iterator[tuple[str, str]]:
        """Yield the options that were given, by the API's names of them."""
        for group in (self.words, self.ranges, self.figures, self.order):
            for name in (field.name for field in fields(group)):
                value: str | list[str] | None = getattr(group, name)
                texts = [value] if isinstance(value, str) else value or []
                yield from (("q" if name == "search" else name, each) for each in texts)
