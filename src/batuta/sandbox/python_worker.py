"""A worker that runs Python code, without a model and at no cost."""

from __future__ import annotations

import re
import textwrap
from dataclasses import replace
from typing import final

from batuta.core import (
    CallListener,
    Delta,
    Finish,
    Reply,
    Request,
    Role,
    ServerCall,
    Usage,
    WrittenFile,
)
from batuta.core.conductor import NULL_LISTENER
from batuta.core.server_tools import CODE_INTERPRETER, NamedFiles
from batuta.errors import ProviderUnreachableError, SandboxError, StoreError
from batuta.sandbox.notebook import describe_written, keep_written, read_given, run_in_notebook
from batuta.sandbox.program import (
    MEGABYTE,
    EndReason,
    Program,
    ProgramResult,
    SandboxLimits,
    ScriptTest,
)
from batuta.sandbox.sandbox import Sandbox
from batuta.usage import ZERO_COST

RUN_LIMITS = SandboxLimits(seconds=20.0, memory=512 * MEGABYTE, output=MEGABYTE)
"""The default limits of one program."""
MAX_PRINTED = 16_000
"""Maximum number of characters of a program's output; the middle of longer output is left out."""
NO_PROGRAM = (
    "There is no complete Python code block in what I may read. Write the program in a block that "
    "begins with ```python and ends with ```."
)
_FENCE = re.compile(
    r"[ \t]*+(?:(?:[-*+>]|\d++[.)])[ \t]*+)?(`{3,}(?=[^`]*\Z)|~{3,})[ \t]*([\w+#-]*)"
)
_PYTHON = {"python", "python3", "py", "py3"}


@final
class PythonWorker:
    """A Client that runs the last Python block of a request's last user message."""

    def __init__(self, limits: SandboxLimits = RUN_LIMITS, files: NamedFiles | None = None) -> None:
        """Start nothing yet.

        Args:
            limits: limits of one program, which runs in its own sandbox.
            files: the files of a request, which the program can read and add to; None: the
                program has no files, and files that it writes are dropped.
        """
        self.limits = limits
        self._files = files

    def with_files(self, files: NamedFiles) -> PythonWorker:
        """Return a worker with the same limits for a request with these files."""
        return PythonWorker(self.limits, files)

    def __repr__(self) -> str:
        return "PythonWorker()"

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        """Reply with the program's output, or with the reason why there is none.

        If the program is missing, failed, or left no output or files, the reply has
        `Finish.NO_OUTPUT` and is not streamed, as another worker may give the answer instead.

        Raises:
            ProviderUnreachableError: no sandbox works on this machine.
        """
        source = last_program(request)
        calls: tuple[ServerCall, ...] = ()
        if source is None:
            text, finish = NO_PROGRAM, Finish.NO_OUTPUT
        else:
            outcome, files, unkept = await self._run(source)
            paragraphs = (outcome_text(outcome, self.limits), describe_written(files), unkept)
            text = "\n\n".join(filter(None, paragraphs))
            succeeded = has_output(outcome) or (files and outcome.end is EndReason.RETURNED)
            finish = Finish.STOP if succeeded else Finish.NO_OUTPUT
            calls = _program_calls(source, outcome, files)
        if listener.streaming and finish is Finish.STOP:
            for call in calls:
                await listener.on_delta(Delta(server_call=call))
            await listener.on_delta(Delta(text=text))
        return Reply(
            text=text,
            usage=Usage(calls=1),
            cost=ZERO_COST,
            finish=finish,
            model="python",
            server_calls=calls,
        )

    async def _run(self, source: str) -> tuple[ProgramResult, tuple[WrittenFile, ...], str]:
        """Return the result, the files that were stored, and why others were not."""
        if self._files is None:
            return await _run_program(source, self.limits), (), ""
        try:
            given = await read_given(self._files)
            run = await run_in_notebook(source, self.limits, given=given, shows_value=False)
        except SandboxError as error:
            raise ProviderUnreachableError(f"the program could not be run: {error}") from None
        except StoreError as error:
            fault = f"Its files could not be read: {error}."
            return ProgramResult(end=EndReason.EXITED, stderr=fault), (), ""
        files, unkept = await keep_written(run, self._files)
        return replace(run.outcome, stdout=run.printed), files, unkept


