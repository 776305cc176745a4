"""The state of a session between its requests, and the present turn of its conversation. Pure.

A session has threads: an agent and the agents that it starts share its name, and each of them has a
conversation of its own. A thread is known by the user's first words. The state has no words of
anybody, and its size does not grow with the session.

Nothing of a turn is read for what it tells to do. Of tools' results it is looked at whether they
say that they failed and whether they are the same; of the worker's text nothing; and words count
only where the user speaks. The work is bounded: the newest actions are looked at, and the
ends of results.
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
"""Actions of a turn that are looked at, the newest."""
_END = 300
"""Characters at the beginning and at the end of a result that are looked at."""
_PICTURES = "What the tool call "
"""The beginning of a message in which the pictures of a tool's result stand."""
_OPENING, _CLOSING = "<system-reminder>", "</system-reminder>"
_FRAME = re.compile(r"\AChunk ID: \w{1,40}\nWall time: [0-9.]{1,20} seconds\n")
"""Codex's own lines before each result, which differ where the results do not."""
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
    """It holds the calls of tools that a worker made at once, and what came back."""

    calls: tuple[ToolCall, ...]
    results: tuple[ToolResult, ...]

    @property
    def failures(self) -> tuple[str, ...]:
        """A key of each result that failed; the same failure of the same tool has the same key."""
        ends = [(one.call_id, _crop_ends(one.content)) for one in self.results]
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
        """A key that two actions have in common if they did the same and the same came back."""
        calls = [f"{call.name} {call.arguments}" for call in self.calls]
        return _digest_texts(*calls, *(_crop_ends(result.content) for result in self.results))


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The user's words, and the newest actions that followed them."""

    words: str
    actions: tuple[Action, ...]
    """The newest ones, the last one last."""
    is_fresh: bool
    """True if the user has just spoken, and nothing was said after it."""
    key: str
    """A digest that tells the turn from those before it, also where the words are alike.

    It is the same for every request of the turn, and if a request is sent again."""
    thread_key: str
    """A digest of the user's first words, which stay as the conversation grows."""
    tools: str = ""
    """A digest of the names of the client's tools."""
    continues: bool = False
    """Whether the user's first words are those with which a client goes on after a compaction."""

    @property
    def says_to_go_on(self) -> bool:
        """Return True if the user's words set no new task."""
        words = self.words
        return len(words) <= _LONGEST_GO_ON and _plain_words(words) in _GO_ON

    @property
    def new_results(self) -> int:
        """The number of results that this request brings."""
        return len(self.actions[-1].results) if self.actions and not self.is_fresh else 0

    @property
    def failures(self) -> Counter[str]:
        """How often each failure has happened."""
        return Counter(key for action in self.actions for key in action.failures)


def read_turn(question: Question) -> Turn:
    """Read the newest turn of the conversation."""
    first, words, begins, times = "", "", -1, 0
    for index, message in enumerate(question.messages):
        if user_text := user_words(message):
            first, words, begins, times = first or user_text, user_text, index, times + 1
    after = question.messages[begins + 1 :]
    return Turn(
        words=words,
        actions=tuple(_read_actions(after)),
        is_fresh=all(message.role is not Role.ASSISTANT for message in after),
        key=_digest_texts(words, str(times)),
        thread_key=_digest_texts(first),
        tools=_digest_texts(*sorted(tool.name for tool in question.tools)),
        continues=first.startswith(_CONTINUED),
    )


def user_words(message: Message) -> str:
    """Return what the user says in the message: nothing of what an agent or a tool adds to it."""
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
    """Return the newest actions in these messages, the last one last."""
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
    """Tell whether a tool's result says of itself that it failed."""
    if _BEGINS_FAILED.match(text):
        return True
    return _EXIT in text.casefold() and _EXITED.search(text) is not None


def _crop_ends(text: str) -> str:
    text = _FRAME.sub("", text, count=1)
    return text if len(text) <= 2 * _END else f"{text[:_END]}\n{text[-_END:]}"


def _without_numbers(text: str) -> str:
    """Return the text with each number as one sign, as lines and times differ between failures."""
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
    """The constants by which sessions are conducted."""

    tool_classes: ToolClasses = ToolClasses()
    """They say what the clients' tools do."""
    worth_usd: Decimal = Decimal(1)
    """Dollars that a solved task is worth."""
    margin_usd: Decimal = Decimal("0.01")
    """Dollars that a switch of workers must gain beyond what it costs."""
    warm_seconds: float = 300.0
    """Seconds for which a provider keeps the prompt that a worker has read."""
    failures: int = 2
    """Failures of tools within a task after which `escalate` hands over."""
    stall_actions: int = 25
    """Actions in a row without a change after which a task has stalled."""
    consultations: int = 5
    """How often a session's second model is asked, to plan, advise or judge, at most."""
    max_cost_usd: Decimal | None = None
    """Dollars that a session may cost; None: any."""
    max_turns: int | None = None
    """Turns that a session may have; None: any number."""
    shadow_share: float = 0.0
    """The share of answers for which the best single worker is asked too, to be compared."""
    shadow_usd_per_day: Decimal = Decimal(1)
    """Dollars that comparing may cost in a day (UTC), over all replicas."""
    unknown: Price = ASSUMED_PRICE
    """The price of a worker that has none."""


DEFAULT_RULES = SessionRules()


