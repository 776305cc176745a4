"""Values as data, which one process sends to another so that neither runs the other's code.

A value becomes an atom (the value itself if JSON has it, else a list that begins with a tag) or a
reference `["@", n]` into a table of nodes, which preserves shared and circular values. Most
objects of subclasses of built-in types, such as `int` or `list`, are sent as plain values. A value
without a plain form stays in its process; the other process gets a handle from the `Peer`.
"""

# Values have any type, which is known only at run time.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnnecessaryIsInstance=false, reportUnknownParameterType=false

from __future__ import annotations

from . import array_codec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MAX_PLAIN_INTEGER = 1 << 53
"""Integers of a smaller magnitude are JSON numbers; the others are written in base 16."""
HASHING_KINDS = frozenset("sdDCO")
"""Kinds of nodes that hash their contents; they are filled last, when the contents are complete."""
FACTORIES = {kind.__name__: kind for kind in (int, float, str, list, dict, set, tuple, bool)}
BUILTIN_TYPES = FACTORIES | {k.__name__: k for k in (bytes, complex, frozenset, object, bytearray)}


class Encoder:
    """Encodes the values of one message; `known` has the values of the message that it answers."""

    def __init__(self, peer: Any, known: list[Any] | None = None) -> None:
        self.peer = peer
        self.values: list[Any] = list(known or ())
        """The value of each node; kept, so that no other value gets the same `id`."""
        self.base = len(self.values)
        self.nodes: list[Any] = []
        """The nodes of the values from index `base` on."""
        self.seen = {id(value): n for n, value in enumerate(self.values) if value is not None}
        self.pending: list[tuple[int, Any]] = []

    def encode(self, value: Any) -> Any:
        """Return a value's atom or reference, and complete all nodes."""
        found = self.refer(value)
        while self.pending:
            at, waiting = self.pending.pop()
            self.nodes[at - self.base] = self.node(waiting)
        return found

    def refer(self, value: Any) -> Any:
        """Return a value's atom or reference; its node may still be pending."""
        kind = type(value)
        if value is None or kind is bool or kind is str or kind is float:
            return value
        if kind is self.peer.remote:
            return ["H", kind.batuta_number(value)]
        if kind is int:
            return value if -MAX_PLAIN_INTEGER < value < MAX_PLAIN_INTEGER else ["i", hex(value)]
        if (number := self.seen.get(id(value))) is not None:
            return ["@", number]
        if (atom := ATOMS.get(kind)) is not None:
            return atom(value)
        if (found := self.named(value, kind)) is not None:
            return found
        number = self.base + len(self.nodes)
        self.seen[id(value)] = number
        self.values.append(value)
        self.nodes.append(None)
        self.pending.append((number, value))
        return ["@", number]

    def named(self, value: Any, kind: type) -> Any:
        """Return the atom of a class, a library's value or a named value; None for others."""
        if isinstance(value, type) and issubclass(value, BaseException):
            return ["E", class_names(value)]
        if isinstance(value, type) and BUILTIN_TYPES.get(value.__name__) is value:
            return ["y", value.__name__]
        return lazy_atom(value, kind) or array_codec.scalar_atom(value) or self.peer.named(value)

    def node(self, value: Any) -> list[Any]:
        """Return a value's node, with references to its contents."""
        kind = type(value)
        if write := NODES.get(kind.__name__ if kind.__module__ == "collections" else kind):
            return write(self, value)
        if (fields := self.peer.fields(value)) is not None:
            return ["o", kind.__name__, *self.pairs(fields)]
        if isinstance(value, BaseException):
            state = {k: v for k, v in vars(value).items() if isinstance(k, str)}
            return ["x", class_names(kind), self.refer(tuple(value.args)), self.refer(state)]
        if (found := array_codec.container_node(value, self.refer)) is not None:
            return found
        for plain, write in SUBCLASSES:
            # some objects of matplotlib are tuples, but have more than their items
            if isinstance(value, plain) and not kind.__module__.startswith("matplotlib"):
                return write(self, value)
        return self.peer.handle(value)

    def items(self, kind: str, values: Any) -> list[Any]:
        """Return the node of a sequence or set."""
        return [kind, *map(self.refer, values)]

    def pairs(self, values: Any) -> list[Any]:
        """Return references to keys and values, in alternation."""
        return [self.refer(one) for pair in dict.items(values) for one in pair]


