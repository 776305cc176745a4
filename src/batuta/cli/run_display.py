"""A run on a terminal: its workflow, which steps read which, its tokens, cost and time."""

from __future__ import annotations

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.markdown import Markdown
from rich.segment import Segment
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from batuta.core import (
    AcceptedAnswer,
    Event,
    Failure,
    MalformedPlan,
    Reply,
    Round,
    RoundPlanned,
    Run,
    RunFinished,
    StepDelta,
    StepFinished,
    StepRetried,
    StepRun,
    StepStarted,
    Workflow,
)
from batuta.core.formatting import format_cost, format_count, format_percent, format_seconds
from batuta.engine import Recorder
from batuta.rendering.console import new_table

SUBTASK_WIDTH = 46
TABLE_LINES = 12
"""Terminal lines reserved for the workflow while the answer grows below it."""


class RunDisplay:
    """The view of a run that `rich.live` redraws while the run is executed."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.is_running = True
        """False once the run has ended."""
        self.recorder = Recorder()
        self.received: dict[tuple[int, int], int] = {}
        """Characters received so far from each running step, by round and step index."""
        self.draft = ""
        """The text streamed so far by the workflow's last step; empty once the run has ended."""
        self.spinner = Spinner("dots")

    async def emit(self, event: Event) -> None:
        """Update the view from an event."""
        self.recorder.add(event)
        match event:
            case StepStarted() | StepRetried():
                self.received[event.round, event.index] = 0
                if self._is_last_step(event.round, event.index):
                    self.draft = ""
            case StepDelta():
                received = self.received.get((event.round, event.index), 0)
                self.received[event.round, event.index] = received + len(event.delta.text)
                if self._is_last_step(event.round, event.index):
                    self.draft += event.delta.text
            case StepFinished():
                self.received.pop((event.round, event.step.index), None)
            case RoundPlanned():
                self.draft = ""
            case RunFinished():
                self.draft, self.is_running = "", False
            case _:
                pass

    def _is_last_step(self, number: int, index: int) -> bool:
        rounds = self.recorder.rounds
        workflow = rounds[number].workflow if number < len(rounds) else None
        return workflow is not None and index == len(workflow.steps) - 1

    def __rich__(self) -> RenderableType:
        parts: list[RenderableType] = [Text(self.title, style="dim")]
        if not self.recorder.rounds and self.is_running:
            self.spinner.update(text=Text("the conductor is writing the workflow…", style="dim"))
            parts.append(self.spinner)
        for number, round_ in enumerate(self.recorder.rounds):
            parts += _round_parts(number, round_, len(self.recorder.rounds), self.received)
        if self.draft:
            parts += [Text(), LastLines(self.draft)]
        return Group(*parts)


class LastLines:
    """The last lines of a Markdown text, as many as fit below the workflow."""

    def __init__(self, text: str) -> None:
        self._markdown = Markdown(text, hyperlinks=False)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self._markdown, options.update(height=None), pad=False)
        for line in lines[-max(1, console.height - TABLE_LINES) :]:
            yield from line
            yield Segment.line()


def print_run(console: Console, run: Run, title: str) -> None:
    """Draw a finished run."""
    display = RunDisplay(title)
    display.is_running = False
    display.recorder.header = run.header
    display.recorder.rounds = list(run.rounds)
    console.print(display)
    console.print(run_summary(run))


def run_summary(run: Run) -> Text:
    """Return one line with the run's steps, tokens, cost, time, outcome, confidence and id.

    The confidence and the cached share of the input are left out if there are none.
    """
    usage = run.usage
    parts = [
        f"{len(run.steps)} step{'s' if len(run.steps) != 1 else ''}",
        f"{format_count(usage.total)} tokens",
        f"(conductor {format_count(run.conductor_usage.total)})",
        *(
            [f"{format_percent(usage.cached / usage.input)} of input cached"]
            if usage.cached
            else []
        ),
        format_cost(run.cost),
        format_seconds(run.seconds),
        run.outcome.value + (f" (limit on {run.limit})" if run.limit else ""),
        *([] if run.confidence is None else [f"{format_percent(run.confidence)} sure"]),
        run.id,
    ]
    return Text("  ".join(parts), style="dim")


