"""Adaptations of requests to a worker's server, learned from its error responses.

When an error names something that can be expressed differently or left out, the same request is
sent again in that form. The worker's client remembers the form that worked, so later requests are
not refused for the same reason; a worker's settings `adapt` and `field_names` can prescribe a form
from the start. Of the sampling fields, a refusal may remove `temperature`, `top_p`, `seed` and the
reasoning effort. It does not remove `stop`, `n`, `top_k` and others: the call then fails.

Changes that concern one call alone, and are not remembered, are in `clients.call_changes`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Literal, get_args

import orjson

from batuta.core import (
    Message,
    Part,
    Request,
    ResponseFormat,
    Role,
    Text,
    assistant_message,
    system_message,
    user_message,
)
from batuta.core.message import SYSTEM_ROLES
from batuta.errors import (
    BadRequestError,
    ClientError,
    FormRefusedError,
    ProviderOverloadedError,
)

_CONTINUE = "Continue."
_NOTED = "I have read the results."
_CALL_ONE = "Call {} now: an answer without a call is not accepted."


def add_to_system(request: Request, text: str) -> Request:
    """Append `text` to the last leading system message; insert such a message if there is none."""
    messages = request.messages
    first = _count_first_system_messages(messages)
    if not first:
        return replace(request, messages=(system_message(text), *messages))
    last = messages[first - 1]
    longer = replace(last, parts=(*last.parts, Text(("\n\n" if last.text else "") + text)))
    return replace(request, messages=(*messages[: first - 1], longer, *messages[first:]))


def merge_first_system_messages(request: Request) -> Request:
    """Join the leading system messages into one."""
    first = _count_first_system_messages(request.messages)
    if first <= 1:
        return request
    merged = _merge_messages(request.messages[:first], Role.SYSTEM)
    return replace(request, messages=(merged, *request.messages[first:]))


def put_system_first(request: Request) -> Request:
    """Join all system messages into one at the beginning."""
    instructions = [message for message in request.messages if message.role in SYSTEM_ROLES]
    others = tuple(message for message in request.messages if message.role not in SYSTEM_ROLES)
    if not instructions or (len(instructions) == 1 and request.messages[0] is instructions[0]):
        return request
    return replace(request, messages=(_merge_messages(instructions, Role.SYSTEM), *others))


def without_system(request: Request) -> Request:
    """Move the system messages into the user message at the beginning, or into a new one."""
    ordered = put_system_first(request).messages
    if not ordered or ordered[0].role not in SYSTEM_ROLES:
        return request
    first, others = replace(ordered[0], role=Role.USER), ordered[1:]
    if others and others[0].role is Role.USER:
        return replace(
            request, messages=(_merge_messages((first, others[0]), Role.USER), *others[1:])
        )
    return replace(request, messages=(first, *others))


def without_developer(request: Request) -> Request:
    """Turn developer messages into system messages."""
    return _map_messages(
        request, lambda m: replace(m, role=Role.SYSTEM) if m.role is Role.DEVELOPER else m
    )


def alternate_roles(request: Request) -> Request:
    """Join adjacent messages of the same role, except tool results.

    A short user message is put before an assistant's message at the beginning.
    """
    changed: list[Message] = []
    for message in request.messages:
        if changed and changed[-1].role is message.role and message.role is not Role.TOOL:
            changed[-1] = _merge_messages((changed[-1], message), message.role)
        else:
            changed.append(message)
    first = _count_first_system_messages(changed)
    if first < len(changed) and changed[first].role is Role.ASSISTANT:
        changed.insert(first, user_message(_CONTINUE))
    return replace(request, messages=tuple(changed))


def answer_tool_results(request: Request) -> Request:
    """Insert a short assistant message between tool results and a user message."""
    changed: list[Message] = []
    for message in request.messages:
        if changed and changed[-1].role is Role.TOOL and message.role is Role.USER:
            changed.append(assistant_message(_NOTED))
        changed.append(message)
    return replace(request, messages=tuple(changed))


def end_with_user(request: Request) -> Request:
    """Append a short user message if the last message is an assistant's."""
    if request.messages[-1].role is not Role.ASSISTANT:
        return request
    return replace(request, messages=(*request.messages, user_message(_CONTINUE)))


