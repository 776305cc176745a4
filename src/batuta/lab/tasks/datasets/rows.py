"""Reads rows from JSON lines (plain, gzip, zstd), JSON, CSV, TSV and Parquet files, within limits.

The limits guard against small files that unpack to huge ones.
"""

from __future__ import annotations

import csv
import gzip
import importlib
import io
import json
import sys
import zlib
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar, cast, final

import orjson

from batuta.distribution import install_hint
from batuta.errors import SourceError

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAX_ROW_BYTES = 128 << 20
"""Maximum unpacked bytes of a line of a JSON-lines file, an archive's entry, or packed tests."""
_ALWAYS_ALLOWED_BYTES = 1 << 30
_MAX_RATIO = 100
"""Maximum ratio of unpacked to packed bytes for a file that unpacks to more than
`_ALWAYS_ALLOWED_BYTES`. Packing shrinks model replies to a tenth, and a decompression bomb to a
thousandth."""


@final
class UnpackingLimit:
    """Counts the unpacked bytes of a file, and raises an error beyond their limit."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._most = max(_ALWAYS_ALLOWED_BYTES, _MAX_RATIO * path.stat().st_size)
        self._unpacked = 0

    def add(self, amount: int) -> None:
        """Count further bytes.

        Raises:
            SourceError: the limit is exceeded.
        """
        self._unpacked += amount
        if self._unpacked > self._most:
            raise SourceError(
                f"{self._path} unpacks to more than {self._most / (1 << 30):.3g} GiB: too much for "
                "a file of its size; unpack it yourself if you trust it"
            )


@final
class UnpackedStream(io.RawIOBase):
    """A stream of unpacked bytes that raises `SourceError` beyond their limit."""

    def __init__(self, stream: IO[bytes], limit: UnpackingLimit) -> None:
        super().__init__()
        self._stream = stream
        self._limit = limit

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        """Read into the buffer, and return the number of bytes; 0 at the end."""
        view = memoryview(buffer)
        piece = self._stream.read(len(view))
        self._limit.add(len(piece))
        view[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        """Close the compressed stream too."""
        self._stream.close()
        super().close()


Row = Mapping[str, Any]
_Text = TypeVar("_Text", str, bytes)

ROW_FAULTS = (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError)
"""Exceptions raised for a row with missing fields or wrong types."""

_HEAD = 4
"""Number of bytes at the start of a file that determine its encoding."""
_AS_ZEROS = bytes.maketrans(b"123456789", b"0" * 9)
_LONG_NUMBER = b"0" * 19
"""A run of 19 digits may be an integer beyond 64 bits, which orjson reads as a float. The text is
searched for this run after all its digits are mapped to zeros; a regular expression took a third of
the time of reading a record."""
_MAX_FIELD = 1 << 28
"""Maximum number of characters in a field of a CSV or TSV file."""

_SURPLUS = "cells without a column"

_PIECE_BYTES = 1 << 16
_BATCH = 64
"""Number of rows of a Parquet file that are decoded together."""


def import_arrow(module: str = "pyarrow") -> Any:
    """Import PyArrow, which reads Parquet and zstd, or one of its modules.

    Raises:
        SourceError: PyArrow is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        raise SourceError(
            f"reading Parquet and zstd files needs PyArrow: {install_hint('tasks')}"
        ) from None


def read_rows(path: Path) -> Iterator[Row]:
    """Read the rows of a file in the format of its suffix.

    A `.tsv` file has the columns question and answer and needs no header.

    Raises:
        SourceError: the file does not exist or has an unknown format. While the rows are read: it
            is damaged or too large, a row is not an object, or PyArrow is needed and missing.
    """
    if not path.is_file():
        raise SourceError(f"there is no file {path}")
    reader = _READERS.get(path.suffix)
    if reader is None and ".jsonl" in path.suffixes[-2:]:
        reader = _read_json_lines
    if reader is None:
        raise SourceError(
            f"{path} has an unknown format; use .jsonl (.gz, .zst), .json, .csv, .tsv, .parquet"
        )
    return _checked_rows(path, reader(path))


def _checked_rows(path: Path, rows: Iterator[Any]) -> Iterator[Row]:
    """Yield the rows; raise `SourceError` if the file cannot be read or a row is not an object."""
    try:
        for number, row in enumerate(rows, 1):
            if not isinstance(row, Mapping):
                raise SourceError(f"row {number} of {path} is not a JSON object")
            yield cast("Row", row)
    except PermissionError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, OSError, EOFError, csv.Error, zlib.error) as error:
        raise SourceError(
            f"{path} cannot be read; it is damaged or has another format: {error}"
        ) from None


