"""What a worker is asked in a step, and who else may be asked. Pure."""

from __future__ import annotations

from dataclasses import replace

from batuta.core import (
    Failure,
    Reply,
    Request,
    Sampling,
    Worker,
    Workflow,
    assistant,
    user,
)
from batuta.core.estimate import tokens_in
from batuta.engine.stage import Stage
from batuta.language import worker_messages

SUBSTITUTES = 2
"""Other workers that a step is given to, one after another, when its own fails."""
MARGIN = 1.25
"""How far our estimate of a prompt's tokens must exceed a worker's window before it is not asked:
the estimate is rough, and the provider knows better."""
REPAIR = """\
Your reply does not have the form that was asked for: {fault}
Give the complete answer again in that form, and nothing else."""
_EARLIER_CHOICE = {None: None, "auto": "auto", "required": "auto"}
"""What a step before the last is told of tools; where one tool was named, only the last step may
call it."""


def step_request(
    stage: Stage, workflow: Workflow, number: int, index: int, worker: Worker
) -> Request:
    """The prompt of that step of this run's round `number` for that worker."""
    question = stage.question
    messages = worker_messages(question, workflow, index, stage.rounds, stage.chain)
    sampling = worker.sampling
    if stage.seed is not None:
        place = stage.seed * 1_000_003 + number * 101 + index
        sampling = Sampling(seed=place % 2**31).over(sampling)
    if index < len(workflow) - 1:
        choice = _EARLIER_CHOICE.get(question.tool_choice, "none") if question.tools else None
        parallel = question.parallel_tool_calls
        return Request(messages, sampling, question.tools, choice, parallel)
    return Request(
        messages,
        question.sampling.over(sampling),
        question.tools,
        question.tool_choice,
        question.parallel_tool_calls,
        question.response_format,
    )


def repair_request(request: Request, reply: Reply, fault: Failure) -> Request:
    """The same prompt, the reply that has not the form, and what is wrong with it."""
    said = (assistant(reply.text), user(REPAIR.format(fault=fault.message.partition(": ")[2])))
    return replace(request, messages=(*request.messages, *said))


def too_long(request: Request, worker: Worker) -> Failure | None:
    """The failure of a worker whose context window the prompt surely exceeds."""
    window = worker.context_window
    if window is None:
        return None
    tokens = tokens_in(request)
    if tokens <= window * MARGIN:
        return None
    message = f"about {tokens} tokens do not fit in the {window} of {worker.id}"
    return Failure("context_too_long", message)


def substitutes(stage: Stage, worker_id: str) -> list[Worker]:
    """The best other workers that can see what is to be seen and call what may be called."""
    others = [worker for worker in stage.pool.ranked() if worker.id != worker_id]
    if any(message.images for message in stage.question.messages):
        others = _able(others, "vision")
    if stage.question.tools:
        others = _able(others, "tools")
    return others[:SUBSTITUTES]


def _able(workers: list[Worker], tag: str) -> list[Worker]:
    """Those that are known to be able, or all if it is known of none."""
    return [worker for worker in workers if tag in worker.tags] or workers
