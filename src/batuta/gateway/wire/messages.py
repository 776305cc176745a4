"""A body of POST /v1/messages, Anthropic's dialect, as a question and what goes with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from batuta.core import Question, Request, ResponseFormat, Sampling, Tool
from batuta.core.estimate import tokens_in
from batuta.gateway.effort import effort_of_thinking
from batuta.gateway.refusal import unsupported, wrong_value
from batuta.gateway.wire.call import Call
from batuta.gateway.wire.fields import Fields
from batuta.gateway.wire.message_turns import parse_turns
from batuta.gateway.wire.orchestration import FIELD, parse_wishes
from batuta.gateway.wire.tools import Chosen, bounded_schema, forwarded, named

MAX_TOOLS = 512
_MOST_TOKENS = 100_000_000
_MOST_STOPS = 16
_MOST_NAMED = 20
"""Ignored fields that are told; what a client made up does not fill our headers."""
_EFFORTS = ("low", "medium", "high", "xhigh", "max")
_ABSENT: tuple[Any, ...] = (None, False, 0, [], {})
_REFUSED = {
    "top_k": "it cannot be honoured for every worker.",
    "container": "there are no containers here.",
    "mcp_servers": "tools of servers are not called here; offer them as 'tools'.",
}
"""Fields we know and cannot honour, unless their value asks for nothing."""
_READ = {
    "model",
    "messages",
    "system",
    "max_tokens",
    "stream",
    "stop_sequences",
    "temperature",
    "top_p",
    "tools",
    "tool_choice",
    "thinking",
    "output_config",
    "output_format",
    FIELD,
}
_ACCEPTED = {"metadata", "service_tier"}
"""Fields that are checked and bind nothing here."""
_KNOWN = _READ | _ACCEPTED | _REFUSED.keys()


@dataclass(frozen=True, slots=True)
class MessageCall:
    """What a caller wants."""

    call: Call
    thoughts: bool = False
    """Whether thinking is to be shown: a worker's own, or how the run goes on."""

    @property
    def estimate(self) -> int:
        """About how many tokens the conversation and the tools have."""
        return estimate_of(self.call.question)


def parse_message(body: Fields) -> MessageCall:
    """The whole body.

    Raises:
        Refusal: the first thing that is wrong with it, by the field's path.
    """
    model = body.need_text("model")
    question = parse_question(body)
    body.need("max_tokens")
    _check_accepted(body)
    thinking = _thinking(body)
    call = Call(
        model,
        question,
        stream=bool(body.flag("stream")),
        wishes=parse_wishes(body),
        ignored=_ignored(body),
    )
    return MessageCall(call, thinking in {"enabled", "adaptive"})


def parse_question(body: Fields) -> Question:
    """The conversation, the tools, and how the answer is to be sampled.

    Raises:
        Refusal: something of it is malformed.
    """
    messages = parse_turns(body)
    for name, reason in _REFUSED.items():
        if body.get(name) not in _ABSENT:
            raise unsupported(name, reason)
    tools, choice = _choice(body, _tools(body))
    wanted = body.object("tool_choice")
    alone = wanted.flag("disable_parallel_tool_use") if wanted else None
    sampling = Sampling(
        body.number("temperature", 0, 1),
        body.number("top_p", 0, 1),
        body.whole("max_tokens", 1, _MOST_TOKENS),
        body.texts("stop_sequences", _MOST_STOPS) or (),
        effort=_effort(body),
    )
    parallel = None if alone is None else not alone
    return Question(messages, tools, choice, parallel, _format(body), sampling)


def estimate_of(question: Question) -> int:
    """About how many tokens a worker's prompt of the whole question would have."""
    return tokens_in(Request(question.messages, tools=question.tools))


def _tools(body: Fields) -> tuple[Tool, ...]:
    """The client's own tools; those that Anthropic's servers run are left out."""
    entries = body.objects("tools", MAX_TOOLS) or ()
    tools = tuple(_tool(entry) for entry in entries if entry.text("type") in {None, "custom"})
    if len({tool.name for tool in tools}) != len(tools):
        raise wrong_value("tools", "two tools have the same name.")
    return tools


def _tool(entry: Fields) -> Tool:
    schema = forwarded(entry.need_object("input_schema"))
    return Tool(named(entry), entry.text("description") or "", schema, entry.flag("strict"))


def _choice(body: Fields, tools: tuple[Tool, ...]) -> Chosen:
    choice = body.object("tool_choice")
    if choice is None:
        return tools, None
    choice.need("type")
    kind = choice.choice("type", ("auto", "any", "tool", "none"))
    if kind == "tool":
        name = choice.need_text("name")
        if all(tool.name != name for tool in tools):
            raise wrong_value(choice.path("name"), f"'tools' has no tool named '{name}'.")
        return tools, name
    if kind == "any" and not tools:
        raise wrong_value("tool_choice", "it asks for a tool and 'tools' has none.")
    return tools, "required" if kind == "any" else kind if tools else None


def _thinking(body: Fields) -> str | None:
    thinking = body.object("thinking")
    if thinking is None:
        return None
    thinking.need("type")
    return thinking.choice("type", ("enabled", "disabled", "adaptive"))


def _effort(body: Fields) -> str | None:
    """The word for the effort: the one that is given, or that of the thinking budget."""
    output = body.object("output_config")
    word = output.choice("effort", _EFFORTS) if output else None
    if word is not None:
        return word
    match _thinking(body):
        case "enabled":
            thinking = body.need_object("thinking")
            thinking.need("budget_tokens")
            return effort_of_thinking(thinking.whole("budget_tokens", 1, _MOST_TOKENS))
        case "disabled":
            return effort_of_thinking(None)
        case _:
            return None


def _format(body: Fields) -> ResponseFormat | None:
    output = body.object("output_config")
    form = (output.object("format") if output else None) or body.object("output_format")
    if form is None:
        return None
    form.need("type")
    form.choice("type", ("json_schema",))
    return ResponseFormat("json_schema", schema=bounded_schema(form.need_object("schema")))


def _check_accepted(body: Fields) -> None:
    body.text("service_tier")
    metadata = body.object("metadata")
    if metadata is not None:
        metadata.text("user_id")


def _ignored(body: Fields) -> tuple[str, ...]:
    """Unknown fields, and the tools that we do not have."""
    fields = [name for name in body.names if name not in _KNOWN]
    kinds = [entry.text("type") for entry in body.objects("tools", MAX_TOOLS) or ()]
    foreign = dict.fromkeys(f"tools.{kind}" for kind in kinds if kind not in {None, "custom"})
    return (*fields, *foreign)[:_MOST_NAMED]
