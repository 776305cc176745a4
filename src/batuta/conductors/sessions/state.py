"""The state of a session between its requests, and the current turn of its conversation. Pure.

A session has threads: an agent and its subagents share the session's name, and each has a separate
conversation. A thread is identified by the user's first message. The state contains no text of the
conversation, and its size is bounded, except for the reservations of runs whose server died.

No text is followed as an instruction. Tool results are checked only for failures and repetitions,
user messages only for whether they set a new task or continue one after a compaction, and the
worker's text is not read. Of the tool calls and results only those of the newest actions are
examined, and of a long result only its beginning and its end.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal

from batuta.core import Message, Question, Role, ToolCall, ToolResult, WorkerId
from batuta.core.tool_classes import ToolClasses
from batuta.usage import ASSUMED_PRICE, ZERO_COST, Cost, Price

MOST_ACTIONS = 100
"""Maximum number of the newest actions of a turn that are examined."""
_END = 300
"""Characters at the beginning and at the end of a result that are examined."""
_PICTURES = "What the tool call "
"""The beginning of a user message that contains the pictures of a tool result."""
_OPENING, _CLOSING = "<system-reminder>", "</system-reminder>"
_FRAME = re.compile(r"\AChunk ID: \w{1,40}\nWall time: [0-9.]{1,20} seconds\n")
"""Lines that Codex puts before each result, which differ even if the results do not."""
_BEGINS_FAILED = re.compile(
    r"\s{0,9}(?:<tool_use_error>|\w{0,40}error:|failed:|traceback \()", re.IGNORECASE
)
_EXIT = "exit"
_EXITED = re.compile(
    rf"\b{_EXIT}(?:ed)?(?: with)?[ _](?:code|status)\"?:?\s{{0,3}}=?\s{{0,3}}[1-9]", re.IGNORECASE
)
_CONTINUED = "This session is being continued from a previous conversation"
"""The beginning of the message in which Claude Code sends a summary."""
_LONGEST_GO_ON = 40
"""Maximum number of characters of a message that only asks to continue."""
_GO_ON = frozenset(
    {
        "carry on", "continue", "continue please", "do it", "go", "go ahead", "go on", "keep going",
        "next", "ok", "okay", "please continue", "please go on", "proceed", "resume", "sure", "y",
        "yes", "yes please", "ja", "weiter", "mach weiter", "oui", "continuez", "si", "s\u00ed",
        "sigue", "contin\u00faa", "continua", "\u7ee7\u7eed", "\u7d9a\u3051\u3066",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Action:
    """The tool calls of one message of a worker, and their results."""

    calls: tuple[ToolCall, ...]
    results: tuple[ToolResult, ...]

    @property
    def failures(self) -> tuple[str, ...]:
        """A key for each failed result; the same failure of the same tool has the same key.

        Failures that differ only in numbers count as the same.
        """
        ends = [(result.call_id, _both_ends(result.content)) for result in self.results]
        failed = [(call_id, text) for call_id, text in ends if _says_failed(text)]
        if not failed:
            return ()
        names = {call.id: call.name for call in self.calls}
        return tuple(
            f"{names.get(call_id, '')} {_digest_texts(_without_numbers(text))}"
            for call_id, text in failed
        )

    @property
    def key(self) -> str:
        """A key, equal for actions with the same calls and the same examined parts of results."""
        calls = [f"{call.name} {call.arguments}" for call in self.calls]
        return _digest_texts(*calls, *(_both_ends(result.content) for result in self.results))


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The newest user message, and the newest actions after it."""

    words: str
    """The user's own text, without additions by an agent or a tool; empty if no message has any."""
    actions: tuple[Action, ...]
    """The newest actions, at most `MOST_ACTIONS`, oldest first."""
    is_fresh: bool
    """True if no assistant message follows the user's message."""
    key: str
    """A digest that identifies the turn, even if an earlier user message had the same text. It is
    the same for all requests of the turn, including retries, up to a compaction."""
    thread_key: str
    """A digest of the user's first message, which stays as the conversation grows."""
    tools: str = ""
    """A digest of the names of the client's tools."""
    continues: bool = False
    """Whether the user's first message is a summary with which a client continues the task after a
    compaction."""

    @property
    def says_to_go_on(self) -> bool:
        """True if the user's message only asks to continue, and sets no new task."""
        words = self.words
        return len(words) <= _LONGEST_GO_ON and _plain_words(words) in _GO_ON

    @property
    def new_results(self) -> int:
        """The number of tool results that are new in this request."""
        return len(self.actions[-1].results) if self.actions and not self.is_fresh else 0

    @property
    def failures(self) -> Counter[str]:
        """Number of times that each failure occurred in `actions`, by the keys of the failures."""
        return Counter(key for action in self.actions for key in action.failures)


