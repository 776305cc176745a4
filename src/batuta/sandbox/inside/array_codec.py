"""Values of numpy and pandas as plain data: numbers and names, never pickled objects.

`codec` explains atoms, nodes and references; a `Refer` returns a value's atom or reference.
"""

# Values have any type, which is known only at run time.
# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnnecessaryIsInstance=false, reportUnknownParameterType=false

from __future__ import annotations

import sys
from binascii import a2b_base64, b2a_base64

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Refer = Callable[[Any], Any]

PLAIN_DTYPE_KINDS = "biufcmMSU"
"""Kinds of numpy dtypes with values that are plain bytes."""


TABLE_KINDS = frozenset({"ps", "pd"})
"""Kinds of nodes for pandas tables, which a program may change in place."""


def shared_nan() -> float:
    """Return NaN, as numpy's object if numpy is loaded, since lists compare NaN by identity."""
    numpy = sys.modules.get("numpy")
    return float("nan") if numpy is None else numpy.nan


def base64_text(data: Any) -> str:
    """Return the bytes in Base64."""
    return b2a_base64(data, newline=False).decode()


def qualified_class_name(value: Any) -> str:
    """Return the package and name of a value's class: `numpy.ndarray`, `pandas.DataFrame`."""
    kind = type(value)
    return f"{kind.__module__.partition('.')[0]}.{kind.__name__}"


def scalar_atom(value: Any) -> Any:
    """Return the atom of a numpy scalar or a pandas time; None for other values."""
    name = qualified_class_name(value)
    if name.startswith("numpy."):
        dtype = getattr(value, "dtype", None)
        scalar = (dtype is not None and not hasattr(value, "__len__")) or name == "numpy.str_"
        if scalar and name != "numpy.ndarray" and getattr(dtype, "kind", "O") in PLAIN_DTYPE_KINDS:
            return ["n", dtype.str, base64_text(value.tobytes())]  # pyright: ignore[reportOptionalMemberAccess]
    elif name in {"pandas.Timestamp", "pandas.Timedelta"}:
        return ["pt", name.rpartition(".")[2], value.isoformat(), str(getattr(value, "tz", None))]
    elif name in {"pandas.NaTType", "pandas.NAType"}:
        return ["pn", name]
    return None


def container_node(value: Any, refer: Refer) -> list[Any] | None:
    """Return the node of an array or a table; None for other values, or if it has no plain form."""
    write = NODES.get(qualified_class_name(value))
    return None if write is None else write(value, refer)


def array_node(value: Any, refer: Refer) -> list[Any] | None:
    """Return the node of an array: numbers as bytes, objects as references.

    Return None for an array of another class, with named fields, or with masked items.
    """
    if type(value).__name__ == "MaskedArray":
        value = None if value.mask.any() else value.data
    if value is None or type(value).__name__ != "ndarray" or value.dtype.names:
        return None
    shape = list(value.shape)
    if value.dtype.kind in PLAIN_DTYPE_KINDS:
        return ["a", value.dtype.str, shape, base64_text(value.tobytes())]
    return ["a", "O", shape, *map(refer, value.ravel().tolist())]


def index_node(value: Any, refer: Refer) -> list[Any]:
    """Return the node of a pandas index."""
    kind, name = type(value).__name__, refer(value.name)
    if kind == "RangeIndex":
        return ["pi", kind, name, value.start, value.stop, value.step]
    if kind == "MultiIndex":
        names, rows = refer(list(value.names)), refer(list(map(tuple, value.tolist())))
        return ["pi", kind, names, rows]
    frequency = getattr(value, "freqstr", None)
    return ["pi", kind, name, frequency, *column_parts(value, refer)]


def column_parts(value: Any, refer: Refer) -> list[Any]:
    """Return a column's dtype and a reference to its values."""
    dtype = value.dtype
    if type(dtype).__module__.startswith("numpy") and dtype.kind in PLAIN_DTYPE_KINDS:
        return [str(dtype), refer(value.to_numpy())]
    if str(dtype) == "category":
        categories = dtype.categories.tolist()
        return ["category", refer([value.tolist(), categories, bool(dtype.ordered)])]
    return [str(dtype), refer(value.tolist())]


def series_node(value: Any, refer: Refer) -> list[Any]:
    """Return the node of a pandas series."""
    return ["ps", refer(value.name), refer(value.index), *column_parts(value, refer)]


def frame_node(value: Any, refer: Refer) -> list[Any]:
    """Return the node of a pandas data frame."""
    parts = [one for n in range(value.shape[1]) for one in column_parts(value.iloc[:, n], refer)]
    return ["pd", refer(value.index), refer(value.columns), *parts]


