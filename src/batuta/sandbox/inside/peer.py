"""One end of the pipes between a program and its tests: requests, answers, handles.

The subclasses, `ProgramPeer` and `TestsPeer`, define what the other end may do. The program may
take over its end and write anything; only plain values and handles reach the tests.

A request has the operation and its arguments (`q`), nodes (`n`), and whether output is wanted
(`o`). An answer has the result (`r`), whether it was raised (`e`), output (`o`), the changed nodes
of the request (`s`) and further nodes (`n`).
"""

# Values have any type, which is known only at run time.
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
from types import MemberDescriptorType

from .codec import MUTABLE_KINDS, Decoder, Encoder, changed_nodes
from .messages import write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class PeerDisconnected(BaseException):
    """The other end closed the pipe or sent an invalid message."""


class Peer:
    """One end of the pipes."""

    def __init__(self, reader: int, writer: int, longest: int) -> None:
        self.reader = reader
        self.writer = writer
        self.max_message = longest
        """Maximum size of a received message, in bytes."""
        self.handles: list[Any] = []
        """The values of this end that the other end refers to by their index here."""

    remote: type
    """The class of proxies for values of the other end."""

    # -- messages -----------------------------------------------------------------------------

    def request(self, *parts: Any) -> Any:
        """Return the other end's answer, or raise the exception that it raised.

        Raises:
            PeerDisconnected: the other end does not answer, or sends an invalid answer.
            MemoryError: there is no memory for the answer.
        """
        encoder = Encoder(self)
        message = {"q": encoder.encode(parts), "n": encoder.nodes, "o": self.captures()}
        self.send(message)
        while "q" in (answer := self.receive()):
            self.answer(answer)
        try:
            value = self.read_answer(answer, encoder)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - the other end may have sent anything
            raise PeerDisconnected(f"an answer is invalid: {error!r}"[:400]) from None
        if answer["o"]:
            sys.stdout.write(str(answer["o"]))
        if answer["e"] is True:
            raise value
        return value

    def read_answer(self, answer: dict[str, Any], asked: Encoder) -> Any:
        """Return the value of an answer, and apply its changes to the values that were sent.

        Raises:
            ValueError, TypeError, KeyError, IndexError, AttributeError: the answer is invalid.
        """
        decoder = Decoder(self, answer["n"], asked.values)
        for number, node in answer["s"].items():
            if node[0] not in MUTABLE_KINDS or asked.nodes[int(number)][0] != node[0]:
                raise ValueError("this value cannot have changed")
            decoder.pending.append((asked.values[int(number)], node))
        value = decoder.decode(answer["r"])
        if answer["e"] is True and not isinstance(value, BaseException):
            raise ValueError("the raised value is not an exception")
        return value

    def answer(self, message: dict[str, Any]) -> None:
        """Carry out a request; send its result or exception, and the arguments that it changed.

        Without memory for that, send a MemoryError alone.
        """
        try:
            self.send(self.carry_out(message))
        except MemoryError:
            pass  # until the end of this block its traceback may hold the memory
        else:
            return
        encoder = Encoder(self, [None] * len(message["n"]))
        reply = {"r": encoder.encode(MemoryError()), "e": True, "o": "", "s": {}}
        self.send(reply | {"n": encoder.nodes})

    def carry_out(self, message: dict[str, Any]) -> dict[str, Any]:
        """Carry out a request and return the answer.

        Raises:
            PeerDisconnected: the other end does not answer a request of this one.
            MemoryError: the memory does not suffice.
        """
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
        return reply | {"n": encoder.nodes}

    def send(self, message: dict[str, Any]) -> None:
        """Write one message.

        Raises:
            PeerDisconnected: the pipe is closed.
        """
        data = json.dumps(message).encode()
        try:
            write_all(self.writer, struct.pack(">Q", len(data)) + data)
        except OSError:
            raise PeerDisconnected("the pipe is closed") from None

    def receive(self) -> dict[str, Any]:
        """Read one message.

        Raises:
            PeerDisconnected: the pipe is closed, or the message is too long or no JSON object.
        """
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
        """Read that many bytes.

        Raises:
            PeerDisconnected: the pipe is closed.
        """
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
        """Return True if the other end's answer should include its output."""
        return False

    # -- handles ------------------------------------------------------------------------------

    def handle(self, value: Any) -> list[Any]:
        """Return the encoded form (see `codec`) of a handle for a value that stays here."""
        self.handles.append(value)
        kind = type(value)
        names = [f"{one.__module__}:{one.__qualname__}" for one in kind.__mro__]
        return ["R", len(self.handles) - 1, names]

    def own_object(self, number: Any) -> Any:
        """Return the value of this end that a handle refers to.

        Raises:
            ValueError: there is no such handle.
        """
        if not isinstance(number, int) or not 0 <= number < len(self.handles):
            raise ValueError("there is no such handle")
        return self.handles[number]

    # -- defined by the subclasses ------------------------------------------------------------

    def do(self, operation: str, *parts: Any) -> Any:
        """Carry out an operation for the other end, if it is allowed."""
        raise NotImplementedError

    def remote_object(self, node: list[Any]) -> Any:
        """Return a proxy for a value of the other end."""
        raise NotImplementedError

    def named(self, value: Any) -> Any:
        """Return a reference by name to a value that both ends have; None for other values."""
        raise NotImplementedError

    def by_name(self, module: str, name: str) -> Any:
        """Return the value of a reference by name."""
        raise NotImplementedError

    def exception_class(self, names: list[str]) -> type[BaseException]:
        """Return the class of an exception, given the names of the class and its bases."""
        raise NotImplementedError

    def fields(self, value: Any) -> dict[str, Any] | None:
        """Return the fields of an object of a class that both ends define; None for others."""
        raise NotImplementedError

    def instance(self, name: str) -> Any:
        """Return an empty object of a preamble class."""
        raise NotImplementedError

    def set_fields(self, value: Any, fields: dict[str, Any]) -> None:
        """Replace all fields of an object."""
        raise NotImplementedError


