"""The program's end of the pipes to its tests, in the process of the program itself."""

# Values have any type, which is known only at run time.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnnecessaryIsInstance=false, reportUnknownParameterType=false

from __future__ import annotations

import builtins
import operator
import sys

from .peer import Peer, PreambleClasses, defined_classes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MODULE = "program"


class ProgramPeer(Peer):
    """Serves the requests that the tests make of a program."""

    def __init__(self, pipes: tuple[int, int, int], order: dict[str, Any], execute: Any) -> None:
        super().__init__(*pipes)
        self.order = order
        self.execute: Callable[[str, str, dict[str, Any]], None] = execute
        module = sys.modules[MODULE] = type(sys)(MODULE)
        self.namespace = module.__dict__
        self.shared = PreambleClasses(self.namespace, set())
        self.fields = self.shared.fields
        self.instance = self.shared.instance
        self.set_fields = self.shared.set_fields

    def load(self) -> None:
        """Run the preamble and the program, once the tests report that they are ready.

        Raises:
            PeerDisconnected: the tests have ended.
            BaseException: whatever the preamble or the program raises.
        """
        entry = self.receive()["entry"]
        self.execute(self.order["preamble"], "preamble.py", self.namespace)
        self.namespace.pop(entry, None)  # the preamble declares it; the program must define it
        self.shared.names = defined_classes(self.namespace, MODULE)
        self.execute(self.order["source"], "program.py", self.namespace)
        self.send({"end": "ready"})

    def serve(self) -> None:
        """Answer requests; raise `PeerDisconnected` once the tests have ended."""
        while True:
            self.answer(self.receive())

    def do(self, operation: str, *parts: Any) -> Any:
        """Carry out one of `OPERATIONS`."""
        return OPERATIONS[operation](self, *parts)

    def remote_object(self, node: list[Any]) -> Any:
        """Return a proxy for a value of the tests."""
        return TestsProxy(self, node[1])

    def named(self, value: Any) -> Any:
        """Return None: the tests accept no reference by name."""
        return None

    def by_name(self, module: str, name: str) -> Any:
        """Return a function or a class of a module."""
        found = __import__(module, fromlist=["_"])
        for part in name.split("."):
            found = getattr(found, part)
        return found

    def exception_class(self, names: list[str]) -> type[BaseException]:
        """Return the first class in `names` that is an exception loaded here, else `Exception`."""
        for one in names:
            module, _, name = one.partition(":")
            found = getattr(sys.modules.get(module), name, None)
            if isinstance(found, type) and issubclass(found, BaseException):
                return found
        return Exception

    def look_up(self, name: str) -> Any:
        """Return a global of the program.

        Raises:
            NameError: the program has no global of that name.
        """
        if name in self.namespace:
            return self.namespace[name]
        raise NameError(f"name {name!r} is not defined")


class TestsProxy:
    """A proxy for a value of the tests, which can be called or listed and has attributes."""

    def __init__(self, peer: ProgramPeer, number: int) -> None:
        self.__dict__["batuta_peer"] = peer, number

    def batuta_number(self) -> int:
        """Return the index of the value in the tests' handles."""
        return self.__dict__["batuta_peer"][1]

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the object at the other end."""
        peer, number = self.__dict__["batuta_peer"]
        return peer.request("call", number, arguments, named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") and name not in {"__name__", "__doc__"}:
            raise AttributeError(name)
        peer, number = self.__dict__["batuta_peer"]
        return peer.request("get", number, name)

    def __iter__(self) -> Any:
        peer, number = self.__dict__["batuta_peer"]
        return iter(peer.request("list", number))


ProgramPeer.remote = TestsProxy


def call_if_loaded(_: ProgramPeer, module: str, name: str, arguments: Any, named: Any) -> None:
    """Call a function that resets a module, such as `random.seed`, if the module is loaded here."""
    if module in sys.modules:
        getattr(sys.modules[module], name)(*arguments, **named)


def compare_objects(_: ProgramPeer, name: str, one: Any, other: Any) -> bool:
    """Compare two of the program's values."""
    return bool(getattr(operator, name)(one, other))


def get_attribute(_: ProgramPeer, value: Any, name: str) -> Any:
    """Return an attribute of an object."""
    return getattr(value, name)


def set_attribute(_: ProgramPeer, value: Any, name: str, given: Any) -> None:
    """Set an attribute of an object."""
    setattr(value, name, given)


def is_instance(_: ProgramPeer, value: Any, kind: Any) -> bool:
    """Return True if the value is of that class."""
    return builtins.isinstance(value, kind)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "global": ProgramPeer.look_up,
    "call": lambda _, value, arguments, named: value(*arguments, **named),
    "get": get_attribute,
    "set": set_attribute,
    "iter": lambda _, value: iter(value),
    "next": lambda _, value: next(value),
    "len": lambda _, value: len(value),
    "bool": lambda _, value: bool(value),
    "str": lambda _, value: str(value),
    "repr": lambda _, value: repr(value),
    "item": lambda _, value, key: value[key],
    "put": lambda _, value, key, given: operator.setitem(value, key, given),
    "drop": lambda _, value, key: operator.delitem(value, key),
    "compare": compare_objects,
    "combine": lambda _, name, one, other: getattr(operator, name)(one, other),
    "isinstance": is_instance,
    "begin": call_if_loaded,
}
