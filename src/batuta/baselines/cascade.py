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

from batuta.baselines.answers import normalize_answer
from batuta.baselines.checker import Checker, is_check
from batuta.baselines.solver import SolverContext, run_conductor, with_final_reply
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
from batuta.embedded.blas import single_blas_thread
from batuta.errors import ConfigError, SourceError
from batuta.solvers.history import History
from batuta.solvers.selector import Selector, SelectorRecipe, fit_selector
from batuta.solvers.selector.answer_posterior import (
    AnswerDraws,
    AnswerPosterior,
    LeadingAnswer,
    TrainingDraws,
    log_odds,
    next_worker,
)
from batuta.solvers.selector.training import family_numbers, grouped_folds, random_folds
from batuta.solvers.selector.value_model import held_out_values
from batuta.tasks.graders.answer_extraction import final_answer
from batuta.tasks.recorded import GRADER, RecordedOutcomes

CALLS = 6
"""Answers to a question at most."""
PRICE = 0.005
"""Credit that a call is worth: going on must win more."""
_REPEAT_DISCOUNTS = (0.02, 0.1, 1.0)
"""What a repeated worker counts for less; the last one asks everybody once first."""
_MIN_FAMILIAR_QUESTIONS = 200
"""Familiar training questions from which they have a belief of their own."""

Floats = NDArray[np.floating[Any]]
AnswerExtractor = Callable[[Question, Reply], str | None]
"""A reply's answer in a form in which equal answers are equal; None: it has none."""


def extract_stated_answer(_: Question, reply: Reply) -> str | None:
    """What the reply marks as its answer, or its last line."""
    answer = final_answer(reply.text)
    return None if answer is None else normalize_answer(answer).strip("()")


def recorded_extractor(record: RecordedOutcomes) -> AnswerExtractor:
    """The answers that the record extracted from its own replies, where it has the reply."""

    def extract(question: Question, reply: Reply) -> str | None:
        task = Task(id=TaskId("asked"), question=question.text, target="", grader=GRADER)
        found = record.grade(task, reply.text)
        return (
            extract_stated_answer(question, reply)
            if found.score is None
            else found.extracted or None
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
    calls: int = CALLS
    price: float = PRICE
    checker: Checker | None = None
    """Checks what leads before another answer is paid for; its calls count too."""
    extract: AnswerExtractor = field(default=extract_stated_answer, repr=False)

    @property
    def name(self) -> str:
        """The method, its price and its selector's version."""
        checked = "+checker" if self.checker else ""
        return f"cascade{checked}/{self.price:g}@{self.selector.digest[:8]}"

    def replay_history(self, history: History) -> tuple[Floats, NDArray[np.intp]]:
        """What it would have earned on recorded questions, (n,), and with how many calls, (n,).

        The same decisions as `answer` makes without a checker, whose replies no record has, for
        all questions at once and without the engine. The history has the selector's workers in
        their order.

        Raises:
            SourceError: the history has no answers.
        """
        expected_nm, close_n = self.selector.expected_credit(history.questions)
        earned_n, calls_n = np.zeros(len(close_n)), np.zeros(len(close_n), np.intp)
        familiar_n = close_n >= self.selector.guard.closeness
        for belief, chosen_n in ((self.familiar, familiar_n), (self.strange, ~familiar_n)):
            rows = np.flatnonzero(chosen_n)
            if len(rows):
                drawn = _simulate_draws(
                    history.select(rows), expected_nm[rows], belief.again, self.calls
                )
                earned_n[rows], calls_n[rows] = drawn.simulate_stopping(belief)
        return earned_n, calls_n

    async def answer(self, question: Question, context: SolverContext, seed: int) -> Run:
        """One call after another; the likeliest answer.

        Raises:
            ConfigError: no worker of the pool was in the training.
        """
        drawing = _CascadeConductor(self, question, context.pool)
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

    def __init__(self, cascade: Cascade, question: Question, pool: Pool) -> None:
        self.name = cascade.name
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
        self, brief: PlanningContext, listener: CallListener = NULL_LISTENER
    ) -> Decision:
        """The next worker with the question as it stands, a check of its answer, or the end."""
        left = self._cascade.calls - len(brief.previous)
        heard = self._observe(brief.previous)
        if not left:
            return AcceptedAnswer()
        if heard.replies:
            found, goes_n = self._belief.judge(heard.draws, len(heard.replies))
            if not goes_n[0]:
                return AcceptedAnswer()
            if (
                left > 1
                and heard.needs_check(found)
                and (check := self._check_step(brief.previous[-1]))
            ):
                return Plan(Workflow((check,)))
        drawn_m = np.bincount(heard.draws.worker_nk[0], minlength=len(self._most_m))
        place = int(
            next_worker(self._expected_nm, drawn_m[None], self._most_m[None], self._belief.again)[0]
        )
        if place < 0:
            return AcceptedAnswer()
        return Plan(Workflow((Step(subtask="", worker=self._cascade.selector.workers[place]),)))

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
        found, _ = self._belief.judge(heard.draws, len(heard.replies))
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
                text = None if reply is None else self._cascade.extract(self._question, reply)
                answers.append(-1 if text is None else codes.setdefault(text, len(codes)))
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
            evidence_nk=np.asarray([[evidence.get(answer, 0.0) for answer in answers]]),
        )
        return _Observations(
            draws=draws, replies=tuple(replies), checked=frozenset(evidence), last_was_draw=fresh
        )


