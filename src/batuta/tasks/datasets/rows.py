"""Rows of a file, whatever its form: JSON lines (plain, gzip, zstd), JSON, CSV, Parquet."""

from __future__ import annotations

import csv
import gzip
import hashlib
import importlib
import io
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, cast

import orjson

from batuta.distribution import install_hint
from batuta.errors import SourceError

Row = Mapping[str, Any]

_BATCH = 512
"""Rows of a Parquet file decoded at a time."""


def import_arrow(module: str = "pyarrow") -> Any:
    """PyArrow, which reads Parquet and zstd.

    Raises:
        SourceError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        raise SourceError(
            f"reading Parquet and zstd files needs PyArrow: {install_hint('tasks')}"
        ) from None


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of `path`, in order; the ending of its name says what form it has.

    Raises:
        SourceError: no such file, an unknown form, a damaged file, or a row that is no object.
    """
    if not path.is_file():
        raise SourceError(f"there is no file {path}")
    if path.suffix == ".parquet":
        return _checked_rows(path, _read_parquet(path))
    if path.suffix == ".csv":
        return _checked_rows(path, _read_csv(path))
    if path.suffix == ".tsv":
        return _checked_rows(path, _read_question_table(path))
    if path.suffix == ".json":
        return _checked_rows(path, _read_json(path))
    if ".jsonl" in path.suffixes[-2:]:
        return _checked_rows(path, _read_json_lines(path))
    raise SourceError(
        f"{path} has an unknown form; use .jsonl (.gz, .zst), .json, .csv, .tsv, .parquet"
    )


def _checked_rows(path: Path, rows: Iterator[Any]) -> Iterator[Row]:
    """The rows, each an object; a file that is damaged is named, whatever reads it."""
    try:
        for number, row in enumerate(rows, 1):
            if not isinstance(row, Mapping):
                raise SourceError(f"row {number} of {path} is not a JSON object")
            yield cast("Row", row)
    except (ValueError, OSError, EOFError, csv.Error, zlib.error) as error:
        raise SourceError(
            f"{path} cannot be read, it is damaged or of another form: {error}"
        ) from None


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _open_file(path: Path) -> IO[bytes] | gzip.GzipFile:
    if path.suffix == ".gz":
        return gzip.open(path)
    if path.suffix == ".zst":
        return io.BufferedReader(import_arrow().input_stream(str(path), compression="zstd"))
    return path.open("rb")


def _read_json_lines(path: Path) -> Iterator[Row]:
    with _open_file(path) as stream:  # bytes, so that only \n ends a line: texts contain U+2028
        for number, line in enumerate(stream, 1):
            if line.strip():
                yield _parse_row(line, f"line {number} of {path}")


def _read_json(path: Path) -> Iterator[Row]:
    try:
        rows: Any = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError as error:
        raise SourceError(f"{path} is not JSON: {error}") from None
    if not isinstance(rows, list):
        raise SourceError(f"{path} is not a list of rows")
    yield from rows


def _parse_row(line: bytes, where: str) -> Row:
    try:
        row: Any = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise SourceError(f"{where} is not JSON: {error}") from None
    if not isinstance(row, Mapping):
        raise SourceError(f"{where} is not a JSON object")
    return cast("Row", row)


def _read_csv(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig", newline="") as stream:
        yield from csv.DictReader(stream)


def _read_question_table(path: Path) -> Iterator[Row]:
    """A table without a head: a question and its answer a line."""
    with path.open(encoding="utf-8-sig", newline="") as stream:
        names = ("question", "answer")
        for row in csv.reader(stream, delimiter="\t", quoting=csv.QUOTE_NONE):
            yield dict(zip(names, row, strict=False))


def _read_parquet(path: Path) -> Iterator[Row]:
    for batch in import_arrow("pyarrow.parquet").ParquetFile(path).iter_batches(_BATCH):
        yield from batch.to_pylist()
