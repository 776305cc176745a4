"""Logs of inspect_ai: `.json`, or `.eval`, an archive with a JSON file a sample.

The first scorer's value counts: C is 1, P is 0.5, I and N are 0, a number in [0, 1] is itself;
anything else is ungraded. Epochs are samples; a sample that ended in an error is left out.
"""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import orjson

from batuta.errors import SourceError
from batuta.tasks.datasets.rows import Row, import_arrow
from batuta.tasks.recorded.importers.llmrouterbench import read_json_object
from batuta.tasks.recorded.outcome_lines import OutcomeCollector

_ZSTD = 93
_LOCAL_HEADER = 30
"""Bytes before the name of an entry in a zip archive."""
_NOTHING: Row = {}
_GRADES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}


def import_inspect_logs(paths: tuple[Path, ...], collector: OutcomeCollector, worker: str) -> None:
    """Add every sample of every log.

    Raises:
        SourceError: a file is no such log, or an archive is compressed in a newer way.
    """
    for path in paths:
        header, samples = _read_archive(path) if path.suffix == ".eval" else _read_log(path)
        about = cast("Row", header.get("eval") or {})
        task, model = str(about.get("task") or path.stem), str(about.get("model") or worker)
        try:
            for sample in samples:
                if not sample.get("error"):
                    _add_sample(sample, task, model or path.stem, collector)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SourceError(f"{path} is not a log of inspect_ai: {error!r}") from None


def _read_log(path: Path) -> tuple[Row, Iterable[Row]]:
    log = read_json_object(path)
    return log, cast("list[Row]", log.get("samples") or [])


def _read_archive(path: Path) -> tuple[Row, Iterable[Row]]:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            header = next((n for n in ("header.json", "_journal/start.json") if n in names), None)
            if header is None:
                raise SourceError(f"{path} is not a log of inspect_ai: it has no header.json")
            return _read_entry(archive, header), list(_read_samples(archive, names))
    except (NotImplementedError, zipfile.BadZipFile, orjson.JSONDecodeError, OSError) as error:
        raise SourceError(
            f"{path} cannot be read ({error}); convert it: inspect log convert --to json"
        ) from None


def _read_samples(archive: zipfile.ZipFile, names: Iterable[str]) -> Iterator[Row]:
    for name in sorted(names):
        if name.startswith("samples/") and name.endswith(".json"):
            yield _read_entry(archive, name)


def _read_entry(archive: zipfile.ZipFile, name: str) -> Row:
    """A JSON object of the archive; zipfile itself reads zstd from Python 3.14 only."""
    info = archive.getinfo(name)
    if info.compress_type != _ZSTD:
        return cast("Row", orjson.loads(archive.read(info)))
    stream = archive.fp
    if stream is None:
        raise OSError(f"{name} is closed")
    stream.seek(info.header_offset)
    *_, name_size, extra_size = struct.unpack("<4s5H3L2H", stream.read(_LOCAL_HEADER))
    stream.seek(name_size + extra_size, 1)
    packed = import_arrow().py_buffer(stream.read(info.compress_size))
    return cast("Row", orjson.loads(import_arrow().CompressedInputStream(packed, "zstd").read()))


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
    """The question as text, or the last message of the user."""
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
    if isinstance(value, int | float) and 0 <= value <= 1:
        return float(value)
    return None


def _sum_field(usage: Iterable[Row], name: str) -> float | None:
    """The sum over all models; None where one does not tell."""
    found = [one.get(name) for one in usage]
    return sum(map(float, cast("list[float]", found))) if found and None not in found else None


def _sum_tokens(usage: Iterable[Row], name: str) -> int | None:
    found = _sum_field(usage, name)
    return None if found is None else int(found)