MOST_THREADS = 8
"""Threads of a session that are remembered; the one that was quiet the longest goes first."""
MOST_WARM = 8
"""Workers of a thread whose prompts are remembered."""
MOST_FAILURES = 8
"""Different failures of a task that are remembered apart; the rest are counted together."""


@dataclass(frozen=True, slots=True)
class WarmPrefix:
    """A prompt that a worker has read, and that its provider may have in its cache."""

    tokens: int
    """About how many tokens it had."""
    at: float
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionThread:
    """One conversation of a session."""

    acting: WorkerId | None = None
    """The worker whose tool calls reach the client; None: nobody has acted yet."""
    turn: str = ""
    """A digest of the user's words that began the present turn."""
    tokens: int = 0
    """About how many tokens the newest request had."""
    waits: bool = False
    """Whether the newest answer called tools, so that the task goes on."""
    failures: Mapping[str, int] = field(default_factory=dict[str, int])
    """How often each failure has happened in the present task, by its digest."""
    forgotten: Mapping[str, int] = field(default_factory=dict[str, int])
    """How often each happened in what a compaction took out of the conversation."""
    compacted: bool = False
    """Whether a summary of the conversation was asked for, and the task goes on with it."""
    tools: str = ""
    """A digest of the names of its tools; empty: a version before this one wrote the thread."""
    warm: Mapping[WorkerId, WarmPrefix] = field(default_factory=dict[WorkerId, WarmPrefix])

    def in_turn(self, turn: Turn) -> SessionThread:
        """Return the thread at a request of the conversation as it stands, in that turn."""
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
        """Return the thread at the first request after a compaction: the task goes on."""
        same = replace(self, turn=turn.key, tools=turn.tools, forgotten=self.failures)
        return same.counting(turn)

    def counting(self, turn: Turn) -> SessionThread:
        """Return the thread with the turn's failures beside the forgotten ones."""
        return replace(self, failures=_add_failures(self.forgotten, turn))

    def with_reader(self, worker: WorkerId, tokens: int, now: float) -> SessionThread:
        """Return the thread after the worker has read its prompt."""
        others = {one: warm for one, warm in self.warm.items() if one != worker}
        while len(others) >= MOST_WARM:
            del others[min(others, key=lambda one: others[one].at)]
        return replace(self, warm={**others, worker: WarmPrefix(tokens, now)})


NEW_THREAD = SessionThread()


def _add_failures(forgotten: Mapping[str, int], turn: Turn) -> dict[str, int]:
    """Return how often each failure has happened, with those of the turn that are shown."""
    shown = {key.rpartition(" ")[2]: count for key, count in turn.failures.items()}
    if not (forgotten or shown):
        return {}
    counts = Counter(forgotten) + Counter(shown)
    told_apart = Counter({key: count for key, count in counts.items() if key})
    kept = dict(told_apart.most_common(MOST_FAILURES))
    if rest := counts.total() - sum(kept.values()):
        kept[""] = rest
    return kept


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEntry:
    """A request adds this to its session."""

    thread: str
    """The thread that it belongs to, as its key; empty: none is kept of it."""
    after: SessionThread
    """That thread after it."""
    replaces: str = ""
    """The key of the thread that goes on under this one, compacted; empty: of none."""
    cost: Cost = ZERO_COST
    counted: Decimal = Decimal(0)
    """Dollars that limits count beside the cost, for calls that were cut off or have no price."""
    run: str = ""
    """The id of its run, which holds no dollars any more."""
    consultations: int = 0
    """How often a second model was asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionState:
    """A session as far as it has come."""

    cost: Cost = ZERO_COST
    """The ledger: what its requests have cost."""
    counted: Decimal = Decimal(0)
    """Dollars that limits count beside it."""
    holds: Mapping[str, Decimal] = field(default_factory=dict[str, Decimal])
    """Dollars that its runs hold which have not ended, by their ids. Of a run whose server died
    nobody knows more."""
    turns: int = 0
    consultations: int = 0
    threads: Mapping[str, SessionThread] = field(default_factory=dict[str, SessionThread])
    """Its threads by their keys, the one that was quiet the longest first."""

    def with_entry(self, entry: SessionEntry) -> SessionState:
        """Return the session after a request.

        Law: what entries add to the ledger does not depend on their order.
        """
        known = self.threads.get(entry.thread)
        is_new = known is None or known.turn != entry.after.turn
        is_turn = bool(entry.thread) and is_new and not entry.replaces
        gone = {entry.thread, entry.replaces}
        threads = {key: each for key, each in self.threads.items() if key not in gone}
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
        """Return the key of the thread that goes on with the turn after a compaction; or empty.

        The summary stands in the place of the user's first words or behind them. An agent that
        begins meanwhile has other tools than the one that started it.
        """
        if (own := self.threads.get(turn.thread_key)) is not None:
            return turn.thread_key if own.compacted and turn.is_fresh else ""
        for key, thread in reversed([*self.threads.items()]):
            if thread.compacted and (turn.continues or thread.tools in {"", turn.tools}):
                return key
        return ""

    def left_usd(self, most: Decimal | None, run: str = "") -> Decimal | None:
        """Return the dollars that are left of a limit for a run; None: there is no limit."""
        if most is None:
            return None
        held = sum((usd for other, usd in self.holds.items() if other != run), Decimal(0))
        return max(Decimal(0), most - self.cost.usd - self.counted - held)

    def with_hold(self, run: str, usd: Decimal) -> SessionState:
        """Return the session in which the run holds so much."""
        return replace(self, holds={**self.holds, run: usd})


NEW_SESSION = SessionState()
