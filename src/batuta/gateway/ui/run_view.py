"""View helpers for a run: states of steps, time bars, totals and descriptions. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

from batuta.clients.native_search import USED_UP
from batuta.core import (
    AcceptedAnswer,
    Cost,
    Cropping,
    Draft,
    Failure,
    Limits,
    MalformedPlan,
    Message,
    Outcome,
    Plan,
    Pool,
    Question,
    Reply,
    Round,
    Run,
    ServerCall,
    Step,
    StepRun,
    ToolCall,
    ToolResult,
    Usage,
)
from batuta.core.formatting import as_sentence, format_count, format_seconds, format_usd
from batuta.core.message import Audio, File, Image
from batuta.core.small_number import read_small_number
from batuta.core.worker import FILE_SEARCH, MCP, READER, SEARCH
from batuta.usage import ZERO_COST, ZERO_USAGE

EXPECTED = "Expected:"
"""Beginning of the comment's line with the expected answer."""
_SCOPE = re.compile(r"[abcd]|t\d{1,3}")
_ANSWERED = (
    Outcome.ANSWERED,
    Outcome.FALLBACK,
    Outcome.DEGRADED,
    Outcome.UNSURE,
    Outcome.WAITING,
)
COLOURS = 8
"""Number of colours; a worker's number in the pool determines its colour."""
OUTCOMES = {
    Outcome.ANSWERED: ("good", "The workflow was run to its end."),
    Outcome.FALLBACK: ("warn", "There was no valid workflow: the best single worker answered."),
    Outcome.DEGRADED: ("warn", "The last step failed: another worker or earlier round answered."),
    Outcome.LIMITED: ("warn", "A limit ended the run."),
    Outcome.DECLINED: ("warn", "The worker says that it cannot answer this."),
    Outcome.UNSURE: ("warn", "The answer may be wrong: its confidence is too low or unknown."),
    Outcome.WAITING: ("live", "A worker called the caller's tools."),
    Outcome.PLANNED: ("mute", "The workflow was written; no worker was called."),
    Outcome.REFUSED: ("bad", "A policy, plan rule or person refused the question, plan or answer."),
    Outcome.FAILED: ("bad", "The run failed."),
    Outcome.CANCELLED: ("mute", "The run was stopped."),
}
"""The CSS class and the explanation of each outcome."""
STATE_WORDS = {
    "waiting": "",
    "done": "Answered.",
    "substituted": "Substituted: a worker other than the planned one answered.",
    "fallback": "Fallback: another worker was asked the whole question.",
    "failed": "Failed.",
    "skipped": "Not run.",
}
"""Tooltips that explain the marker of a step's state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """The time of a step or of the planning.

    `start`, `width` and `marks` are percentages of the run's time.
    """

    label: str
    round: int
    step: int | None
    """Index of the step; None for the conductor's planning."""
    start: float
    width: float
    seconds: float
    state: str
    """A state of `step_state`, or `plan` for the conductor's planning."""
    colour: int | None
    """Index of the worker's colour; None for the conductor's planning."""
    marks: tuple[float, ...] = ()
    """The times at which attempts failed."""


def step_state(step: StepRun | None) -> str:
    """Return `done`, `substituted`, `fallback`, `failed` or `skipped`; `waiting` for None."""
    if step is None:
        return "waiting"
    if isinstance(step.result, Failure):
        return "skipped" if step.request is None else "failed"
    if step.as_fallback:
        return "fallback"
    return "substituted" if step.worker != step.planned else "done"


def worker_colour(pool: Pool, worker: str) -> int:
    """Return the index of a worker's colour; 0 for a worker that is not in the pool."""
    return pool.number(worker) % COLOURS if worker in pool else 0


def find_step(run: Run, place: str) -> StepRun | None:
    """Return the ended step at a place such as `0.2` (round and step); None if there is none."""
    numbers = [read_small_number(part) for part in place.split(".")]
    if len(numbers) != 2 or None in numbers:  # noqa: PLR2004 - round, step
        return None
    number, index = (each or 0 for each in numbers)
    return run.rounds[number].step(index) if number < len(run.rounds) else None


def panel_anchor(number: int, index: int) -> str:
    """Return the HTML id of a step's panel."""
    return f"step-{number + 1}-{index + 1}"


def panel_scope(given: str | None) -> str:
    """Return the text if it names a comparison's side (`a`) or a turn (`t1`), else ""."""
    return given if given and _SCOPE.fullmatch(given) else ""


def describe_access(step: Step, number: int) -> str:
    """Describe the replies that a step reads; `number` is its round's index, from 0."""
    own = ", ".join(str(index + 1) for index in step.access)
    readings = [f"step{'s' if len(step.access) > 1 else ''} {own}"] if own else []
    if step.previous:
        readings.append(f"round {number}")
    return " and ".join(readings) or "the question only"


