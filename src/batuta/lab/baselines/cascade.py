"""The cascade, which looks at the answers so far before paying for another answer.

Workers are asked one after another, until no further answer is expected to be worth its price. The
next worker is the one expected to earn most on the question (`conductors.selector`), less penalties
for cost and repetition. The agreement of samples and workers (`learners.answer_posterior`) decides
which answer leads and whether to continue. Both parts are fitted on training questions to the same
reward: credit (the score of the answer, 0 to 1) less the cost of calls.

The method follows Chen, Zaharia and Zou, "FrugalGPT" (arXiv 2305.05176), section 3 (a cascade with
a learned score of each answer), and Yue et al., "Large Language Model Cascades with Mixture of
Thought Representations" (arXiv 2310.03094) (the agreement of samples as the score).

Deviations
- The cascade returns the answer that is most likely correct, not always the last answer.
- The order of workers depends on the question, and there is a price per call instead of a budget.
- Answers are scored by agreement and by their workers instead of by a model. A checker, if there is
  one (`baselines.checker`), checks the leading answer before another answer is paid for.

Questions unlike all training questions have their own posterior, fitted on held-out families, so
that experience with other tasks is not overrated.

Axes: n questions, m workers (the selector's, in its order), k answers in the order of the calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
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
from batuta.lab.baselines.answers import AnswerExtractor, normalize_answer
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
"""Maximum number of answers to a question, if the pool has at most as many workers."""
MOST_CALLS = 10
"""Maximum number of answers to a question, however many workers the pool has."""

Floats = NDArray[np.floating[Any]]


def most_calls(workers: int) -> int:
    """Return the maximum number of answers: one per worker, but at least six and at most ten."""
    return max(CALLS, min(workers, MOST_CALLS))


def extract_normalized_answer(_: Question, reply: Reply) -> str | None:
    """Return the answer that the reply marks, else its last line, in canonical form.

    Return None if there is none, as in an empty reply or with an unclosed box.
    """
    answer = final_answer(reply.text)
    return None if answer is None else normalize_answer(answer) or None


def recorded_extractor(record: RecordedOutcomes) -> AnswerExtractor:
    """Return an extractor that takes the answers of recorded replies from the record.

    For other replies it is `extract_normalized_answer`.
    """

    def extract(question: Question, reply: Reply) -> str | None:
        task = Task(id=TaskId("asked"), question=question.text, target="", grader=GRADER)
        found = record.grade(task, reply.text)
        if found.score is None:
            return extract_normalized_answer(question, reply)
        return normalize_answer(found.extracted or "") or None

    return extract


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Cascade:
    """Asks one worker after another until a further answer is not worth its price."""

    selector: Selector
    familiar: AnswerPosterior
    """The posterior for questions that are close to a training question."""
    strange: AnswerPosterior
    """The posterior for all other questions."""
    most_m: tuple[int, ...]
    """Maximum number of answers of each of the selector's workers to a question, as in training."""
    cost_m: tuple[float, ...]
    """The price of a call of each worker, in credit."""
    calls_worth_m: tuple[float, ...]
    """Each worker's cost as a multiple of the average call; 1 if dollars are unknown."""
    collisions: float
    """The rate at which two wrong answers were equal in training."""
    calls: int = CALLS
    """Maximum number of calls for a question, checks included."""
    price: float
    """The price of a call of average cost, in credit."""
    dollar: float = 0.0
    """The additional price of a dollar, in credit."""
    checker: Checker | None = None
    """Checks the leading answer before another answer is paid for; None: no check."""
    executed: Checker | None = EXECUTED_TESTS
    """The rates of the tests that a question shows; an answer judged by them is not checked again.
    None ignores the tests."""
    extract: AnswerExtractor = field(default=extract_normalized_answer, repr=False)
    """Extracts answers in a form in which equal answers are equal."""

    @property
    def name(self) -> str:
        """The method, its prices and its selector's version."""
        checked = "+checker" if self.checker else ""
        dollars = f"+{self.dollar:g}/$" if self.dollar else ""
        return f"cascade{checked}/{self.price:g}{dollars}@{self.selector.digest[:8]}"

    def replay_history(self, history: History) -> tuple[Floats, NDArray[np.intp]]:
        """Replay recorded questions; return the credit and the number of calls of each, (n,).

        The decisions are those of `answer` without a checker and executed tests. The history must
        have the selector's workers in their order.

        Raises:
            SourceError: the history has no answers.
        """
        earned_n, asked_nk = self.replay_draws(history)
        return earned_n, (asked_nk >= 0).sum(axis=1)

    def replay_draws(self, history: History) -> tuple[Floats, NDArray[np.intp]]:
        """Replay recorded questions; return the credit, (n,), and the workers asked, (n, k).

        The workers are indices into the selector's workers; -1 stands for a call not made.

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
        """Ask one worker after another, and return the answer that is most likely correct.

        Raises:
            ConfigError: the cascade was fitted to no worker of the pool.
        """
        run_tests = None if self.executed is None else context.run_tests
        conductor = _CascadeConductor(self, question, context.pool, run_tests)
        restricted = context.restrict_to(*dict.fromkeys((*conductor.workers, *conductor.checkers)))
        for worker, most in zip(self.selector.workers, self.most_m, strict=True):
            restricted = restricted.with_sampling(worker) if most > 1 else restricted
        run = await run_conductor(
            question, conductor, restricted, seed, max_steps=1, max_rounds=self.calls + 1
        )
        return with_final_reply(run, conductor.leading_reply(run.rounds))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Observations:
    """The answers and checks in a question's rounds."""

    draws: AnswerDraws
    replies: tuple[Reply | None, ...]
    """The reply of each draw; None if the call failed."""
    checked: frozenset[int]
    """The codes of the answers that were checked or tested."""
    last_was_draw: bool
    """True if the last round was a draw and not a check."""

    def needs_check(self, found: LeadingAnswer) -> bool:
        """Return whether the last round drew the leading answer, and no check has judged it."""
        answer_code = int(self.draws.answer_nk[0, -1])
        leads = answer_code >= 0 and answer_code == int(self.draws.answer_nk[0, found.draw_n[0]])
        return leads and self.last_was_draw and answer_code not in self.checked


