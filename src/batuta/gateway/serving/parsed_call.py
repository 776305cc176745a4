"""A parsed call of any dialect: its question, orchestration options, session and user.

A session is one conversation between a client and this server.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, cast

import orjson

from batuta.core import (
    MAX_ROUNDS,
    MAX_STEPS,
    Image,
    Limits,
    Message,
    Part,
    Pool,
    PromptCache,
    Question,
    Role,
    Step,
    Text,
    WorkerId,
    Workflow,
)
from batuta.core.run import stricter_limit
from batuta.core.server_tools import RequestedTool
from batuta.gateway.errors import invalid_type, invalid_value, unsupported_parameter
from batuta.gateway.http.body import Fields
from batuta.language.plan_rules import MAX_TAGS, read_tag
from batuta.store.rows import NO_LABELS, RequestLabels

ORCHESTRATION_FIELD = "orchestration"
STEPS_PATH = f"{ORCHESTRATION_FIELD}.workflow.steps"
_MAX_VALUE = 1_000_000_000
_MAX_WORKERS = 1000
_KNOWN_FIELDS = {
    "max_cost_usd", "max_tokens", "max_steps", "max_rounds", "deadline_s", "workers_allow",
    "workers_deny", "trace", "stream_steps", "dry_run", "workflow", "cache", "session", "tags",
    "min_confidence",
}  # fmt: skip
_KNOWN_OF_SESSION = {"max_cost_usd", "max_turns"}
_KNOWN_OF_STEP = {"subtask", "worker", "access"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """The limits that a request sets for its whole session, besides the settings' and the key's.

    None means no such limit.
    """

    max_cost_usd: Decimal | None = None
    max_turns: int | None = None


NO_SESSION_LIMITS = SessionLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The request's field `orchestration`; a limit of None is the served model's default.

    `usd` is in dollars, and `allow` and `deny` are ids of workers; `allow` None: every worker.
    """

    usd: float | None = None
    tokens: int | None = None
    steps: int | None = None
    rounds: int | None = None
    seconds: float | None = None
    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()
    trace: bool = False
    """Whether the answer contains its whole run."""
    stream_steps: bool = False
    """Whether a stream also shows the text of the steps before the answer."""
    workflow: Workflow | None = None
    """The caller's own workflow, which is not planned by a conductor."""
    dry_run: bool = False
    """Whether the run only makes a plan and estimates its cost, and runs no step."""
    cache: bool | None = None
    """False: neither use a cached answer nor cache this one; else the server's settings decide."""
    tags: tuple[str, ...] = ()
    """Tags by which plan rules select questions."""
    min_confidence: float | None = None
    """The confidence (probability of a correct answer) below which the answer is `unsure`."""
    session: SessionLimits | None = None
    """The limits of the session that the request belongs to."""

    def limits(self, default: Limits, ceiling: Limits) -> Limits:
        """Return the requested limits, else the defaults, and never more than `ceiling`.

        Args:
            default: the limits of a request that sets none.
            ceiling: the operator's limits.
        """
        return Limits(
            steps=min(self.steps or default.steps, ceiling.steps),
            rounds=min(self.rounds or default.rounds, ceiling.rounds),
            tokens=stricter_limit(
                default.tokens if self.tokens is None else self.tokens, ceiling.tokens
            ),
            usd=stricter_limit(default.usd if self.usd is None else self.usd, ceiling.usd),
            seconds=stricter_limit(
                default.seconds if self.seconds is None else self.seconds, ceiling.seconds
            ),
            unknown=ceiling.unknown,
        )

    def check_limits(self, most_steps: int, most_rounds: int) -> None:
        """Check that the requested steps and rounds are possible.

        Args:
            most_steps: the served model's maximum number of steps; the check allows `MAX_STEPS`
                if that is more.
            most_rounds: its maximum number of rounds; the check allows `MAX_ROUNDS` if that is
                more.

        Raises:
            APIError: more are requested; the message names the limit.
        """
        for name, requested, most in (
            ("max_steps", self.steps, max(most_steps, MAX_STEPS)),
            ("max_rounds", self.rounds, max(most_rounds, MAX_ROUNDS)),
        ):
            if requested is not None and requested > most:
                reason = f"it must be at most {most}."
                raise invalid_value(f"{ORCHESTRATION_FIELD}.{name}", reason)

    def lowered_limits(self, limits: Limits) -> dict[str, float]:
        """Return the requested limits that were lowered, with their values in `limits`."""
        pairs: dict[str, tuple[float | None, float | None]] = {
            "max_cost_usd": (self.usd, limits.usd),
            "max_tokens": (self.tokens, limits.tokens),
            "max_steps": (self.steps, limits.steps),
            "max_rounds": (self.rounds, limits.rounds),
            "deadline_s": (self.seconds, limits.seconds),
        }
        return {
            name: most
            for name, (requested, most) in pairs.items()
            if requested is not None and most is not None and most < requested
        }

    def check_workflow(self, pool: Pool, limits: Limits) -> None:
        """Check that the pool can run the caller's workflow within the limits.

        Raises:
            APIError: the workflow names an unknown worker or has too many steps.
        """
        steps = self.workflow.steps if self.workflow else ()
        if len(steps) > limits.steps:
            reason = f"this model runs at most {limits.steps} steps."
            raise invalid_value(STEPS_PATH, reason)
        for index, step in enumerate(steps):
            if step.worker not in pool:
                reason = f"there is no worker '{step.worker}' here."
                raise invalid_value(f"{STEPS_PATH}[{index}].worker", reason)

    def select_workers(self, pool: Pool) -> Pool:
        """Return the workers that the request allows.

        Raises:
            APIError: a name is not in the pool, or the request excludes every worker.
        """
        for name, ids in (("workers_allow", self.allow or ()), ("workers_deny", self.deny)):
            unknown = [worker_id for worker_id in ids if worker_id not in pool]
            if unknown:
                raise invalid_value(
                    f"{ORCHESTRATION_FIELD}.{name}", f"there is no worker '{unknown[0]}' here."
                )
        if self.allow is None and not self.deny:
            return pool
        allowed = {w.id for w in pool} if self.allow is None else set(self.allow)
        remaining = allowed.difference(self.deny)
        if not remaining:
            name = "workers_deny" if self.allow is None else "workers_allow"
            raise invalid_value(f"{ORCHESTRATION_FIELD}.{name}", "no worker is left.")
        return pool.subset(remaining)


