"""The cascade: look at the answers before paying for another one.

One worker answers; if that is not enough, the next is asked, and so on, until no further answer is
expected to be worth its price. Who is asked next is who is expected to earn most on the question
(`solvers.selector`), a repeated worker counting for less; which answer leads, and whether to go on,
is a matter of agreement between samples and between workers (`solvers.selector.belief`). All of it
is fitted on training questions by the same reward, credit less what the calls cost.

After Chen, Zaharia and Zou, "FrugalGPT" (arXiv 2305.05176), section 3 (a cascade with a learned
score of each answer), and Yue et al., "Large Language Model Cascades with Mixture of Thought
Representations" (arXiv 2310.03094) (agreement of samples as the score).

Deviations
- The answer that is returned need not be the last worker's: it is the one most likely to be right.
- The order is the question's own, not one for all; there is no budget, but a price for a call.
- No model scores the answers: their agreement does, weighed by who gave them. A checker, where
  there is one (`baselines.checking`), adds what it says of the answer that leads, before another
  one is paid for.

Questions unlike all training questions have a belief of their own, fitted on families that were
held out, so that what is known of other tasks is not taken for knowledge of this one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batuta.conductors.selector import Selector
from batuta.core import (
    AcceptedAnswer,
    CallListener,
    Decision,
    Plan,
    PlanningContext,
    Pool,
    Question,
    Reply,
    Round,
    Run,
    Step,
    StepRun,
    Task,
    TaskId,
    WorkerId,
    Workflow,
)
from batuta.core.conductor import NULL_LISTENER
from batuta.core.solver import RunTests
from batuta.embedded.blas import single_blas_thread
from batuta.engine.solver import SolverContext, run_conductor, with_final_reply
from batuta.errors import ConfigError
from batuta.lab.baselines.answers import normalize_answer
from batuta.lab.baselines.checker import EXECUTED_TESTS, Checker, is_check
from batuta.lab.learners.answer_posterior import (
    AnswerDraws,
    AnswerPosterior,
    LeadingAnswer,
    log_odds,
)
from batuta.lab.learners.history import History
from batuta.lab.learners.simulated_draws import simulate_draws
from batuta.lab.tasks.graders.code_extraction import extract_program
from batuta.lab.tasks.graders.question_tests import find_question_tests
from batuta.lab.tasks.recorded import GRADER, RecordedOutcomes
from batuta.language.answer_extraction import final_answer

CALLS = 6
"""Answers to a question at most, where the pool has no more workers."""
MOST_CALLS = 10
"""Answers to a question at most, of however many workers."""

Floats = NDArray[np.floating[Any]]
AnswerExtractor = Callable[[Question, Reply], str | None]
"""A reply's answer in a form in which equal answers are equal; None: it has none."""


def most_calls(workers: int) -> int:
    """How many answers are drawn at most: six, or one of each of up to ten workers."""
    return max(CALLS, min(workers, MOST_CALLS))


def extract_stated_answer(_: Question, reply: Reply) -> str | None:
    """What the reply marks as its answer, or its last line."""
    answer = final_answer(reply.text)
    return None if answer is None else normalize_answer(answer) or None


