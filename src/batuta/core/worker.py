"""A worker is a model that can be called; a pool is the ordered list the conductor sees."""

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
"""The tag of a worker that runs programs and answers no question by itself."""
SEARCH, READER, MCP, FILE_SEARCH = "search", "reader", "mcp", "file_search"
"""The tags of workers that search the web, read pages, call an MCP server or search files; they
answer no question either."""
IMAGE = "image"
"""The tag of a worker that makes pictures; it is asked for nothing else."""
_NO_MODELS = frozenset({PROGRAM, SEARCH, READER, MCP, FILE_SEARCH, IMAGE})


EMBEDDINGS = "embeddings"
"""The tag of a worker that turns texts into vectors and answers no question."""
CHANGES = "changes"
"""The tag of workers that may change something outside, such as a tool that sends or deletes."""
VISION, FILES, AUDIO, TOOLS = "vision", "files", "audio", "tools"
"""Tags of workers that see pictures, read files, hear recordings, call tools."""


class Finish(StrEnum):
    """Why a reply ended."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CONTENT_FILTER = "content_filter"
    DECLINED = "declined"
    """The worker says that the question is outside what it can answer."""
    NO_OUTPUT = "no_output"
    """A program or a tool gave nothing, failed, or was not called: the text says which."""


_Number = TypeVar("_Number", int, float)


def _value_or_default(value: _Number | None, default: _Number | None) -> _Number | None:
    return default if value is None else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a model samples; None leaves a choice to the provider."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    """Completion tokens at most."""
    stop: tuple[str, ...] = ()
    seed: int | None = None
    effort: str | None = None
    """Reasoning effort: none, minimal, low, medium, high, xhigh or max."""
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    top_k: int | None = None
    """Tokens among which each is drawn."""
    choices: int | None = None
    """Replies to the one prompt; None: one."""
    logprobs: int | None = None
    """Number of alternatives told for each token of the reply, with their log probabilities and the
    token's own; None if no probabilities are told."""
    dimensions: int | None = None
    """Numbers of each vector, of a model that embeds; None: the model's own."""

    @property
    def is_empty(self) -> bool:
        """True if no choice was made; `NO_SAMPLING` itself needs no comparison of fields."""
        return self is NO_SAMPLING or self == NO_SAMPLING

    def with_defaults(self, default: Sampling) -> Sampling:
        """Return these choices, and `default` where none was made."""
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
"""No choice was made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """How often a worker answers one family of questions correctly."""

    family: str
    share: float
    """Share of answers that were right, in [0, 1]."""
    questions: int | None = None
    """How many it was measured on here; None: it is believed, or taken from a public board."""
    board: str = ""
    """The public board and its date, for a prior; empty: measured here or believed."""

    def __post_init__(self) -> None:
        if not self.family or not 0 <= self.share <= 1:
            raise ValueError(f"a skill needs a family and a share in [0, 1]: {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A worker's description; data only, no connection."""

    id: WorkerId
    model: str
    """The model's name at its provider."""
    description: str = ""
    """One line that a conductor may be shown."""
    tags: tuple[str, ...] = ()
    """Abilities and facts: `vision`, `tools`, `local`, `region:eu`, `licence:apache-2.0`…"""
    context_window: int | None = None
    """Tokens; None: unknown."""
    price: Price | None = None
    """None: unknown, which is not free."""
    sampling: Sampling = NO_SAMPLING
    """This worker's defaults."""
    strength: float | None = None
    """Share of questions it answers correctly alone, in [0, 1], as measured or as believed."""
    skills: tuple[Skill, ...] = ()
    """The worker's strengths."""
    seconds: float | None = None
    """Seconds that an answer takes; None if not measured."""
    parameters: float | None = None
    """Billions of parameters; None: unknown."""
    native_tools: tuple[str, ...] = ()
    """The tools that its provider runs by itself, by the names of `core.server_tools`."""

    def __post_init__(self) -> None:
        if not self.id or not self.model:
            raise ValueError("a worker needs an id and a model")
        if self.strength is not None and not 0 <= self.strength <= 1:
            raise ValueError(f"strength of {self.id} is not in [0, 1]: {self.strength}")

    @property
    def is_model(self) -> bool:
        """Return True if it answers in words, and is no tool that stands among those."""
        return _NO_MODELS.isdisjoint(self.tags)

    @property
    def measured(self) -> dict[str, float]:
        """Shares by family, without those of public boards."""
        return {skill.family: skill.share for skill in self.skills if not skill.board}


def token_price(worker: Worker, unknown: Price) -> Decimal:
    """Return the price of a million tokens, read and written alike."""
    price = worker.price or unknown
    return price.input + price.output


@dataclass(frozen=True, slots=True)
class Pool:
    """Workers in the order that gives them their numbers."""

    workers: tuple[Worker, ...]

    def __post_init__(self) -> None:
        if not self.workers:
            raise ValueError("a pool needs at least one worker")
        if len({worker.id for worker in self.workers}) != len(self.workers):
            raise ValueError("two workers of a pool have the same id")

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
        """Return the worker of that id.

        Raises:
            KeyError: no such worker.
        """
        for worker in self.workers:
            if worker.id == worker_id:
                return worker
        raise KeyError(worker_id)

    def number(self, worker_id: str) -> int:
        """Return the number under which the conductor sees that worker.

        Raises:
            KeyError: no such worker.
        """
        for number, worker in enumerate(self.workers):
            if worker.id == worker_id:
                return number
        raise KeyError(worker_id)

    def subset(self, worker_ids: Iterable[str]) -> Pool:
        """Return a pool of only those workers, in this pool's order; ValueError if none is left."""
        wanted = set(worker_ids)
        return Pool(tuple(worker for worker in self.workers if worker.id in wanted))

    def shuffled(self, rng: random.Random) -> Pool:
        """Return the same workers under other numbers."""
        return Pool(tuple(rng.sample(self.workers, len(self.workers))))

    def ranked(self) -> tuple[Worker, ...]:
        """Return the workers, best first: by strength, measured skills, price of output, size.

        Of equal strengths the cheaper is the better, one of unknown price the last; where no
        strength is known the dearer is taken for the better. Skills count where all workers without
        a strength were measured on a family in common; what a public board says does not. Workers
        that are no language models are left out unless there is nobody else.
        """
        if len(self.workers) == 1:  # a request for a named worker asks often
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
