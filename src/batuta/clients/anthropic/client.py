"""Anthropic's Messages API.

Deviations a caller should know:
- A seed is not sent, as the API has none.
- `json_object` becomes a sentence in the system prompt, as the API has no such mode.
- Temperature, top_p and top_k are left out while the model thinks, and for models that refuse
  them (version 4.7 and later). Otherwise a temperature above 1 is lowered to 1, and top_p is left
  out beside a temperature.
- Effort `none` becomes `low` for models whose thinking cannot be turned off, and `xhigh` becomes
  `high` for models that lack it. A forced tool call turns thinking off where that is possible.
- For models that refuse a forced tool call, the system prompt asks for the call instead.
- A `prompt_cache_key` marks the whole prompt for caching, as the API has no keys, unless the
  request marks parts of the prompt.
- Prefill is not sent, as newer models refuse it.

Read from Anthropic's model pages and migration guides on 2026-11-24 (platform.claude.com/docs:
models/overview, models/opus-5-5/whats-new-opus-5-5, models/sonnet-5-5/migration-guide,
models/haiku-5-5/overview). A later version is treated like the newest listed one, except that
thinking is never turned off from version 6.0 on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, final

from batuta.clients.anthropic.messages import anthropic_messages, cache_control, system_texts
from batuta.clients.anthropic.stream import AnthropicStreamAccumulator, parse_message
from batuta.clients.call import ProviderClient
from batuta.clients.decoding import ProviderReply
from batuta.clients.error_mapping import CHOICES, PENALTIES, refuse_fields
from batuta.clients.http_target import NO_KEY, HttpTarget, Secret
from batuta.clients.native_search import domain_lists
from batuta.clients.stream_reading import StreamAccumulator
from batuta.clients.tool_turns import is_round_trip
from batuta.clients.transport import HttpTransport
from batuta.core import NativeSearch, Request, Role, Tool, Worker
from batuta.core.cost_bound import THINKING_TOKENS
from batuta.errors import UnsupportedFieldError

DEFAULT_MAX_TOKENS = 4096
"""The limit sent if none is set and the model's own limit is unknown, as the API requires one."""

_NAME = re.compile(
    r"claude-(?:(?P<family>opus|sonnet|haiku|fable|mythos)-)?"
    r"(?P<major>\d{1,2})(?:[-.](?P<minor>\d{1,2}))?(?!\d)(?:-(?P<old>opus|sonnet|haiku))?"
)
_ALWAYS_THINKING = {"fable", "mythos"}
"""Families whose thinking cannot be turned off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaudeRules:
    """The request fields that a model accepts."""

    max_output: int = DEFAULT_MAX_TOKENS
    """Maximum number of output tokens, thinking included."""
    thinking: Literal["none", "budget", "adaptive"] = "none"
    """How thinking is requested: by `budget_tokens`, by `output_config.effort`, or not (`none`)."""
    thinks_by_default: bool = False
    """Whether the model thinks by default."""
    thinking_off: Literal["disabled", "between_tools", "never"] = "disabled"
    """The `thinking.type` that turns off the thinking of a model that thinks by default, or `never`
    if the thinking cannot be turned off."""
    sampling: bool = True
    """Whether temperature, top_p and top_k are accepted; if not, the API answers with a 400."""
    forced_tools: bool = True
    """Whether a tool call can be forced; if not, the API answers with a 400."""
    accepts_xhigh: bool = False
    """Whether the effort `xhigh` is accepted; if not, `high` is sent instead."""


_UNKNOWN = ClaudeRules()


@cache
def claude_rules(model: str) -> ClaudeRules:
    """Return the rules of the model; `_UNKNOWN` if its name is not that of a Claude model."""
    named = _NAME.match(model.lower().rpartition("/")[2].rpartition("anthropic.")[2])
    if named is None:
        return _UNKNOWN
    version = int(named["major"]), int(named["minor"] or 0)
    family = named["family"] or named["old"] or ""
    if version < (4, 6):
        return ClaudeRules(
            max_output=_older_max_output(family, version),
            thinking="budget" if version >= (3, 7) else "none",
        )
    newest = family != "haiku" and version >= ((5, 1) if family in _ALWAYS_THINKING else (5, 5))
    return ClaudeRules(
        max_output=128_000,
        thinking="adaptive",
        thinks_by_default=version >= (5, 0),
        thinking_off=_thinking_off(family, version),
        sampling=version < (4, 7),
        forced_tools=not newest,
        accepts_xhigh=version >= (4, 7),
    )


def _thinking_off(
    family: str, version: tuple[int, int]
) -> Literal["disabled", "between_tools", "never"]:
    if family in _ALWAYS_THINKING or version >= (6, 0):
        return "never"
    if version < (5, 5) or family == "haiku":
        return "disabled"
    return "between_tools" if family == "sonnet" else "never"


def _older_max_output(family: str, version: tuple[int, int]) -> int:
    if version >= (4, 5) or version == (3, 7) or (version >= (4, 0) and family != "opus"):
        return 64_000
    if version >= (4, 0):
        return 32_000
    return 8_192 if version == (3, 5) else DEFAULT_MAX_TOKENS


API_VERSION = "2023-06-01"
SEARCH_TYPE = "web_search_20250305"
"""The version of the API's web search that all models with search accept."""
_JSON_INSTRUCTION = "Answer with one JSON object and nothing else."
_CALL_INSTRUCTION = "Call {} now: an answer without a call is not accepted."
_MIN_THINKING_TOKENS = 1024
"""Smallest `budget_tokens` that the API accepts."""
_EFFORTS = {"none": "low", "minimal": "low"}
"""Maps the efforts that the API does not have to its lowest."""
_NARROW_EFFORTS = _EFFORTS | {"xhigh": "high"}
"""The same for models that do not accept `xhigh`."""
_OFF_EFFORTS = {"low", "medium", "high"}
"""Efforts at which thinking can be turned off."""


