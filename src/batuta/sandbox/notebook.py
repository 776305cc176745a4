"""Runs a program as a notebook does: after earlier ones, with files in its folder and out of it."""

from __future__ import annotations

import base64
import binascii
import json
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from batuta.core import WrittenFile
from batuta.core.formatting import folder_names, free_name, plain_name
from batuta.core.server_tools import NamedFiles
from batuta.errors import StoreError
from batuta.sandbox.inside import notebook
from batuta.sandbox.program import MEGABYTE, Program, ProgramResult, SandboxLimits, ScriptTest
from batuta.sandbox.sandbox import Sandbox

MAX_PICTURES = 4
MAX_PICTURE_BYTES = 512 << 10
MAX_WRITTEN = 10
MAX_WRITTEN_BYTES = 8_000_000
"""Bytes of the files together that a program may write to be kept."""
_WRITTEN_OUTPUT = 12 * MEGABYTE
"""Bytes of output that such files take."""
TOO_MUCH = (
    f"{{name}} is not kept: a program may write {MAX_WRITTEN} files of "
    f"{MAX_WRITTEN_BYTES // 1_000_000} MB together."
)
_PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class NotebookRun:
    """The result of a program."""

    outcome: ProgramResult
    """How it ended; its output holds what is told apart here."""
    printed: str
    pictures: tuple[str, ...] = ()
    """The pictures that it drew, as `data:` addresses."""
    written: Mapping[str, bytes]
    """The files that it wrote, by their names."""
    too_much: tuple[str, ...] = ()
    """The names of those that are too large or too many."""


async def run_in_notebook(
    code: str,
    limits: SandboxLimits,
    *,
    before: Sequence[str] = (),
    given: Mapping[str, bytes] | None = None,
    shows_value: bool = True,
    python: str | Path = sys.executable,
) -> NotebookRun:
    """Run a program and return what came out of it.

    The limits are of it and those before it, together; those run first, unheard. Without `given`
    there are no files in its folder, nor are its own kept; `shows_value` prints its last line's
    value.

    Raises:
        SandboxError: no sandbox works on this machine.
    """
    mark = secrets.token_hex(16)
    keeps = given is not None
    order = {
        "before": list(before),
        "code": code,
        "mark": mark,
        "shows": shows_value,
        "given": {name: base64.b64encode(one).decode() for name, one in (given or {}).items()},
        "most_files": MAX_WRITTEN if keeps else 0,
        "most_bytes": MAX_WRITTEN_BYTES,
    }
    if keeps:
        limits = replace(limits, output=limits.output + _WRITTEN_OUTPUT)
    source = Path(notebook.__file__).read_text(encoding="utf-8")
    async with Sandbox.open(slots=1, python=python) as sandbox:
        tests = (ScriptTest(json.dumps(order)),)
        (outcome,) = await sandbox.run(Program(source), tests, limits)
    printed, *marked = outcome.stdout.split(mark)
    drawn = [_picture_url(data) for data in marked if ":" not in data][:MAX_PICTURES]
    written, too_much = _read_files([data for data in marked if ":" in data])
    return NotebookRun(
        outcome=outcome,
        printed=printed,
        pictures=tuple(filter(None, drawn)),
        written=written,
        too_much=too_much,
    )


async def read_given(files: NamedFiles | None) -> dict[str, bytes] | None:
    """Return the files that a program is given; None: there are none here.

    Raises:
        StoreError: they cannot be read.
    """
    if files is None:
        return None
    contents = await files.read_contents()
    names = folder_names(name for name, _ in contents)
    return dict(zip(names, (content for _, content in contents), strict=True))


async def keep_written(
    run: NotebookRun, files: NamedFiles | None
) -> tuple[tuple[WrittenFile, ...], str]:
    """Keep what a program wrote; return it, and a sentence on what is not kept."""
    if files is None:
        return (), ""
    kept: list[WrittenFile] = []
    faults = [TOO_MUCH.format(name=name) for name in run.too_much]
    for name, content in run.written.items():
        try:
            kept.append(await files.keep(name, content))
        except StoreError as error:
            faults.append(f"{name} is not kept: {error}.")
    return tuple(kept), f"[{' '.join(faults)}]" if faults else ""


async def keep_pictures(
    run: NotebookRun, files: NamedFiles | None, before: int
) -> tuple[WrittenFile, ...]:
    """Keep the pictures that a program drew and did not write itself.

    `before` counts the pictures that earlier programs drew.
    """
    kept: list[WrittenFile] = []
    if files is None:
        return ()
    for number, url in enumerate(run.pictures, before + 1):
        name = free_name(f"picture-{number}.png", run.written)
        try:
            kept.append(await files.keep(name, base64.b64decode(url.partition(",")[2])))
        except StoreError:
            break  # the reader is shown it all the same, where the dialect has pictures
    return tuple(kept)


def tell_written(files: Sequence[WrittenFile]) -> str:
    """Tell which files were written, for a model or a reader; empty: none were."""
    if not files:
        return ""
    named = ", ".join(f"{file.name} ({file.id})" for file in files)
    return f"[Files written, which the user can download: {named}]"


def _read_files(marked: list[str]) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """Return the files that stand after marks, and the names of those that are too much."""
    written: dict[str, bytes] = {}
    too_much: list[str] = []
    room = MAX_WRITTEN_BYTES
    for name, content in _decode_files(marked[: 2 * MAX_WRITTEN]):
        if content is None or len(written) == MAX_WRITTEN or len(content) > room:
            too_much.append(name)
            continue
        written[free_name(name, written)] = content
        room -= len(content)
    return written, tuple(too_much)


def _decode_files(marked: list[str]) -> Iterator[tuple[str, bytes | None]]:
    """Yield names and contents; what is no Base64 was not written by the notebook."""
    for data in marked:
        name, _, content = data.strip().partition(":")
        try:
            called = plain_name(base64.b64decode(name, validate=True).decode("utf-8", "replace"))
            whole = None if content == "-" else base64.b64decode(content, validate=True)
        except (binascii.Error, ValueError):
            continue
        yield called, whole


def _picture_url(data: str) -> str:
    """Return the address of a picture; empty if it is none, or too large."""
    try:
        picture = base64.b64decode(data.strip(), validate=True)
    except (binascii.Error, ValueError):
        return ""
    if not picture.startswith(_PNG) or len(picture) > MAX_PICTURE_BYTES:
        return ""
    return f"data:image/png;base64,{base64.b64encode(picture).decode()}"