def class_names(kind: type) -> list[str]:
    """Return the names of a class and of its bases."""
    return [f"{one.__module__}:{one.__qualname__}" for one in kind.__mro__]


def tuple_node(encoder: Encoder, value: Any) -> list[Any]:
    """Return the node of a tuple, with field names if it has them."""
    fields = getattr(value, "_fields", None)
    if isinstance(fields, tuple) and len(fields) == tuple.__len__(value):
        return ["u", type(value).__name__, [str(one) for one in fields], *map(encoder.refer, value)]
    return encoder.items("t", tuple.__iter__(value))


def utc_offset(value: Any) -> Any:
    """Return the offset from UTC in seconds; None if it is unknown."""
    offset = value.utcoffset()
    return None if offset is None else offset.total_seconds()


LAZY_ATOMS: dict[str, Callable[[Any], Any]] = {
    "decimal:Decimal": lambda v: ["N", str(v)],
    "fractions:Fraction": lambda v: ["F", hex(v.numerator), hex(v.denominator)],
    "datetime:date": lambda v: ["T", "date", v.isoformat(), None],
    "datetime:time": lambda v: ["T", "time", v.replace(tzinfo=None).isoformat(), utc_offset(v)],
    "datetime:datetime": lambda v: [
        "T",
        "datetime",
        v.replace(tzinfo=None).isoformat(),
        utc_offset(v),
    ],
    "datetime:timedelta": lambda v: ["L", v.days, v.seconds, v.microseconds],
    "uuid:UUID": lambda v: ["U", v.hex],
    "pathlib:PosixPath": lambda v: ["W", str(v)],
}
"""Encoders by the names of types, so that their modules need not be imported."""


def lazy_atom(value: Any, kind: type) -> Any:
    """Return the atom of a value of a type in `LAZY_ATOMS`; None for other types."""
    write = LAZY_ATOMS.get(f"{kind.__module__}:{kind.__qualname__}")
    return write and write(value)


ATOMS: dict[type, Callable[[Any], Any]] = {
    bytes: lambda v: ["b", v.decode("latin-1")],
    complex: lambda v: ["c", v.real, v.imag],
    range: lambda v: ["r", hex(v.start), hex(v.stop), hex(v.step)],
    type(...): lambda _: ["."],
}

NODES: dict[Any, Callable[[Encoder, Any], list[Any]]] = {
    list: lambda e, v: e.items("l", v),
    tuple: lambda e, v: e.items("t", v),
    set: lambda e, v: e.items("s", v),
    frozenset: lambda e, v: e.items("z", v),
    dict: lambda e, v: ["d", *e.pairs(v)],
    bytearray: lambda _, v: ["B", v.decode("latin-1")],
    slice: lambda e, v: e.items("/", (v.start, v.stop, v.step)),
    "deque": lambda e, v: ["q", v.maxlen, *map(e.refer, v)],
    "Counter": lambda e, v: ["C", *e.pairs(v)],
    "OrderedDict": lambda e, v: ["O", *(e.refer(one) for pair in v.items() for one in pair)],
    "defaultdict": lambda e, v: ["D", getattr(v.default_factory, "__name__", ""), *e.pairs(v)],
}
SUBCLASSES: tuple[tuple[type, Callable[[Encoder, Any], list[Any]]], ...] = (
    (int, lambda _, v: ["=", ["i", hex(int.__index__(v))]]),
    (float, lambda _, v: ["=", float.__float__(v)]),
    (str, lambda _, v: ["=", str.__str__(v)]),
    (bytes, lambda _, v: ["=", ["b", bytes.decode(v, "latin-1")]]),
    (tuple, tuple_node),
    (list, lambda e, v: e.items("l", list.__iter__(v))),
    (dict, lambda e, v: ["d", *e.pairs(v)]),
    (set, lambda e, v: e.items("s", set.__iter__(v))),
    (frozenset, lambda e, v: e.items("z", frozenset.__iter__(v))),
)


