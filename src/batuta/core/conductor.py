"""The two central protocols: a Client completes prompts, a Conductor plans workflows."""

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
    """Receives the events of a call in progress."""

    @property
    def streaming(self) -> bool:
        """True if the listener uses fragments; otherwise a client may request the whole reply."""
        ...

    async def before_call(self, request: Request, worker: Worker) -> Request:
        """Permit a call that is not reserved yet, and return the request to send.

        A conductor asks for this before it calls its model, a client before each further call.

        Raises:
            LimitReachedError: the call may cost more than the budget has left.
        """
        ...

    async def on_delta(self, delta: Delta) -> None:
        """Receive a fragment of the reply."""
        ...

    async def on_failure(self, failure: Failure) -> None:
        """Receive a failed attempt before the client tries again, or a conductor's cancelled call.

        Raises:
            LimitReachedError: the budget does not cover another attempt.
            ClientError: the client must not try again, since part of the answer was already
                streamed, or since another worker can be asked instead of waiting.
        """
        ...


@runtime_checkable
class TurnListener(Protocol):
    """A listener that also receives what the finished turns of a call with tools have cost."""

    def note_turns(self, usage: Usage, cost: Cost) -> None:
        """Receive the tokens and the cost of all turns of the call that have ended."""
        ...


class NullListener:
    """A listener that ignores all events and permits all calls."""

    streaming = False

    async def before_call(self, request: Request, worker: Worker) -> Request:
        """Return the request unchanged."""
        return request

    async def on_delta(self, delta: Delta) -> None:
        """Do nothing."""

    async def on_failure(self, failure: Failure) -> None:
        """Do nothing."""


NULL_LISTENER: CallListener = NullListener()


class Client(Protocol):
    """Completes a prompt: an API, a local model, a script, or a wrapper around another client.

    Laws: cancellation of `complete` closes its connection and propagates; the texts of a choice's
    deltas, if any are sent, add up to its text; usage has `calls >= 1`.
    """

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        """Return the reply.

        Raises:
            ClientError: there is no usable reply.
            LimitReachedError: the listener forbade another attempt or a further call.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Objection:
    """The reason why a plan is sent back to its conductor, which happens at most once a round."""

    workflow: Workflow
    reason: str
    """The rule that the workflow breaks, as a clause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningContext:
    """The question, the pool and everything else that a conductor knows when it plans."""

    question: Question
    pool: Pool
    seed: int = 0
    """The run's seed; 0 also for a run without one."""
    sample: int = 0
    """Number of drafts of this round that were rejected before; 0 for the first try."""
    max_steps: int = MAX_STEPS
    previous: tuple[Round, ...] = field(default=())
    """The rounds already executed; empty in the first round."""
    forbidden: Collection[WorkerId] = ()
    """Workers that may not see the question, not even as the conducting model."""
    objection: Objection | None = None
    """Set if the conductor's previous plan broke a rule and another plan is requested."""


class Conductor(Protocol):
    """Writes a workflow for a question over a pool.

    Laws, without which the engine treats a plan as malformed: the workflow of a `Plan` has at most
    `context.max_steps` steps and names only workers of `context.pool`, or of `context.forbidden`,
    which are replaced if possible. `AcceptedAnswer` needs a round in `context.previous`.

    A conductor may also implement `NeedsRounds` and `ModelConductor`.
    """

    @property
    def name(self) -> str:
        """The name and version that a run records."""
        ...

    async def plan(
        self, context: PlanningContext, listener: CallListener = NULL_LISTENER
    ) -> Decision:
        """Return one decision: a MalformedPlan if no usable workflow could be written.

        The decision's draft has the tokens and the cost of the model's calls of which the listener
        was not told by `on_failure`. A failed call or a reached limit is a MalformedPlan, not
        raised.
        """
        ...


@runtime_checkable
class NeedsRounds(Protocol):
    """A conductor whose workflows may continue in further rounds."""

    @property
    def needed_rounds(self) -> int:
        """Maximum number of rounds that any of the conductor's workflows needs."""
        ...


def needed_rounds(conductor: Conductor) -> int:
    """Return the rounds that the conductor's workflows need; 1 unless it is a `NeedsRounds`."""
    return conductor.needed_rounds if isinstance(conductor, NeedsRounds) else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptDescription:
    """The description of the workers in a conducting language model's prompt."""

    text: str
    """The whole prompt, with a placeholder for the question."""
    cards: Mapping[WorkerId, tuple[str, ...]]
    """The prompt's lines about each worker; none if only the workers' names are shown."""
    shown: str
    """A clause on what is shown, to follow "over 3 workers"; empty for the compact prompt."""


@runtime_checkable
class ModelConductor(Protocol):
    """A conductor whose workflows a language model writes."""

    @property
    def worker(self) -> Worker | None:
        """The called model, which sees the question and costs money; None if it runs in-process."""
        ...

    def describe(self, pool: Pool) -> PromptDescription:
        """Return what the model's prompt says about the workers."""
        ...


def conductor_worker(conductor: Conductor | None) -> Worker | None:
    """Return the worker whose model writes the workflows; None if no called model does."""
    return conductor.worker if _asks_a_model(conductor) else None


def describe_prompt(conductor: Conductor | None, pool: Pool) -> PromptDescription | None:
    """Return what the prompt of the conductor's model says; None if it has no model."""
    return conductor.describe(pool) if _asks_a_model(conductor) else None


def _asks_a_model(conductor: Conductor | None) -> TypeGuard[ModelConductor]:
    # isinstance with a protocol takes forty times as long, and this runs for every request.
    return hasattr(conductor, "describe") and hasattr(conductor, "worker")
