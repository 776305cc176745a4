"""Workers (models and tools that can be called) and pools, the ordered lists of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NewType, TypeVar

from batuta.usage import Price

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Iterator
    from decimal import Decimal

WorkerId = NewType("WorkerId", str)
PROGRAM = "program"
"""The tag of a worker that runs programs and cannot answer a question itself."""
SEARCH, READER, MCP, FILE_SEARCH = "search", "reader", "mcp", "file_search"
"""The tags of workers that search the web, read pages, call an MCP server or search files; they
cannot answer a question either."""
IMAGE = "image"
"""The tag of a worker that only generates images."""
_NO_MODELS = frozenset({PROGRAM, SEARCH, READER, MCP, FILE_SEARCH, IMAGE})


EMBEDDINGS = "embeddings"
"""The tag of an embedding model, which answers no question."""
CHANGES = "changes"
"""The tag of workers with side effects, such as a tool that sends or deletes."""
VISION, FILES, AUDIO, TOOLS = "vision", "files", "audio", "tools"
"""Tags of the models that accept pictures, files or recordings, or can call tools."""


class Finish(StrEnum):
    """Why a reply ended."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CONTENT_FILTER = "content_filter"
    DECLINED = "declined"
    """The worker reports that the question is outside what it can answer."""
    NO_OUTPUT = "no_output"
    """A program or tool returned nothing, failed, or was not called; the text says which."""


_Number = TypeVar("_Number", int, float)