NODES: dict[str, Callable[[Any, Refer], list[Any] | None]] = {
    "numpy.ndarray": array_node,
    "numpy.MaskedArray": array_node,
    "pandas.RangeIndex": index_node,
    "pandas.MultiIndex": index_node,
    "pandas.Index": index_node,
    "pandas.DatetimeIndex": index_node,
    "pandas.Series": series_node,
    "pandas.DataFrame": frame_node,
}


def dtype_of(name: Any) -> Any:
    """Return the numpy dtype of that name.

    Raises:
        ValueError: its values are not plain bytes.
    """
    dtype = __import__("numpy").dtype(str(name))
    if dtype.kind not in PLAIN_DTYPE_KINDS or dtype.names:
        raise ValueError(name)
    return dtype


def decode_scalar(_: Any, given: list[Any]) -> Any:
    """Return a numpy scalar."""
    dtype = dtype_of(given[1])
    data = a2b_base64(given[2])
    if not dtype.itemsize:
        return dtype.type("")
    return __import__("numpy").frombuffer(data, dtype)[0]


def decode_array(given: list[Any], value: Callable[[Any], Any]) -> Any:
    """Return a numpy array; `value` decodes the references of an array of objects."""
    numpy = __import__("numpy")
    shape = tuple(map(int, given[2]))
    if given[1] != "O":
        data = bytearray(a2b_base64(given[3]))
        return numpy.frombuffer(data, dtype_of(given[1])).reshape(shape)
    items = numpy.empty(len(given) - 3, dtype=object)
    for number, held in enumerate(given[3:]):
        items[number] = value(held)
    return items.reshape(shape)


def decode_timestamp(_: Any, given: list[Any]) -> Any:
    """Return a pandas `Timestamp` or `Timedelta`."""
    pandas = __import__("pandas")
    if given[1] == "Timedelta":
        return pandas.Timedelta(str(given[2]))
    moment = pandas.Timestamp(str(given[2]))
    return moment if given[3] in {None, "None"} else moment.tz_convert(str(given[3]))


def decode_column(decoder: Any, kind: Any, held: Any) -> Any:
    """Return the values of a column, with the dtype that `kind` names."""
    pandas = __import__("pandas")
    values = decoder.decode(held)
    if kind == "category":
        return pandas.Categorical(values[0], categories=values[1], ordered=values[2])
    if not isinstance(values, list):
        return values
    return pandas.array(values, dtype="object" if kind == "object" else str(kind))


def decode_index(decoder: Any, given: list[Any]) -> Any:
    """Return a pandas index."""
    pandas = __import__("pandas")
    kind, name = given[1], decoder.decode(given[2])
    if kind == "RangeIndex":
        return pandas.RangeIndex(*map(int, given[3:6]), name=name)
    if kind == "MultiIndex":
        return pandas.MultiIndex.from_tuples(decoder.decode(given[3]), names=name)
    values = decode_column(decoder, given[4], given[5])
    if kind == "DatetimeIndex":
        return pandas.DatetimeIndex(values, freq=given[3], name=name)
    return pandas.Index(values, dtype=object if given[4] == "object" else None, name=name)


def decode_series(decoder: Any, given: list[Any]) -> Any:
    """Return a pandas series."""
    labels = decoder.decode(given[2])
    values = decode_column(decoder, given[3], given[4])
    dtype = object if given[3] == "object" else None
    return __import__("pandas").Series(
        values, index=labels, dtype=dtype, name=decoder.decode(given[1])
    )


def decode_frame(decoder: Any, given: list[Any]) -> Any:
    """Return a pandas data frame."""
    pandas = __import__("pandas")
    labels, names = decoder.decode(given[1]), decoder.decode(given[2])
    columns = {
        n: pandas.Series(
            decode_column(decoder, kind, held),
            index=labels,
            dtype=object if kind == "object" else None,
        )
        for n, (kind, held) in enumerate(zip(given[3::2], given[4::2], strict=True))
    }
    frame = pandas.DataFrame(columns, index=labels)
    frame.columns = names
    return frame


ATOM_DECODERS: dict[str, Callable[[Any, list[Any]], Any]] = {
    "n": decode_scalar,
    "pt": decode_timestamp,
    "pn": lambda _, a: __import__("pandas").NaT if "NaT" in a[1] else __import__("pandas").NA,
}
NODE_DECODERS: dict[str, Callable[[Any, list[Any]], Any]] = {
    "a": lambda decoder, given: decode_array(given, decoder.value),
    "pi": decode_index,
    "ps": decode_series,
    "pd": decode_frame,
}
