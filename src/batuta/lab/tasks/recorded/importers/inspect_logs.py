"""Logs of inspect_ai: `.json`, or `.eval`, an archive with one JSON file per sample.

The first scorer's value is the score: C is 1, P is 0.5, I and N are 0, and a number in [0, 1] is
kept. Samples that have a NaN or infinite score, or that ended in an error, are left out; a sample
with any other value is ungraded. The epochs of a question are its runs.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import Any, cast, final

from batuta.errors import SourceError
from batuta.lab.tasks.datasets.rows import (
    MAX_ROW_BYTES,
    ROW_FAULTS,
    Row,
    UnpackingLimit,
    import_arrow,
    parse_json,
)
from batuta.lab.tasks.recorded.importers.llmrouterbench import read_json_object
from batuta.lab.tasks.recorded.outcome_lines import OutcomeCollector

_ZSTD = 93
_LOCAL_HEADER = 30
"""The number of bytes before an entry's name in a zip archive."""
_MAX_ENTRIES = 200_000
_HEADERS = ("header.json", "_journal/start.json")
_ARCHIVE_FAULTS = (
    NotImplementedError, RuntimeError, struct.error, zipfile.BadZipFile, zlib.error, EOFError,
    ValueError, OSError,
)  # fmt: skip
_NOTHING: Row = {}
_GRADES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}


def import_inspect_logs(paths: tuple[Path, ...], collector: OutcomeCollector, worker: str) -> None:
    """Add the samples of every log, except those that ended in an error.

    Args:
        paths: the logs.
        collector: takes the samples.
        worker: the worker of logs that name no model; empty: the name of the file.

    Raises:
        SourceError: a file cannot be read or is not a log of inspect_ai, or an archive is damaged,
            too large, or packed in an unknown way.
    """
    for path in paths:
        if path.suffix != ".eval":
            log = read_json_object(path)
            samples = cast("list[Row]", log.get("samples") or [])
            _add_log(path, (log, samples), collector, worker)
            continue
        with _open_archive(path) as archive:
            log = archive.read_header(), archive.read_samples()
            _add_log(path, log, collector, worker)


def _add_log(
    path: Path, log: tuple[Row, Iterable[Row]], collector: OutcomeCollector, worker: str
) -> None:
    header, samples = log
    try:
        about = cast("Row", header.get("eval") or {})
        task, model = str(about.get("task") or path.stem), str(about.get("model") or worker)
        for sample in samples:
            if not sample.get("error"):
                _add_sample(sample, task, model or path.stem, collector)
    except ROW_FAULTS as error:
        raise SourceError(f"{path} is not a log of inspect_ai: {error!r}") from None


@contextmanager
def _open_archive(path: Path) -> Generator[_LogArchive]:
    try:
        with zipfile.ZipFile(path) as archive:
            yield _LogArchive(path, archive)
    except _ARCHIVE_FAULTS as error:
        raise _unreadable_error(path, error) from None


def _unreadable_error(path: Path, error: Exception) -> SourceError:
    return SourceError(
        f"{path} cannot be read ({error}); convert it: inspect log convert --to json"
    )