_UNCACHED_OPTIONS = RunOptions(cache=False)
NO_OPTIONS = RunOptions()
"""The options of a body without `orchestration` whose headers allow a cached answer."""


def parse_run_options(body: Fields) -> RunOptions:
    """Parse the field `orchestration` of a body in any dialect.

    Raises:
        APIError: the field is malformed or has an unknown field.
    """
    given = body.object(ORCHESTRATION_FIELD)
    if given is None:
        return _UNCACHED_OPTIONS if body.is_fresh else NO_OPTIONS
    given.check_names(_KNOWN_FIELDS)  # a misspelt limit must not be ignored
    return RunOptions(
        usd=given.number("max_cost_usd", 0, _MAX_VALUE),
        tokens=given.whole("max_tokens", 0, _MAX_VALUE),
        steps=given.whole("max_steps", 1, _MAX_VALUE),
        rounds=given.whole("max_rounds", 1, _MAX_VALUE),
        seconds=given.number("deadline_s", 0, _MAX_VALUE),
        allow=given.texts("workers_allow", _MAX_WORKERS),
        deny=given.texts("workers_deny", _MAX_WORKERS) or (),
        trace=bool(given.flag("trace")),
        stream_steps=bool(given.flag("stream_steps")),
        workflow=_parse_workflow(given.object("workflow")),
        dry_run=bool(given.flag("dry_run")),
        cache=False if body.is_fresh else given.flag("cache"),
        tags=_parse_tags(given),
        min_confidence=given.number("min_confidence", 0, 1),
        session=_parse_session(given.object("session")),
    )


def _parse_session(given: Fields | None) -> SessionLimits | None:
    if given is None:
        return None
    given.check_names(_KNOWN_OF_SESSION)
    usd = given.number("max_cost_usd", 0, _MAX_VALUE)
    return SessionLimits(
        max_cost_usd=None if usd is None else Decimal(str(usd)),
        max_turns=given.whole("max_turns", 1, _MAX_VALUE),
    )