def workflow_table() -> Table:
    """Return the empty table of a workflow."""
    table = new_table()
    table.add_column("", width=1)
    table.add_column("step", justify="right")
    table.add_column("worker", style="cyan", no_wrap=True)
    table.add_column("reads", no_wrap=True)
    table.add_column("subtask", max_width=SUBTASK_WIDTH)
    table.add_column("tokens", justify="right", no_wrap=True)
    table.add_column("cost", justify="right", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    return table


def describe_access(workflow: Workflow, index: int) -> str:
    """Return what a step reads: `last round`, numbers of steps (from 1), both, or a dash."""
    step = workflow.steps[index]
    own = ", ".join(str(earlier + 1) for earlier in step.access)
    if step.previous:
        return f"last round, {own}" if own else "last round"
    return own or "–"


def describe_subtask(workflow: Workflow, index: int) -> Text:
    """Return the subtask on one line, or a note that the step gets the question itself."""
    subtask = " ".join(workflow.steps[index].subtask.split())
    return Text(subtask) if subtask else Text("the question itself", "dim")


def _round_parts(
    number: int, round_: Round, rounds: int, running: dict[tuple[int, int], int]
) -> list[RenderableType]:
    parts: list[RenderableType] = []
    if rounds > 1:
        parts.append(Text(f"round {number + 1}", style="bold"))
    drafts = (f"a draft was not a workflow: {draft.reason}" for draft in round_.drafts)
    parts.extend(Text(line, style="yellow") for line in drafts)
    if isinstance(round_.decision, MalformedPlan):
        parts.append(Text(f"no workflow: {round_.decision.reason}", style="yellow"))
        if round_.workflow is not None:
            parts.append(Text("the best single worker answers instead", style="yellow"))
    if isinstance(round_.decision, AcceptedAnswer):
        parts.append(Text("the conductor returns the answer as it is", style="green"))
    if not isinstance(round_.decision, MalformedPlan) and round_.decision.reason:
        parts.append(Text(round_.decision.reason, style="dim"))
    if round_.workflow is not None:
        parts.append(_step_table(number, round_, round_.workflow, running))
        parts += _step_notes(round_)
    return parts


def _step_table(
    number: int, round_: Round, workflow: Workflow, running: dict[tuple[int, int], int]
) -> Table:
    table = workflow_table()
    for index, step in enumerate(workflow.steps):
        ended = round_.step(index)
        name = ended.worker if ended else step.worker
        cells = (
            str(index + 1),
            name,
            describe_access(workflow, index),
            describe_subtask(workflow, index),
        )
        if ended:
            mark, tail = _finished_cells(ended)
        elif (number, index) in running:
            received = running[number, index]
            mark, tail = Text("▶", "cyan"), (f"~{received // 4}", "", "")
        else:
            mark, tail = Text("·", "dim"), ("", "", "")
        table.add_row(mark, *cells, *tail)
    return table


def _finished_cells(step: StepRun) -> tuple[Text, tuple[str, str, str]]:
    mark = Text("✓", "green") if isinstance(step.result, Reply) else Text("✗", "red")
    return mark, (
        format_count(step.usage.total),
        format_cost(step.cost),
        format_seconds(step.span.seconds),
    )


def _step_notes(round_: Round) -> list[RenderableType]:
    """Describe the failures and substitutions at the steps of a round."""
    notes: list[RenderableType] = []
    for step in sorted(round_.steps, key=lambda step: step.index):
        for attempt in step.attempts:
            text = f"step {step.index + 1}: {attempt.worker}: {attempt.failure.message}"
            notes.append(Text(text, style="yellow"))
        if step.as_fallback:
            text = f"step {step.index + 1}: {step.worker} is asked the whole question instead"
            notes.append(Text(text, style="yellow"))
        elif step.worker != step.planned:
            text = f"step {step.index + 1}: {step.worker} replaces {step.planned}"
            notes.append(Text(text, style="yellow"))
        if isinstance(step.result, Failure):
            text = f"step {step.index + 1}: {step.worker}: {step.result.message}"
            notes.append(Text(text, style="red"))
    return notes
