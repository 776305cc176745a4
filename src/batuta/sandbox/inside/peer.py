"""One end of the pipes between a program and its tests: requests, answers, handles.

Both ends are the same but for what they let the other do, which is for `Program` (in `answering`)
and `TestsPeer` (in `asking`) to say. The program's end may be in the program's hands, with all
that it writes; what reaches the tests are plain values and handles, whatever it writes.
"""

# Values of any type: what is known of them is found out as the program runs.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnnecessaryIsInstance=false, reportUnknownParameterType=false

from __future__ import annotations

import io
import json
import os
import struct
import sys
from contextlib import redirect_stdout

from .codec import MUTABLE_KINDS, Decoder, Encoder, changed_nodes
from .messages import write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class PeerDisconnected(BaseException):
    """The other end says nothing any more, or no sense."""


class Peer:
    """One end."""

    def __init__(self, reader: int, writer: int, longest: int) -> None:
        self.reader = reader
        self.writer = writer
        self.max_message = longest
        """Bytes of a message."""
        self.handles: list[Any] = []
        """The values that the other end knows only by a number."""

    remote: type
    """The class that stands here for a value of the other end."""

    # -- messages -----------------------------------------------------------------------------

    def request(self, *parts: Any) -> Any:
        """Return the other end's answer, or raise what it raised.

        Raises:
            PeerDisconnected: it does not answer.
        """
        encoder = Encoder(self)
        message = {"q": encoder.encode(parts), "n": encoder.nodes, "o": self.captures()}
        self.send(message)
        while "q" in (answer := self.receive()):
            self.answer(answer)
        try:
            value = self.read_answer(answer, encoder)
        except Exception as error:  # noqa: BLE001 - the other end may have sent anything
            raise PeerDisconnected(f"an answer makes no sense: {error!r}"[:400]) from None
        if answer["o"]:
            sys.stdout.write(str(answer["o"]))
        if answer["e"] is True:
            raise value
        return value

    def read_answer(self, answer: dict[str, Any], asked: Encoder) -> Any:
        """Read an answer, with the changes of the values that were sent.

        Raises:
            ValueError, TypeError, KeyError, IndexError, AttributeError: it makes no sense.
        """
        decoder = Decoder(self, answer["n"], asked.values)
        for number, node in answer["s"].items():
            if node[0] not in MUTABLE_KINDS or asked.nodes[int(number)][0] != node[0]:
                raise ValueError("this cannot have changed")
            decoder.pending.append((asked.values[int(number)], node))
        value = decoder.decode(answer["r"])
        if answer["e"] is True and not isinstance(value, BaseException):
            raise ValueError("what was raised is no exception")
        return value

    def answer(self, message: dict[str, Any]) -> None:
        """Do what is asked and say what came out."""
        output, failed = io.StringIO(), False
        decoder = Decoder(self, message["n"])
        try:
            operation, *parts = decoder.decode(message["q"])
            if message["o"]:
                with redirect_stdout(output):
                    result = self.do(operation, *parts)
            else:
                result = self.do(operation, *parts)
        except (PeerDisconnected, MemoryError):
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it is, the other end gets it
            result, failed = error, True
        encoder = Encoder(self, decoder.values)
        reply = {"r": encoder.encode(result), "e": failed, "o": output.getvalue()}
        reply["s"] = changed_nodes(encoder, message["n"], decoder.values)
        self.send(reply | {"n": encoder.nodes})

    def send(self, message: dict[str, Any]) -> None:
        """Write one message."""
        data = json.dumps(message).encode()
        try:
            write_all(self.writer, struct.pack(">Q", len(data)) + data)
        except OSError:
            raise PeerDisconnected("the pipe is closed") from None

    def receive(self) -> dict[str, Any]:
        """Read one message."""
        size = struct.unpack(">Q", self.read(8))[0]
        if size > self.max_message:
            raise PeerDisconnected("a message is too long")
        try:
            message = json.loads(self.read(size))
        except (ValueError, RecursionError):
            raise PeerDisconnected("a message is not JSON") from None
        if not isinstance(message, dict):
            raise PeerDisconnected("a message is not an object")
        return message

    def read(self, size: int) -> bytes:
        """Read that many bytes."""
        data = bytearray()
        while len(data) < size:
            try:
                chunk = os.read(self.reader, min(size - len(data), 1 << 20))
            except OSError:
                chunk = b""
            if not chunk:
                raise PeerDisconnected("the pipe is closed")
            data += chunk
        return bytes(data)

    def captures(self) -> bool:
        """Return True if the other end's output is to come with its answer."""
        return False

    # -- handles ------------------------------------------------------------------------------

    def handle(self, value: Any) -> list[Any]:
        """Return a number for a value that stays here."""
        self.handles.append(value)
        kind = type(value)
        names = [f"{one.__module__}:{one.__qualname__}" for one in kind.__mro__]
        return ["R", len(self.handles) - 1, names]

    def own_object(self, number: Any) -> Any:
        """Return the value that the other end knows by this number."""
        if not isinstance(number, int) or not 0 <= number < len(self.handles):
            raise ValueError("there is no such handle")
        return self.handles[number]

    # -- what differs -------------------------------------------------------------------------

    def do(self, operation: str, *parts: Any) -> Any:
        """Do what the other end asks for."""
        raise NotImplementedError

    def remote_object(self, node: list[Any]) -> Any:
        """Return the object that stands here for a value of the other end."""
        raise NotImplementedError

    def named(self, value: Any) -> Any:
        """Return the atom of a value that both ends know by its name."""
        raise NotImplementedError

    def by_name(self, module: str, name: str) -> Any:
        """Return the value of such an atom."""
        raise NotImplementedError

    def exception_class(self, names: list[str]) -> type[BaseException]:
        """Return the class of an exception, by the names of it and its bases."""
        raise NotImplementedError

    def fields(self, value: Any) -> dict[str, Any] | None:
        """Return the fields of an object whose class both ends have from the preamble.

        None for others.
        """
        raise NotImplementedError

    def instance(self, name: str) -> Any:
        """Return an empty object of such a class."""
        raise NotImplementedError

    def set_fields(self, value: Any, fields: dict[str, Any]) -> None:
        """Let it hold that and nothing else."""
        raise NotImplementedError