def read_turn(question: Question) -> Turn:
    """Return the newest turn of the conversation."""
    first, words, begin, count = "", "", -1, 0
    for index, message in enumerate(question.messages):
        if user_text := user_words(message):
            first, words, begin, count = first or user_text, user_text, index, count + 1
    after = question.messages[begin + 1 :]
    return Turn(
        words=words,
        actions=tuple(_read_actions(after)),
        is_fresh=all(message.role is not Role.ASSISTANT for message in after),
        key=_digest_texts(words, str(count)),
        thread_key=_digest_texts(first),
        tools=_digest_texts(*sorted(tool.name for tool in question.tools)),
        continues=first.startswith(_CONTINUED),
    )


def user_words(message: Message) -> str:
    """Return the user's own text in the message, without additions by an agent or a tool.

    Return an empty text if the message is not the user's, or contains a tool result's pictures.
    """
    if message.role is not Role.USER or not message.text:
        return ""
    if message.attachments and message.text.startswith(_PICTURES):
        return ""
    return "".join(_outside_reminders(message.text)).strip()


def _outside_reminders(text: str) -> Iterator[str]:
    at = 0
    while (begin := text.find(_OPENING, at)) >= 0:
        end = text.find(_CLOSING, begin)
        if end < 0:
            break
        yield text[at:begin]
        at = end + len(_CLOSING)
    yield text[at:]


def _read_actions(messages: Sequence[Message]) -> list[Action]:
    """Return the newest actions in these messages, at most `MOST_ACTIONS`, oldest first."""
    actions: list[Action] = []
    results: list[ToolResult] = []
    for message in reversed(messages):
        if message.role is not Role.ASSISTANT:
            results += [part for part in message.parts if isinstance(part, ToolResult)]
            continue
        calls = tuple(part for part in message.parts if isinstance(part, ToolCall))
        if calls:
            actions.append(Action(calls, tuple(reversed(results))))
        results = []
        if len(actions) == MOST_ACTIONS:
            break
    return actions[::-1]


def _says_failed(text: str) -> bool:
    if _BEGINS_FAILED.match(text):
        return True
    return _EXIT in text.casefold() and _EXITED.search(text) is not None


def _both_ends(text: str) -> str:
    """Return a result without Codex's first lines; of a long one, the beginning and the end."""
    text = _FRAME.sub("", text, count=1)
    return text if len(text) <= 2 * _END else f"{text[:_END]}\n{text[-_END:]}"


def _without_numbers(text: str) -> str:
    """Return the text with numbers masked, since line numbers and times differ between failures."""
    return re.sub(r"[0-9]+", "#", text)


def _plain_words(text: str) -> str:
    return " ".join("".join(c if c.isalpha() else " " for c in text).casefold().split())


