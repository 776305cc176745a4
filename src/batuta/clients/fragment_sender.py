"""Fragments of a streamed reply on their way to a listener, those that came at once as one.

Half of a surrogate pair waits for its other half.
"""

from __future__ import annotations

from dataclasses import replace
from typing import final

from batuta.clients.decoding import join_halves, join_thought
from batuta.core import CallListener, Delta

_FIRST_HALVES = ("\ud800", "\udbff")


@final
class HalfJoiner:
    """Joins halves in the fragments of one stream; holds a first half until the second comes."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, int, int | None], str] = {}

    def join(self, delta: Delta) -> Delta:
        """Return the fragment with the half that waited for it, without one that must wait."""
        if not self._waiting and _is_ascii(delta):
            return delta
        place = (delta.choice, delta.tool_index)
        return replace(
            delta,
            text=self._joined(delta.text, ("text", *place)),
            reasoning=self._joined(delta.reasoning, ("reasoning", *place)),
            tool_arguments=self._joined(delta.tool_arguments, ("arguments", *place)),
            tool_id=join_halves(delta.tool_id),
            tool_name=join_halves(delta.tool_name),
            thought=delta.thought and join_thought(delta.thought),
        )

    def _joined(self, text: str, place: tuple[str, int, int | None]) -> str:
        if not text:
            return text
        text = self._waiting.pop(place, "") + text
        if _FIRST_HALVES[0] <= text[-1] <= _FIRST_HALVES[1]:
            self._waiting[place] = text[-1]
            text = text[:-1]
        return join_halves(text)


@final
class FragmentSender:
    """Tells a listener the fragments of a stream.

    Words that came from the upstream at once are told as one fragment: each costs the same to pass
    on, however short it is, and nobody could have read one before the next.
    """

    __slots__ = ("_halves", "_held", "_listener", "_pieces")

    def __init__(self, listener: CallListener) -> None:
        self._listener = listener
        self._halves = HalfJoiner()
        self._held: Delta | None = None
        """The first of the fragments that are not told yet."""
        self._pieces: list[str] = []
        """The words of those after it."""

    async def add(self, delta: Delta) -> None:
        """Tell the fragment, or keep it until `send_held` if it is nothing but words."""
        held, is_words = self._held, _is_words(delta)
        if held is not None:
            if is_words and _is_same_kind(held, delta):
                self._pieces.append(delta.text or delta.reasoning)
                return
            await self.send_held()
        if is_words:
            self._held = delta
        else:
            await self._listener.on_delta(self._halves.join(delta))

    async def send_held(self) -> None:
        """Tell what was kept."""
        held, pieces = self._held, self._pieces
        if held is None:
            return
        self._held = None
        if pieces:
            self._pieces = []
            rest = "".join(pieces)
            texts = (
                {"text": held.text + rest} if held.text else {"reasoning": held.reasoning + rest}
            )
            held = replace(held, **texts)
        await self._listener.on_delta(self._halves.join(held))


def _is_words(delta: Delta) -> bool:
    """Tell whether the fragment is a piece of the text, or one of the reasoning, and no more."""
    if bool(delta.text) is bool(delta.reasoning) or delta.tool_index is not None or delta.logprobs:
        return False
    return delta.thought is None and delta.server_call is None


def _is_same_kind(one: Delta, other: Delta) -> bool:
    """Tell whether both are pieces of the same text."""
    return (
        bool(one.text) is bool(other.text)
        and one.choice == other.choice
        and one.is_refusal is other.is_refusal
    )


def _is_ascii(delta: Delta) -> bool:
    texts = (delta.text, delta.reasoning, delta.tool_arguments, delta.tool_id, delta.tool_name)
    return delta.thought is None and all(map(str.isascii, texts))
