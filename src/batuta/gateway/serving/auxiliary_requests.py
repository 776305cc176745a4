"""What coding agents ask for themselves: titles, topic checks, probes, searches, compactions. Pure.

Each is known by its form alone, as the agents send it, and by so much of it that what a person
asks is not taken for one. Words that a person writes are looked at only where the agent itself
writes them: in system messages and at the beginning of a message.
"""

from __future__ import annotations

from dataclasses import replace

from batuta.conductors import FixedConductor
from batuta.core import Message, Pool, Price, Question, Request, Role, Step, Worker, Workflow
from batuta.core.server_tools import WEB_SEARCH as SEARCH_TOOL
from batuta.core.token_estimate import estimate_request_tokens
from batuta.core.worker import token_price
from batuta.engine.step_prompt import able_workers
from batuta.gateway.serving.models import ServedModel
from batuta.gateway.serving.parsed_call import ParsedCall

TITLE = "a title"
TOPIC_CHECK = "a topic check"
QUOTA_PROBE = "a quota probe"
COMPACTION = "a compaction"
WEB_SEARCH = "a web search"

_TITLE_REQUEST = "Generate a title for this conversation:"
"""The first message of opencode's request for a title, whole."""
_TOPIC_CHECK = "Analyze if this message indicates a new conversation topic."
COMPACTION_BEGINNING = "You are performing a CONTEXT CHECKPOINT COMPACTION."
"""The beginning of the last message of Codex's request for a summary of the conversation."""
_TEXT_ONLY = "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools."
"""The beginning of Claude Code's request for a summary, which still offers its tools."""
_SUMMARY = "Your task is to create a detailed summary of the conversation so far"
_SEARCH = "Perform a web search for the query: "
"""The beginning of the only message of Claude Code's request for a search."""
_LONGEST_PROBE = 16
"""Characters of a probe's only message at most."""
_SYSTEM_ROLES = frozenset({Role.SYSTEM, Role.DEVELOPER})


def auxiliary_kind(call: ParsedCall) -> str | None:
    """Return what an agent wants for itself by this call; None: it is somebody's question.

    A call that says how it is to be conducted is no auxiliary request. A search that the server
    runs is looked for before it is granted: it is a tool afterwards.
    """
    question, options = call.question, call.options
    if call.embeds or options.workflow is not None or options.dry_run:
        return None
    if question.tools:
        return COMPACTION if _wants_summary(question.messages[-1]) else None
    said = [message for message in question.messages if message.role not in _SYSTEM_ROLES]
    return _kind_without_tools(call, said) if said else None


def _kind_without_tools(call: ParsedCall, said: list[Message]) -> str | None:
    question = call.question
    if _wants_title(question, said):
        return TITLE
    if _is_probe(question, said):
        return QUOTA_PROBE
    if said[-1].role is Role.USER and said[-1].text.startswith(COMPACTION_BEGINNING):
        return COMPACTION
    searches = any(wish.tool == SEARCH_TOOL for wish in call.server_tools)
    if searches and len(said) == 1 and said[0].text.startswith(_SEARCH):
        return WEB_SEARCH
    if any(_TOPIC_CHECK in message.text for message in question.messages if message not in said):
        return TOPIC_CHECK
    return None


def _wants_summary(last: Message) -> bool:
    """Tell whether a summary is wanted, as Claude Code asks for it with its tools on offer."""
    told = last.text if last.role is Role.USER else ""
    return told.startswith(_TEXT_ONLY) and _SUMMARY in told


def _wants_title(question: Question, said: list[Message]) -> bool:
    """Tell whether a title is wanted, as opencode and Claude Code ask for it."""
    first = said[0]
    if first.role is not Role.USER:
        return False
    if len(said) > 1 and len(first.text) <= len(_TITLE_REQUEST) + 2:
        return first.text.strip() == _TITLE_REQUEST
    form = question.response_format
    fields = form.schema.get("properties") if form else None
    if not isinstance(fields, dict) or fields.keys() != {"title"}:
        return False
    return len(said) == 1 and first.text.lstrip().startswith("<session>")


def _is_probe(question: Question, said: list[Message]) -> bool:
    """Tell whether one token is wanted of next to nothing, to see whether the key works."""
    sampling = question.sampling
    if sampling.max_tokens != 1 or sampling.logprobs is not None or len(question.messages) > 1:
        return False
    return not said[0].attachments and len(said[0].text) <= _LONGEST_PROBE


def answer_alone(served: ServedModel, kind: str, question: Question, pool: Pool) -> ServedModel:
    """The model with the cheapest worker in its conductor's place, called once.

    Args:
        served: a model that conducts.
        kind: what the request is, as `auxiliary_kind` says.
        question: what is asked.
        pool: the workers that may answer.
    """
    worker = _cheapest_worker(question, pool, served.limits.unknown)
    flow = Workflow((Step(subtask="", worker=worker.id),))
    name = f"{kind}: answered by {worker.id}, not conducted"
    return replace(
        served, conductor=FixedConductor(name, lambda _: flow), direct=True, explore=None
    )


def _cheapest_worker(question: Question, pool: Pool, unknown: Price) -> Worker:
    """The cheapest model whose window holds the question; of equals the best."""
    models = able_workers(question, [worker for worker in pool.ranked() if worker.is_model])
    size = estimate_request_tokens(Request(messages=question.messages))
    fitting = [one for one in models if one.context_window is None or one.context_window > size]
    return min(fitting or models or pool.ranked(), key=lambda one: token_price(one, unknown))