def _parse_tags(given: Fields) -> tuple[str, ...]:
    try:
        return tuple(map(read_tag, given.texts("tags", MAX_TAGS) or ()))
    except ValueError as error:
        raise invalid_value(given.path("tags"), f"{error}.") from None


def _parse_workflow(given: Fields | None) -> Workflow | None:
    if given is None:
        return None
    given.check_names({"steps"})
    given.need("steps")
    steps = given.objects("steps", MAX_STEPS) or []
    try:
        return Workflow(tuple(_parse_step(step) for step in steps))
    except ValueError as error:
        raise invalid_value(STEPS_PATH, f"{error}.") from None


def _parse_step(step: Fields) -> Step:
    step.check_names(_KNOWN_OF_STEP)
    entries = step.array("access", MAX_STEPS) or []
    for index, entry in enumerate(entries):
        if isinstance(entry, bool) or not isinstance(entry, int):
            raise invalid_type(f"{step.path('access')}[{index}]", "an integer", entry)
    worker = WorkerId(step.need_text("worker"))
    return Step(
        subtask=step.text("subtask") or "", worker=worker, access=tuple(sorted(set(entries)))
    )


_EMPTY_VALUES: tuple[Any, ...] = (None, False, 0, [], {})


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedCall:
    """A question, the model to answer it, and the options of the answer."""

    model: str
    """The served model's name."""
    question: Question
    stream: bool = False
    include_usage: bool = False
    """Whether a stream ends with the usage of tokens, if the dialect makes that optional."""
    store: bool = True
    """Whether the run and its answer may be stored."""
    options: RunOptions = NO_OPTIONS
    embeds: bool = False
    """Whether embeddings are requested."""
    session: str = ""
    """The client's name of the session; empty: the client names none."""
    labels: RequestLabels = NO_LABELS
    """The request's end user and metadata, by which its run can be found."""
    previous: str = ""
    """The id of the response that this call continues; empty if there is none."""
    ignored: tuple[str, ...] = ()
    """Fields that have no effect, as the header `x-batuta-ignored` names them."""
    server_tools: tuple[RequestedTool, ...] = ()
    """The server's tools that the request lets the models call."""
    files: tuple[str, ...] = ()
    """The ids of the uploaded files in the request, which programs may read."""
    earlier_files: tuple[str, ...] = ()
    """Ids of files of earlier turns, newest first; programs may read as many as fit."""


MADE_PICTURES = "The pictures that you made:"


