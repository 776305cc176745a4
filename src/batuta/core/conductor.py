"""The two roles everything is made of: a Client completes, a Conductor plans."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeGuard, runtime_checkable

from batuta.core.message import Delta, Question, Reply, Request
from batuta.core.run import Failure, Round
from batuta.core.worker import Pool, Worker, WorkerId
from batuta.core.workflow import MAX_STEPS, Decision, Workflow
from batuta.usage import Cost, Usage


class CallListener(Protocol):
    """A listener hears the events of a call while it lasts."""

    @property
    def streaming(self) -> bool:
        """Return True if fragments are wanted; if not, a client may ask for the whole reply."""
        ...

    async def before_call(self, request: Request, worker: Worker) -> Request:
        """Return the request as it may be made; a conductor is about to call its model.

        Raises:
            LimitReachedError: it may cost more than is left.
        """
        ...

    async def on_delta(self, delta: Delta) -> None:
        """Note that a fragment arrived."""
        ...

    async def on_failure(self, failure: Failure) -> None:
        """Note that an attempt failed and the client is about to try again.

        Raises:
            LimitReachedError: no further attempt may be paid for.
            ClientError: no further attempt makes sense (the reader has seen half an answer).
        """
        ...


@runtime_checkable
class TurnListener(Protocol):
    """A listener that also hears what the turns of one call have cost so far."""

    def note_turns(self, usage: Usage, cost: Cost) -> None:
        """Note what a client that asks its model several times has spent by now."""
        ...


class NullListener:
    """The listener that wants nothing and forbids nothing."""

    streaming = False

    async def before_call(self, request: Request, worker: Worker) -> Request:
        """Return the request as it is."""
        return request

    async def on_delta(self, delta: Delta) -> None:
        """Do nothing."""

    async def on_failure(self, failure: Failure) -> None:
        """Do nothing."""


NULL_LISTENER: CallListener = NullListener()


class Client(Protocol):
    """Completes a prompt: an API, a local model, a script, a client around another client.

    Laws: cancellation of `complete` closes its connection and propagates; the text of the
    deltas, joined, is the reply's text; usage has `calls >= 1`.
    """

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        """Return the reply."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Objection:
    """A plan that is sent back to its conductor, once."""

    workflow: Workflow
    reason: str
    """The rule that it breaks, as a clause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningContext:
    """The context in which a conductor plans."""

    question: Question
    pool: Pool
    seed: int = 0
    sample: int = 0
    """0 for the first try, 1 for the first re-sampling of a malformed draft…"""
    max_steps: int = MAX_STEPS
    previous: tuple[Round, ...] = field(default=())
    """The rounds already executed; empty in the first round."""
    forbidden: Collection[WorkerId] = ()
    """Models that may not see the question, also not to conduct it."""
    objection: Objection | None = None
    """It says what is wrong with the plan that the conductor has just written; None: nothing."""


class Conductor(Protocol):
    """Writes a workflow for a question over a pool.

    Law: the workflow of a `Plan` names only workers of `context.pool` and has at most
    `context.max_steps` steps. `AcceptedAnswer` only if `context.previous` is not empty.

    A conductor may have more members: those of `NeedsRounds`, and those of `ModelConductor`.
    """

    @property
    def name(self) -> str:
        """The name and version that a trace keeps."""
        ...

    async def plan(
        self, context: PlanningContext, listener: CallListener = NULL_LISTENER
    ) -> Decision:
        """Return one decision; never raises for a draft that is malformed or a model that fails."""
        ...


@runtime_checkable
class NeedsRounds(Protocol):
    """A conductor whose workflows continue in further rounds."""

    @property
    def needed_rounds(self) -> int:
        """The number of rounds in which each of its workflows can end."""
        ...


def needed_rounds(conductor: Conductor) -> int:
    """Return the rounds that the conductor's workflows need; 1 if it does not say."""
    return conductor.needed_rounds if isinstance(conductor, NeedsRounds) else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptDescription:
    """The words about its workers that a conducting language model gets with a question."""

    text: str
    """The whole prompt."""
    cards: Mapping[WorkerId, tuple[str, ...]]
    """The prompt's lines about each worker; a worker whose name alone is in it has none."""
    shown: str
    """A clause about these words, to follow "over 3 workers"; empty if they are names alone."""


@runtime_checkable
class ModelConductor(Protocol):
    """A conductor whose workflows a language model writes."""

    @property
    def worker(self) -> Worker | None:
        """The model as a worker, which hears the question and is paid; None: it runs here."""
        ...

    def describe(self, pool: Pool) -> PromptDescription:
        """Return what the model is told of these workers."""
        ...


def conductor_worker(conductor: Conductor | None) -> Worker | None:
    """Return the worker whose model writes the workflows, if one does."""
    return conductor.worker if _asks_a_model(conductor) else None


def describe_prompt(conductor: Conductor | None, pool: Pool) -> PromptDescription | None:
    """Return what the conductor's model is told of these workers; None: no model conducts."""
    return conductor.describe(pool) if _asks_a_model(conductor) else None


def _asks_a_model(conductor: Conductor | None) -> TypeGuard[ModelConductor]:
    # isinstance with a protocol takes forty times as long, and this is asked for every request.
    return hasattr(conductor, "describe") and hasattr(conductor, "worker")
