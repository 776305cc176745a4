"""The prompt of a step's worker, and the workers that may stand in for it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from batuta.core import (
    Failure,
    Finish,
    Question,
    Reply,
    Request,
    Round,
    Sampling,
    Step,
    ToolResult,
    Worker,
    WorkerId,
    Workflow,
    assistant_message,
    user_message,
)
from batuta.core.token_estimate import estimate_request_tokens
from batuta.core.worker import IMAGE
from batuta.core.workflow import Draft, Plan
from batuta.engine.context import RunContext
from batuta.language import worker_messages
from batuta.language.conversation import without_calls
from batuta.language.plan_rules import NO_RULES, with_worker

MAX_SUBSTITUTES = 2
"""Number of other workers to which a failed step is given, one after another."""
CONTEXT_MARGIN = 1.25
"""How far our estimate of a prompt's tokens must exceed a worker's window before it is not asked:
the estimate is rough, and the provider knows better."""
REPAIR_PROMPT = """\
Your reply does not have the form that was asked for: {fault}
Give the complete answer again in that form, and nothing else."""
TRUNCATED_FINISHES = frozenset({Finish.LENGTH, Finish.CONTENT_FILTER})
"""How replies end that cannot have the form that was asked for, and say so."""
_PROMPT_FAILURES = frozenset(
    {
        "bad_request",
        "context_too_long",
        "empty_reply",
        "no_tool_call",
        "policy_blocked",
        "unknown_tool",
        "unsupported_field",
    }
)
"""Codes of failures that the same worker need not repeat when it is asked in another way."""
_EARLIER_TOOL_CHOICE = {None: None, "auto": "auto", "required": "auto"}
"""Tool choice of a step before the last; where one tool is named, only the last step may call it.
"""


def step_request(
    context: RunContext, workflow: Workflow, number: int, index: int, *, worker: Worker
) -> Request:
    """Return the prompt of that step of this run's round `number` for that worker."""
    question, last = context.question, index == len(workflow) - 1
    if last and context.resumed is None and is_plain(workflow.steps[index]):
        messages = question.messages
    else:
        messages = worker_messages(
            question, workflow, index=index, rounds=context.rounds, chain=context.run_chain
        )
    sampling = worker.sampling
    if context.seed is not None:
        place = context.seed * 1_000_003 + number * 101 + index
        sampling = Sampling(seed=place % 2**31).with_defaults(sampling)
    if not last:
        tools = context.settings.tool_classes.of_step(workflow, index, question.tools)
        choice = _EARLIER_TOOL_CHOICE.get(question.tool_choice, "none") if tools else None
        if question.tools and not tools:
            messages = without_calls(messages)
        parallel = question.parallel_tool_calls
        return Request(
            messages=messages,
            sampling=sampling,
            tools=tools,
            tool_choice=choice,
            parallel_tool_calls=parallel if tools else None,
            cache=question.cache,
        )
    return Request(
        messages=messages,
        sampling=question.sampling.with_defaults(sampling),
        tools=question.tools,
        tool_choice=question.tool_choice,
        parallel_tool_calls=question.parallel_tool_calls,
        response_format=question.response_format,
        cache=question.cache,
    )


def whole_question_request(context: RunContext, number: int, worker: Worker) -> Request:
    """Return the prompt of the whole question for that worker, as if it were asked alone.

    It sees the conversation as the client sent it, with the calls and results of every step.
    """
    question = context.question
    flow = Workflow((Step(subtask="", worker=worker.id),))
    sampling = worker.sampling
    if context.seed is not None:
        place = context.seed * 1_000_003 + number * 101 + 100  # no step of a round has this number
        sampling = Sampling(seed=place % 2**31).with_defaults(sampling)
    return Request(
        messages=worker_messages(question, flow, 0, (Round(decision=Plan(flow, Draft())),)),
        sampling=question.sampling.with_defaults(sampling),
        tools=question.tools,
        tool_choice=question.tool_choice,
        parallel_tool_calls=question.parallel_tool_calls,
        response_format=question.response_format,
        cache=question.cache,
    )


def is_empty(reply: Reply) -> bool:
    """Return True if the reply neither says nor shows anything, nor calls a tool."""
    return not reply.text.strip() and not reply.tool_calls and not reply.images


def needs_call(request: Request) -> bool:
    """Return True if the reply must call a tool."""
    return bool(request.tools) and request.tool_choice not in {None, "auto", "none"}