class Decoder:
    """Decodes the values of one message; `known` has the values of the message that it answers.

    Raises:
        ValueError, TypeError, KeyError, IndexError, AttributeError: the message is invalid.
    """

    def __init__(self, peer: Any, nodes: list[Any], known: list[Any] | None = None) -> None:
        self.peer = peer
        self.base = len(known or ())
        self.nodes = nodes
        self.values: list[Any] = [*(known or ()), *[None] * len(nodes)]
        self.is_made = [True] * self.base + [False] * len(nodes)
        self.pending: list[tuple[Any, list[Any]]] = []

    def decode(self, atom: Any) -> Any:
        """Return the value of an atom or reference, complete."""
        found = self.value(atom)
        self.fill_pending()
        return found

    def fill_pending(self) -> None:
        """Fill the empty values; values that hash their contents come last."""
        late: list[tuple[Any, list[Any]]] = []
        while self.pending:
            shell, node = self.pending.pop()
            if node[0] in HASHING_KINDS and any(isinstance(one, list) for one in node[1:]):
                late.append((shell, node))
                for one in node[1:]:
                    self.value(one)
            else:
                self.fill(shell, node)
        for shell, node in reversed(late):
            self.fill(shell, node)

    def value(self, atom: Any) -> Any:
        """Return the value of an atom or reference, which may still have to be filled."""
        if not isinstance(atom, list):
            return atom if atom == atom else array_codec.shared_nan()  # noqa: PLR0124 - false for NaN
        tag = atom[0]
        if tag != "@":
            return ATOM_DECODERS[tag](self, atom)
        number = atom[1]
        if not isinstance(number, int) or number < 0:
            raise ValueError("a reference must be a non-negative integer")
        if not self.is_made[number]:
            self.is_made[number] = True
            self.values[number] = self.make(self.nodes[number - self.base])
        return self.values[number]

    def make(self, node: list[Any]) -> Any:
        """Return a node's value; a mutable one is empty until `fill_pending`."""
        kind = node[0]
        if kind in EMPTY_CONTAINERS or kind == "o":
            shell = self.peer.instance(node[1]) if kind == "o" else EMPTY_CONTAINERS[kind](node)
            self.pending.append((shell, node))
            return shell
        return NODE_DECODERS[kind](self, node)

    def fill(self, shell: Any, node: list[Any]) -> None:
        """Replace the contents of a value by the contents in its node."""
        kind = node[0]
        if kind in {"l", "q", "s", "B"}:
            shell.clear()
            if kind == "B":
                shell.extend(node[1].encode("latin-1"))
            else:
                held = map(self.value, node[2 if kind == "q" else 1 :])
                shell.update(held) if kind == "s" else shell.extend(held)
        elif kind == "a":
            shell[...] = array_codec.decode_array(node, self.value)
        elif kind in array_codec.TABLE_KINDS:
            shell.__init__(NODE_DECODERS[kind](self, node))
        else:
            values = list(map(self.value, node[2 if kind in {"o", "D"} else 1 :]))
            pairs = dict(zip(values[::2], values[1::2], strict=True))
            if kind == "o":
                self.peer.set_fields(shell, pairs)
            elif kind == "O":  # an OrderedDict stores its order apart from the dict
                shell.clear()
                shell.update(pairs)
            else:
                dict.clear(shell)
                dict.update(shell, pairs)


def collection_class(name: str) -> Any:
    """Return a class of `collections`, which is imported only when needed."""
    return getattr(__import__("collections"), name)


def decode_moment(_: Decoder, atom: list[Any]) -> Any:
    """Return a date, a time or both."""
    datetime = __import__("datetime")
    if atom[1] not in {"date", "time", "datetime"}:
        raise ValueError(atom[1])
    moment = getattr(datetime, atom[1]).fromisoformat(atom[2])
    if atom[3] is None:
        return moment
    return moment.replace(tzinfo=datetime.timezone(datetime.timedelta(seconds=atom[3])))