def describe_decision(round_: Round) -> str:
    """Describe the conductor's decision and, if its prompt was cropped, the part that was shown."""
    cropping = round_.decision.draft.cropping
    return " ".join(filter(None, (_decision_text(round_), _cropping_text(cropping))))


def _cropping_text(cropping: Cropping | None) -> str:
    if cropping is None:
        return ""
    turns = f", without {cropping.turns} earlier turns" if cropping.turns else ""
    size = f"{cropping.shown:,} of {cropping.whole:,} characters"
    return f"The conductor was shown {size} of the conversation{turns}; the workers got all of it."


def _decision_text(round_: Round) -> str:
    match round_.decision:
        case AcceptedAnswer(reason=reason):
            return f"The conductor accepted the answer{': ' if reason else ''}{reason}."
        case MalformedPlan() as malformed if malformed.outage and not malformed.again:
            return f"No workflow was requested: {malformed.reason}"
        case MalformedPlan() as malformed if malformed.outage and was_reached(round_):
            return f"The conductor did not finish its workflow: {malformed.reason}"
        case MalformedPlan() as malformed if malformed.outage:
            return f"The conductor could not be reached: {malformed.reason}"
        case MalformedPlan() as malformed:
            return f"The conductor's draft was not a valid workflow: {malformed.reason}"
        case Plan(reason=reason):
            return as_sentence(reason) if reason else ""


def was_reached(round_: Round) -> bool:
    """Return True if the conductor used tokens, or its call was cancelled."""
    drafts = round_.conductor_drafts
    return any(draft.usage.total for draft in drafts) or _was_cancelled(round_)


def _was_cancelled(round_: Round) -> bool:
    decision = round_.decision
    return isinstance(decision, MalformedPlan) and "cancelled" in decision.reason


def opened_step(run: Run) -> str:
    """Return the place of the step whose panel is open at first, such as `0.2`.

    This is the step of `first_failure`, or else the last step that was run. For a plan that was not
    executed it is the last step. An empty string opens no panel.
    """
    failed = first_failure(run)
    if failed is not None:
        return f"{failed[0]}.{failed[1].index}"
    ran = [at for at in _numbered_steps(run) if step_state(at[1]) != "skipped"]
    if ran:
        number, step = max(ran, key=lambda at: (at[0], at[1].index))
        return f"{number}.{step.index}"
    if run.outcome is not Outcome.PLANNED or not run.rounds or not run.rounds[-1].workflow:
        return ""
    return f"{len(run.rounds) - 1}.{len(run.rounds[-1].workflow.steps) - 1}"


def first_failure(run: Run) -> tuple[int, StepRun] | None:
    """Return the round's index and the step of a run's first failure.

    The result is None if no step failed, or if the run's outcome is one of `_ANSWERED`.
    """
    if run.outcome in _ANSWERED:
        return None
    failed = [at for at in _numbered_steps(run) if _has_failed(at[1])]
    return min(failed, key=lambda at: (at[0], at[1].span.end)) if failed else None


def _has_failed(step: StepRun) -> bool:
    """Return True if the step failed, but not because it was cancelled or a limit ended it."""
    was_ended = isinstance(step.result, Failure) and step.result.code in {"cancelled", "limit"}
    return step_state(step) == "failed" and not was_ended


def _numbered_steps(run: Run) -> list[tuple[int, StepRun]]:
    return [(number, step) for number, each in enumerate(run.rounds) for step in each.steps]


def failure_hint(code: str) -> str:
    """Return advice for a failure of that code; empty if there is none."""
    if code in {"unreachable", "timed_out"}:
        return "The operator can see the worker's address with: batuta pool check"
    return ""


def skipped_workers(run: Run) -> list[str]:
    """Return the workers that were skipped because their circuit breakers were open."""
    found = [
        each.worker
        for step in run.steps
        for each in step.attempts
        if each.failure.code == "circuit_open"
    ]
    found += [
        step.worker
        for step in run.steps
        if isinstance(step.result, Failure) and step.result.code == "circuit_open"
    ]
    return list(dict.fromkeys(found))


def sum_rounds(rounds: Sequence[Round]) -> tuple[Usage, Cost]:
    """Return the usage and cost of all drafts and steps of the rounds."""
    usage, cost = ZERO_USAGE, ZERO_COST
    for round_ in rounds:
        for draft in round_.conductor_drafts:
            usage, cost = usage + draft.usage, cost + draft.cost
        for step in round_.steps:
            usage, cost = usage + step.usage, cost + step.cost
    return usage, cost


def time_bars(run: Run) -> list[Bar]:
    """Return a bar for each planning and each step, sorted by round and start."""
    whole = max([run.seconds, *(step.span.end for step in run.steps)]) or 1.0
    return sorted(_draw_bars(run, whole), key=lambda bar: (bar.round, bar.start, bar.step or -1))


