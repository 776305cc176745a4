"""The tests' end of the pipes: globals of the program become plain values, or proxies of objects.

The tests' comparisons run here. A proxy never equals a plain value, whatever the program claims,
and order comparisons and arithmetic between the two raise. The program compares two proxies.
"""

# Values have any type, which is known only at run time.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnnecessaryIsInstance=false, reportUnknownParameterType=false

from __future__ import annotations

import builtins
import os
import sys

from .peer import Peer, PeerDisconnected, PreambleClasses, defined_classes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

MODULE = "program"
"""The name of the tests' module, equal to the program's so that names of classes agree."""
TEST_FRAMEWORKS = frozenset({"unittest", "pytest", "_pytest", "inside", "doctest"})
"""Modules with exceptions that decide how a test ended: a program may not raise them here."""
NO_ANSWER_STATUS = 86
"""The exit status of the tests if the program does not answer."""
CALLABLE_TYPES = ("function", "method", "builtin_function_or_method", "partial")
"""Names of types whose objects in the tests' process a program may call."""


class TestsPeer(Peer):
    """Sends a program the calls that its tests make."""

    def __init__(self, pipes: tuple[int, int, int], namespace: dict[str, Any]) -> None:
        super().__init__(*pipes)
        self.namespace = namespace
        self.shared = PreambleClasses(namespace, defined_classes(namespace, MODULE))
        self.fields = self.shared.fields
        self.instance = self.shared.instance
        self.set_fields = self.shared.set_fields
        self.known_exceptions: dict[str, type[BaseException]] = {}
        """Classes that were made here for exceptions of the program, by `module:name`."""

    def start(self, entry: str) -> str:
        """Start the program, once it can no longer change what is imported here.

        Return how it ended if it did not load, else an empty string. Exit if it does not answer.
        """
        try:
            self.send({"entry": entry})
            reason = str(self.receive().get("end"))
        except PeerDisconnected:
            os._exit(NO_ANSWER_STATUS)
        return "" if reason == "ready" else reason if reason in {"raised", "memory"} else "exited"

    def request(self, *parts: Any) -> Any:
        """Return the program's answer, or raise its exception; exit if there is no answer."""
        try:
            return super().request(*parts)
        except PeerDisconnected as error:  # raised again, it could pass for an expected exception
            sys.stderr.write(f"the program does not answer: {error}\n")
            os._exit(NO_ANSWER_STATUS)

    def do(self, operation: str, *parts: Any) -> Any:
        """Carry out what the program may do with a value of the tests: call, read or list it.

        Raises:
            TypeError: the tests do not allow it.
        """
        value = self.handles[int(parts[0])]
        ours = type(value).__module__ in {MODULE, "_io"}
        if operation == "call" and (ours or type(value).__name__ in CALLABLE_TYPES):
            return value(*parts[1], **parts[2])
        if operation == "get" and ours and not str(parts[1]).startswith("_"):
            return getattr(value, str(parts[1]))
        if operation == "get" and parts[1] in {"__name__", "__doc__"}:
            return str(getattr(value, parts[1]))
        if operation == "list" and (ours or type(value).__name__ == "generator"):
            return list(value)
        raise TypeError("the tests do not allow this")

    def captures(self) -> bool:
        """Return True if the tests have redirected standard output."""
        return sys.stdout is not sys.__stdout__

    def remote_object(self, node: list[Any]) -> Any:
        """Return a proxy for an object of the program."""
        return ProgramProxy(self, int(node[1]), [str(name) for name in node[2]])

    def named(self, value: Any) -> Any:
        """Return a reference by name to a library's function or class; None for other values."""
        module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
        if not callable(value) or not isinstance(module, str) or module == MODULE:
            return None
        found = sys.modules.get(module)
        for part in str(name or "<none>").split("."):
            found = getattr(found, part, None)
        return ["Y", module, name] if found is value else None

    def by_name(self, module: str, name: str) -> NoReturn:
        """Raise `ValueError`: the program may refer to nothing here by name."""
        raise ValueError(f"{module}.{name} cannot be named by the program")

    def exception_class(self, names: list[str]) -> type[BaseException]:
        """Return the exception class whose name is first in `names`; those of its bases follow.

        If `known_exception` does not find it, return a subclass of the first base that is found.

        Raises:
            ValueError: no name is that of an exception class loaded here.
        """
        first = str(names[0])
        if first in self.known_exceptions:
            return self.known_exceptions[first]
        known = (known_exception(str(one)) for one in names)
        found = next((one for one in known if one is not None), None)
        if found is None:
            raise ValueError("the class is not an exception")
        if known_exception(first) is None:
            name = first.rpartition(":")[2].rpartition(".")[2]
            found = self.known_exceptions[first] = type(name, (found,), {"__module__": MODULE})
        return found