class PreambleClasses:
    """The classes of a preamble, which both ends run: their objects are sent as their fields."""

    def __init__(self, namespace: dict[str, Any], names: set[str]) -> None:
        self.namespace = namespace
        self.names = names

    def fields(self, value: Any) -> dict[str, Any] | None:
        """Return the fields, in `__dict__` and slots; None for an object of another class."""
        kind = type(value)
        if kind.__name__ not in self.names or self.namespace.get(kind.__name__) is not kind:
            return None
        slots = {name: getattr(value, name) for name in slot_names(kind) if hasattr(value, name)}
        return dict(getattr(value, "__dict__", ())) | slots

    def instance(self, name: str) -> Any:
        """Return an object of that class without running its constructor.

        Raises:
            ValueError: the preamble has no such class.
        """
        kind = self.namespace[name] if name in self.names else None
        if not isinstance(kind, type):
            raise ValueError(f"there is no class {name}")  # noqa: TRY004 - the message is invalid
        return object.__new__(kind)

    def set_fields(self, value: Any, fields: dict[str, Any]) -> None:
        """Set these fields of an object, and remove its others.

        Raises:
            ValueError: a field name is no string, or begins with `__`.
        """
        if hasattr(value, "__dict__"):
            value.__dict__.clear()
        for name in slot_names(type(value)):
            if name not in fields and hasattr(value, name):
                object.__delattr__(value, name)
        for name, held in fields.items():
            if not isinstance(name, str) or name.startswith("__"):
                raise ValueError("a field name must be a string without a leading `__`")
            object.__setattr__(value, name, held)


def slot_names(kind: type) -> list[str]:
    """Return the names of all slots of a class, private ones with the name of their class."""
    slotted = (vars(base) for base in kind.__mro__ if "__slots__" in vars(base))
    return [
        name
        for one in slotted
        for name, held in one.items()
        if isinstance(held, MemberDescriptorType)
    ]


def defined_classes(namespace: dict[str, Any], module: str) -> set[str]:
    """Return the names of a module's classes, except exceptions and subclasses of common types."""
    return {
        name
        for name, value in namespace.items()
        if isinstance(value, type)
        and value.__module__ == module
        and not issubclass(value, (BaseException, int, str, tuple, list, dict, set, float))
    }
