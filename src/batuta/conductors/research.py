"""Conductors for research reports and slides, with the two best models and workers for the web.

Research takes two rounds: first a draft from the pages of one search; then a search for what the
draft leaves unsupported, a criticism, and the report, which is asked to cite a page for each claim.
"""

from __future__ import annotations

from dataclasses import dataclass

from batuta.conductors.fixed_workflows import FixedConductor
from batuta.core import (
    AcceptedAnswer,
    CallListener,
    Decision,
    MalformedPlan,
    Plan,
    PlanningContext,
    Pool,
    Step,
    WorkerId,
    Workflow,
)
from batuta.core.conductor import NULL_LISTENER
from batuta.core.worker import READER, SEARCH
from batuta.core.workflow import Draft

QUERY = (
    "Write the words to search the web for, to find what the task asks: one line, nothing else. "
    "Do not answer."
)
DRAFT = (
    "Write a report that answers the task from the pages alone. After each claim write the address "
    "of the page that it is from, in parentheses. Where pages contradict each other, say so and "
    "prefer the newer one. Leave out what no page says."
)
GAP = (
    "Find the claim of the report that its pages support least, or what it leaves open. Write the "
    "words to search the web for to settle it: one line, nothing else."
)
CRITICISE_REPORT = (
    "Criticise the report: list each claim that none of the pages supports, each claim without an "
    "address, and each address that is no page here. Write no report."
)
REPORT = (
    "Write the final report in Markdown: correct what the criticism is right about, add what the "
    "new pages say, and write after each claim the address of its page, in parentheses. End with "
    "the heading Sources and the addresses, one a line. Name no address that is no page here."
)
OUTLINE = (
    "Write the outline of a talk on the task: at most ten slides, a line for each. No content."
)
CONTENT = (
    "Write the slides in Markdown by the outline: for each a heading of level 2, then at most "
    "five short points, and a line of three hyphens between slides. Nothing else."
)
CHECK = (
    "Check the slides against the task and the outline: list what is wrong, missing, repeated or "
    "too long. Do not write slides."
)
FINISH = (
    "Write the slides again in the same form, with what the check is right about corrected. "
    "Nothing else."
)


@dataclass(frozen=True, slots=True)
class Research:
    """A conductor that searches, drafts, searches again, criticises the draft and reports."""

    name: str = "research"

    @property
    def needed_rounds(self) -> int:
        """Number of rounds, 3: the draft, the report, and the round that accepts the report."""
        return 3

    async def plan(
        self, context: PlanningContext, listener: CallListener = NULL_LISTENER
    ) -> Decision:
        """Plan the draft, then the report, then accept the report.

        If the pool lacks a language model, a worker that searches or one that reads pages, the plan
        is malformed.
        """
        if len(context.previous) > 1:
            return AcceptedAnswer()
        pool = context.pool
        searcher, reader = _find_tagged(pool, SEARCH), _find_tagged(pool, READER)
        if searcher is None or reader is None or not any(worker.is_model for worker in pool):
            needed = (
                "research needs a language model, a worker that searches the web and one that "
                "reads pages"
            )
            return MalformedPlan(draft=Draft(), reason=needed)
        author, critic = _find_models(pool)
        if context.previous:
            return Plan(_write_report(searcher, reader, author, critic))
        return Plan(
            Workflow(
                (
                    Step(subtask=QUERY, worker=author),
                    Step(subtask="", worker=searcher, access=(0,)),
                    Step(subtask="", worker=reader, access=(1,)),
                    Step(subtask=DRAFT, worker=author, access=(1, 2)),
                )
            )
        )


def _write_report(
    searcher: WorkerId, reader: WorkerId, author: WorkerId, critic: WorkerId
) -> Workflow:
    """Return the workflow of the second round, whose models also read the first round."""
    return Workflow(
        (
            Step(subtask=GAP, worker=critic, previous=True),
            Step(subtask="", worker=searcher, access=(0,)),
            Step(subtask="", worker=reader, access=(1,)),
            Step(subtask=CRITICISE_REPORT, worker=critic, access=(0, 1, 2), previous=True),
            Step(subtask=REPORT, worker=author, access=(0, 1, 2, 3), previous=True),
        )
    )


def _find_tagged(pool: Pool, tag: str) -> WorkerId | None:
    return next((worker.id for worker in pool if tag in worker.tags), None)


def _find_models(pool: Pool) -> tuple[WorkerId, WorkerId]:
    """Return the author (the best model) and the critic (the second best, else the same model).

    Raises:
        KeyError: the pool has no language model.
    """
    ranked = [worker.id for worker in pool.ranked() if worker.is_model]
    if not ranked:
        raise KeyError("that is a language model")
    return ranked[0], ranked[min(1, len(ranked) - 1)]


def slide_writer() -> FixedConductor:
    """Return a conductor for slides in Markdown: outline, content, check, final version."""

    def write(pool: Pool) -> Workflow:
        author, critic = _find_models(pool)
        return Workflow(
            (
                Step(subtask=OUTLINE, worker=author),
                Step(subtask=CONTENT, worker=author, access=(0,)),
                Step(subtask=CHECK, worker=critic, access=(0, 1)),
                Step(subtask=FINISH, worker=author, access=(0, 1, 2)),
            )
        )

    return FixedConductor("slides", write)
