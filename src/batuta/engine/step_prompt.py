"""Builds the requests of steps, and chooses substitutes and the attachments that a worker is shown.

If no worker of the pool has the tag for a kind of attachment, it is unknown which workers can see
that kind, and every worker is shown such attachments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from batuta.core import (
    Audio,
    Failure,
    File,
    Finish,
    Image,
    Message,
    Part,
    Pool,
    Question,
    Reply,
    Request,
    Round,
    Sampling,
    Step,
    Text,
    ToolResult,
    Worker,
    WorkerId,
    Workflow,
    assistant_message,
    user_message,
)
from batuta.core.message import ATTACHMENT_TAGS
from batuta.core.token_estimate import estimate_request_tokens
from batuta.core.worker import IMAGE
from batuta.core.workflow import Plan
from batuta.engine.context import RunContext
from batuta.language import worker_messages
from batuta.language.conversation import without_calls
from batuta.language.plan_rules import NO_RULES, with_worker

MAX_SUBSTITUTES = 2
"""Maximum number of other workers that a failed step is given to, one after another."""
CONTEXT_MARGIN = 1.25
"""A worker is skipped if the estimated prompt is more than this factor times its context window.
The estimate is rough, so the provider decides about smaller excesses."""
REPAIR_PROMPT = """\
Your reply does not have the form that was asked for: {fault}
Give the complete answer again in that form, and nothing else."""
TRUNCATED_FINISHES = frozenset({Finish.LENGTH, Finish.CONTENT_FILTER})
"""Finish reasons of truncated replies, which are not held to the requested format."""
PROMPT_FAILURES = frozenset(
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
"""Failure codes that depend on the prompt: the same worker may answer another prompt."""
_EARLIER_TOOL_CHOICE = {None: None, "auto": "auto", "required": "auto"}
"""Tool choice of the steps before the last, by the client's choice. Any other choice becomes
`none`: a tool that the client names is for the last step."""
_WHOLE_QUESTION_INDEX = 100
"""The index from which a whole question's seed is made; no step has this index."""


def step_request(
    context: RunContext, workflow: Workflow, number: int, index: int, *, worker: Worker
) -> Request:
    """Return the worker's request for step `index` of this run's round `number`."""
    question, last = context.question, index == len(workflow) - 1 or context.asks_whole
    sampling = _seeded_sampling(context, worker, number, index)
    if last and context.resumed is None and is_plain(workflow.steps[index]):
        messages = question.messages
    else:
        messages = worker_messages(
            question, workflow, index=index, rounds=context.rounds, chain=context.run_chain
        )
    if last:
        return _answer_request(question, messages, sampling)
    tools = context.settings.tool_classes.of_step(workflow, index, question.tools)
    choice = _EARLIER_TOOL_CHOICE.get(question.tool_choice, "none") if tools else None
    if question.tools and not tools:
        messages = without_calls(messages)
    return Request(
        messages=messages,
        sampling=sampling,
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=question.parallel_tool_calls if tools else None,
        cache=question.cache,
    )


def _seeded_sampling(context: RunContext, worker: Worker, number: int, index: int) -> Sampling:
    """Return the worker's sampling, with another seed for each step if the run has a seed."""
    if context.seed is None:
        return worker.sampling
    seed = (context.seed * 1_000_003 + number * 101 + index) % 2**31
    return Sampling(seed=seed).with_defaults(worker.sampling)


def _answer_request(
    question: Question, messages: tuple[Message, ...], sampling: Sampling
) -> Request:
    """Return a request for the answer, with all the client's requirements."""
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
    """Return the worker's request for the whole question in round `number`, as if asked alone.

    The worker sees the conversation as the client sent it, with the tool calls and results of
    every step.
    """
    question = context.question
    flow = Workflow((Step(subtask="", worker=worker.id),))
    messages = worker_messages(question, flow, 0, (Round(decision=Plan(flow)),))
    sampling = _seeded_sampling(context, worker, number, _WHOLE_QUESTION_INDEX)
    return _answer_request(question, messages, sampling)


