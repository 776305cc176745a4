"""Rewrites the subtasks of the most used workflow that has any, with the package `gepa`.

GEPA (Agrawal et al., arXiv 2507.19457) keeps a Pareto front of wordings over validation questions,
mutates one of them by reflection on a minibatch, and validates the mutation if it does better on
the minibatch. GEPA's loop runs in a thread; its runs and reflections use the tuning run's runner,
budget and journal. Without the package `gepa` the stage is skipped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any, final

import anyio
import anyio.from_thread
import anyio.to_thread
import numpy as np

from batuta.core import Reply, Task, WorkerId
from batuta.distribution import install_hint
from batuta.errors import ClientError, LimitReachedError
from batuta.lab.tasks.question_keys import text_key
from batuta.lab.tune.candidate_runner import CandidateRunner
from batuta.lab.tune.context import TuneContext
from batuta.lab.tune.library import Candidate, subtask_of
from batuta.lab.tune.result import RewriteOutcome, TuneResult
from batuta.lab.tune.stages import ULTRA, TuneStage
from batuta.lab.tune.systems import replace_workflow
from batuta.language.material import RESPONSE, TASK, wrap_in_tag

PACKAGE = "gepa"
MINIBATCH = 8
"""The number of questions of a reflection. With gepa's default of three, luck decides which wording
looks better."""
_LONGEST = 1500
"""Maximum length of a wording, in characters; longer wordings are rejected."""
_COPIED = 8
"""The number of consecutive words of a question that a wording must not contain."""
_SHOWN = 1200
"""Maximum number of characters that the rewriter is shown of a text."""
_TEMPLATE = """Several language models work on a task one after another. One of them is told:
```
<curr_param>
```

Here is what it was given and what it wrote, with remarks on how it went:
```
<side_info>
```

