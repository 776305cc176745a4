"""What providers send, decoded: server-sent events, and JSON whose values may be of any type.

Events are parsed incrementally: bytes in, events out (WHATWG HTML, section 9.2.6).
"""

from __future__ import annotations

from typing import Any, final

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

SseEvent = tuple[str, bytes]
"""The event's name (empty if it has none) and its data, lines joined by a line feed."""


@final
class SseParser:
    """Parses one stream; chunks may be cut anywhere, lines may end in LF, CR LF or CR.

    Comments, `id` and `retry` are dropped, as is an event that the end of the stream cut off.
    """

    __slots__ = ("_cr", "_data", "_first", "_name", "_rest")

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._data: list[bytes] = []
        self._name = ""
        self._cr = False
        self._first = True

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """The events that `chunk` completes."""
        chunk = self._unify(chunk)
        cut = chunk.rfind(b"\n")
        if cut < 0:
            # Pieces are joined only once a line ends: a long line stays linear in time.
            self._rest.append(chunk)
            return []
        block = b"".join((*self._rest, chunk[:cut]))
        self._rest = [chunk[cut + 1 :]]
        lines = block.split(b"\n")
        if self._first:
            self._first = False
            lines[0] = lines[0].removeprefix(_BYTE_ORDER_MARK)
        return self._read(lines)

    def _unify(self, chunk: bytes) -> bytes:
        """`chunk` with every line end as one LF."""
        if self._cr and chunk:
            self._cr = False
            chunk = chunk.removeprefix(b"\n")
        if b"\r" in chunk:
            self._cr = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return chunk

    def _read(self, lines: list[bytes]) -> list[SseEvent]:
        events: list[SseEvent] = []
        for line in lines:
            if not line:
                if self._data:
                    events.append((self._name, b"\n".join(self._data)))
                    self._data = []
                self._name = ""
            elif line.startswith(b"data: "):
                self._data.append(line[6:])
            else:
                self._field(line)
        return events

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._name = value.decode("utf-8", "replace")


MOST_TOKENS = 100_000_000
"""Tokens of one call at most: ten times the largest window that there is. More is not believed."""


def as_object(value: Any) -> dict[str, Any]:
    """`value` if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}  # pyright: ignore[reportUnknownVariableType] - of JSON


def as_array(value: Any) -> list[Any]:
    """`value` if it is an array, else an empty one."""
    return value if isinstance(value, list) else []  # pyright: ignore[reportUnknownVariableType] - of JSON


def as_string(value: Any) -> str:
    """`value` if it is a string, else an empty one."""
    return value if isinstance(value, str) else ""


def as_count(value: Any) -> int:
    """`value` if it is a number of at least 0 that tokens could have, else 0."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return 0
    return max(int(value), 0) if value == value and abs(value) <= MOST_TOKENS else 0  # noqa: PLR0124 - NaN


def need_string(value: Any) -> str:
    """`value`, which must be a string.

    Raises:
        TypeError: it is none.
    """
    if not isinstance(value, str):
        raise TypeError(f"a string was expected, not {type(value).__name__}")
    return value


def is_wrong_count(value: Any) -> bool:
    """Whether something was told as a number of tokens that cannot be one."""
    return value is not None and (isinstance(value, bool) or as_count(value) != value)