def return_made_pictures(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Move pictures made by models into the next user message.

    Most providers accept pictures only from users. Pictures after the last user message are left
    out.
    """
    if not any(_made_pictures(message) for message in messages):
        return messages
    turns, waiting = list[Message](), list[Part]()
    for message in messages:
        turn = message
        if made := _made_pictures(message):
            waiting += made
            kept = tuple(part for part in message.parts if part not in made)
            turn = replace(message, parts=kept or (Text("(A picture.)"),))
        elif message.role is Role.USER and waiting:
            turn = replace(message, parts=(Text(MADE_PICTURES), *waiting, *message.parts))
            waiting = []
        turns.append(turn)
    return tuple(turns)


def _made_pictures(message: Message) -> tuple[Image, ...]:
    return message.images if message.role is Role.ASSISTANT else ()


def parse_cache(body: Fields) -> PromptCache | None:
    """Return the caller's options for the providers' prompt caches; None if it sets none.

    Raises:
        APIError: a value has the wrong type.
    """
    key, retention = body.text("prompt_cache_key"), body.text("prompt_cache_retention")
    return PromptCache(key=key, retention=retention) if key or retention else None


def check_metadata(body: Fields) -> None:
    """Check that `metadata`, if it is set, is an object of strings.

    Raises:
        APIError: `metadata` is not an object, or one of its values is not a string.
    """
    metadata = body.object("metadata")
    for name, value in metadata.raw.items() if metadata else ():
        if not isinstance(value, str):
            raise invalid_value(f"metadata.{name}", "it must be a string.")


def check_unsupported(body: Fields, reasons: Mapping[str, str]) -> None:
    """Check that the body sets no unsupported field.

    Args:
        body: the request's body.
        reasons: the reason for each unsupported field; null, false, 0, [] and {} are accepted.

    Raises:
        APIError: the body sets an unsupported field.
    """
    for name, reason in reasons.items():
        if body.get(name) not in _EMPTY_VALUES:
            raise unsupported_parameter(name, reason)


SESSION_HEADER = "x-batuta-session"
LONGEST_NAME = 400
"""Maximum number of characters of a client's session name; a longer name is ignored."""
MOST_PAIRS = 16
"""Maximum number of pairs of a request's metadata that are stored."""
_LONGEST_USER_ID = 4000
_SESSION_SEPARATOR = "_session_"
"""Separates account and session in the user ids of older versions of Claude Code."""
_ACCOUNTS = ("account_uuid", "user_id", "device_id")
"""Keys of the account in the user ids of newer versions of Claude Code, which are JSON."""


def client_session(body: Fields) -> str:
    """Return the client's name of the session; empty if the client names none.

    The name is the first of: a header (see `http.body`), `prompt_cache_key`, and the session in
    `metadata.user_id`. Invalid names are ignored.
    """
    fields = body.raw
    named = body.session or _short_text(fields.get("prompt_cache_key"))
    return named or _short_text(_read_user_id(_metadata_of(fields).get("user_id"))[1])


def request_labels(body: Fields) -> RequestLabels:
    """Return a request's end user and the first `MOST_PAIRS` pairs of its metadata.

    Values that are not strings are ignored, and so is the pair `user_id`.
    """
    raw = body.raw
    metadata = _metadata_of(raw)
    user = raw.get("safety_identifier") or raw.get("user") or metadata.get("user_id")
    pairs = [(name, value) for name, value in metadata.items() if isinstance(value, str)]
    tags = tuple(f"{name}={value}" for name, value in pairs[:MOST_PAIRS] if name != "user_id")
    if not tags and not user:
        return NO_LABELS
    return RequestLabels(user=_read_user_id(user)[0], tags=tags)


def session_id(tenant: str, named: str, question: Question) -> str:
    """Return the session's id: `ses_` and a digest of the tenant and the session's name.

    Args:
        tenant: the session's tenant.
        named: the client's name of the session; empty: the id is derived from the beginning of the
            conversation.
        question: the conversation.
    """
    digest = hashlib.sha256(f"{len(tenant)} {tenant} ".encode("utf-8", "replace"))
    if named:
        digest.update(b"named " + named.encode("utf-8", "replace"))
    else:
        for text in first_texts(question):
            digest.update(f"said {len(text)} {text}".encode("utf-8", "replace"))
    return f"ses_{digest.hexdigest()[:32]}"


def first_texts(question: Question) -> list[str]:
    """Return the texts of a conversation's messages up to the first of the user.

    Clients usually send them unchanged in every request of the conversation.
    """
    texts: list[str] = []
    for message in question.messages:
        texts.append(message.text)
        if message.role is Role.USER:
            break
    return texts


def _metadata_of(raw: Mapping[str, Any]) -> dict[str, Any]:
    metadata = raw.get("metadata")
    return cast("dict[str, Any]", metadata) if isinstance(metadata, dict) else {}


def _read_user_id(user: object) -> tuple[str, Any]:
    """Return the account and the session in a user id, since Claude Code puts both into user ids.

    A text of another form is the account. Both are empty if the value is not a text or too long.
    """
    if not isinstance(user, str) or len(user) > _LONGEST_USER_ID:
        return "", ""
    if not user.startswith("{"):
        account, found, _ = user.partition(_SESSION_SEPARATOR)
        return account, user.rpartition(_SESSION_SEPARATOR)[2] if found else ""
    try:
        known = cast("dict[str, Any]", orjson.loads(user))
    except (orjson.JSONDecodeError, UnicodeEncodeError):
        return user, ""
    named = (known.get(name) for name in _ACCOUNTS)
    account = next((name for name in named if isinstance(name, str) and name), "")
    return account, known.get("session_id")


def _short_text(value: object) -> str:
    """Return the value if it is a text that may be a session's name, else an empty text."""
    return value if isinstance(value, str) and len(value) <= LONGEST_NAME else ""