class PreambleClasses:
    """The classes of a preamble: their objects go from end to end by what they hold."""

    def __init__(self, namespace: dict[str, Any], names: set[str]) -> None:
        self.namespace = namespace
        self.names = names

    def fields(self, value: Any) -> dict[str, Any] | None:
        """Return the fields of an object of such a class; None if its class is another."""
        kind = type(value)
        if kind.__name__ not in self.names or self.namespace.get(kind.__name__) is not kind:
            return None
        held = dict(getattr(value, "__dict__", ()))
        for base in kind.__mro__:
            slots = base.__dict__.get("__slots__", ())
            for slot in (slots,) if isinstance(slots, str) else slots:
                if hasattr(value, slot) and slot != "__dict__":
                    held[slot] = getattr(value, slot)
        return held

    def instance(self, name: str) -> Any:
        """Return an empty object of that class."""
        kind = self.namespace[name] if name in self.names else None
        if not isinstance(kind, type):
            raise ValueError(f"there is no class {name}")  # noqa: TRY004 - the message is wrong
        return object.__new__(kind)

    def set_fields(self, value: Any, fields: dict[str, Any]) -> None:
        """Let it hold that and nothing else."""
        if hasattr(value, "__dict__"):
            value.__dict__.clear()
        for name, held in fields.items():
            if not isinstance(name, str) or name.startswith("__"):
                raise ValueError("a field has a name")
            object.__setattr__(value, name, held)


def defined_classes(namespace: dict[str, Any], module: str) -> set[str]:
    """Return the classes that a source defined, without exceptions, which are known by name."""
    return {
        name
        for name, value in namespace.items()
        if isinstance(value, type)
        and value.__module__ == module
        and not issubclass(value, (BaseException, int, str, tuple, list, dict, set, float))
    }