def _digest_texts(*texts: str) -> str:
    whole = hashlib.sha256()
    for text in texts:
        whole.update(f"{len(text)} {text}".encode("utf-8", "replace"))
    return whole.hexdigest()[:24]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRules:
    """The constants for conducting sessions."""

    tool_classes: ToolClasses = ToolClasses()
    """Classifies the clients' tools."""
    worth_usd: Decimal = Decimal(1)
    """The value of a solved task, in dollars."""
    margin_usd: Decimal = Decimal("0.01")
    """Dollars that a switch of workers must gain beyond its cost."""
    warm_seconds: float = 300.0
    """Seconds for which a provider caches a prompt."""
    failures: int = 2
    """Number of tool failures within a turn after which `escalate` hands over."""
    stall_actions: int = 25
    """Number of actions in a row without a change after which a task has stalled."""
    consultations: int = 5
    """Maximum number of calls of a session's second model, to plan, advise or judge."""
    max_cost_usd: Decimal | None = None
    """Maximum dollars that a session may cost; None: no limit."""
    max_turns: int | None = None
    """Maximum number of turns of a session; None: no limit."""
    shadow_share: float = 0.0
    """The share of answers for which the best single worker is also asked, for comparison."""
    shadow_usd_per_day: Decimal = Decimal(1)
    """Maximum dollars for comparisons per day (UTC), over all replicas."""
    unknown: Price = ASSUMED_PRICE
    """The price assumed for a worker whose own price is unknown."""


DEFAULT_RULES = SessionRules()


MOST_THREADS = 8
"""Maximum number of threads kept of a session; the least recently used thread is dropped first."""
MOST_WARM = 8
"""Maximum number of workers whose cached prompts a thread tracks."""
MOST_FAILURES = 8
"""Maximum number of distinct failures of a turn that are counted separately; the others share one
count."""


@dataclass(frozen=True, slots=True)
class WarmPrefix:
    """A prompt that was sent to a worker and that its provider may still cache."""

    tokens: int
    """Estimated tokens."""
    at: float
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionThread:
    """One conversation of a session."""

    acting: WorkerId | None = None
    """The worker whose tool calls reach the client; None: no worker has acted yet."""
    turn: str = ""
    """The key of the current turn; empty: no turn has begun."""
    tokens: int = 0
    """Estimated tokens of the newest request; 0: none was measured."""
    waits: bool = False
    """Whether the newest answer called tools, so that the task continues."""
    failures: Mapping[str, int] = field(default_factory=dict[str, int])
    """Counts of failures in the current turn, by digest, including `forgotten`; an empty digest
    counts those beyond `MOST_FAILURES`, the rarest, together."""
    forgotten: Mapping[str, int] = field(default_factory=dict[str, int])
    """The same counts for the part of the conversation that a compaction removed."""
    compacted: bool = False
    """Whether the client asked for a summary, with which it will continue the task."""
    tools: str = ""
    """A digest of the names of the client's tools; empty if an older version wrote the thread."""
    warm: Mapping[WorkerId, WarmPrefix] = field(default_factory=dict[WorkerId, WarmPrefix])
    """The newest prompt that was sent to each worker, for at most `MOST_WARM` workers."""

    def in_turn(self, turn: Turn) -> SessionThread:
        """Return the thread at a request of that turn if no compaction preceded the request."""
        forgotten = self.forgotten if self.turn == turn.key else dict[str, int]()
        return replace(
            self,
            turn=turn.key,
            tools=turn.tools,
            compacted=False,
            forgotten=forgotten,
            failures=_add_failures(forgotten, turn),
        )

    def after_summary(self, turn: Turn) -> SessionThread:
        """Return the thread at the first request after a compaction, which continues the task."""
        same = replace(self, turn=turn.key, tools=turn.tools, forgotten=self.failures)
        return same.with_failures(turn)

    def with_failures(self, turn: Turn) -> SessionThread:
        """Return the thread with the failures counted anew: the forgotten ones and the turn's."""
        return replace(self, failures=_add_failures(self.forgotten, turn))

    def with_prompt(self, worker: WorkerId, tokens: int, now: float) -> SessionThread:
        """Return the thread after a prompt of about `tokens` tokens was sent to the worker.

        `now` is in seconds since the epoch. Of too many workers, those whose prompts are oldest are
        left out.
        """
        others = {id_: warm for id_, warm in self.warm.items() if id_ != worker}
        while len(others) >= MOST_WARM:
            del others[min(others, key=lambda id_: others[id_].at)]
        return replace(self, warm={**others, worker: WarmPrefix(tokens, now)})


NEW_THREAD = SessionThread()


