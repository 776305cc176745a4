"""A call in any dialect, how its run is to be conducted, and the session and user that it names.

A session is one conversation of a tenant with a client.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, TypeVar, cast

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
from batuta.core.server_tools import RequestedTool
from batuta.gateway.errors import APIError, invalid_type, invalid_value, unsupported_parameter
from batuta.gateway.http.body import Fields
from batuta.language.plan_rules import MAX_TAGS, read_tag
from batuta.store.rows import NO_LABELS, RequestLabels

ORCHESTRATION_FIELD = "orchestration"
STEPS_PATH = f"{ORCHESTRATION_FIELD}.workflow.steps"
_N = TypeVar("_N", int, float)
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
    """The limits of a whole session; None is none beside those of the settings."""

    max_cost_usd: Decimal | None = None
    max_turns: int | None = None


NO_SESSION_LIMITS = SessionLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What the caller asks of the orchestration; None leaves one to the served model."""

    usd: float | None = None
    tokens: int | None = None
    steps: int | None = None
    rounds: int | None = None
    seconds: float | None = None
    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()
    trace: bool = False
    stream_steps: bool = False
    """Whether a stream shows what the steps before the answer say."""
    workflow: Workflow | None = None
    """A workflow by hand, which nobody plans."""
    dry_run: bool = False
    """Plan and estimate; call no worker."""
    cache: bool | None = None
    """False: neither take an earlier answer nor keep this one for later."""
    tags: tuple[str, ...] = ()
    """Rules for plans tell questions apart by these words."""
    min_confidence: float | None = None
    """Below this probability of being right an answer is marked `unsure`."""
    session: SessionLimits | None = None
    """The limits of the session that the request belongs to."""

    def limits(self, default: Limits, ceiling: Limits | None = None) -> Limits:
        """Return the limits: those asked for, else the default, and never more than `ceiling`.

        Args:
            default: what a request gets that asks for nothing.
            ceiling: what the operator allows; None: no more than the usual.
        """
        ceiling = ceiling or default
        return Limits(
            steps=min(self.steps or default.steps, ceiling.steps),
            rounds=min(self.rounds or default.rounds, ceiling.rounds),
            tokens=_stricter_limit(
                default.tokens if self.tokens is None else self.tokens, ceiling.tokens
            ),
            usd=_stricter_limit(default.usd if self.usd is None else self.usd, ceiling.usd),
            seconds=_stricter_limit(
                default.seconds if self.seconds is None else self.seconds, ceiling.seconds
            ),
            unknown=ceiling.unknown,
        )

    def check_limits(self, most_steps: int, most_rounds: int) -> None:
        """Return if no more steps and rounds are asked for than there can be, else raise.

        Args:
            most_steps: of the served model, or of any workflow if that is more.
            most_rounds: the same of rounds.

        Raises:
            APIError: more are; it names the limit.
        """
        for name, wanted, most in (
            ("max_steps", self.steps, max(most_steps, MAX_STEPS)),
            ("max_rounds", self.rounds, max(most_rounds, MAX_ROUNDS)),
        ):
            if wanted is not None and wanted > most:
                raise invalid_value(f"{ORCHESTRATION_FIELD}.{name}", f"it is at most {most}.")

    def lowered_limits(self, limits: Limits) -> dict[str, float]:
        """Return the limits that were asked for and are lower in `limits`, by their field."""
        asked: dict[str, tuple[float | None, float | None]] = {
            "max_cost_usd": (self.usd, limits.usd),
            "max_tokens": (self.tokens, limits.tokens),
            "max_steps": (self.steps, limits.steps),
            "max_rounds": (self.rounds, limits.rounds),
            "deadline_s": (self.seconds, limits.seconds),
        }
        return {
            name: most
            for name, (wanted, most) in asked.items()
            if wanted is not None and most is not None and most < wanted
        }

    def check_workflow(self, pool: Pool, limits: Limits) -> None:
        """Return if the pool can run the workflow by hand within those limits, else raise.

        Raises:
            APIError: it names a stranger or has too many steps.
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
        """Return the workers of `pool` that may be used.

        Raises:
            APIError: a name is not in the pool, or nobody is left.
        """
        for name, ids in (("workers_allow", self.allow or ()), ("workers_deny", self.deny)):
            strangers = [worker_id for worker_id in ids if worker_id not in pool]
            if strangers:
                raise invalid_value(
                    f"{ORCHESTRATION_FIELD}.{name}", f"there is no worker '{strangers[0]}' here."
                )
        if self.allow is None and not self.deny:
            return pool
        wanted = {w.id for w in pool} if self.allow is None else set(self.allow)
        left = wanted.difference(self.deny)
        if not left:
            raise invalid_value(f"{ORCHESTRATION_FIELD}.workers_allow", "no worker is left.")
        return pool.subset(left)


_FRESH_OPTIONS = RunOptions(cache=False)
NO_OPTIONS = RunOptions()
"""The options of a body without the field."""


def parse_run_options(body: Fields) -> RunOptions:
    """Return the field `orchestration` of any body.

    Raises:
        APIError: it is malformed, or has a field that is not known: a misspelt limit must
            not be a limit that is not there.
    """
    given = body.object(ORCHESTRATION_FIELD)
    if given is None:
        return _FRESH_OPTIONS if body.is_fresh else NO_OPTIONS
    _check_names(given, _KNOWN_FIELDS)
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
    _check_names(given, _KNOWN_OF_SESSION)
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


def _check_names(given: Fields, known: Collection[str]) -> None:
    for name in given.names:
        if name not in known:
            message = f"Unknown parameter: '{given.path(name)}'."
            raise APIError(400, "unknown_parameter", message, param=given.path(name))


def _parse_workflow(given: Fields | None) -> Workflow | None:
    if given is None:
        return None
    _check_names(given, {"steps"})
    given.need("steps")
    steps = given.objects("steps", MAX_STEPS) or []
    try:
        return Workflow(tuple(_parse_step(step) for step in steps))
    except ValueError as error:
        raise invalid_value(STEPS_PATH, f"{error}.") from None


def _parse_step(step: Fields) -> Step:
    _check_names(step, _KNOWN_OF_STEP)
    entries = step.array("access", MAX_STEPS) or []
    for index, entry in enumerate(entries):
        if isinstance(entry, bool) or not isinstance(entry, int):
            raise invalid_type(f"{step.path('access')}[{index}]", "an integer", entry)
    worker = WorkerId(step.need_text("worker"))
    return Step(
        subtask=step.text("subtask") or "", worker=worker, access=tuple(sorted(set(entries)))
    )


def _stricter_limit(wanted: _N | None, ceiling: _N | None) -> _N | None:
    if wanted is None or ceiling is None:
        return ceiling if wanted is None else wanted
    return min(wanted, ceiling)


_EMPTY_VALUES: tuple[Any, ...] = (None, False, 0, [], {})


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedCall:
    """A question, who shall answer it, and how the answer is wanted."""

    model: str
    """The served model's name."""
    question: Question
    stream: bool = False
    include_usage: bool = False
    """Whether a stream ends with its usage, where the dialect leaves that to the caller."""
    store: bool = True
    """Whether run and answer may be kept."""
    options: RunOptions = NO_OPTIONS
    embeds: bool = False
    """Whether vectors are wanted and no answer."""
    session: str = ""
    """The client's own name of the session; empty: it says none."""
    labels: RequestLabels = NO_LABELS
    """What the request says of itself, to be found by."""
    previous: str = ""
    """The id of the response that it continues from; empty: none."""
    ignored: tuple[str, ...] = ()
    """Top-level fields that nobody here knows."""
    server_tools: tuple[RequestedTool, ...] = ()
    """The server's tools that the models may call."""
    files: tuple[str, ...] = ()
    """The ids of the uploaded files that it names, which programs may read."""
    earlier_files: tuple[str, ...] = ()
    """Ids of files of earlier turns, the newest first: programs have them as far as they fit."""