def decode_exception(decoder: Decoder, node: list[Any]) -> BaseException:
    """Return an exception with its arguments and fields, of a class that exists here."""
    kind = decoder.peer.exception_class(node[1])
    arguments = decoder.decode(node[2])
    # Runs no code of a library: the constructor is that of the nearest built-in base class.
    native = next(base for base in kind.__mro__ if base.__module__ == "builtins")
    error = native.__new__(kind, *arguments)
    if kind.__module__ == "builtins":
        error.__init__(*arguments)
    error.args = arguments
    for name, value in decoder.decode(node[3]).items():
        if not name.startswith("__"):
            error.__dict__[name] = value
    return error


def decode_named_tuple(decoder: Decoder, node: list[Any]) -> Any:
    """Return a named tuple."""
    kind = collection_class("namedtuple")(str(node[1]), [str(one) for one in node[2]], rename=True)
    return kind(*map(decoder.value, node[3:]))


def decode_fraction(_: Decoder, atom: list[Any]) -> Any:
    """Return a fraction."""
    return __import__("fractions").Fraction(int(atom[1], 16), int(atom[2], 16))


ATOM_DECODERS: dict[str, Callable[[Decoder, list[Any]], Any]] = {
    "i": lambda _, a: int(a[1], 16),
    "b": lambda _, a: a[1].encode("latin-1"),
    "c": lambda _, a: complex(a[1], a[2]),
    "r": lambda _, a: range(*(int(one, 16) for one in a[1:])),
    ".": lambda _, __: ...,
    "y": lambda _, a: BUILTIN_TYPES[a[1]],
    "E": lambda d, a: d.peer.exception_class(a[1]),
    "N": lambda _, a: __import__("decimal").Decimal(a[1]),
    "F": decode_fraction,
    "T": decode_moment,
    "L": lambda _, a: __import__("datetime").timedelta(*a[1:]),
    "U": lambda _, a: __import__("uuid").UUID(a[1]),
    "W": lambda _, a: __import__("pathlib").PosixPath(a[1]),
    "Y": lambda d, a: d.peer.by_name(a[1], a[2]),
    "H": lambda d, a: d.peer.own_object(a[1]),
    **array_codec.ATOM_DECODERS,
}
EMPTY_CONTAINERS: dict[str, Callable[[list[Any]], Any]] = {
    "l": lambda _: [],
    "d": lambda _: {},
    "s": lambda _: set(),
    "B": lambda _: bytearray(),
    "q": lambda node: collection_class("deque")(maxlen=node[1]),
    "C": lambda _: collection_class("Counter")(),
    "O": lambda _: collection_class("OrderedDict")(),
    "D": lambda node: collection_class("defaultdict")(FACTORIES.get(node[1])),
}
NODE_DECODERS: dict[str, Callable[[Decoder, list[Any]], Any]] = {
    "t": lambda d, n: tuple(map(d.value, n[1:])),
    "z": lambda d, n: frozenset(map(d.value, n[1:])),
    "/": lambda d, n: slice(*map(d.value, n[1:4])),
    "u": decode_named_tuple,
    "=": lambda d, n: d.value(n[1]),
    "x": decode_exception,
    "R": lambda d, n: d.peer.remote_object(n),
    **array_codec.NODE_DECODERS,
}
MUTABLE_KINDS = frozenset({*EMPTY_CONTAINERS, *array_codec.TABLE_KINDS, "o", "a"})
"""Kinds of nodes with values that an answer may change at the end that sent them."""


def changed_nodes(encoder: Encoder, nodes: list[Any], values: list[Any]) -> dict[str, list[Any]]:
    """Return the new nodes, by number, of values that changed since their message was read."""
    found: dict[str, list[Any]] = {}
    for number, (before, value) in enumerate(zip(nodes, values, strict=True)):
        if before[0] in MUTABLE_KINDS:
            now = encoder.node(value)
            if now[0] == before[0] and (now != before or repr(now) != repr(before)):
                found[str(number)] = now
    while encoder.pending:
        at, waiting = encoder.pending.pop()
        encoder.nodes[at - encoder.base] = encoder.node(waiting)
    return found