def is_empty(reply: Reply) -> bool:
    """Return True if the reply has no text, no images and no tool calls."""
    return not reply.text.strip() and not reply.tool_calls and not reply.images


def needs_call(request: Request) -> bool:
    """Return True if the reply must call a tool."""
    return bool(request.tools) and request.tool_choice not in {None, "auto", "none"}


def lacks_call(request: Request, reply: Reply) -> bool:
    """Return True if a reply that is not truncated lacks the tool call that it must make."""
    if not needs_call(request) or reply.finish in TRUNCATED_FINISHES:
        return False
    if request.tool_choice == "required":
        return not reply.tool_calls
    return all(call.name != request.tool_choice for call in reply.tool_calls)


def find_missing_field(request: Request, reply: Reply) -> str | None:
    """Return a clause that names `n` or `logprobs` if it was not honoured; None if both were."""
    requested, returned = request.sampling.choices or 1, len(reply.choices)
    if returned < requested:
        return f"does not support n: it returned {returned} of {requested} choices"
    if request.sampling.logprobs is not None and reply.text and not reply.logprobs:
        return "does not support logprobs: it returned none"
    return None


def is_plain(step: Step) -> bool:
    """Return True if the step's worker gets the question itself, without a subtask or replies."""
    return not step.subtask and not step.access and not step.previous


def allows_empty(question: Question, reply: Reply) -> bool:
    """Return True if an empty reply to the last step is a valid answer.

    It is valid if the finish reason explains it, if the client set stop sequences, or if the
    conversation ends with a tool result, after which a worker may have nothing to add.
    """
    if reply.finish is not Finish.STOP or question.sampling.stop:
        return True
    return any(isinstance(part, ToolResult) for part in question.messages[-1].parts)


def fallback_workers(context: RunContext, failed: Mapping[WorkerId, Failure]) -> list[Worker]:
    """Return the workers to ask the whole question after these failures, best first, at most 3.

    The workers are those of `able_workers` without an outage; if all have one, the best of them.
    """
    able = able_workers(context.question, list(context.pool.ranked()))
    available = [worker for worker in able if not _is_outage(failed.get(worker.id))]
    return (available or able[:1])[: 1 + MAX_SUBSTITUTES]


def _is_outage(failure: Failure | None) -> bool:
    """Return True if there is a failure and it does not depend on the prompt."""
    return failure is not None and failure.code not in PROMPT_FAILURES


def repair_request(request: Request, reply: Reply, fault: Failure) -> Request:
    """Return the request extended by the reply in the wrong format and what is wrong with it."""
    added = (
        assistant_message(reply.text),
        user_message(REPAIR_PROMPT.format(fault=fault.message.partition(": ")[2])),
    )
    return replace(request, messages=(*request.messages, *added))


def find_context_overflow(request: Request, worker: Worker) -> Failure | None:
    """Return a failure if the prompt clearly exceeds the worker's context window; else None."""
    window = worker.context_window
    if window is None:
        return None
    tokens = estimate_request_tokens(request)
    if tokens <= window * CONTEXT_MARGIN:
        return None
    message = f"about {tokens} tokens do not fit in the context window of {worker.id} ({window})"
    return Failure(code="context_too_long", message=message)


def substitute_workers(
    context: RunContext, workflow: Workflow, index: int, worker_id: str
) -> list[Worker]:
    """Return the workers that can replace `worker_id` in step `index`, best first, at most 2.

    An image model is replaced by other image models, in pool order. The workers can see the
    attachments and call the tools, unless no other can. With each, the workflow keeps its rules.
    """
    others = [worker for worker in _find_candidates(context, worker_id) if worker.id != worker_id]
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


def _find_candidates(context: RunContext, worker_id: str) -> tuple[Worker, ...]:
    """Return the image models, in pool order, for an image model; else the ranked workers."""
    pool = context.pool
    if worker_id in pool and IMAGE in pool[worker_id].tags:
        return tuple(worker for worker in pool if IMAGE in worker.tags)
    return pool.ranked()