Write a better instruction for that model. It must hold for every task of this kind: name what to \
do, what to look out for and how to end, and never repeat a task or an answer from above. At most \
120 words. Write the new instruction within ``` blocks."""


def is_rewriting_installed() -> bool:
    """Return whether the package gepa is installed."""
    return find_spec(PACKAGE) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewriting:
    """The questions, the worker and the limits of a rewriting."""

    runner: CandidateRunner
    rewriter: WorkerId
    """The worker that reflects and writes the wordings."""
    train: Sequence[Task]
    """The questions of the minibatches."""
    validation: Sequence[Task]
    """The questions on which wordings are compared."""
    fits_budget: Callable[[int], bool]
    """Tells whether a number of further calls fits the budget."""
    seed: int = 0
    rounds: int = 40
    """Maximum number of reflections."""


class _EndedError(Exception):
    """The budget of the rewriting is spent, or the rewriter gave no reply."""


async def rewrite_candidate(candidate: Candidate, given: Rewriting) -> Candidate:
    """Return the workflow with the wordings that did best in validation, perhaps the original.

    The package must be installed (`is_rewriting_installed`).
    """
    indices = worded_steps(candidate)
    if not indices or not given.train or not given.validation:
        return candidate
    adapter = _WorkflowAdapter(candidate, indices, given)
    await anyio.to_thread.run_sync(adapter.optimize)
    return adapter.best()


def worded_steps(candidate: Candidate) -> tuple[int, ...]:
    """Return the indices of the steps that have a subtask besides the question."""
    return tuple(index for index in range(len(candidate)) if subtask_of(candidate, index))


def copies_a_question(text: str, tasks: Sequence[Task]) -> bool:
    """Return whether the text quotes `_COPIED` words in a row of a question, or all words of it."""
    padded = f" {text_key(text)} "
    for task in tasks:
        words = text_key(task.question).split()
        for start in range(max(len(words) - _COPIED, 0) + 1):
            piece = words[start : start + _COPIED]
            if piece and f" {' '.join(piece)} " in padded:
                return True
    return False


@final
class _WorkflowAdapter:
    """Adapts a workflow to gepa: names its texts, runs batches, and records what happened."""

    propose_new_texts = None  # part of gepa's protocol

    def __init__(self, candidate: Candidate, indices: Sequence[int], given: Rewriting) -> None:
        self._candidate = candidate
        self._given = given
        self._step_index = {f"step {index + 1}": index for index in indices}
        self._validated: dict[Candidate, float] = {}
        self._ended = False

    # -- in gepa's thread ------------------------------------------------------------------

    def optimize(self) -> None:
        """Run gepa until the budget or the reflections are used up, or the rewriter fails."""
        gepa = import_module(PACKAGE)
        first = {name: subtask_of(self._candidate, at) for name, at in self._step_index.items()}
        try:
            gepa.optimize(
                seed_candidate=first,
                trainset=list(self._given.train),
                valset=list(self._given.validation),
                adapter=self,
                custom_candidate_proposer=self._propose,
                reflection_minibatch_size=MINIBATCH,
                stop_callbacks=self._should_stop,
                logger=_Silence(),
                cache_evaluation=False,  # gepa's cache confuses training and validation questions
                seed=self._given.seed,
            )
        except _EndedError:
            return

    def evaluate(
        self,
        batch: list[Task],
        candidate: dict[str, str],
        capture_traces: bool = False,  # noqa: FBT001, FBT002 - as gepa calls it
    ) -> Any:
        """Run the batch, as gepa's protocol asks; a question without a score counts as wrong."""
        adapter = import_module(f"{PACKAGE}.core.adapter")
        entry = self._worded(candidate)
        if not anyio.from_thread.run(self._run_batch, batch, entry):
            self._ended = True
            raise _EndedError
        scores = [self._score(task, entry) for task in batch]
        if batch == list(self._given.validation):
            self._validated[entry] = sum(scores) / len(scores)
        traces = None
        if capture_traces:
            traces = anyio.from_thread.run(self._trace, batch, entry)
        return adapter.EvaluationBatch(outputs=scores, scores=scores, trajectories=traces)

    def make_reflective_dataset(
        self, candidate: dict[str, str], eval_batch: Any, components_to_update: list[str]
    ) -> dict[str, list[dict[str, Any]]]:
        """Return each step's texts and feedback: whether the answer was correct, else the target.

        The texts are the question, the replies of all earlier steps, and the step's own reply.
        """
        return {
            name: [self._record(trace, self._step_index[name]) for trace in eval_batch.trajectories]
            for name in components_to_update
        }

    def _record(self, trace: tuple[Task, list[str], float], index: int) -> dict[str, Any]:
        task, texts, score = trace
        target = f" The right answer is {task.target}." if task.target else ""
        ended = "The final answer was right." if score >= 1 else "The final answer was wrong."
        return {
            "Inputs": {
                "task": wrap_in_tag(TASK, task.question[:_SHOWN]),
                **{
                    f"message {at + 1}": wrap_in_tag(RESPONSE, text)
                    for at, text in enumerate(texts[:index])
                },
            },
            "Generated Outputs": wrap_in_tag(RESPONSE, texts[index])
            if index < len(texts)
            else "(it was not asked)",
            "Feedback": ended + (target if score < 1 else ""),
        }

    def _propose(
        self,
        candidate: dict[str, str],
        reflective_dataset: Mapping[str, Sequence[Mapping[str, Any]]],
        components_to_update: list[str],
    ) -> dict[str, str]:
        """Propose new wordings; an empty, too long or copied proposal leaves the old wording."""
        proposal = import_module(f"{PACKAGE}.strategies.instruction_proposal")
        written: dict[str, str] = {}
        for name in components_to_update:
            asked: dict[str, Any] = {
                "current_instruction_doc": candidate[name],
                "dataset_with_feedback": reflective_dataset[name],
                "prompt_template": _TEMPLATE,
            }
            found = proposal.InstructionProposalSignature.run(self._ask, asked)
            text = str(found["new_instruction"]).strip()
            fits = text and len(text) <= _LONGEST
            copied = copies_a_question(text, [*self._given.train, *self._given.validation])
            written[name] = text if fits and not copied else candidate[name]
        return written

    def _ask(self, prompt: Any) -> str:
        try:
            return anyio.from_thread.run(self._given.runner.ask, self._given.rewriter, str(prompt))
        except (ClientError, LimitReachedError):
            self._ended = True
            raise _EndedError from None

    def _should_stop(self, state: Any) -> bool:
        calls = 2 * MINIBATCH * len(self._candidate) + 1
        rounds = int(getattr(state, "i", 0)) >= self._given.rounds
        return self._ended or rounds or not self._given.fits_budget(calls)

    # -- in the event loop -----------------------------------------------------------------

    async def _run_batch(self, batch: Sequence[Task], entry: Candidate) -> bool:
        runner = self._given.runner
        new = [task for task in batch if runner.find_result(task, entry) is None]
        if not self._given.fits_budget(len(new) * len(entry)):
            return False
        return await runner.run_all((task, entry) for task in batch)

    async def _trace(
        self, batch: Sequence[Task], entry: Candidate
    ) -> list[tuple[Task, list[str], float]]:
        """Return each question with its steps' texts and its score, from calls already made."""
        found: list[tuple[Task, list[str], float]] = []
        for task in batch:
            run = await self._given.runner.conduct_candidate(task, entry)
            texts = [
                step.result.text[:_SHOWN] if isinstance(step.result, Reply) else "(no answer)"
                for step in run.steps
            ]
            found.append((task, texts, self._score(task, entry)))
        return found

    # -- both ------------------------------------------------------------------------------

    def best(self) -> Candidate:
        """Return the workflow that did best in validation, or the original if none did better."""
        least = self._validated.get(self._candidate, 0.0)
        better = {one: score for one, score in self._validated.items() if score > least}
        return max(better, key=lambda one: better[one], default=self._candidate)

    def _worded(self, texts: Mapping[str, str]) -> Candidate:
        steps = list(self._candidate.steps)
        for name, at in self._step_index.items():
            if texts[name] != subtask_of(self._candidate, at):
                steps[at] = replace(steps[at], text=texts[name])
        return replace(self._candidate, steps=tuple(steps))

    def _score(self, task: Task, entry: Candidate) -> float:
        result = self._given.runner.find_result(task, entry)
        return 0.0 if result is None or result.score is None else result.score


class _Silence:
    """A logger that discards all messages."""

    def log(self, message: str) -> None:
        """Discard the message."""


_VALIDATED, _CONFIRMED = 40, 60
"""Maximum number of questions on which wordings are compared, and of others to confirm the best."""
_LEAST_VALIDATED = 8
"""Minimum number of questions on which wordings are compared, whatever the budget."""
_WORDINGS = 4
"""The number of wordings whose validation the budget should allow."""
_SEARCHED = 0.7
"""The share of the stage's budget for finding a wording; the rest is for confirming it."""


async def rewrite_most_used(context: TuneContext, result: TuneResult) -> TuneResult:
    """Reword the most used workflow with subtasks of ultra's nominee, if a better wording is found.

    A wording is kept if its mean gain on fresh questions exceeds one standard error.
    The stage is skipped if rewriting is disabled, if gepa is missing, if a pattern is nominated, or
    if no workflow in use has a subtask.
    """
    assert result.nominees is not None  # noqa: S101 - selected before
    if not context.settings.rewrites or not is_rewriting_installed():
        is_missing = context.settings.lacks_rewriting or context.settings.rewrites
        why = f"gepa is not installed: {install_hint('tune')}" if is_missing else "it is disabled"
        context.report(TuneStage.REWRITE, f"skipped: {why}")
        return result
    if result.pattern is not None:
        context.report(TuneStage.REWRITE, f"skipped: {result.pattern.name} is nominated")
        return result
    system = result.nominees[ULTRA]
    assignment = system.assign((*context.parts.search, *context.parts.finalists))
    count = Counter(one for one in assignment.values() if worded_steps(one))
    if not count:
        context.report(TuneStage.REWRITE, "skipped: no workflow in use has subtasks")
        return result
    chosen = min(count, key=lambda one: (-count[one], one))
    outcome = await _try_wordings(context, result, chosen, assignment)
    context.report(TuneStage.REWRITE, outcome.reason)
    nominees = dict(result.nominees)
    if outcome.kept:
        nominees[ULTRA] = replace_workflow(system, chosen, outcome.after)
    return replace(result, nominees=nominees, rewritten=outcome)


async def _try_wordings(
    context: TuneContext, result: TuneResult, chosen: Candidate, assignment: dict[str, Candidate]
) -> RewriteOutcome:
    """Look for a better wording with gepa, and confirm it on questions that gepa did not see."""
    tasks = [
        task
        for task in (*context.parts.search, *context.parts.finalists)
        if assignment[task.id] == chosen
    ]
    ends = context.ends
    middle = ends[TuneStage.SELECT] + _SEARCHED * (ends[TuneStage.REWRITE] - ends[TuneStage.SELECT])
    room = int(context.expected_calls() * middle) - context.runner.meter.calls
    affordable = max(room // (_WORDINGS * len(chosen)), _LEAST_VALIDATED)
    after = await rewrite_candidate(
        chosen,
        Rewriting(
            runner=context.runner,
            rewriter=context.settings.rewriter or result.pool.ranked()[0].id,
            train=tasks[::3],
            validation=tasks[1::3][: min(affordable, _VALIDATED)],
            fits_budget=context.fits_budget(middle),
            seed=context.settings.seed,
        ),
    )
    if after == chosen:
        return RewriteOutcome(before=chosen, after=chosen, reason="no wording was better")
    fresh = tasks[2::3][:_CONFIRMED]
    gains = await _compare_wordings(context, fresh, chosen, after)
    gain = float(np.mean(gains)) if gains else 0.0
    error = float(np.std(gains)) / np.sqrt(len(gains)) if gains else 0.0
    kept = gain > error
    reason = f"{gain:+.3f} on {len(gains)} other questions: {'kept' if kept else 'not kept'}"
    return RewriteOutcome(
        before=chosen, after=after, kept=kept, gain=gain, questions=len(gains), reason=reason
    )


async def _compare_wordings(
    context: TuneContext, tasks: list[Task], before: Candidate, after: Candidate
) -> list[float]:
    """Return the gain of `after` over `before` on each question on which both have a score.

    The questions are halved until their calls fit the budget; empty if no question's calls fit.
    """
    fits_budget = context.fits_budget(context.ends[TuneStage.REWRITE])
    find_result = context.runner.find_result
    planned = [(task, entry) for task in tasks for entry in (before, after)]
    while tasks and not fits_budget(sum(len(e) for t, e in planned if find_result(t, e) is None)):
        tasks = tasks[: len(tasks) // 2]
        planned = planned[: 2 * len(tasks)]
    if not tasks or not await context.runner.run_all(planned):
        return []
    gains: list[float] = []
    for task in tasks:
        one, other = (find_result(task, entry) for entry in (before, after))
        if one and other and one.score is not None and other.score is not None:
            gains.append(other.score - one.score)
    return gains