@final
class AnthropicClient(ProviderClient):
    """A worker behind `POST {base_url}/v1/messages`."""

    def __init__(
        self,
        worker: Worker,
        http: HttpTransport,
        *,
        base_url: str = "https://api.anthropic.com",
        key: Secret = NO_KEY,
    ) -> None:
        """Create the client; no connection is opened yet.

        Raises:
            ConfigError: `base_url` is not an http(s) URL.
        """
        headers = {"anthropic-version": API_VERSION}
        if key:
            headers["x-api-key"] = key.reveal()
        base = base_url.rstrip("/").removesuffix("/v1")
        target = HttpTarget(url=base + "/v1/messages", headers=headers, key=key)
        adapter = AnthropicAdapter(worker.model)
        super().__init__("Anthropic", worker, http, adapter=adapter, target=target)


@final
class AnthropicAdapter:
    """Translates requests to this API and parses its replies; pure functions."""

    supports_prefill = False

    def __init__(self, model: str) -> None:
        self._model = model
        self._rules = claude_rules(model)

    def build_body(self, request: Request, *, stream: bool) -> dict[str, Any]:
        """Return the JSON to send.

        Raises:
            BadRequestError: a part of a message, a sampling field or a search is not supported.
        """
        sampling = request.sampling
        thinker = self._model if self._thinks(request) else ""
        body: dict[str, Any] = {
            "model": self._model,
            "max_tokens": sampling.max_tokens or self._rules.max_output,
            "messages": anthropic_messages(request.messages, thinker),
        }
        system = _system_prompt(request, self._unforced_instruction(request))
        if system:
            body["system"] = system
        _mark_prompt(body, request)
        if stream:
            body["stream"] = True
        if sampling.stop:
            body["stop_sequences"] = list(sampling.stop)
        if request.tools:
            _add_tools(body, request, forced=self._rules.forced_tools)
        self._set_thinking(body, request)
        if request.max_output is not None:
            _cap_output(body, request.max_output)
        if request.response_format is not None and request.response_format.kind == "json_schema":
            form = {"type": "json_schema", "schema": dict(request.response_format.schema)}
            body.setdefault("output_config", {})["format"] = form
        return body

    def parse_reply(self, data: Any) -> ProviderReply:
        """Parse a complete reply."""
        return parse_message(data, self._model)

    def new_accumulator(self) -> StreamAccumulator:
        """Return an accumulator for a new reply."""
        return AnthropicStreamAccumulator(self._model)

    def _thinks(self, request: Request) -> bool:
        effort, rules = request.sampling.effort, self._rules
        if rules.thinks_by_default:
            return rules.thinking_off == "never" or not self._must_not_think(request)
        is_requested = effort is not None and effort != "none" and rules.thinking != "none"
        return is_requested and not self._must_not_think(request)

    def _must_not_think(self, request: Request) -> bool:
        """Return True if thinking is turned off, or not possible with this request."""
        forced = self._rules.forced_tools and _forces_call(request)
        if request.sampling.effort == "none" or forced:
            return True
        return self._rules.thinking == "budget" and _lacks_thoughts(request, self._model)

    def _unforced_instruction(self, request: Request) -> str:
        """Return an instruction instead of a forced call that the model would refuse; else ""."""
        if self._rules.forced_tools or not _forces_call(request):
            return ""
        named = request.tool_choice != "required"
        return _CALL_INSTRUCTION.format(
            f"the tool {request.tool_choice}" if named else "one of the tools"
        )

    def _set_thinking(self, body: dict[str, Any], request: Request) -> None:
        rules, effort = self._rules, request.sampling.effort
        refuse_fields(self._model, request.sampling, (*PENALTIES[:2], *CHOICES))
        thinks = self._thinks(request)
        if rules.thinking == "adaptive":
            self._set_effort(body, effort, thinks=thinks)
        elif thinks and (budget := THINKING_TOKENS.get(effort or "")):
            body["thinking"] = {"type": "enabled", "budget_tokens": budget}
            body["max_tokens"] = _add_thinking_budget(body["max_tokens"], budget, request)
            _cap_output(body, rules.max_output)
        if rules.sampling and "thinking" not in body:
            _set_temperature(body, request)

    def _set_effort(self, body: dict[str, Any], effort: str | None, *, thinks: bool) -> None:
        rules = self._rules
        names = _EFFORTS if rules.accepts_xhigh else _NARROW_EFFORTS
        if thinks and effort is not None:
            body["thinking"] = {"type": "adaptive"}
        elif rules.thinks_by_default and not thinks:
            body["thinking"] = {"type": rules.thinking_off}
        if effort is None or (effort == "none" and not thinks):
            return
        named = names.get(effort, effort)
        if thinks:
            body["output_config"] = {"effort": named}
        elif rules.thinks_by_default:
            body["output_config"] = {"effort": named if named in _OFF_EFFORTS else "high"}