@final
class _LogArchive:
    """The entries of a log; after a check of their sizes, each is read on demand."""

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self._path = path
        self._archive = archive
        self._entries = sorted(archive.infolist(), key=lambda entry: entry.filename)
        if len(self._entries) > _MAX_ENTRIES:
            raise SourceError(f"{path} has more than {_MAX_ENTRIES:,} entries")
        limit = UnpackingLimit(path)
        for entry in self._entries:
            limit.add(entry.file_size)

    def read_header(self) -> Row:
        found = {entry.filename: entry for entry in self._entries}
        name = next((name for name in _HEADERS if name in found), None)
        if name is None:
            raise SourceError(f"{self._path} is not a log of inspect_ai: it has no header.json")
        return self._read_entry(found[name])

    def read_samples(self) -> Iterator[Row]:
        """Yield the samples in the order of their entries' names."""
        for entry in self._entries:
            if entry.filename.startswith("samples/") and entry.filename.endswith(".json"):
                yield self._read_entry(entry)

    def _read_entry(self, entry: zipfile.ZipInfo) -> Row:
        if entry.file_size > MAX_ROW_BYTES:
            name = f"{entry.filename} in {self._path}"
            raise SourceError(f"{name} is larger than {MAX_ROW_BYTES >> 20} MiB")
        try:
            # Both ways read at most the size in the header, whatever the archive contains.
            is_zstd = entry.compress_type == _ZSTD
            data = self._unpack_zstd(entry) if is_zstd else self._archive.read(entry)
            return cast("Row", parse_json(data))
        except _ARCHIVE_FAULTS as error:
            raise _unreadable_error(self._path, error) from None

    def _unpack_zstd(self, entry: zipfile.ZipInfo) -> bytes:
        """Unpack an entry packed by zstd, which zipfile can read only from Python 3.14 on."""
        stream = self._archive.fp
        if stream is None:
            raise OSError(f"{entry.filename} is closed")
        stream.seek(entry.header_offset)
        *_, name_size, extra_size = struct.unpack("<4s5H3L2H", stream.read(_LOCAL_HEADER))
        stream.seek(name_size + extra_size, 1)
        packed = import_arrow().py_buffer(stream.read(entry.compress_size))
        unpacked = import_arrow().CompressedInputStream(packed, "zstd")
        data: bytes = unpacked.read(entry.file_size + 1)
        if len(data) != entry.file_size:
            raise zipfile.BadZipFile(f"{entry.filename} does not have the size in its header")
        return data


def _add_sample(sample: Row, task: str, model: str, collector: OutcomeCollector) -> None:
    output = cast("Row", sample.get("output") or {})
    scores = cast("Mapping[str, Row]", sample.get("scores") or {})
    first = next(iter(scores.values()), _NOTHING)
    usage = list(cast("Mapping[str, Row]", sample.get("model_usage") or {}).values())
    question = {
        "id": f"{task}/{sample['id']}",
        "question": _question_text(sample["input"]),
        "family": task,
        "target": _target_text(sample.get("target")),
    }
    run = {
        "score": _grade_value(first.get("value")),
        "answer": first.get("answer"),
        "reply": _completion_text(output),
        "input_tokens": _sum_tokens(usage, "input_tokens"),
        "output_tokens": _sum_tokens(usage, "output_tokens"),
        "usd": _sum_field(usage, "total_cost"),
        "seconds": sample.get("total_time"),
    }
    collector.add_run(question, model, run)


def _question_text(given: Any) -> str:
    """Return the question as text: the last message of the user if it is a conversation."""
    if isinstance(given, str):
        return given
    users = [m for m in cast("list[Row]", given) if m.get("role") == "user"]
    return _content_text(users[-1].get("content")) if users else ""


def _content_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = cast("list[Row]", content or [])
    return "\n".join(str(part.get("text") or "") for part in parts if part.get("type") == "text")


def _completion_text(output: Row) -> str | None:
    choices = cast("list[Row]", output.get("choices") or [])
    message = cast("Row", choices[0].get("message") or {}) if choices else _NOTHING
    return _content_text(message.get("content")) or None


def _target_text(target: Any) -> str:
    return target if isinstance(target, str) else ", ".join(map(str, target or ()))


def _grade_value(value: Any) -> float | None:
    if isinstance(value, str) and value in _GRADES:
        return _GRADES[value]
    if isinstance(value, int | float) and (0 <= value <= 1 or not isfinite(value)):
        return float(value)
    return None


def _sum_field(usage: Iterable[Row], name: str) -> float | None:
    """Return the sum of a field over all models; None if a model lacks it."""
    found = [one.get(name) for one in usage]
    return sum(map(float, cast("list[float]", found))) if found and None not in found else None


def _sum_tokens(usage: Iterable[Row], name: str) -> int | None:
    found = _sum_field(usage, name)
    return None if found is None or not isfinite(found) else int(found)
