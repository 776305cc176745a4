"""The body field `orchestration`: how this run is to be conducted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from batuta.core import MAX_STEPS, Limits, Pool, Step, WorkerId, Workflow
from batuta.gateway.refusal import Refusal, wrong_type, wrong_value
from batuta.gateway.wire.fields import Fields

FIELD = "orchestration"
_STEPS = f"{FIELD}.workflow.steps"
_N = TypeVar("_N", int, float)
_MOST = 1_000_000_000
_MOST_WORKERS = 1000
_KNOWN = {
    "max_cost_usd",
    "max_tokens",
    "max_steps",
    "max_rounds",
    "deadline_s",
    "workers_allow",
    "workers_deny",
    "trace",
    "dry_run",
    "workflow",
}


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the caller asked of the orchestration; None leaves it to the served model."""

    usd: float | None = None
    tokens: int | None = None
    steps: int | None = None
    rounds: int | None = None
    seconds: float | None = None
    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()
    trace: bool = False
    workflow: Workflow | None = None
    """By hand: nobody plans."""
    dry_run: bool = False
    """Plan and estimate; call no worker."""

    def limits(self, usual: Limits, ceiling: Limits | None = None) -> Limits:
        """What was asked for, `usual` where nothing was, and never more than `ceiling`.

        Args:
            usual: what a request gets that asks for nothing.
            ceiling: what the operator allows; None: no more than the usual.
        """
        ceiling = ceiling or usual
        return Limits(
            min(self.steps or usual.steps, ceiling.steps),
            min(self.rounds or usual.rounds, ceiling.rounds),
            _lower(usual.tokens if self.tokens is None else self.tokens, ceiling.tokens),
            _lower(usual.usd if self.usd is None else self.usd, ceiling.usd),
            _lower(usual.seconds if self.seconds is None else self.seconds, ceiling.seconds),
            ceiling.unknown,
        )

    def check(self, pool: Pool, limits: Limits) -> None:
        """Nothing, if the workflow by hand can be played by that pool within those limits.

        Raises:
            Refusal: it names a stranger or has too many steps.
        """
        steps = self.workflow.steps if self.workflow else ()
        if len(steps) > limits.steps:
            reason = f"this model plays at most {limits.steps} steps."
            raise wrong_value(_STEPS, reason)
        for index, step in enumerate(steps):
            if step.worker not in pool:
                reason = f"there is no worker '{step.worker}' here."
                raise wrong_value(f"{_STEPS}[{index}].worker", reason)

    def cast(self, pool: Pool) -> Pool:
        """The workers of `pool` that may play.

        Raises:
            Refusal: a name is not in the pool, or nobody is left.
        """
        for name, ids in (("workers_allow", self.allow or ()), ("workers_deny", self.deny)):
            strangers = [worker_id for worker_id in ids if worker_id not in pool]
            if strangers:
                raise wrong_value(f"{FIELD}.{name}", f"there is no worker '{strangers[0]}' here.")
        if self.allow is None and not self.deny:
            return pool
        wanted = {w.id for w in pool} if self.allow is None else set(self.allow)
        left = wanted.difference(self.deny)
        if not left:
            raise wrong_value(f"{FIELD}.workers_allow", "no worker is left.")
        return pool.subset(left)


def parse_wishes(body: Fields) -> Wishes:
    """The field `orchestration` of any body.

    Raises:
        Refusal: it is malformed, or has a field that is not known: a misspelt limit must
            not be a limit that is not there.
    """
    given = body.object(FIELD)
    if given is None:
        return Wishes()
    for name in given.names:
        if name not in _KNOWN:
            message = f"Unknown parameter: '{given.path(name)}'."
            raise Refusal(400, "unknown_parameter", message, param=given.path(name))
    return Wishes(
        given.number("max_cost_usd", 0, _MOST),
        given.whole("max_tokens", 0, _MOST),
        given.whole("max_steps", 1, _MOST),
        given.whole("max_rounds", 1, _MOST),
        given.number("deadline_s", 0, _MOST),
        given.texts("workers_allow", _MOST_WORKERS),
        given.texts("workers_deny", _MOST_WORKERS) or (),
        bool(given.flag("trace")),
        _workflow(given.object("workflow")),
        bool(given.flag("dry_run")),
    )


def _workflow(given: Fields | None) -> Workflow | None:
    if given is None:
        return None
    given.need("steps")
    steps = given.objects("steps", MAX_STEPS) or []
    try:
        return Workflow(tuple(_step(step) for step in steps))
    except ValueError as error:
        raise wrong_value(_STEPS, f"{error}.") from None


def _step(step: Fields) -> Step:
    entries = step.array("access", MAX_STEPS) or []
    for index, entry in enumerate(entries):
        if isinstance(entry, bool) or not isinstance(entry, int):
            raise wrong_type(f"{step.path('access')}[{index}]", "an integer", entry)
    worker = WorkerId(step.need_text("worker"))
    return Step(step.text("subtask") or "", worker, tuple(sorted(set(entries))))


def _lower(wish: _N | None, ceiling: _N | None) -> _N | None:
    if wish is None or ceiling is None:
        return ceiling if wish is None else wish
    return min(wish, ceiling)