def workers_before(rounds: Sequence[Round]) -> tuple[WorkerId, ...]:
    """Return the workers of the last round with a workflow, to which `previous` refers."""
    for round_ in reversed(rounds):
        if round_.workflow is not None:
            return tuple(step.worker for step in round_.steps)
    return ()


def able_workers(question: Question, workers: list[Worker]) -> list[Worker]:
    """Return the workers that can see the question's attachments and call its tools.

    An ability that none of the remaining workers has is not required.
    """
    for tag in question.needed_tags:
        workers = _workers_with_tag(workers, tag)
    return _workers_with_tag(workers, "tools") if question.tools else workers


def _workers_with_tag(workers: list[Worker], tag: str) -> list[Worker]:
    """Return the workers with the tag, or all of them if none has it."""
    return [worker for worker in workers if tag in worker.tags] or workers


UNSEEN = {
    "image": "[A picture that you cannot see.]",
    "file": "[A file that you cannot read.]",
    "audio": "[A recording that you cannot hear.]",
}
"""The sentence that replaces an attachment that a worker cannot see, by the attachment's kind."""


def lacked_tags(question: Question, pool: Pool, worker: Worker) -> frozenset[str]:
    """Return the tags that the question needs, this worker lacks and another of the pool has."""
    return frozenset(
        tag
        for tag in question.needed_tags
        if tag not in worker.tags and any(tag in other.tags for other in pool)
    )


def show_seen(request: Request, lacked: frozenset[str]) -> Request:
    """Return the request with a sentence in place of each attachment its worker cannot see."""
    if not lacked:
        return request
    return replace(request, messages=tuple(_seen_message(m, lacked) for m in request.messages))


def _seen_message(message: Message, lacked: frozenset[str]) -> Message:
    if not message.attachments:
        return message
    return replace(message, parts=tuple(_seen_part(part, lacked) for part in message.parts))


def _seen_part(part: Part, lacked: frozenset[str]) -> Part:
    if isinstance(part, Image | File | Audio) and ATTACHMENT_TAGS[part.kind] in lacked:
        return Text(UNSEEN[part.kind], cache=part.cache)
    return part


def give_sight(workflow: Workflow, question: Question, pool: Pool) -> Workflow:
    """Return the workflow, changed so that each step with a model knows the attachments.

    A step knows them if its model sees them, or if it reads a step that knows them or the previous
    round. Any other step also reads the earlier steps that see them; if there are none, it is given
    to the best of `able_workers`.
    """
    if not question.needed_tags:
        return workflow
    steps = list[Step]()
    seen, informed = list[int](), set[int]()
    for index, given in enumerate(workflow.steps):
        step, worker = given, _find_worker(pool, given)
        is_blind = worker is not None and bool(lacked_tags(question, pool, worker))
        if is_blind and worker is not None and worker.is_model and not _is_informed(step, informed):
            if seen:
                step = replace(step, access=tuple(sorted({*step.access, *seen})))
            else:
                best = able_workers(question, list(pool.ranked()))[0]
                step = replace(step, worker=best.id)
                is_blind = bool(lacked_tags(question, pool, best))
        if not is_blind:
            seen.append(index)
        if not is_blind or _is_informed(step, informed):
            informed.add(index)
        steps.append(step)
    changed = tuple(steps)
    return workflow if changed == workflow.steps else Workflow(changed)


def _is_informed(step: Step, informed: set[int]) -> bool:
    """Return True if the step reads one of `informed`, or reads or continues the previous round."""
    return step.previous or step.continues or not informed.isdisjoint(step.access)


def _find_worker(pool: Pool, step: Step) -> Worker | None:
    """Return the step's worker; None if a rule removed it, so that the step gets another one."""
    return next((worker for worker in pool if worker.id == step.worker), None)