def lacks_call(request: Request, reply: Reply) -> bool:
    """Return True if a reply that is not cut lacks the tool call that it must make."""
    if not needs_call(request) or reply.finish in TRUNCATED_FINISHES:
        return False
    if request.tool_choice == "required":
        return not reply.tool_calls
    return all(call.name != request.tool_choice for call in reply.tool_calls)


def find_missing_field(request: Request, reply: Reply) -> str | None:
    """Describe what the reply should tell and does not; None if nothing is missing."""
    wanted, returned = request.sampling.choices or 1, len(reply.choices)
    if returned < wanted:
        return f"takes no n: it gave {returned} of {wanted} answers"
    if request.sampling.logprobs is not None and reply.text and not reply.logprobs:
        return "takes no logprobs: it gave none"
    return None


def is_plain(step: Step) -> bool:
    """Return True if the step's worker is asked the question as it stands."""
    return not step.subtask and not step.access and not step.previous


def allows_empty(question: Question, reply: Reply) -> bool:
    """Return True if an empty reply to the last step is the answer as it should be.

    It is where the provider says why it is empty, where the client named texts to stop at, and
    where the conversation ends with a tool's result, after which nothing may be left to say.
    """
    if reply.finish is not Finish.STOP or question.sampling.stop:
        return True
    return any(isinstance(part, ToolResult) for part in question.messages[-1].parts)


def fallback_workers(context: RunContext, failed: Mapping[WorkerId, Failure]) -> list[Worker]:
    """Return the workers that are asked the whole question after these failed at it, best first.

    A worker that an outage took is left out, unless nobody else is left: then the best one.
    """
    able = able_workers(context.question, list(context.pool.ranked()))
    there = [worker for worker in able if not _is_outage(failed.get(worker.id))]
    return (there or able[:1])[: 1 + MAX_SUBSTITUTES]


def _is_outage(failure: Failure | None) -> bool:
    """Return True if another prompt would have failed as well."""
    return failure is not None and failure.code not in _PROMPT_FAILURES


def repair_request(request: Request, reply: Reply, fault: Failure) -> Request:
    """Return the same prompt, the reply that has not the form, and what is wrong with it."""
    turns = (
        assistant_message(reply.text),
        user_message(REPAIR_PROMPT.format(fault=fault.message.partition(": ")[2])),
    )
    return replace(request, messages=(*request.messages, *turns))


def find_context_overflow(request: Request, worker: Worker) -> Failure | None:
    """Return the failure of a worker whose context window the prompt surely exceeds."""
    window = worker.context_window
    if window is None:
        return None
    tokens = estimate_request_tokens(request)
    if tokens <= window * CONTEXT_MARGIN:
        return None
    message = f"about {tokens} tokens do not fit in the {window} of {worker.id}"
    return Failure(code="context_too_long", message=message)


def substitute_workers(
    context: RunContext, workflow: Workflow, index: int, worker_id: str
) -> list[Worker]:
    """Return the best other workers that can see what is to be seen and call what may be called.

    With one of them in the place of `worker_id` the workflow keeps the rules for plans.
    """
    others = [worker for worker in _stand_ins(context, worker_id) if worker.id != worker_id]
    able = able_workers(context.question, others)
    if context.rules is not NO_RULES:
        present, before = context.rounds[-1], workers_before(context.rounds[:-1])
        for ended in present.steps:
            workflow = with_worker(workflow, ended.index, ended.worker)
        able = [
            worker
            for worker in able
            if not context.rules.find_broken(with_worker(workflow, index, worker.id), before)
        ]
    return able[:MAX_SUBSTITUTES]


def _stand_ins(context: RunContext, worker_id: str) -> tuple[Worker, ...]:
    """Return who is asked for what a worker was asked: nobody writes what one was to draw."""
    pool = context.pool
    if worker_id in pool and IMAGE in pool[worker_id].tags:
        return tuple(worker for worker in pool if IMAGE in worker.tags)
    return pool.ranked()


def workers_before(rounds: Sequence[Round]) -> tuple[WorkerId, ...]:
    """Return the workers whose replies a step reads that reads the round before it."""
    for round_ in reversed(rounds):
        if round_.workflow is not None:
            return tuple(step.worker for step in round_.steps)
    return ()


def able_workers(question: Question, workers: list[Worker]) -> list[Worker]:
    """Return the workers that can see the question's pictures and call its tools."""
    for tag in question.needed_tags:
        workers = _workers_with_tag(workers, tag)
    return _workers_with_tag(workers, "tools") if question.tools else workers


def _workers_with_tag(workers: list[Worker], tag: str) -> list[Worker]:
    """Return the workers with the tag, or all of them if none has it."""
    return [worker for worker in workers if tag in worker.tags] or workers