def known_exception(name: str) -> type[BaseException] | None:
    """Return the exception class `module:name` if it is loaded here.

    Return None for other names, and for classes of a test framework or of the program.
    """
    module, _, name = name.partition(":")
    if module.partition(".")[0] in TEST_FRAMEWORKS or module == MODULE:
        return None
    found = getattr(sys.modules.get(module), name, None)
    fits = (
        isinstance(found, type)
        and issubclass(found, BaseException)
        and found is not PeerDisconnected
    )
    return found if fits else None


INTERPRETER_TYPES = {
    "builtins:generator": "GeneratorType",
    "builtins:function": "FunctionType",
    "builtins:module": "ModuleType",
}
"""Built-in types with objects that have no plain form, and the names of the types in `types`."""


class ProgramProxy:
    """A proxy for a value of the program that has no plain form."""

    __slots__ = ("_batuta",)
    _batuta: tuple[TestsPeer, int, list[str]]

    def __init__(self, peer: TestsPeer, number: int, names: list[str]) -> None:
        object.__setattr__(self, "_batuta", (peer, number, names))

    def batuta_number(self) -> int:
        """Return the index of the value in the program's handles."""
        return self._batuta[1]

    def _ask(self, operation: str, *parts: Any) -> Any:
        return self._batuta[0].request(operation, *parts)

    def _exact(self, operation: str, kind: type) -> Any:
        found = self._ask(operation, self)
        if type(found) is not kind:
            raise PeerDisconnected(f"{operation} gave a {type(found).__name__}")
        return found

    @property
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride] - nobody sets it
        """The first reported class that `types` or a library loaded here has, else the proxy's."""
        for name in self._batuta[2]:
            module, _, qualified = name.partition(":")
            found = getattr(sys.modules.get(module), qualified, None)
            if isinstance(found, type) and module not in {"builtins", MODULE}:
                return found
            if name in INTERPRETER_TYPES:
                return getattr(__import__("types"), INTERPRETER_TYPES[name])
        return ProgramProxy

    def __instancecheck__(self, value: Any) -> bool:
        return type(value) is ProgramProxy and self._ask("isinstance", value, self) is True

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the object at the other end."""
        return self._ask("call", self, arguments, named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in {"__name__", "__doc__", "__dict__"}:
            raise AttributeError(name)
        return self._ask("get", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._ask("set", self, name, value)

    def __iter__(self) -> Any:
        found = self._ask("iter", self)
        while True:
            try:
                yield self._ask("next", found)
            except StopIteration:
                return

    def __next__(self) -> Any:
        return self._ask("next", self)

    def __len__(self) -> int:
        return self._exact("len", int)

    def __bool__(self) -> bool:
        return self._exact("bool", bool)

    def __str__(self) -> str:
        return self._exact("str", str)

    def __repr__(self) -> str:
        return self._exact("repr", str)

    def __hash__(self) -> int:
        return self._batuta[1]

    def __contains__(self, value: Any) -> bool:
        return any(value is one or value == one for one in self)

    def __getitem__(self, key: Any) -> Any:
        return self._ask("item", self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._ask("put", self, key, value)

    def __delitem__(self, key: Any) -> None:
        self._ask("drop", self, key)

    def __enter__(self) -> Any:
        return self._ask("call", self._ask("get", self, "__enter__"), (), {})

    def __exit__(self, *_: object) -> Any:
        return self._ask("call", self._ask("get", self, "__exit__"), (None, None, None), {})


TestsPeer.remote = ProgramProxy


def _make_comparison(name: str) -> Callable[[Any, Any], Any]:
    """Return a comparison of two proxies; a proxy and a plain value are not comparable."""

    def compare(self: Any, other: Any) -> Any:
        if type(other) is not ProgramProxy:
            return NotImplemented
        return self._ask("compare", name, self, other) is True

    return compare


def _make_operator(name: str) -> Callable[[Any, Any], Any]:
    def combine(self: Any, other: Any) -> Any:
        if type(other) is not ProgramProxy:
            return NotImplemented
        return self._ask("combine", name, self, other)

    return combine


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(ProgramProxy, f"__{_name}__", _make_comparison(_name))
for _name in ("add", "sub", "mul", "truediv", "matmul", "and_", "or_"):
    setattr(ProgramProxy, f"__{_name.strip('_')}__", _make_operator(_name))


class TestNamespace(dict):  # pyright: ignore[reportMissingTypeArgument] - no `Any` at run time
    """The tests' globals; other names are builtins, standard modules or the program's globals."""

    peer: TestsPeer | None = None
    entry = ""
    """A name that is looked up in the program even if a builtin or module has it."""

    def __missing__(self, name: str) -> Any:
        if self.peer is None or name.startswith("__"):
            raise KeyError(name)
        if name == self.entry:
            return self.look_up(name)
        if hasattr(builtins, name):
            raise KeyError(name)
        if name in sys.stdlib_module_names:  # the program could substitute its own `math`
            return __import__(name)
        return self.look_up(name)

    def look_up(self, name: str) -> Any:
        """Return a global of the program; a proxy is kept for later uses."""
        assert self.peer is not None  # noqa: S101 - as `__missing__` ensures
        found = self.peer.request("global", name)
        if type(found) is ProgramProxy:
            self[name] = found
        return found


def preload_imports(code: str) -> None:
    """Import what `code` imports at top level, before the program can change the import path."""
    if "import" not in code:
        return
    ast = __import__("ast")
    for node in ast.parse(code).body:
        names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        for name in names:
            try:
                __import__(name)
            except Exception:  # noqa: BLE001, S112 - the tests' own import will raise it
                continue


SHARED_RESETS = {
    "random": ("seed",),
    "numpy.random": ("seed",),
    "matplotlib.pyplot": ("close", "clf", "cla"),
}
"""Functions that reset a module, by module; they must also run in the program's process."""


