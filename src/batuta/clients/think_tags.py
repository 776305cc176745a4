"""Separates reasoning that a model writes into its answer between `<think>` and `</think>`.

Servers without a reasoning parser return such reasoning as text. A worker's setting turns this on;
it is off by default, as an answer may be about these tags.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, final

from batuta.core import CallListener, Client, Delta, Reply, Request, Worker
from batuta.core.conductor import NULL_LISTENER
from batuta.core.run import Failure

ThinkTags = Literal["off", "tagged", "open"]
"""`off`: tags are not looked for; `tagged`: an answer may begin with `<think>`; `open`: an answer
begins inside the tag, because the chat template ends with `<think>`."""
_OPEN, _CLOSE = "<think>", "</think>"


@final
class ThinkTagSplitter:
    """Splits one answer into reasoning and text, piece by piece."""

    def __init__(self, tags: ThinkTags) -> None:
        self._state: Literal["start", "thinking", "answer_start", "answer"] = (
            "thinking" if tags == "open" else "start"
        )
        self._held = ""
        self._blanks: list[str] = []
        """Blank pieces at the answer's beginning, held until more text is received."""

    def feed(self, text: str) -> tuple[str, str]:
        """Add text; return the new reasoning and the new answer text that are certain."""
        if self._waits_in_blanks(text):
            self._blanks.append(text)
            return "", ""
        self._take_blanks()
        self._held += text
        thought = ""
        if self._state == "start":
            self._look_for_opening()
        if self._state == "thinking":
            thought = self._take_thought()
        return thought, self._take_answer()

    def flush(self) -> tuple[str, str]:
        """Return the held reasoning and answer text; call it after the last piece."""
        self._take_blanks()
        held, self._held = self._held, ""
        if self._state == "thinking":
            return held, ""
        return "", held.lstrip() if self._state == "answer_start" else held

    def _waits_in_blanks(self, text: str) -> bool:
        return (
            self._state in {"start", "answer_start"} and not self._held.strip() and text.isspace()
        )

    def _take_blanks(self) -> None:
        if self._blanks:
            self._held, self._blanks = self._held + "".join(self._blanks), []

    def _look_for_opening(self) -> None:
        begun = self._held.lstrip()
        if begun.startswith(_OPEN):
            self._state, self._held = "thinking", begun[len(_OPEN) :]
        elif not _OPEN.startswith(begun):
            self._state = "answer"

    def _take_thought(self) -> str:
        thought, closed, rest = self._held.partition(_CLOSE)
        if closed:
            self._state, self._held = "answer_start", rest
            return thought
        # The held text may end with the beginning of the tag.
        kept = next(n for n in range(len(_CLOSE) - 1, -1, -1) if self._held.endswith(_CLOSE[:n]))
        at = len(self._held) - kept
        thought, self._held = self._held[:at], self._held[at:]
        return thought

    def _take_answer(self) -> str:
        if self._state == "answer_start" and self._held.strip():
            self._state, self._held = "answer", self._held.lstrip()
        if self._state != "answer":
            return ""
        answer, self._held = self._held, ""
        return answer


def split_reply(reply: Reply, tags: ThinkTags) -> Reply:
    """Separate reasoning from text in a reply and its alternatives."""
    splitter = ThinkTagSplitter(tags)
    (thought, text), (thought_end, text_end) = splitter.feed(reply.text), splitter.flush()
    others = tuple(split_reply(other, tags) for other in reply.alternatives)
    return replace(
        reply,
        text=text + text_end,
        reasoning=reply.reasoning + thought + thought_end,
        alternatives=others,
    )


@final
class ThinkTagClient:
    """Calls `inner` and separates the reasoning in its answers from their text."""

    def __init__(self, inner: Client, tags: ThinkTags) -> None:
        self.inner = inner
        self._tags: ThinkTags = tags

    def __repr__(self) -> str:
        return repr(self.inner)

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        """Return `inner`'s reply, with reasoning separated from text."""
        splitting = _SplittingListener(listener, self._tags)
        reply = await self.inner.complete(request, splitting)
        await splitting.flush()
        return split_reply(reply, self._tags)


@final
class _SplittingListener:
    """Passes the deltas of an answer to a listener, with reasoning and text separated."""

    def __init__(self, listener: CallListener, tags: ThinkTags) -> None:
        self._listener = listener
        self._tags: ThinkTags = tags
        self._splitters: dict[int, ThinkTagSplitter] = {}
        self.streaming = listener.streaming

    async def before_call(self, request: Request, worker: Worker) -> Request:
        return await self._listener.before_call(request, worker)

    async def on_failure(self, failure: Failure) -> None:
        """Discard the held text of the attempt, and pass the failure to the listener."""
        self._splitters.clear()
        await self._listener.on_failure(failure)

    async def on_delta(self, delta: Delta) -> None:
        """Pass on the reasoning and text that are certain."""
        if not delta.text or delta.is_refusal:
            await self._listener.on_delta(delta)
            return
        splitter = self._splitters.setdefault(delta.choice, ThinkTagSplitter(self._tags))
        await self._send(delta, *splitter.feed(delta.text))

    async def flush(self) -> None:
        """Pass on the held text after the last delta."""
        for choice, splitter in self._splitters.items():
            await self._send(Delta(choice=choice), *splitter.flush())

    async def _send(self, delta: Delta, thought: str, text: str) -> None:
        if thought:
            await self._listener.on_delta(Delta(reasoning=thought, choice=delta.choice))
        if text or delta.reasoning:
            await self._listener.on_delta(replace(delta, text=text))
