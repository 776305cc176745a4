"""A case of the corpus: the exchanges in a file, and what every client must be shown of them."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
DIALECTS = ("chat", "responses", "messages")
MODELS = ("worker", "mini", "ultra")
MODES = ("streamed", "whole")


@dataclass(frozen=True, kw_only=True)
class Shown:
    """The values that a client must be shown; None: not checked."""

    text: str | None = None
    reasoning: str | None = None
    """Checked only if one worker is passed through and the dialect shows it."""
    calls: list[dict[str, Any]] | None = None
    """Each with a `name` and the object `arguments`."""
    finish: str | None = None
    """The finish reason in the terms of chat completions."""
    usage: dict[str, int] | None = None
    """`input` and `output`, of the call that answers."""
    cost: str | None = None
    """Dollars of one call of the upstream."""
    cost_at_least: str | None = None
    searches: list[str] | None = None
    """What was searched for; chat completions do not say it."""
    cited: list[str] | None = None
    """The addresses of the pages that the text cites, each once."""
    asked: int | None = None
    """The number of requests to the upstream; checked only if one worker is passed through."""
    error: dict[str, Any] | None = None
    """`status`, `code` and `says`, a piece of the sentence; None: there is an answer."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer of the upstream in one turn of the conversation."""

    status: int = 200
    reason: str = "OK"
    content_type: str = ""
    """Empty: the default one."""
    headers: dict[str, str] = field(default_factory=dict)
    body: str = ""
    """The text of both kinds of answer, streamed or not."""
    stream: str = ""
    """The text of a streamed answer, raw server-sent events; empty: `body`."""
    whole: str = ""
    """The text of an answer that is not streamed; empty: `body`."""
    cut: bool = False
    """The connection is broken after the last byte, in the middle of the body."""

    def text(self, *, streamed: bool) -> str:
        return (self.stream if streamed else self.whole) or self.body


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A refusal of the upstream, in any turn."""

    when: str
    """A path in the body that is sent."""
    equals: Any = None
    """Refused only with this value; None: with any."""
    status: int = 400
    body: str = ""


@dataclass(frozen=True, kw_only=True)
class Sent:
    """The fields that the upstream must and must not be sent, by path in the JSON body."""

    has: dict[str, Any] = field(default_factory=dict)
    lacks: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One request of the client and what comes of it."""

    answer: Answer
    results: list[dict[str, Any]] = field(default_factory=list)
    """The results of the previous turn's calls, in the order in which the client gives them, each
    with the number of its `call` and its `content`."""
    sent: Sent = Sent()
    shown: dict[str, Any] = field(default_factory=dict)

    def shown_to(self, *places: str) -> Shown:
        """Return what a client at those places (dialect, model, mode) must be shown."""
        merged = {k: v for k, v in self.shown.items() if k in NAMES_OF_SHOWN}
        for place in (*places, "-".join(places[:2]), "-".join(places)):
            merged |= self.shown.get(place, {})
        return Shown(**merged)


NAMES_OF_SHOWN = {each.name for each in fields(Shown)}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A file of the corpus."""

    name: str
    about: str
    turns: list[Turn]
    provider: str = "compatible"
    """A name of `batuta.clients.providers.PROVIDERS`."""
    model: str = "some-model"
    text: str = "What is the weather in Rome?"
    tools: list[str] = field(default_factory=list)
    """Names of functions that are offered, each with a `city`."""
    fields: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Further fields of the client's bodies, by dialect."""
    worker: dict[str, Any] = field(default_factory=dict)
    """Further fields of the worker's `WorkerSpec`."""
    searches: bool = False
    """True if the provider searches the web by itself, for one cent a search."""
    refusals: list[Refusal] = field(default_factory=list)
    only: list[str] = field(default_factory=list)
    """Dialects, models and modes that the case is run for; empty: all."""
    bend: bool = True
    """True if the fuzzer starts from it."""

    def places(self) -> list[tuple[str, str, str]]:
        """The dialect, the model and the mode of every exchange that is tried."""

        def chosen(names: tuple[str, ...]) -> list[str]:
            return [n for n in names if n in self.only] or list(names)

        return [
            (dialect, model, mode)
            for dialect in chosen(DIALECTS)
            for model in chosen(MODELS)
            for mode in chosen(MODES)
            if self.turns[0].answer.text(streamed=mode == "streamed")
        ]


def read_case(path: Path) -> Case:
    """The case of a file; what the file misspells is an error."""
    told = tomllib.loads(path.read_text(encoding="utf-8"))
    turns = [
        Turn(
            answer=Answer(**turn.pop("answer")),
            sent=Sent(**turn.pop("sent", {})),
            **turn,
        )
        for turn in told.pop("turns")
    ]
    refusals = [Refusal(**each) for each in told.pop("refusals", ())]
    case = Case(name=path.stem, turns=turns, refusals=refusals, **told)
    for turn in turns:
        for place in case.places():
            turn.shown_to(*place)
        for name, value in turn.shown.items():
            known = NAMES_OF_SHOWN | {*DIALECTS, *MODELS, *MODES}
            assert name in known or (isinstance(value, dict) and "-" in name), name
    return case


CASES = [read_case(path) for path in sorted(FOLDER.glob("*.toml"))]
