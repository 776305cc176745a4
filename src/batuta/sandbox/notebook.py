"""Runs a program as a notebook does: after earlier programs, with input and output files."""

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
"""Maximum number of a program's pictures that are kept: the first ones."""
MAX_PICTURE_BYTES = 512 << 10
"""Maximum bytes of a picture that is kept."""
MAX_WRITTEN = 10
"""Maximum number of a program's files that are kept."""
MAX_WRITTEN_BYTES = 8_000_000
"""Maximum bytes of a program's kept files, together."""
_WRITTEN_OUTPUT = 12 * MEGABYTE
"""Extra bytes of output for the kept files, which are printed in Base64."""
TOO_MUCH = (
    f"{{name}} is not kept: a program may write at most {MAX_WRITTEN} files, of "
    f"{MAX_WRITTEN_BYTES // 1_000_000} MB together."
)
_PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class NotebookRun:
    """The result of a program run as in a notebook."""

    outcome: ProgramResult
    """How the program ended; here `stdout` still mixes printed text, pictures and files."""
    is_complete: bool
    """False if the process ended early, as by a limit, a signal or a call of `os._exit`."""
    printed: str
    """The text on standard output."""
    pictures: tuple[str, ...] = ()
    """Figures of matplotlib that were open at the program's end, as `data:` URLs of PNGs.

    They are at most `MAX_PICTURES`; pictures that are too large are left out."""
    written: Mapping[str, bytes]
    """The contents of the kept files that the program wrote or changed, by name without folders."""
    too_much: tuple[str, ...] = ()
    """The names of files that were too large or too many, among the first `2 * MAX_WRITTEN`.

    A file that cannot be read is left out."""


async def run_in_notebook(
    code: str,
    limits: SandboxLimits,
    *,
    before: Sequence[str] = (),
    given: Mapping[str, bytes] | None = None,
    shows_value: bool = True,
    python: str | Path = sys.executable,
) -> NotebookRun:
    """Run a program in a sandbox of its own and return its output, pictures and files.

    Args:
        code: the program.
        limits: limits for the program and the earlier programs, together; with `given`, the output
            may be 12 MB larger.
        before: earlier programs, which run first; their output and errors are discarded.
        given: contents of files for the program's folder, by name; None: the program gets no files,
            and files that it writes are not kept.
        shows_value: whether to print the value of the program's last statement, as a notebook
            does, if that is an expression and its value is not None.
        python: the interpreter.

    Raises:
        SandboxError: no sandbox works here, or the interpreter does not run or is too old.
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
    shown, ended, late = outcome.stdout.partition(f"{mark}!\n")
    printed, *marked = shown.split(mark)
    drawn = [_picture_url(data) for data in marked if ":" not in data][:MAX_PICTURES]
    written, too_much = _read_files([data for data in marked if ":" in data])
    return NotebookRun(
        outcome=outcome,
        is_complete=bool(ended),
        printed=printed + late,
        pictures=tuple(filter(None, drawn)),
        written=written,
        too_much=too_much,
    )


async def read_given(files: NamedFiles | None) -> dict[str, bytes] | None:
    """Return the contents of a request's files by name; None if the request cannot have files.

    A number is put in front of a name that an earlier file has.

    Raises:
        StoreError: the files cannot be read.
    """
    if files is None:
        return None
    contents = await files.read_contents()
    names = folder_names(name for name, _ in contents)
    return dict(zip(names, (content for _, content in contents), strict=True))


async def keep_written(
    run: NotebookRun, files: NamedFiles | None
) -> tuple[tuple[WrittenFile, ...], str]:
    """Store the files that a program wrote, unless `files` is None.

    Return the stored files, and a text on why others were not stored; empty if there are none.
    """
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
    """Store the pictures that a program drew, and return the stored files.

    The pictures are numbered after the `before` pictures of earlier programs; a further number is
    put before a name that a file of the program has. If a picture cannot be stored, the later ones
    are not stored either. Without `files`, nothing is stored.
    """
    kept: list[WrittenFile] = []
    if files is None:
        return ()
    for number, url in enumerate(run.pictures, before + 1):
        name = free_name(f"picture-{number}.png", run.written)
        try:
            kept.append(await files.keep(name, base64.b64decode(url.partition(",")[2])))
        except StoreError:
            break  # the client still receives the picture, if its API format has pictures
    return tuple(kept)


def describe_written(files: Sequence[WrittenFile]) -> str:
    """Return a sentence that lists the files, for the model or the user; empty if none."""
    if not files:
        return ""
    named = ", ".join(f"{file.name} ({file.id})" for file in files)
    return f"[Files written, which the user can download: {named}]"


def _read_files(marked: list[str]) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """Return the files printed after marks, and the names of files that are not kept.

    Only the first `2 * MAX_WRITTEN` files are looked at.
    """
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
    """Yield each file's name and content; None as the content of a file that was not printed.

    Data that is not Base64 was not printed by the notebook and is skipped.
    """
    for data in marked:
        name, _, content = data.strip().partition(":")
        try:
            called = plain_name(base64.b64decode(name, validate=True).decode("utf-8", "replace"))
            whole = None if content == "-" else base64.b64decode(content, validate=True)
        except (binascii.Error, ValueError):
            continue
        yield called, whole


def _picture_url(data: str) -> str:
    """Return the `data:` URL of a picture in Base64; empty if it is not a PNG or too large."""
    try:
        picture = base64.b64decode(data.strip(), validate=True)
    except (binascii.Error, ValueError):
        return ""
    if not picture.startswith(_PNG) or len(picture) > MAX_PICTURE_BYTES:
        return ""
    return f"data:image/png;base64,{base64.b64encode(picture).decode()}"