def _forces_call(request: Request) -> bool:
    return bool(request.tools) and request.tool_choice not in {None, "auto", "none"}


def _add_thinking_budget(most: int, budget: int, request: Request) -> int:
    """Return the limit plus the thinking budget.

    The model's own limit already includes thinking, so it is not raised if it exceeds the budget.
    """
    return most if request.sampling.max_tokens is None and most > budget else most + budget


def _cap_output(body: dict[str, Any], most: int) -> None:
    """Limit output and thinking together to `most` tokens, if they may exceed that limit.

    The thinking budget may then take half of them, or all but `DEFAULT_MAX_TOKENS` if that is more.
    A larger budget is lowered to half; thinking is left out if the API does not accept so little.
    """
    if body["max_tokens"] <= most:
        return
    body["max_tokens"] = most
    thinking = body.get("thinking", {})
    if thinking.get("budget_tokens", 0) <= max(most // 2, most - DEFAULT_MAX_TOKENS):
        return
    if most // 2 >= _MIN_THINKING_TOKENS:
        thinking["budget_tokens"] = most // 2
    else:
        del body["thinking"]


def _set_temperature(body: dict[str, Any], request: Request) -> None:
    sampling = request.sampling
    if sampling.temperature is not None:
        body["temperature"] = min(sampling.temperature, 1.0)  # the API's maximum; OpenAI's is 2
    elif sampling.top_p is not None:  # newer models refuse both together
        body["top_p"] = sampling.top_p
    if sampling.top_k is not None:
        body["top_k"] = sampling.top_k


def _lacks_thoughts(request: Request, model: str) -> bool:
    """Return True if the last message is a tool result and its call lacks the model's reasoning."""
    if not request.messages or request.messages[-1].role is not Role.TOOL:
        return False
    caller = next((m for m in reversed(request.messages) if m.role is Role.ASSISTANT), None)
    own = [] if caller is None else [one for one in caller.thoughts if one.model == model]
    return not any((one.signature or one.redacted) and not is_round_trip(one) for one in own)


def _mark_prompt(body: dict[str, Any], request: Request) -> None:
    """Mark the whole prompt for caching if the request has a mark, or a key and no marked part."""
    cache = request.cache
    if cache is None:
        return
    if cache.mark is not None:
        body["cache_control"] = cache_control(cache.mark)
    elif cache.key is not None and not _is_marked(request):
        body["cache_control"] = cache_control("5m")


def _is_marked(request: Request) -> bool:
    parts = (part for message in request.messages for part in message.parts)
    return any(part.cache for part in parts) or any(tool.cache for tool in request.tools)


def _system_prompt(request: Request, *further: str) -> str | list[dict[str, Any]]:
    form = request.response_format
    extra = (_JSON_INSTRUCTION,) if form is not None and form.kind == "json_object" else ()
    return system_texts(request.messages, *extra, *filter(None, further))


def _add_tools(body: dict[str, Any], request: Request, *, forced: bool) -> None:
    body["tools"] = [_tool_json(tool) for tool in request.tools]
    choices = {None: "auto", "auto": "auto", "none": "none", "required": "any"}
    kind = choices.get(request.tool_choice, "tool")
    if kind in {"any", "tool"} and not forced:
        kind = "auto"
    choice: dict[str, Any] = {"type": kind}
    if kind == "tool":
        choice["name"] = request.tool_choice
    if request.parallel_tool_calls is False and kind != "none":
        choice["disable_parallel_tool_use"] = True
    if len(choice) > 1 or kind != "auto":
        body["tool_choice"] = choice


def _search_json(tool: Tool, native: NativeSearch) -> dict[str, Any]:
    """Return the tool JSON of the API's web search.

    Raises:
        UnsupportedFieldError: both allowed and blocked domains are given.
    """
    if native.allow and native.deny:
        raise UnsupportedFieldError(
            "Anthropic's search accepts allowed or blocked domains, not both"
        )
    uses = {"max_uses": native.max_uses}
    return {"type": SEARCH_TYPE, "name": tool.name, **uses, **domain_lists(native)}


def _tool_json(tool: Tool) -> dict[str, Any]:
    if tool.native is not None:
        return _search_json(tool, tool.native)
    schema = dict(tool.parameters) or {"type": "object", "properties": {}}
    described: dict[str, Any] = {"name": tool.name, "input_schema": schema}
    if tool.description:
        described["description"] = tool.description
    if tool.strict is not None:
        described["strict"] = tool.strict
    if tool.cache is not None:
        described["cache_control"] = cache_control(tool.cache)
    return described
