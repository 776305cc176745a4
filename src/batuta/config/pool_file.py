"""Writes the workers of a settings file, and edits them in place.

An edit keeps all other lines unchanged. It is verified before it is written: the new text must
parse as the old settings with that change and nothing else. If it does not, the file can only be
edited in a text editor.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from tempfile import NamedTemporaryFile
from time import time
from typing import Any, cast, final

from batuta.clients import WorkerSpec, find_provider
from batuta.core.formatting import format_percent
from batuta.errors import ConfigError

HISTORY_LENGTH = 50
"""Maximum number of changes that are kept; an older one cannot be undone."""
_HEADER = re.compile(r"\s*\[")
_WORKERS = re.compile(r"\s*\[\[\s*workers\s*\]\]\s*(#.*)?$")
_COMMENT = re.compile(r"""(?:"(?:\\.|[^"\\])*+"|'[^']*+'|[^"'#])*+(#.*)""")
_UNSUPPORTED_LAYOUT = "the layout of this file is not supported: change it in a text editor"


def describe_workers(specs: Iterable[WorkerSpec], environ: Mapping[str, str]) -> str:
    """Return the `[[workers]]` of a settings file (TOML) with these workers.

    What is looked up by provider and model is left out, and so are keys: the variable with a
    server's own key is searched in the environment.
    """
    return "".join(_worker_text(spec, environ) for spec in specs)


def _worker_text(spec: WorkerSpec, environ: Mapping[str, str]) -> str:
    worker = spec.worker
    rows = {"id": worker.id, "provider": spec.provider, "model": worker.model}
    if spec.base_url:
        rows["base_url"] = spec.base_url
    if spec.key and (variable := _key_variable(spec, environ)):
        rows["key_env"] = variable
    if worker.description:
        rows["description"] = worker.description
    lines = [f"{name} = {quote_text(value)}" for name, value in rows.items()]
    own = [tag for tag in worker.tags if tag != "local"]
    if own:
        lines.append(f"tags = [{', '.join(map(quote_text, own))}]")
    if worker.context_window:
        lines.append(f"context_window = {worker.context_window}")
    lines += [
        f"# {skill.family}: {format_percent(skill.share)} ({skill.board})"
        for skill in worker.skills
    ]
    return "\n[[workers]]\n" + "\n".join(lines) + "\n"


def _key_variable(spec: WorkerSpec, environ: Mapping[str, str]) -> str | None:
    """Return the variable with the server's key; None if none has it or the provider names it."""
    if find_provider(spec.provider).key_vars:
        return None
    names = (name for name in environ if name.endswith("_API_KEY"))
    return next((name for name in names if environ[name].strip() == spec.key.reveal()), None)


def add_worker(text: str, values: Mapping[str, Any]) -> str:
    """Return the text of the settings with a worker appended.

    Raises:
        ConfigError: there is a worker of that id, the text is not TOML, or its layout is not
            supported.
    """
    expected = _read_toml(text)
    workers = _list_workers(expected)
    if any(worker.get("id") == values["id"] for worker in workers):
        raise ConfigError(f"there is a worker {values['id']} already")
    expected["workers"] = [*workers, _read_back(values)]
    lines = [f"{name} = {format_value(value)}" for name, value in values.items()]
    end = _find_line_end(text)
    gap = "" if not text or text.endswith(end * 2) else end if text.endswith(end) else end * 2
    return _verify_text(text + gap + end.join(["[[workers]]", *lines, ""]), expected)


def find_worker(text: str, worker: str) -> dict[str, Any]:
    """Return the values of the worker in the text of the settings.

    Raises:
        ConfigError: there is no such worker, or the text is not TOML.
    """
    workers = _list_workers(_read_toml(text))
    return workers[_find_index(workers, worker)]