def ask_for_tool_call(request: Request) -> Request:
    """Replace a forced tool call by an instruction in the system message."""
    choice = request.tool_choice
    if not request.tools or choice in {None, "auto", "none"}:
        return request
    named = "one of the tools" if choice == "required" else f"the tool {choice}"
    return replace(add_to_system(request, _CALL_ONE.format(named)), tool_choice="auto")


def without_reasoning(request: Request) -> Request:
    """Leave out the reasoning of all messages."""
    return _map_messages(request, lambda m: replace(m, reasoning="", thoughts=()))


def without_names(request: Request) -> Request:
    """Leave out the `name` of messages."""
    return _map_messages(request, lambda m: replace(m, name=None))


def without_strict(request: Request) -> Request:
    """Leave out `strict` of tools and of the response format."""
    tools = tuple(replace(tool, strict=None) for tool in request.tools)
    form = request.response_format
    return replace(request, tools=tools, response_format=form and replace(form, strict=None))


def without_cache_marks(request: Request) -> Request:
    """Leave out the prompt-caching settings."""
    bare = _map_messages(
        request, lambda m: replace(m, parts=tuple(replace(part, cache=None) for part in m.parts))
    )
    tools = tuple(replace(tool, cache=None) for tool in request.tools)
    return replace(bare, tools=tools, cache=None)


def _map_messages(request: Request, change: Callable[[Message], Message]) -> Request:
    return replace(request, messages=tuple(map(change, request.messages)))


def _count_first_system_messages(messages: Sequence[Message]) -> int:
    for number, message in enumerate(messages):
        if message.role not in SYSTEM_ROLES:
            return number
    return len(messages)


def _merge_messages(messages: Iterable[Message], role: Role) -> Message:
    """Join several messages, with an empty line between their texts."""
    parts: list[Part] = []
    reasoning: list[str] = []
    sources = tuple(messages)
    for message in sources:
        if parts and message.text and any(isinstance(part, Text) for part in parts):
            parts.append(Text("\n\n"))
        parts.extend(message.parts)
        reasoning += filter(None, [message.reasoning])
    return Message(
        role=role,
        parts=tuple(parts),
        name=sources[0].name,
        reasoning="\n\n".join(reasoning),
        thoughts=tuple(thought for message in sources for thought in message.thoughts),
    )


_JSON = "Answer with one JSON object and nothing else."
_BY_SCHEMA = "Answer with JSON that is valid under this JSON schema, and with nothing else: {}"


def _schema_text(request: Request) -> str | None:
    """Return the JSON schema of the response format as text; None if there is none."""
    form = request.response_format
    if form is None or form.kind != "json_schema":
        return None
    return orjson.dumps(form.schema, option=orjson.OPT_SORT_KEYS).decode()


def describe_schema(request: Request) -> Request:
    """Request any JSON object, and put the schema into the system message."""
    schema = _schema_text(request)
    if schema is None:
        return request
    explained = add_to_system(request, _BY_SCHEMA.format(schema))
    return replace(explained, response_format=ResponseFormat(kind="json_object"))


def without_json_mode(request: Request) -> Request:
    """Remove the response format, and describe it as `describe_schema` or `mention_json` do."""
    form = request.response_format
    if form is None:
        return request
    describe = describe_schema if form.kind == "json_schema" else mention_json
    return replace(describe(request), response_format=None)


def mention_json(request: Request) -> Request:
    """Add an instruction to answer in JSON, if that is required and no message mentions JSON."""
    if request.response_format is None or any("json" in m.text.lower() for m in request.messages):
        return request
    return add_to_system(request, _JSON)


Kind = Literal[
    "merge_first_system_messages",
    "one_system_message",
    "no_system_message",
    "no_developer_role",
    "alternate_roles",
    "end_with_user",
    "assistant_after_results",
    "no_reasoning",
    "no_encrypted_reasoning",
    "no_effort",
    "no_forced_calls",
    "say_json",
    "no_json_schema",
    "no_json_mode",
    "no_strict",
    "no_cache_marks",
    "no_names",
]
"""The kinds of adaptation; these names are used in the settings."""
KINDS: tuple[Kind, ...] = get_args(Kind)
ENCRYPTED_REASONING = "reasoning.encrypted_content"
"""The `include` value of the Responses API without which reasoning cannot be sent back; models that
do not reason refuse it."""
MAX_ADAPTATIONS = 8
"""Maximum number of times that one call is sent again in another form."""

