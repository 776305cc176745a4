"""Rows of a file, whatever its form: JSON lines (plain, gzip, zstd), JSON, CSV, Parquet."""

from __future__ import annotations

import csv
import gzip
import hashlib
import importlib
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, cast

import orjson

from batuta.errors import SourceError

Row = Mapping[str, Any]

_BATCH = 512
"""Rows of a Parquet file decoded at a time."""


def arrow(module: str = "pyarrow") -> Any:
    """PyArrow, which reads Parquet and zstd.

    Raises:
        SourceError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        raise SourceError(
            "reading Parquet and zstd files needs PyArrow: pip install 'batuta[tasks]'"
        ) from None


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of `path`, in order; the ending of its name says what form it has.

    Raises:
        SourceError: no such file, an unknown form, or a line that is not JSON.
    """
    if not path.is_file():
        raise SourceError(f"there is no file {path}")
    if path.suffix == ".parquet":
        return _parquet(path)
    if path.suffix == ".csv":
        return _csv(path)
    if path.suffix == ".json":
        return _json(path)
    if ".jsonl" in path.suffixes[-2:]:
        return _lines(path)
    raise SourceError(f"{path} has an unknown form; use .jsonl (.gz, .zst), .json, .csv, .parquet")


def sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _open(path: Path) -> IO[bytes] | gzip.GzipFile:
    if path.suffix == ".gz":
        return gzip.open(path)
    if path.suffix == ".zst":
        return io.BufferedReader(arrow().input_stream(str(path), compression="zstd"))
    return path.open("rb")


def _lines(path: Path) -> Iterator[Row]:
    with _open(path) as stream:  # bytes, so that only \n ends a line: texts contain U+2028
        for number, line in enumerate(stream, 1):
            if line.strip():
                yield _row(line, f"line {number} of {path}")


def _json(path: Path) -> Iterator[Row]:
    try:
        rows: Any = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise SourceError(f"{path} is not JSON: {error}") from None
    if not isinstance(rows, list):
        raise SourceError(f"{path} is not a list of rows")
    yield from rows


def _row(line: bytes, where: str) -> Row:
    try:
        row: Any = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise SourceError(f"{where} is not JSON: {error}") from None
    if not isinstance(row, Mapping):
        raise SourceError(f"{where} is not a JSON object")
    return cast("Row", row)


def _csv(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig", newline="") as stream:
        yield from csv.DictReader(stream)


def _parquet(path: Path) -> Iterator[Row]:
    for batch in arrow("pyarrow.parquet").ParquetFile(path).iter_batches(_BATCH):
        yield from batch.to_pylist()