def _program_calls(
    source: str, outcome: ProgramResult, files: tuple[WrittenFile, ...]
) -> tuple[ServerCall, ...]:
    """Return the program as a server tool call if it wrote files; empty if it wrote none."""
    if not files:
        return ()
    call = ServerCall(
        id=f"program_{files[0].id.removeprefix('file-')}",
        name=CODE_INTERPRETER,
        query=source,
        output=_shorten_text(outcome.stdout),
        failure="" if outcome.end is EndReason.RETURNED else outcome.stderr,
        files=files,
    )
    return (call,)


def last_program(request: Request) -> str | None:
    """Return the last complete Python block of the last user message; None if it has none.

    A block without a language counts if no block is marked as Python.
    """
    texts = [message.text for message in request.messages if message.role is Role.USER]
    blocks = _code_blocks(texts[-1] if texts else "")
    programs = [text for language, text in blocks if language in _PYTHON]
    programs = programs or [text for language, text in blocks if not language]
    return textwrap.dedent(programs[-1]) if programs else None


def _code_blocks(text: str) -> list[tuple[str, str]]:
    """Return the closed code blocks as pairs of language, in lower case, and text."""
    blocks: list[tuple[str, str]] = []
    fence, language, lines = "", "", list[str]()
    for line in text.split("\n"):
        opened = _FENCE.match(line)
        if not fence and opened:
            fence, language, lines = opened[1], opened[2].lower(), []
        elif fence and line.strip().startswith(fence) and not line.strip().strip(fence[0]):
            blocks.append((language, "\n".join(lines)))
            fence = ""
        elif fence:
            lines.append(line)
    return blocks


async def _run_program(source: str, limits: SandboxLimits) -> ProgramResult:
    """Run a program without files."""
    try:
        async with Sandbox.open(slots=1) as sandbox:
            (outcome,) = await sandbox.run(Program(source), (ScriptTest(""),), limits)
    except SandboxError as error:
        raise ProviderUnreachableError(f"the program could not be run: {error}") from None
    return outcome


def has_output(outcome: ProgramResult) -> bool:
    """Return True if the program ended normally and printed something."""
    return outcome.end is EndReason.RETURNED and bool(outcome.stdout.strip())


def outcome_text(outcome: ProgramResult, limits: SandboxLimits) -> str:
    """Return the program's output if it ended normally, else why not, and the output so far."""
    printed = _shorten_text(outcome.stdout.rstrip())
    if outcome.end is EndReason.RETURNED:
        return printed or "The program ended without printing anything."
    fault = interruption_text(outcome.end, limits)
    fault = fault or outcome.stderr.strip() or f"It ended with status {outcome.status}."
    before = f"\n\nIt had printed:\n{printed}" if printed else ""
    return f"The program failed.\n{fault}{before}"


def interruption_text(end: EndReason, limits: SandboxLimits) -> str:
    """Return which limit stopped the program, or that the sandbox failed; empty for other ends."""
    memory, output = limits.memory // MEGABYTE, limits.output // MEGABYTE
    stopped = {
        EndReason.TIME: f"it ran for more than {limits.seconds:g} seconds",
        EndReason.MEMORY: f"it used more than {memory} MB of memory",
        EndReason.OUTPUT: f"it printed more than {output} MB",
        EndReason.PROCESSES: f"it started more than {limits.processes} processes and threads",
        EndReason.FILES: f"it wrote more than {limits.files // MEGABYTE} MB of files",
    }
    if end is EndReason.LOST:
        return "The sandbox failed, so it is not known how the program ended."
    return f"It was stopped: {stopped[end]}." if end in stopped else ""


def _shorten_text(text: str) -> str:
    if len(text) <= MAX_PRINTED:
        return text
    half = MAX_PRINTED // 2
    return f"{text[:half]}\n[{len(text) - MAX_PRINTED} characters are left out]\n{text[-half:]}"