def recorded_extractor(record: RecordedOutcomes) -> AnswerExtractor:
    """The answers that the record extracted from its own replies, where it has the reply."""

    def extract(question: Question, reply: Reply) -> str | None:
        task = Task(id=TaskId("asked"), question=question.text, target="", grader=GRADER)
        found = record.grade(task, reply.text)
        return (
            extract_stated_answer(question, reply)
            if found.score is None
            else normalize_answer(found.extracted or "") or None
        )

    return extract


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Cascade:
    """Asks until another answer is not worth its price."""

    selector: Selector
    familiar: AnswerPosterior
    """For questions that are close to a training question."""
    strange: AnswerPosterior
    """For all others."""
    most_m: tuple[int, ...]
    """How often each of the selector's workers may be asked: as often as it was in training."""
    cost_m: tuple[float, ...]
    """Credit that a call of each worker is worth: going on must win more."""
    calls_worth_m: tuple[float, ...]
    """What a call of each worker costs, in calls of usual cost; 1 where dollars are unknown."""
    collisions: float
    """How often two wrong answers were the same, in training."""
    calls: int = CALLS
    price: float
    """Credit that a call of usual cost is worth."""
    dollar: float = 0.0
    """Credit that a dollar is worth beside that."""
    checker: Checker | None = None
    """Checks what leads before another answer is paid for; its calls count too."""
    executed: Checker | None = EXECUTED_TESTS
    """What the tests that a question shows are believed, where they can be executed; then nobody
    is asked to check. None: they tell nothing."""
    extract: AnswerExtractor = field(default=extract_stated_answer, repr=False)

    @property
    def name(self) -> str:
        """The method, its price and its selector's version."""
        checked = "+checker" if self.checker else ""
        dollars = f"+{self.dollar:g}/$" if self.dollar else ""
        return f"cascade{checked}/{self.price:g}{dollars}@{self.selector.digest[:8]}"

    def replay_history(self, history: History) -> tuple[Floats, NDArray[np.intp]]:
        """What it would have earned on recorded questions, (n,), and with how many calls, (n,).

        The same decisions as `answer` makes without a checker, whose replies no record has, for
        all questions at once and without the engine. The history has the selector's workers in
        their order.

        Raises:
            SourceError: the history has no answers.
        """
        earned_n, asked_nk = self.replay_draws(history)
        return earned_n, (asked_nk >= 0).sum(axis=1)

    def replay_draws(self, history: History) -> tuple[Floats, NDArray[np.intp]]:
        """The same, with whom it would have asked, (n, k); -1: nobody any more.

        Raises:
            SourceError: the history has no answers.
        """
        expected_nm, close_n = self.selector.expected_credit(history.questions)
        earned_n = np.zeros(len(close_n))
        asked_nk = np.full((len(close_n), self.calls), -1, np.intp)
        familiar_n = close_n >= self.selector.guard.closeness
        for belief, chosen_n in ((self.familiar, familiar_n), (self.strange, ~familiar_n)):
            rows = np.flatnonzero(chosen_n)
            if len(rows):
                drawn = simulate_draws(
                    history.select(rows),
                    expected_nm[rows],
                    belief.order,
                    self.calls,
                    cost_m=np.asarray(self.cost_m),
                    calls_worth_m=np.asarray(self.calls_worth_m),
                    collisions=self.collisions,
                )
                earned_n[rows], calls_n = drawn.simulate_stopping(belief)
                is_made_nk = np.arange(self.calls) < calls_n[:, None]
                asked_nk[rows] = np.where(is_made_nk, drawn.draws.worker_nk, -1)
        return earned_n, asked_nk

    async def answer(self, question: Question, context: SolverContext, seed: int) -> Run:
        """One call after another; the likeliest answer.

        Raises:
            ConfigError: no worker of the pool was in the training.
        """
        run_tests = None if self.executed is None else context.run_tests
        drawing = _CascadeConductor(self, question, context.pool, run_tests)
        cast = context.restrict_to(*dict.fromkeys((*drawing.workers, *drawing.checkers)))
        for worker, most in zip(self.selector.workers, self.most_m, strict=True):
            cast = cast.with_sampling(worker) if most > 1 else cast
        run = await run_conductor(
            question, drawing, cast, seed, max_steps=1, max_rounds=self.calls + 1
        )
        return with_final_reply(run, drawing.leading_reply(run.rounds))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Observations:
    """What a question's rounds have said."""

    draws: AnswerDraws
    replies: tuple[Reply | None, ...]
    """Of each draw; None: the call failed."""
    checked: frozenset[int]
    """The answers that a checker was asked about."""
    last_was_draw: bool
    """The last round was a draw, no check."""

    def needs_check(self, found: LeadingAnswer) -> bool:
        """Whether what leads was said in the last round and was never checked."""
        said = int(self.draws.answer_nk[0, -1])
        leads = said >= 0 and said == int(self.draws.answer_nk[0, found.draw_n[0]])
        return leads and self.last_was_draw and said not in self.checked