_MAX_SCHEMAS = 256
"""Maximum number of schemas remembered for one worker; the oldest is dropped first."""

REFUSAL = re.compile(
    r"unsupported|not (?:currently )?support|n't support|unrecogni[sz]ed|not recogni[sz]ed"
    r"|unknown|unexpected|not permitted|not allowed|extra[_ ](?:input|field|forbidden)|unavailable"
    r"|not (?:a )?valid|not available|not implemented|not enabled"
    r"|\binvalid\b(?! request)|additional propert|not exist|deprecated|must be one of|not one of"
    r"|only the default|should be|expected one of|failed to parse|(?:not|n't) both\b"
    r"|can(?:not|'t) be (?:used|set|specified|combined|passed)|must not be|may (?:not|only) be"
    r"|is (?:disabled|only allowed)|\bremove\b|do not (?:pass|send|set)|when thinking|不支持"
)


@dataclass(frozen=True, slots=True)
class _Remedy:
    """An adaptation to try after an error whose lower-case message matches `words`."""

    kind: Kind
    words: re.Pattern[str]
    needs_refusal: bool = True
    """Whether `words` counts only in a `BadRequestError` that also matches `REFUSAL`."""


_REMEDIES = (
    _Remedy(
        "no_system_message",
        re.compile(
            r"system (?:role|messages?|prompts?|instructions?)(?: is| are)? not supported"
            r"|not support (?:the |a )?system|developer instruction is not enabled"
        ),
        needs_refusal=False,
    ),
    _Remedy(
        "one_system_message",
        re.compile(
            r"system (?:role|messages?|prompts?)[^a-z].{0,60}"
            r"(?:beginning|first|start|only|once|single)"
            r"|(?:one|single|multiple|two|duplicate) system|first message.{0,30}system"
            r"|unexpected role.{0,4}system|system.{0,20}(?:not |in )the middle"
        ),
        needs_refusal=False,
    ),
    _Remedy(
        "assistant_after_results",
        re.compile(r"role .{0,4}user.{0,4} after role .{0,4}tool"),
        needs_refusal=False,
    ),
    _Remedy(
        "end_with_user",
        re.compile(
            r"expected last role|must end with a user|last message must"
            r"|not support assistant (?:message )?prefill"
        ),
        needs_refusal=False,
    ),
    _Remedy(
        "alternate_roles",
        re.compile(
            r"alternat|consecutive .{0,40}(?:role|message|user|assistant)|same role"
            r"|(?:role|message)s? .{0,4}(?:user|assistant).{0,4} after"
            r"|(?:first message|conversation) must (?:be|start|begin).{0,30}user"
        ),
        needs_refusal=False,
    ),
    _Remedy("no_developer_role", re.compile(r"developer|message role|invalid role")),
    _Remedy("no_encrypted_reasoning", re.compile(r"encrypted[_ ]content|['\"`]include\b")),
    _Remedy("no_reasoning", re.compile(r"reasoning_content|reasoning_details|[.'\"`]reasoning\b")),
    _Remedy("no_forced_calls", re.compile(r"tool[_ ]choice|toolchoice|tool_config|forced tool")),
    _Remedy("no_effort", re.compile(r"reasoning|thinking|\bthink\b|effort")),
    _Remedy("say_json", re.compile(r"must contain the word.{0,6}json"), needs_refusal=False),
    _Remedy(
        "no_json_schema",
        re.compile(
            r"response_?format|json_?schema|structured|grammar|\bschema|text\.format|output_(?:config|format)"
        ),
    ),
    _Remedy(
        "no_json_mode",
        re.compile(r"response_?format|json_object|json mode|text\.format|mime"),
    ),
    _Remedy("no_strict", re.compile(r"\bstrict\b")),
    _Remedy("no_cache_marks", re.compile(r"cache_?control|\bcaching|cachepoint")),
    _Remedy("no_names", re.compile(r"\bname\b")),
)
"""Tried in this order, the more specific patterns first."""

