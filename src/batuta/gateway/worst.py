"""The most that a run may be taken to cost, for the money that is set apart for it. Pure."""

from __future__ import annotations

from decimal import Decimal

from batuta.core import Limits, Pool, Question, Request, Usage, Worker
from batuta.core.estimate import tokens_in

OUTPUT = 4096
"""Tokens that a reply is taken to have at most where nobody has set a cap."""
PREAMBLE = 1000
"""Tokens that the prompt of a step has besides the question and what others said."""
DRAFTS = 3
"""Drafts of a plan that a conductor may need."""
DRAFT = Usage(1, input=4000, output=1024)


def prompt_of(question: Question) -> int:
    """About how many tokens the question has."""
    return tokens_in(Request(question.messages, tools=question.tools))


def worst_case(
    question: Question, pool: Pool, limits: Limits, *, direct: bool, mind: Worker | None = None
) -> Decimal:
    """Dollars, if every step is played by the dearest worker and speaks as long as it may.

    Args:
        question: what is asked.
        pool: who may play.
        limits: of the run.
        direct: one worker is passed through, so there is one call.
        mind: the worker whose model conducts, if one does.
    """
    prompt = prompt_of(question)
    dearest = max(_played(worker, question, prompt, limits, direct=direct) for worker in pool)
    planning = Decimal(0)
    if mind is not None:
        usage = Usage(1, input=DRAFT.input + prompt, output=DRAFT.output)
        planning = (mind.price or limits.unknown).of(usage) * DRAFTS
    worst = (dearest + planning) * limits.rounds
    return worst if limits.usd is None else min(worst, Decimal(str(limits.usd)))


def _played(
    worker: Worker, question: Question, prompt: int, limits: Limits, *, direct: bool
) -> Decimal:
    """All steps of a round, if that worker plays them."""
    said = worker.sampling.max_tokens or OUTPUT
    if direct and question.sampling.max_tokens:
        said = question.sampling.max_tokens
    steps = 1 if direct else limits.steps
    heard = steps * (steps - 1) // 2 * said  # each step may read all that came before
    read = steps * (prompt + (0 if direct else PREAMBLE)) + heard
    usage = Usage(steps, input=read, output=steps * said)
    return (worker.price or limits.unknown).of(usage)