class _CascadeConductor:
    """The conductor of one question: the next worker, a check, or the answers stand."""

    def __init__(
        self, cascade: Cascade, question: Question, pool: Pool, run_tests: RunTests | None
    ) -> None:
        self.name = cascade.name
        has_tests = run_tests is not None and find_question_tests(question.text) is not None
        self._run_tests = run_tests if has_tests else None
        self._passed: dict[str, bool | None] = {}
        """By a reply's text, whether it passes the tests that the question shows."""
        self._cascade = cascade
        self._question = question
        selector = cascade.selector
        inside = np.asarray([worker in pool for worker in selector.workers])
        self._most_m = np.where(inside, cascade.most_m, 0)
        if not self._most_m.any():
            raise ConfigError(
                "the cascade knows no worker of this pool: train it on outcomes of these workers"
            )
        self._checker = cascade.checker.pick_worker(pool) if cascade.checker else None
        with single_blas_thread():
            expected_nm, close_n = selector.expected_credit([question.text])
        familiar = close_n[0] >= selector.guard.closeness
        self._belief = cascade.familiar if familiar else cascade.strange
        self._expected_nm = expected_nm

    @property
    def workers(self) -> tuple[WorkerId, ...]:
        """Those of the pool that may be asked."""
        known = zip(self._cascade.selector.workers, self._most_m, strict=True)
        return tuple(worker for worker, most in known if most)

    @property
    def checkers(self) -> tuple[WorkerId, ...]:
        """Who checks; nobody: there is no checker."""
        return () if self._checker is None else (self._checker,)

    async def plan(
        self, context: PlanningContext, listener: CallListener = NULL_LISTENER
    ) -> Decision:
        """The next worker with the question as it stands, a check of its answer, or the end."""
        left = self._cascade.calls - len(context.previous)
        await self._try_replies(context.previous)
        heard = self._observe(context.previous)
        if not left:
            return AcceptedAnswer()
        place = self._next_place(heard.draws)
        if heard.replies:
            count, next_n = len(heard.replies), np.asarray([place])
            found = self._belief.lead(heard.draws, count)
            if not self._belief.goes_on(heard.draws, found, count, next_n)[0]:
                return AcceptedAnswer()
            if (
                left > 1
                and heard.needs_check(found)
                and (check := self._check_step(context.previous[-1]))
            ):
                return Plan(Workflow((check,)))
        if place < 0:
            return AcceptedAnswer()
        return Plan(Workflow((Step(subtask="", worker=self._cascade.selector.workers[place]),)))

    async def _try_replies(self, rounds: tuple[Round, ...]) -> None:
        """Run the question's tests on what was answered since they were run last."""
        if self._run_tests is None:
            return
        for planned, step in _planned_and_run_steps(rounds):
            text = step.result.text if isinstance(step.result, Reply) else None
            if text is not None and not is_check(planned) and text not in self._passed:
                self._passed[text] = await self._run_tests(self._question.text, text)

    def _answer_key(self, reply: Reply) -> str | None:
        """The answer in a form in which equal answers are equal; where tests run, the program."""
        program = None if self._run_tests is None else extract_program(reply.text)
        return program or self._cascade.extract(self._question, reply)

    def _next_place(self, draws: AnswerDraws) -> int:
        """The place of the worker that would be asked next; -1: nobody is left."""
        drawn_m = np.bincount(draws.worker_nk[0], minlength=len(self._most_m))
        worth_m = np.asarray(self._cascade.calls_worth_m)
        order = self._belief.order
        return int(
            order.next_worker(self._expected_nm, drawn_m[None], self._most_m[None], worth_m)[0]
        )

    def _check_step(self, drawn: Round) -> Step | None:
        """The check of what was drawn; None: nobody checks, least of all what it said itself."""
        checker, said_it = self._cascade.checker, {step.worker for step in drawn.steps}
        if checker is None or self._checker is None or self._checker in said_it:
            return None
        return checker.check_step(self._checker)

    def leading_reply(self, rounds: Iterable[Round]) -> Reply | None:
        """The reply whose answer is the likeliest; None if there is no reply."""
        heard = self._observe(tuple(rounds))
        if not any(heard.replies):
            return None
        found = self._belief.lead(heard.draws, len(heard.replies))
        said = heard.replies[int(found.draw_n[0])]
        return said or next(reply for reply in heard.replies if reply)

    def _observe(self, rounds: tuple[Round, ...]) -> _Observations:
        """The answers so far, and what was said of them; a call that failed gave none."""
        codes: dict[str, int] = {}
        workers: list[int] = []
        answers: list[int] = []
        replies: list[Reply | None] = []
        evidence: dict[int, float] = {}
        fresh = False
        for planned, step in _planned_and_run_steps(rounds):
            reply = step.result if isinstance(step.result, Reply) else None
            fresh = not is_check(planned)
            if fresh:
                text = None if reply is None else self._answer_key(reply)
                answers.append(-1 if text is None else codes.setdefault(text, len(codes)))
                passed = None if reply is None else self._passed.get(reply.text)
                if passed is not None and self._cascade.executed is not None:
                    weight = self._cascade.executed.verdict_evidence(passed=passed)
                    evidence[answers[-1]] = weight
                workers.append(self._cascade.selector.workers.index(planned.worker))
                replies.append(reply)
            elif self._cascade.checker is not None:
                evidence[answers[-1]] = (
                    0.0 if reply is None else self._cascade.checker.evidence(reply)
                )
        draws = AnswerDraws(
            worker_nk=np.asarray([workers], int).reshape(1, -1),
            answer_nk=np.asarray([answers], int).reshape(1, -1),
            odds_nm=log_odds(self._expected_nm),
            cost_m=np.asarray(self._cascade.cost_m),
            collisions=self._cascade.collisions,
            evidence_nk=np.asarray([[evidence.get(answer, 0.0) for answer in answers]]),
        )
        return _Observations(
            draws=draws, replies=tuple(replies), checked=frozenset(evidence), last_was_draw=fresh
        )


def _planned_and_run_steps(rounds: Iterable[Round]) -> Iterator[tuple[Step, StepRun]]:
    """The one step of each round, as planned and as executed."""
    for round_ in rounds:
        if round_.workflow is not None:
            yield from ((round_.workflow.steps[step.index], step) for step in round_.steps)


def with_recorded_answers(cascade: Cascade, record: RecordedOutcomes) -> Cascade:
    """The same over a recorded pool, whose extracted answers are taken as they were recorded."""
    return replace(cascade, extract=recorded_extractor(record))