def parse_json(data: bytes) -> Any:
    """Parse JSON in any Unicode encoding.

    Integers keep all their digits (as text if Python refuses to read so many), and NaN, which
    Python writes, is a float.

    Raises:
        ValueError: the text is not JSON.
    """
    encoding = json.detect_encoding(data)
    if encoding != "utf-8":
        data = data.decode(encoding).encode()
    is_odd = b"NaN" in data or b"Infinity" in data or _LONG_NUMBER in data.translate(_AS_ZEROS)
    if not is_odd:
        return orjson.loads(data)
    try:
        return json.loads(data, parse_int=_read_integer)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _read_integer(digits: str) -> int | str:
    """Return an integer, or the digits as text if Python refuses to read so many."""
    return int(digits) if len(digits) <= sys.int_info.default_max_str_digits else digits


def _open_file(path: Path) -> io.BufferedReader:
    if path.suffix == ".gz":
        packed = cast("IO[bytes]", gzip.GzipFile(path))
    elif path.suffix == ".zst":
        packed = import_arrow().input_stream(str(path), compression="zstd")
    else:
        return path.open("rb")
    return io.BufferedReader(UnpackedStream(packed, UnpackingLimit(path)), _PIECE_BYTES)


def _read_json_lines(path: Path) -> Iterator[Row]:
    with _open_file(path) as stream:  # bytes, so that only \n ends a line: texts contain U+2028
        encoding = _detect_encoding(stream)
        lines = _bounded_lines(path, stream)
        if encoding != "utf-8":
            text = io.TextIOWrapper(stream, encoding, newline="\n")
            lines = (line.encode() for line in _bounded_lines(path, text))
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield _parse_row(line, f"line {number} of {path}")


def _bounded_lines(path: Path, stream: IO[_Text]) -> Iterator[_Text]:
    """Yield the lines; raise `SourceError` for a line that is longer than a row may be."""
    number = 1
    while line := stream.readline(MAX_ROW_BYTES + 1):
        if len(line) > MAX_ROW_BYTES:
            raise SourceError(f"line {number} of {path} is longer than {MAX_ROW_BYTES >> 20} MiB")
        yield line
        number += 1


def _detect_encoding(stream: io.BufferedReader) -> str:
    """Return the Unicode encoding of a file, from its byte order mark or its zero bytes."""
    return json.detect_encoding(stream.peek(_HEAD)[:_HEAD])


def _read_json(path: Path) -> Iterator[Row]:
    try:
        rows: Any = parse_json(path.read_bytes())
    except ValueError as error:
        raise SourceError(f"{path} is not JSON: {error}") from None
    if not isinstance(rows, list):
        raise SourceError(f"{path} is not a list of rows")
    yield from rows


def _parse_row(line: bytes, where: str) -> Row:
    try:
        row: Any = parse_json(line)
    except ValueError as error:
        raise SourceError(f"{where} is not JSON: {error}") from None
    if not isinstance(row, Mapping):
        raise SourceError(f"{where} is not a JSON object")
    return cast("Row", row)


@contextmanager
def _open_table(path: Path) -> Generator[IO[str]]:
    """Open a table as text, in its Unicode encoding."""
    with path.open("rb") as stream:
        encoding = _detect_encoding(stream)
        with io.TextIOWrapper(stream, encoding, newline="") as text:
            csv.field_size_limit(_MAX_FIELD)
            yield text


def _read_csv(path: Path) -> Iterator[Row]:
    with _open_table(path) as stream:
        rows = csv.DictReader(stream, restkey=_SURPLUS)
        names = Counter(filter(None, rows.fieldnames or ()))
        if twice := [name for name, count in names.items() if count > 1]:
            raise SourceError(f"{path} has two columns {twice[0]!r}: rename or remove one")
        for number, row in enumerate(rows, 1):
            if any(row.pop(_SURPLUS, ())):
                raise SourceError(
                    f"row {number} of {path} has more cells than the header: put a text that has "
                    "a comma between quotation marks"
                )
            yield row


def _read_question_table(path: Path) -> Iterator[Row]:
    """Read a table with a question and an answer per line; a header with these names is skipped."""
    names = ["question", "answer"]
    with _open_table(path) as stream:
        lines = csv.reader(stream, delimiter="\t", quoting=csv.QUOTE_NONE)
        for number, row in enumerate(lines):
            if number or [cell.strip().casefold() for cell in row] != names:
                yield dict(zip(names, row, strict=False))


def _read_parquet(path: Path) -> Iterator[Row]:
    limit = UnpackingLimit(path)
    for batch in import_arrow("pyarrow.parquet").ParquetFile(path).iter_batches(_BATCH):
        for column in batch.columns:
            # A dictionary column stores a string once, but Python gets a copy for every row.
            plain = column.dictionary_decode() if hasattr(column, "dictionary") else column
            limit.add(plain.nbytes)
        yield from batch.to_pylist()


_READERS = {
    ".parquet": _read_parquet,
    ".csv": _read_csv,
    ".tsv": _read_question_table,
    ".json": _read_json,
}
"""The readers by suffix. JSON lines, which may be compressed, have `_read_json_lines`."""