def change_worker(text: str, worker: str, values: Mapping[str, Any]) -> str:
    """Return the text of the settings with other values of a worker; None removes a value.

    Raises:
        ConfigError: there is no such worker, the text is not TOML, or its layout is not supported.
    """
    for name, value in values.items():
        text = _set_value(text, worker, name, value)
    return text


def _set_value(text: str, worker: str, name: str, value: Any) -> str:
    expected = _read_toml(text)
    workers = _list_workers(expected)
    index = _find_index(workers, worker)
    changed = {**workers[index], name: value}
    changed = _read_back({n: v for n, v in changed.items() if v is not None})
    if changed == workers[index]:
        return text
    expected["workers"] = [*workers[:index], changed, *workers[index + 1 :]]
    lines, line_end = list(StringIO(text, newline="\n")), _find_line_end(text)
    begin, end = _find_block(lines, index)
    written = [] if value is None else [f"{name} = {format_value(value)}{line_end}"]
    assigned = re.compile(rf"\s*{re.escape(name)}\s*=")
    found = next((at for at in range(begin, end) if assigned.match(lines[at])), None)
    if found is None:
        last = max(
            (at for at in range(begin, end) if lines[at].strip() and lines[at].strip()[0] != "#"),
            default=begin - 1,
        )
        kept = "" if lines[last].endswith("\n") else line_end
        lines[last] += kept
        return _verify_text(_join_lines(lines[: last + 1], written, lines[last + 1 :]), expected)
    comment = _find_comment(lines[found])
    written = [line.removesuffix(line_end) + comment + line_end for line in written]
    for after in range(found + 1, end + 1):  # the old value may span several lines
        try:
            return _verify_text(_join_lines(lines[:found], written, lines[after:]), expected)
        except ConfigError:
            continue
    raise ConfigError(_UNSUPPORTED_LAYOUT)


def _find_index(workers: Sequence[Mapping[str, Any]], worker: str) -> int:
    index = next((at for at, each in enumerate(workers) if each.get("id") == worker), None)
    if index is None:
        raise ConfigError(f"the file has no worker {worker}")
    return index