def _value_or_default(value: _Number | None, default: _Number | None) -> _Number | None:
    return default if value is None else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a model samples; None leaves a choice to the provider."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    """Maximum number of completion tokens."""
    stop: tuple[str, ...] = ()
    seed: int | None = None
    effort: str | None = None
    """Reasoning effort: none, minimal, low, medium, high, xhigh or max."""
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    top_k: int | None = None
    """Each token is sampled from this many most probable tokens."""
    choices: int | None = None
    """Number of replies to the prompt; None: one."""
    logprobs: int | None = None
    """Number of alternative tokens reported with their log probabilities, beside each token's own;
    None: no log probabilities."""
    dimensions: int | None = None
    """Size of an embedding model's vectors; None: the model's default."""

    @property
    def is_empty(self) -> bool:
        """True if nothing is set."""
        return self is NO_SAMPLING or self == NO_SAMPLING  # comparing by identity is faster

    def with_defaults(self, default: Sampling) -> Sampling:
        """Return these settings, with unset ones taken from `default`."""
        if self.is_empty:
            return default
        if default.is_empty:
            return self
        return Sampling(
            temperature=default.temperature if self.temperature is None else self.temperature,
            top_p=default.top_p if self.top_p is None else self.top_p,
            max_tokens=default.max_tokens if self.max_tokens is None else self.max_tokens,
            stop=self.stop or default.stop,
            seed=default.seed if self.seed is None else self.seed,
            effort=self.effort or default.effort,
            frequency_penalty=_value_or_default(self.frequency_penalty, default.frequency_penalty),
            presence_penalty=_value_or_default(self.presence_penalty, default.presence_penalty),
            top_k=_value_or_default(self.top_k, default.top_k),
            choices=_value_or_default(self.choices, default.choices),
            logprobs=_value_or_default(self.logprobs, default.logprobs),
            dimensions=_value_or_default(self.dimensions, default.dimensions),
        )


NO_SAMPLING = Sampling()
"""Sampling with nothing set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """How often a worker answers one family of questions correctly."""

    family: str
    share: float
    """Accuracy, in [0, 1]."""
    questions: int | None = None
    """Number of questions in the measurement; None: estimated, or from a public leaderboard."""
    board: str = ""
    """The public leaderboard and its date; empty: measured or estimated by the operator."""

    def __post_init__(self) -> None:
        if not self.family or not 0 <= self.share <= 1:
            raise ValueError(f"a skill needs a family and a share in [0, 1]: {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A worker's description; data only, without a connection."""

    id: WorkerId
    model: str
    """The model's name at its provider."""
    description: str = ""
    """One line about the worker that the conductor may be shown."""
    tags: tuple[str, ...] = ()
    """Abilities and facts: `vision`, `tools`, `local`, `region:eu`, `licence:apache-2.0`…"""
    context_window: int | None = None
    """Tokens; None: unknown."""
    price: Price | None = None
    """None: unknown, which does not mean free."""
    sampling: Sampling = NO_SAMPLING
    """This worker's defaults."""
    strength: float | None = None
    """Accuracy when it answers alone, in [0, 1], measured or estimated; None: unknown."""
    skills: tuple[Skill, ...] = ()
    """The worker's accuracy by family of questions."""
    seconds: float | None = None
    """Seconds per answer; None if not measured."""
    parameters: float | None = None
    """Billions of parameters; None: unknown."""
    native_tools: tuple[str, ...] = ()
    """The tools that the worker's provider runs itself, by the names in `core.server_tools`."""

    def __post_init__(self) -> None:
        if not self.id or not self.model:
            raise ValueError("a worker needs an id and a model")
        if self.strength is not None and not 0 <= self.strength <= 1:
            raise ValueError(f"strength of {self.id} is not in [0, 1]: {self.strength}")

    @property
    def is_model(self) -> bool:
        """True if the worker is a language or embedding model, not a tool or an image model."""
        return _NO_MODELS.isdisjoint(self.tags)

    @property
    def measured(self) -> dict[str, float]:
        """Accuracies by family of questions, without those from public leaderboards."""
        return {skill.family: skill.share for skill in self.skills if not skill.board}


def token_price(worker: Worker, unknown: Price) -> Decimal:
    """Return the dollars of a million input and a million output tokens.

    A worker without a price counts at the price `unknown`.
    """
    price = worker.price or unknown
    return price.input + price.output


@dataclass(frozen=True, slots=True)
class Pool:
    """An ordered list of workers; the order gives them their numbers."""

    workers: tuple[Worker, ...]

    def __post_init__(self) -> None:
        if not self.workers:
            raise ValueError("a pool needs at least one worker")
        if len({worker.id for worker in self.workers}) != len(self.workers):
            ids = [worker.id for worker in self.workers]
            twice = next(worker for worker in ids if ids.count(worker) > 1)
            raise ValueError(f"two workers of a pool have the same id, {twice}")

    def __len__(self) -> int:
        return len(self.workers)

    def __iter__(self) -> Iterator[Worker]:
        return iter(self.workers)

    def __contains__(self, worker_id: object) -> bool:
        for worker in self.workers:  # noqa: SIM110 - on the hot path
            if worker.id == worker_id:
                return True
        return False

    def __getitem__(self, worker_id: str) -> Worker:
        """Return the worker with that id.

        Raises:
            KeyError: no worker has that id.
        """
        for worker in self.workers:
            if worker.id == worker_id:
                return worker
        raise KeyError(worker_id)

    def number(self, worker_id: str) -> int:
        """Return the number under which the conductor sees that worker, from 0.

        Raises:
            KeyError: no worker has that id.
        """
        for number, worker in enumerate(self.workers):
            if worker.id == worker_id:
                return number
        raise KeyError(worker_id)

    def subset(self, worker_ids: Iterable[str]) -> Pool:
        """Return a pool with the workers of these ids, in this pool's order; ignore unknown ids.

        Raises:
            ValueError: no worker has one of these ids.
        """
        ids = set(worker_ids)
        return Pool(tuple(worker for worker in self.workers if worker.id in ids))

    def shuffled(self, rng: random.Random) -> Pool:
        """Return the same workers in a random order."""
        return Pool(tuple(rng.sample(self.workers, len(self.workers))))

    def ranked(self) -> tuple[Worker, ...]:
        """Return the workers, best first: by strength, measured skills, price of output, size.

        Workers with a strength come first; among equal strengths cheaper is better, and an unknown
        price is last. Without a strength, more expensive is assumed to be better. Skills count only
        for families on which all workers without a strength were measured; public leaderboards do
        not count. Workers that are not language models are left out unless there are no others.
        """
        if len(self.workers) == 1:  # frequent: requests for a named worker
            return self.workers
        able = [w for w in self.workers if w.is_model] or list(self.workers)
        unrated = [w.measured.keys() for w in able if w.strength is None]
        families = set[str](unrated[0]).intersection(*unrated) if unrated else set[str]()
        return tuple(sorted(able, key=lambda worker: _ranking_key(worker, families), reverse=True))


def _ranking_key(worker: Worker, families: set[str]) -> tuple[float, float, float, float]:
    price = float(worker.price.output) if worker.price else 0.0
    size = worker.parameters or 0.0
    if worker.strength is not None:
        return (worker.strength, 0.0, -price if worker.price else -math.inf, size)
    return (-1.0, sum(worker.measured[family] for family in families), price, size)
