"""The prompt of a step's worker, the workers that may stand in for it, and who sees what. Pure.

A worker that cannot see a question's pictures, files and recordings reads what a step has written
that did. Where nobody in the pool has an ability by name, nothing is known, and everybody is shown
everything.
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
from batuta.core.token_estimate import estimate_request_tokens
from batuta.core.worker import AUDIO, FILES, IMAGE, VISION
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
    question, last = context.question, index == len(workflow) - 1 or context.asks_whole
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


UNSEEN = {
    "image": "[A picture that you cannot see.]",
    "file": "[A file that you cannot read.]",
    "audio": "[A recording that you cannot hear.]",
}
"""The sentence that stands in the place of an attachment, by its kind."""
_TAGS = {"image": VISION, "file": FILES, "audio": AUDIO}


def lacked_tags(question: Question, pool: Pool, worker: Worker) -> frozenset[str]:
    """Return the abilities that the question needs, that the worker lacks and another one has."""
    return frozenset(
        tag
        for tag in question.needed_tags
        if tag not in worker.tags and any(tag in other.tags for other in pool)
    )


def show_seen(request: Request, lacked: frozenset[str]) -> Request:
    """Return the request with words in the place of what its worker cannot be shown."""
    if not lacked:
        return request
    return replace(request, messages=tuple(_seen_turn(m, lacked) for m in request.messages))


def _seen_turn(message: Message, lacked: frozenset[str]) -> Message:
    if not message.attachments:
        return message
    return replace(message, parts=tuple(_seen_part(part, lacked) for part in message.parts))


def _seen_part(part: Part, lacked: frozenset[str]) -> Part:
    if isinstance(part, Image | File | Audio) and _TAGS[part.kind] in lacked:
        return Text(UNSEEN[part.kind], cache=part.cache)
    return part


def give_sight(workflow: Workflow, question: Question, pool: Pool) -> Workflow:
    """Return the workflow in which each model sees what is attached, or reads somebody who does.

    A step of one that cannot reads the steps before it that can, too; where there is none, it is
    given to the best worker that can.
    """
    if not question.needed_tags:
        return workflow
    steps = list[Step]()
    seen, informed = list[int](), set[int]()
    for index, given in enumerate(workflow.steps):
        step, worker = given, _find_worker(pool, given)
        is_blind = worker is not None and bool(lacked_tags(question, pool, worker))
        if is_blind and worker is not None and worker.is_model and not _is_told(step, informed):
            if seen:
                step = replace(step, access=tuple(sorted({*step.access, *seen})))
            else:
                best = able_workers(question, list(pool.ranked()))[0]
                step = replace(step, worker=best.id)
                is_blind = bool(lacked_tags(question, pool, best))
        if not is_blind:
            seen.append(index)
        if not is_blind or _is_told(step, informed):
            informed.add(index)
        steps.append(step)
    changed = tuple(steps)
    return workflow if changed == workflow.steps else Workflow(changed)


def _is_told(step: Step, informed: set[int]) -> bool:
    """Return True if the step reads one that knows what is attached, or the round before."""
    return step.previous or step.continues or not informed.isdisjoint(step.access)


def _find_worker(pool: Pool, step: Step) -> Worker | None:
    """Return the step's worker; None: a rule forbids it, and another one will be put there."""
    return next((worker for worker in pool if worker.id == step.worker), None)