def share_resets(peer: TestsPeer) -> None:
    """Make resets of the tests' modules reset the program's too: the same seeds, no old figures."""
    for name, functions in SHARED_RESETS.items():
        module = sys.modules.get(name)
        for function in functions if module is not None else ():
            setattr(
                module, function, _share_function(peer, name, function, getattr(module, function))
            )


def _share_function(peer: TestsPeer, module: str, name: str, original: Callable[..., Any]) -> Any:
    def call(*arguments: Any, **named: Any) -> Any:
        peer.request("begin", module, name, arguments, named)
        return original(*arguments, **named)

    return call


def run_tests(
    pipes: tuple[int, int, int], order: dict[str, Any], code: str, execute: Any
) -> dict[str, Any]:
    """Run tests against the program at the other end; raise if one fails.

    Return the fields to add to the report: how the program ended, if it did not load.
    """
    module = sys.modules[MODULE] = type(sys)(MODULE)
    execute(order["preamble"], "preamble.py", module.__dict__)
    preload_imports(code)
    entry: str = order["entry"]
    namespace = TestNamespace(module.__dict__)
    namespace.pop(entry, None)
    namespace.entry = entry
    peer = TestsPeer(pipes, namespace)
    share_resets(peer)
    if end := peer.start(entry):
        return {"end": end}
    namespace.peer = peer
    execute(code, "check.py", namespace)
    return {}