class _CascadeConductor:
    """The conductor of one question: it asks the next worker, checks, or accepts the answer."""

    def __init__(
        self, cascade: Cascade, question: Question, pool: Pool, run_tests: RunTests | None
    ) -> None:
        self.name = cascade.name
        has_tests = run_tests is not None and find_question_tests(question.text) is not None
        self._run_tests = run_tests if has_tests else None
        self._passed: dict[str, bool | None] = {}
        """By reply text: whether it passes the question's tests; None if they could not decide."""
        self._cascade = cascade
        self._question = question
        selector = cascade.selector
        inside = np.asarray([worker in pool for worker in selector.workers])
        self._most_m = np.where(inside, cascade.most_m, 0)
        if not self._most_m.any():
            raise ConfigError(
                "the cascade was fitted to no worker of this pool: fit a cascade to their outcomes"
            )
        self._checker = cascade.checker.pick_worker(pool) if cascade.checker else None
        with single_blas_thread():
            expected_nm, close_n = selector.expected_credit([question.text])
        familiar = close_n[0] >= selector.guard.closeness
        self._belief = cascade.familiar if familiar else cascade.strange
        self._expected_nm = expected_nm

    @property
    def workers(self) -> tuple[WorkerId, ...]:
        """The workers of the pool that may be asked."""
        known = zip(self._cascade.selector.workers, self._most_m, strict=True)
        return tuple(worker for worker, most in known if most)

    @property
    def checkers(self) -> tuple[WorkerId, ...]:
        """The worker that checks; empty without a checker in the pool."""
        return () if self._checker is None else (self._checker,)

    async def plan(
        self, context: PlanningContext, listener: CallListener = NULL_LISTENER
    ) -> Decision:
        """Plan the next worker's answer or a check, or accept the answer."""
        left = self._cascade.calls - len(context.previous)
        await self._try_replies(context.previous)
        observed = self._observe(context.previous)
        if not left:
            return AcceptedAnswer()
        index = self._next_worker_index(observed.draws)
        if observed.replies:
            count, next_n = len(observed.replies), np.asarray([index])
            found = self._belief.lead(observed.draws, count)
            if not self._belief.should_continue(observed.draws, found, count, next_n)[0]:
                return AcceptedAnswer()
            if (
                left > 1
                and observed.needs_check(found)
                and (check := self._check_step(context.previous[-1]))
            ):
                return Plan(Workflow((check,)))
        if index < 0:
            return AcceptedAnswer()
        return Plan(Workflow((Step(subtask="", worker=self._cascade.selector.workers[index]),)))

    async def _try_replies(self, rounds: tuple[Round, ...]) -> None:
        """Run the question's tests, if they can run, on the replies that were not tested yet."""
        if self._run_tests is None:
            return
        for planned, step in _planned_and_run_steps(rounds):
            text = step.result.text if isinstance(step.result, Reply) else None
            if text is not None and not is_check(planned) and text not in self._passed:
                self._passed[text] = await self._run_tests(self._question.text, text)

    def _answer_key(self, reply: Reply) -> str | None:
        """Return a text that equal answers share: the program if tests can run, else the answer."""
        program = None if self._run_tests is None else extract_program(reply.text)
        return program or self._cascade.extract(self._question, reply)

    def _next_worker_index(self, draws: AnswerDraws) -> int:
        """Return the index of the worker to ask next; -1 if none is left."""
        drawn_m = np.bincount(draws.worker_nk[0], minlength=len(self._most_m))
        worth_m = np.asarray(self._cascade.calls_worth_m)
        order = self._belief.order
        return int(
            order.next_worker(self._expected_nm, drawn_m[None], self._most_m[None], worth_m)[0]
        )

    def _check_step(self, drawn: Round) -> Step | None:
        """Return the check of the last draw; None without a checker, or if the checker drew it."""
        checker, authors = self._cascade.checker, {step.worker for step in drawn.steps}
        if checker is None or self._checker is None or self._checker in authors:
            return None
        return checker.check_step(self._checker)

    def leading_reply(self, rounds: Iterable[Round]) -> Reply | None:
        """Return the reply with the most likely answer; None if there is no reply."""
        observed = self._observe(tuple(rounds))
        if not any(observed.replies):
            return None
        found = self._belief.lead(observed.draws, len(observed.replies))
        leading = observed.replies[int(found.draw_n[0])]
        return leading or next(reply for reply in observed.replies if reply)

    def _observe(self, rounds: tuple[Round, ...]) -> _Observations:
        """Collect the answers so far and their checks; a failed call has no answer."""
        codes: dict[str, int] = {}
        workers: list[int] = []
        answers: list[int] = []
        replies: list[Reply | None] = []
        evidence: dict[int, float] = {}
        is_draw = False
        for planned, step in _planned_and_run_steps(rounds):
            reply = step.result if isinstance(step.result, Reply) else None
            is_draw = not is_check(planned)
            if is_draw:
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
            draws=draws, replies=tuple(replies), checked=frozenset(evidence), last_was_draw=is_draw
        )


def _planned_and_run_steps(rounds: Iterable[Round]) -> Iterator[tuple[Step, StepRun]]:
    """Yield the step of each round, as planned and as executed."""
    for round_ in rounds:
        if round_.workflow is not None:
            yield from ((round_.workflow.steps[step.index], step) for step in round_.steps)