def _draw_bars(run: Run, whole: float) -> Iterator[Bar]:
    def share(moment: float) -> float:
        return round(100 * moment / whole, 2)

    for number, round_ in enumerate(run.rounds):
        plan = round_.planning
        width = max(share(plan.seconds), 0.3)
        yield Bar(
            label="plan",
            round=number,
            step=None,
            start=share(plan.start),
            width=width,
            seconds=plan.seconds,
            state="plan",
            colour=None,
        )
        for step in round_.steps:
            span = step.span
            yield Bar(
                label=f"{step.index + 1} {step.worker}",
                round=number,
                step=step.index,
                start=min(share(span.start), 99.7),
                width=max(share(span.seconds), 0.3),
                seconds=span.seconds,
                state=step_state(step),
                colour=worker_colour(run.header.pool, step.worker),
                marks=tuple(share(attempt.at) for attempt in step.attempts),
            )


def message_parts(message: Message) -> list[tuple[str, str]]:
    """Return the parts of a message as pairs of kind and text."""
    parts: list[tuple[str, str]] = []
    for part in message.parts:
        match part:
            case Image():
                parts.append(("image", part.url[:80]))
            case File():
                parts.append(("file", part.name or part.media_type))
            case Audio():
                parts.append(("recording", part.format))
            case ToolCall():
                parts.append(("tool call", f"{part.name}({part.arguments})"))
            case ToolResult():
                parts.append(("tool result", part.content))
            case _:
                parts.append(("text", part.text))
    return parts


def reply_text(step: StepRun) -> str:
    """Return the text of the step's reply; empty if the step failed."""
    return step.result.text if isinstance(step.result, Reply) else ""


def describe_call(call: ServerCall) -> str:
    """Describe the result of a server tool's call in words, such as "3 found"."""
    if call.error:
        return "not called, the limit of calls is reached" if call.error == USED_UP else "no result"
    if call.failure:
        return "failed"
    return f"{len(call.citations)} found" if call.citations else "done"


def step_pictures(step: StepRun) -> tuple[str, ...]:
    """Return the URLs of the images generated by a step's model and its programs."""
    return () if isinstance(step.result, Failure) else _reply_pictures(step.result)


def answer_pictures(run: Run) -> tuple[str, ...]:
    """Return the URLs of the images in the answer."""
    return () if run.reply is None else _reply_pictures(run.reply)


def _reply_pictures(reply: Reply) -> tuple[str, ...]:
    drawn = (url for call in reply.server_calls for url in call.pictures)
    return (*drawn, *(image.url for image in reply.images))


def has_sources(run: Run) -> bool:
    """Return True if the run has an answer, and called a search, reader or MCP or found pages."""
    if not run.answer:
        return False
    tools = {SEARCH, READER, MCP, FILE_SEARCH}
    found = {worker.id for worker in run.header.pool if not tools.isdisjoint(worker.tags)}
    if any(step.worker in found for step in run.steps):
        return True
    return any(call.citations for call in (run.reply.server_calls if run.reply else ()))


def list_drafts(round_: Round) -> list[Draft]:
    """Return the conductor's drafts of a round that have anything to show."""
    drafts = round_.conductor_drafts
    return [each for each in drafts if each.text or each.usage.total or each.request]


def sum_drafts(round_: Round) -> Cost:
    """Return the cost of the conductor's drafts of a round."""
    return sum((draft.cost for draft in round_.conductor_drafts), ZERO_COST)


def describe_limits(limits: Limits) -> str:
    """Describe the limits of a run in a few words."""
    limited = [f"{limits.steps} step{'' if limits.steps == 1 else 's'}"]
    if limits.rounds > 1:
        limited.append(f"{limits.rounds} rounds")
    if limits.usd is not None:
        limited.append(format_usd(Decimal(str(limits.usd))))
    if limits.tokens is not None:
        limited.append(f"{format_count(limits.tokens)} tok")
    if limits.seconds is not None:
        limited.append(format_seconds(limits.seconds))
    return ", ".join(limited)


def split_comment(comment: str) -> tuple[str, str]:
    """Return the expected answer in a judgement's comment, or "", and the rest of the comment."""
    lines = comment.split("\n")
    expected = next((line for line in lines if line.startswith(EXPECTED)), "")
    rest = [line for line in lines if line != expected] if expected else lines
    return expected.removeprefix(EXPECTED).strip(), "\n".join(rest).strip()


def join_comment(expected: str, rest: str) -> str:
    """Return a judgement's comment; its first line is the expected answer, if one is given."""
    plain = " ".join(expected.split())
    return "\n".join(filter(None, (f"{EXPECTED} {plain}" if plain else "", rest.strip())))


def pictures_until(question: Question, index: int) -> int:
    """Return the number of images in the messages before that index."""
    before = question.messages[:index]
    return sum(isinstance(part, Image) for message in before for part in message.parts)