def _find_line_end(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _find_comment(line: str) -> str:
    """Return the comment at the end of a line with the spaces before it; empty without one."""
    found = _COMMENT.match(line)
    return line[len(line[: found.start(1)].rstrip()) :].rstrip("\r\n") if found else ""


def _join_lines(before: Sequence[str], written: Sequence[str], after: Sequence[str]) -> str:
    return "".join([*before, *written, *after])


def _find_block(lines: Sequence[str], index: int) -> tuple[int, int]:
    """Return the range of lines with the values of the worker of that index."""
    headers = [at for at, line in enumerate(lines) if _WORKERS.match(line)]
    if index >= len(headers):
        raise ConfigError(_UNSUPPORTED_LAYOUT)
    begin = headers[index] + 1
    end = next((at for at in range(begin, len(lines)) if _HEADER.match(lines[at])), len(lines))
    return begin, end


def _list_workers(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    return list(settings.get("workers", []))


def _verify_text(text: str, expected: Mapping[str, Any]) -> str:
    """Return the text, which must parse as expected."""
    try:
        found = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        found = None
    if found != expected:
        raise ConfigError(_UNSUPPORTED_LAYOUT)
    return text


def _read_toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"the file is not TOML: {error}") from None


def _read_back(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values as they are after they are written as TOML and read again."""
    plain = {name: value for name, value in values.items() if not _is_nested(value)}
    lines = "\n".join(f"{quote_text(name)} = {format_value(v)}" for name, v in plain.items())
    return {**deepcopy(dict(values)), **_read_toml(lines)}


def _is_nested(value: Any) -> bool:
    """Return True for a list with a table in it, which is compared without being written first."""
    return isinstance(value, list) and any(
        isinstance(each, dict) for each in cast("list[Any]", value)
    )


def format_value(value: Any) -> str:
    """Return a value as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return quote_text(value)
    if isinstance(value, Mapping):
        known = cast("Mapping[str, Any]", value)
        pairs = (f"{_format_name(name)} = {format_value(v)}" for name, v in known.items())
        return "{ " + ", ".join(pairs) + " }" if known else "{}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(format_value, cast("Sequence[Any]", value))) + "]"
    return f"{value}"


def quote_text(text: str) -> str:
    """Return the text as a quoted string that is valid in TOML, JSON and YAML alike."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _format_name(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else quote_text(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """A change of the file that can be undone."""

    at: float
    """Seconds since the epoch."""
    by: str
    """The person who made the change."""
    what: str
    """The change, as people read it."""
    before: str
    """The text before the change."""
    after: str
    """The SHA-256 of the text after the change."""


@final
class PoolFile:
    """The settings file of a pool, with the history of its changes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._history = path.with_name(f"{path.name}.history")

    def read(self) -> str:
        """Return the text of the file.

        Raises:
            ConfigError: the file cannot be read.
        """
        try:
            return self.path.read_bytes().decode("utf-8-sig")  # line ends are kept as they are
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self.path} cannot be read: {error}") from None

    def workers(self) -> list[dict[str, Any]]:
        """Return the workers as they are in the file, including disabled ones.

        Raises:
            ConfigError: the file cannot be read, or is not TOML.
        """
        return _list_workers(_read_toml(self.read()))

    def history(self) -> list[FileChange]:
        """Return the latest changes that `write` made and `undo` did not undo, newest first.

        Raises:
            ConfigError: a stored change cannot be read.
        """
        return [_read_change(path) for path in sorted(self._paths(), reverse=True)]

    def write(self, before: str, after: str, *, what: str, by: str) -> None:
        """Replace the file atomically by the new text, and keep the old text in the history.

        Raises:
            ConfigError: the file has changed since it was read, or cannot be read or written.
        """
        self._check_unchanged(_hash_text(before))
        entry = {"at": time(), "by": by, "what": what, "before": before, "after": _hash_text(after)}
        try:
            self._history.mkdir(mode=0o700, exist_ok=True)
            numbers = [int(path.stem) for path in self._paths()]
            kept = self._history / f"{max(numbers, default=0) + 1:06d}.json"
            _replace_file(kept, json.dumps(entry), mode=0o600)
            try:
                self._replace(after)
            except OSError:
                kept.unlink()
                raise
            for old in sorted(self._paths())[:-HISTORY_LENGTH]:
                old.unlink()
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be written: {error.strerror}") from None

    def undo(self) -> FileChange:
        """Undo the latest change and remove it from the history.

        Raises:
            ConfigError: there is no change, the file was changed elsewhere since, or it cannot be
                read or written.
        """
        paths = sorted(self._paths())
        if not paths:
            raise ConfigError("there is no change to undo")
        change = _read_change(paths[-1])
        self._check_unchanged(change.after)
        try:
            self._replace(change.before)
            paths[-1].unlink()
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be written: {error.strerror}") from None
        return change

    def _replace(self, text: str) -> None:
        """Replace the file or, if `path` is a symbolic link, the file that the link names."""
        path = self.path.resolve()
        _replace_file(path, text, mode=path.stat().st_mode & 0o777)

    def _check_unchanged(self, digest: str) -> None:
        if _hash_text(self.read()) != digest:
            raise ConfigError(
                f"{self.path.name} was changed elsewhere in the meantime: nothing was written"
            )

    def _paths(self) -> list[Path]:
        return [path for path in self._history.glob("*.json") if path.stem.isdigit()]


def _read_change(path: Path) -> FileChange:
    try:
        return FileChange(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _replace_file(path: Path, text: str, *, mode: int) -> None:
    with NamedTemporaryFile(dir=path.parent, delete=False) as file:
        written = Path(file.name)
        try:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
            written.chmod(mode)
            written.replace(path)
        except OSError:
            written.unlink()
            raise