def _planned_and_run_steps(rounds: Iterable[Round]) -> Iterator[tuple[Step, StepRun]]:
    """The one step of each round, as planned and as played."""
    for played in rounds:
        if played.workflow is not None:
            yield from ((played.workflow.steps[step.index], step) for step in played.steps)


def fit_cascade(
    history: History,
    recipe: SelectorRecipe | None = None,
    *,
    seed: int = 0,
    price: float = PRICE,
    calls: int = CALLS,
    selector: Selector | None = None,
    checker: Checker | None = None,
) -> Cascade:
    """The cascade that this history teaches.

    Args:
        history: outcomes on training questions, with the answers of each run.
        recipe: how its selector is trained.
        seed: of the folds and of the search.
        price: credit that a call is worth.
        calls: answers to a question at most.
        selector: one that was fitted on this very history; None: it is fitted here.
        checker: who checks; nothing of it is learned, for no history has its replies.

    Raises:
        SourceError: the history has no answers or too few questions.
        ConfigError: the recipe needs a package that is missing.
    """
    history = history.drop_unscored()
    if history.samples is None:
        raise SourceError(
            "a cascade needs the answers of each run: write answers and scores into the history"
        )
    selector = selector or fit_selector(history, recipe, seed=seed)
    rng = np.random.Generator(np.random.PCG64(seed))
    values = selector.values
    family_n = family_numbers(history, values.memory_nd, rng)
    half_n = (grouped_folds(family_n, rng) > 1).astype(int)
    mean_nm = np.broadcast_to(values.mean_m, (len(family_n), len(values.mean_m)))
    strange = _fit_posterior(history, mean_nm, half_n=half_n, price=price, calls=calls)
    fold_n = random_folds(len(family_n), rng)
    expected_nm, close_n = held_out_values(values, fold_n)
    rows = np.flatnonzero(close_n >= selector.guard.closeness)
    familiar = strange
    if len(rows) >= _MIN_FAMILIAR_QUESTIONS:
        known = history.select(rows)
        familiar = _fit_posterior(
            known, expected_nm[rows], half_n=fold_n[rows] % 2, price=price, calls=calls
        )
    most_m = (~np.isnan(history.samples.credit_qms)).sum(axis=2).max(axis=0)
    times_m = tuple(int(m) for m in most_m)
    return Cascade(
        selector=selector,
        familiar=familiar,
        strange=strange,
        most_m=times_m,
        calls=calls,
        price=price,
        checker=checker,
    )


def _fit_posterior(
    history: History,
    expected_nm: Floats,
    half_n: NDArray[np.signedinteger[Any]],
    price: float,
    *,
    calls: int,
) -> AnswerPosterior:
    """The belief that earns most over the ways in which a repeated worker may count."""
    fitted = [
        _simulate_draws(history, expected_nm, again, calls).fit_posterior(half_n, price)
        for again in (_REPEAT_DISCOUNTS if history.runs_qm.max() > 1 else _REPEAT_DISCOUNTS[-1:])
    ]
    return max(fitted, key=lambda one: one[1])[0]


def _simulate_draws(
    history: History,
    expected_nm: Floats,
    again: float,
    calls: int,
) -> TrainingDraws:
    """The training questions' draws, as the cascade would make them if it never stopped."""
    samples = history.samples
    if samples is None:
        raise SourceError("the history has no answers")
    most_nm = (~np.isnan(samples.credit_qms)).sum(axis=2)
    drawn_nm = np.zeros_like(most_nm)
    rows = np.arange(len(most_nm))
    worker_nk, answer_nk = np.full((2, len(rows), calls), -1)
    credit_nk = np.zeros((len(rows), calls))
    for draw in range(calls):
        worker_n = next_worker(expected_nm, drawn_nm, most_nm, again)
        there = worker_n >= 0
        place = (rows[there], worker_n[there], drawn_nm[rows[there], worker_n[there]])
        worker_nk[:, draw] = worker_n
        answer_nk[there, draw] = samples.answers_qms[place]
        credit_nk[there, draw] = samples.credit_qms[place]
        drawn_nm[rows[there], worker_n[there]] += 1
    return TrainingDraws(
        AnswerDraws(worker_nk=worker_nk, answer_nk=answer_nk, odds_nm=log_odds(expected_nm)),
        credit_nk,
        again,
    )


def with_recorded_answers(cascade: Cascade, record: RecordedOutcomes) -> Cascade:
    """The same over a recorded pool, whose extracted answers are taken as they were recorded."""
    return replace(cascade, extract=recorded_extractor(record))