def _add_failures(forgotten: Mapping[str, int], turn: Turn) -> dict[str, int]:
    """Return the counts of failures: the forgotten ones and those of the turn's actions.

    The most frequent ones are counted by digest, the others together under an empty digest.
    """
    shown = Counter[str]()
    for key, count in turn.failures.items():
        shown[key.rpartition(" ")[2]] += count  # two tools may have failed in the same words
    if not (forgotten or shown):
        return {}
    counts = Counter(forgotten) + shown
    distinct = Counter({key: count for key, count in counts.items() if key})
    kept = dict(distinct.most_common(MOST_FAILURES))
    if others := counts.total() - sum(kept.values()):
        kept[""] = others
    return kept


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEntry:
    """The changes that a finished request makes to its session."""

    thread: str
    """The key of the request's thread; empty if no thread is kept."""
    after: SessionThread
    """The thread after the request."""
    replaces: str = ""
    """The key of the compacted thread that this thread continues; empty: none."""
    cost: Cost = ZERO_COST
    counted: Decimal = Decimal(0)
    """Dollars that limits count in addition, for calls that were cancelled or have no price."""
    run: str = ""
    """The id of the request's run, whose reserved dollars are released."""
    consultations: int = 0
    """Number of calls of a second model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionState:
    """The stored state of a session."""

    cost: Cost = ZERO_COST
    """The cost of the session's finished requests."""
    counted: Decimal = Decimal(0)
    """Dollars that limits count in addition to the cost."""
    holds: Mapping[str, Decimal] = field(default_factory=dict[str, Decimal])
    """Dollars reserved by unfinished runs, by run id. The reservation of a run whose server died
    stays, since its cost is unknown."""
    turns: int = 0
    """Number of turns, over all threads; a turn of a thread that was dropped may count again."""
    consultations: int = 0
    """Number of calls of a second model."""
    threads: Mapping[str, SessionThread] = field(default_factory=dict[str, SessionThread])
    """The session's threads by key, the least recently used one first."""

    def with_entry(self, entry: SessionEntry) -> SessionState:
        """Return the session after a request.

        Law: `cost`, `counted` and `consultations` do not depend on the order of the entries.
        """
        known = self.threads.get(entry.thread)
        is_new = known is None or known.turn != entry.after.turn
        is_turn = bool(entry.thread) and is_new and not entry.replaces
        replaced = {entry.thread, entry.replaces}
        threads = {key: each for key, each in self.threads.items() if key not in replaced}
        if entry.thread:
            threads[entry.thread] = entry.after
        while len(threads) > MOST_THREADS:
            del threads[next(iter(threads))]
        return SessionState(
            cost=self.cost + entry.cost,
            counted=self.counted + entry.counted,
            holds={run: usd for run, usd in self.holds.items() if run != entry.run},
            turns=self.turns + is_turn,
            consultations=self.consultations + entry.consultations,
            threads=threads,
        )

    def find_compacted(self, turn: Turn) -> str:
        """Return the key of the compacted thread that the turn continues; empty if there is none.

        The summary replaces the user's first message or follows it. A subagent that starts in
        between has other tools than the agent that started it.
        """
        if (own := self.threads.get(turn.thread_key)) is not None:
            return turn.thread_key if own.compacted and turn.is_fresh else ""
        for key, thread in reversed([*self.threads.items()]):
            if thread.compacted and (turn.continues or thread.tools in {"", turn.tools}):
                return key
        return ""

    def left_usd(self, most: Decimal | None, run: str = "") -> Decimal | None:
        """Return the dollars that are left of the limit `most`, at least 0; None: no limit.

        All reservations count as spent, except the reservation of `run`.
        """
        if most is None:
            return None
        reserved = sum((usd for other, usd in self.holds.items() if other != run), Decimal(0))
        return max(Decimal(0), most - self.cost.usd - self.counted - reserved)

    def with_hold(self, run: str, usd: Decimal) -> SessionState:
        """Return the session with the run's reservation set to `usd` dollars."""
        return replace(self, holds={**self.holds, run: usd})


NEW_SESSION = SessionState()