MADE_PICTURES = "The pictures that you made:"


def return_made_pictures(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return the conversation with the pictures that models made as a part of what the user says.

    Most providers take pictures from users only. They stand before the user's next words.
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
    """Return what the caller asks of the providers' prompt caches.

    Raises:
        APIError: a value is of the wrong type.
    """
    key, retention = body.text("prompt_cache_key"), body.text("prompt_cache_retention")
    return PromptCache(key=key, retention=retention) if key or retention else None


def check_metadata(body: Fields) -> None:
    """Return if `metadata` holds strings only, else raise.

    Raises:
        APIError: it does not.
    """
    metadata = body.object("metadata")
    for name in metadata.names if metadata else ():
        if not isinstance(metadata.get(name) if metadata else None, str):
            raise invalid_value(f"metadata.{name}", "it must be a string.")


def check_unsupported(body: Fields, reasons: Mapping[str, str]) -> None:
    """Return if the body has no field that is known and cannot be honoured, else raise.

    Args:
        body: the request's.
        reasons: of each such field, why; a value that asks for nothing is let through.

    Raises:
        APIError: it has one.
    """
    for name, reason in reasons.items():
        if body.get(name) not in _EMPTY_VALUES:
            raise unsupported_parameter(name, reason)


SESSION_HEADER = "x-batuta-session"
LONGEST_NAME = 400
"""Characters of a client's own name of a session, at most; a longer one is none."""
MOST_PAIRS = 16
"""Pairs of a request's metadata that are kept."""
_LONGEST_USER_ID = 4000
_IN_USER_ID = "_session_"
"""Before the session in the user ids of older versions of Claude Code."""
_ACCOUNTS = ("account_uuid", "user_id", "device_id")


def client_session(body: Fields) -> str:
    """Return the client's own name of the session; empty: it says none.

    It is the first there is of a header (`http.body`), `prompt_cache_key`, and the session in
    `metadata.user_id`. What cannot be a name is none and no error.
    """
    fields = body.raw
    named = body.session or _short_text(fields.get("prompt_cache_key"))
    return named or _short_text(_read_user_id(_metadata_of(fields).get("user_id"))[1])


def request_labels(body: Fields) -> RequestLabels:
    """Return the end user and the metadata of a request in any dialect.

    What is no text is left out.
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
    """Return the session's id: `ses_` and a digest of tenant and name.

    Args:
        tenant: whose session it is.
        named: the client's own name of it; empty: what the conversation begins with is its name.
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
    """Return what stays the same in a conversation: all up to the user's first words."""
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
    """Return the account and the session in the id of a user: Claude Code writes both into it."""
    if not isinstance(user, str) or len(user) > _LONGEST_USER_ID:
        return "", ""
    if not user.startswith("{"):
        account, found, _ = user.partition(_IN_USER_ID)
        return account, user.rpartition(_IN_USER_ID)[2] if found else ""
    try:
        known = cast("dict[str, Any]", orjson.loads(user))
    except (orjson.JSONDecodeError, UnicodeEncodeError):
        return user, ""
    named = (known.get(name) for name in _ACCOUNTS)
    account = next((name for name in named if isinstance(name, str) and name), "")
    return account, known.get("session_id")


def _short_text(value: object) -> str:
    return value if isinstance(value, str) and len(value) <= LONGEST_NAME else ""