_APPLIED: Mapping[Kind, Callable[[Request], Request]] = {
    "no_reasoning": without_reasoning,
    "no_forced_calls": ask_for_tool_call,
    "no_json_schema": describe_schema,
    "no_json_mode": without_json_mode,
    "say_json": mention_json,
    "no_strict": without_strict,
    "no_cache_marks": without_cache_marks,
    "no_names": without_names,
    "no_developer_role": without_developer,
    "merge_first_system_messages": merge_first_system_messages,
    "one_system_message": put_system_first,
    "no_system_message": without_system,
    "alternate_roles": alternate_roles,
    "assistant_after_results": answer_tool_results,
    "end_with_user": end_with_user,
}
"""Applied in this order: kinds that add to the system message come before kinds that move or join
messages."""


@lru_cache(maxsize=256)
def _find_changes(kinds: frozenset[Kind]) -> tuple[Callable[[Request], Request], ...]:
    return tuple(apply for kind, apply in _APPLIED.items() if kind in kinds)


_UNENFORCED_FORMAT: frozenset[Kind] = frozenset({"no_json_schema", "no_json_mode"})
"""The kinds with which the server no longer enforces the response format."""

_FIELDS: Mapping[str, str] = {
    "max_tokens": "max_completion_tokens",
    "max_completion_tokens": "max_tokens",
    "stream_options": "",
    "parallel_tool_calls": "",
    "temperature": "",
    "top_p": "",
    "seed": "",
    "prompt_cache_key": "",
    "prompt_cache_retention": "",
    "store": "",
    "usage": "",
}
"""Maps fields of the body to the name that a server may accept instead; empty: left out."""
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_EFFORT_WORD = re.compile(r"\b(none|minimal|low|medium|high|xhigh|max)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Adaptations:
    """The changes made to a worker's requests before they are sent."""

    kinds: frozenset[Kind] = frozenset()
    fields: Mapping[str, str] = field(default_factory=dict[str, str])
    """Maps fields of the body to the server's names for them; empty: the field is not sent."""
    efforts: Mapping[str, str] = field(default_factory=dict[str, str])
    """Maps refused reasoning efforts to those sent instead."""
    schemas: tuple[bytes, ...] = ()
    """Digests of schemas of which the server refuses parts; the system message describes them."""

    def adapt_request(self, request: Request) -> Request:
        """Return the request in the form that the server accepts.

        Raises:
            FormRefusedError: the server cannot enforce the response format, and describing it in
                the prompt does not suffice.
        """
        if self.only_describes_format(request):
            raise FormRefusedError("the provider cannot enforce the requested response format")
        effort = request.sampling.effort
        if effort is not None and (effort in self.efforts or "no_effort" in self.kinds):
            other = None if "no_effort" in self.kinds else self.efforts[effort]
            request = replace(request, sampling=replace(request.sampling, effort=other))
        if self.schemas and _schema_digest(request) in self.schemas:
            request = describe_schema(request)
        for apply in _find_changes(self.kinds):
            request = apply(request)
        return request

    def only_describes_format(self, request: Request) -> bool:
        """Return True if a response format that must be enforced would only be described."""
        form = request.response_format
        if form is None or form.words_suffice:
            return False
        return bool(_UNENFORCED_FORMAT & self.kinds) or _schema_digest(request) in self.schemas

    def adapt_body(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the body with the fields and names that the server accepts."""
        asked = body.get("include") or ()
        if "no_encrypted_reasoning" in self.kinds and ENCRYPTED_REASONING in asked:
            body = _without_encrypted_reasoning(body)
        if not any(name in body for name in self.fields):
            return body
        named = ((self.fields.get(name, name), value) for name, value in body.items())
        return {name: value for name, value in named if name}

    def merged(self, other: Adaptations) -> Adaptations:
        """Return the union of both; `other` takes precedence."""
        return Adaptations(
            kinds=self.kinds | other.kinds,
            fields={**self.fields, **other.fields},
            efforts={**self.efforts, **other.efforts},
            schemas=tuple(dict.fromkeys((*self.schemas, *other.schemas)))[-_MAX_SCHEMAS:],
        )

    def remedies(
        self, error: ClientError, request: Request, body: Mapping[str, Any]
    ) -> Iterator[Adaptations]:
        """Yield these adaptations with one more that may avoid the error, the likeliest first.

        Args:
            error: the server's error; some servers refuse a request with status 500. Errors of
                other kinds, such as rate limits or a bad key, yield nothing.
            request: the request before its adaptation.
            body: the body that was sent.
        """
        if not isinstance(error, (BadRequestError, ProviderOverloadedError)):
            return
        words = error.words.lower()
        refused = isinstance(error, BadRequestError) and REFUSAL.search(words) is not None
        if refused:
            for name in named_fields(words, body):
                if name not in self.fields and name not in self.fields.values():
                    yield replace(self, fields={**self.fields, name: _FIELDS[name]})
        for remedy in _REMEDIES:
            if remedy.kind in self.kinds or (remedy.needs_refusal and not refused):
                continue
            if remedy.words.search(words):
                yield from self._with_kind(remedy.kind, words, request)

    def _with_kind(self, kind: Kind, words: str, request: Request) -> Iterator[Adaptations]:
        """Yield these adaptations with this kind, or with a narrower change that may suffice."""
        if kind == "no_effort" and (other := _other_effort(words, request.sampling.effort)):
            sent = request.sampling.effort or ""
            if sent not in self.efforts:
                yield replace(self, efforts={**self.efforts, sent: other})
        if kind == "no_json_schema" and _PART_OF_SCHEMA.search(words):
            schema = _schema_digest(request)
            if schema is not None and schema not in self.schemas:
                yield replace(self, schemas=(*self.schemas, schema))
            return
        yield replace(self, kinds=self.kinds | {kind})


def _without_encrypted_reasoning(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the body that asks for everything that it included, except encrypted reasoning."""
    values = [value for value in body["include"] if value != ENCRYPTED_REASONING]
    others = {name: value for name, value in body.items() if name != "include"}
    return {**others, "include": values} if values else others


NO_ADAPTATIONS = Adaptations()
_PART_OF_SCHEMA = re.compile(
    r"(?:invalid|unsupported|bad) (?:json )?schema|schema (?:is )?(?:invalid|too)|keyword"
    r"|additionalproperties|m(?:in|ax)(?:length|items|imum|properties)|\$ref|\$defs|pattern"
    r"|(?:one|any|all)of\b|nesting|too (?:complex|deep|many)|grammar|propert"
)
"""Matches a refusal of one particular schema rather than of all schemas."""


def _schema_digest(request: Request) -> bytes | None:
    schema = _schema_text(request)
    return None if schema is None else blake2b(schema.encode(), digest_size=16).digest()


def named_fields(words: str, body: Mapping[str, Any]) -> list[str]:
    """Return the fields that the error names and that can be changed, in the order of mention.

    The order is reversed for two fields that exclude each other: the last one is dropped first.
    """
    matches = {
        name: re.search(rf"(?<![\w-]){name}(?![\w-])", words) for name in _FIELDS if name in body
    }
    named = {name: match.start() for name, match in matches.items() if match is not None}
    return sorted(named, key=lambda name: named[name], reverse=" both " in words)


def _other_effort(words: str, sent: str | None) -> str | None:
    """Return the nearest effort that the error message lists; None if none can be used instead."""
    if sent not in _EFFORTS:
        return None
    listed = {match[1] for match in _EFFORT_WORD.finditer(words)} - {sent}
    at = _EFFORTS.index(sent)
    # On a tie the cheaper effort is chosen; reasoning is not turned off if some was requested.
    able = [e for e in _EFFORTS if e in listed and (e != "none" or sent == "minimal")]
    return min(able, key=lambda e: (abs(_EFFORTS.index(e) - at), _EFFORTS.index(e)), default=None)


@dataclass(slots=True)
class LearnedAdaptations:
    """The adaptations of a worker's client, shared by all its calls."""

    current: Adaptations = NO_ADAPTATIONS

    def keep(self, further: Adaptations) -> None:
        """Merge further adaptations into the current ones."""
        self.current = self.current.merged(further)
