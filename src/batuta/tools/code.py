"""Runs programs that a model writes while it answers; each continues from the one before."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, final

from batuta.core import Image, Text
from batuta.core.server_tools import CODE_INTERPRETER, NamedFiles
from batuta.core.tool_classes import ToolClass
from batuta.errors import SandboxError, StoreError
from batuta.sandbox import SandboxLimits
from batuta.sandbox.notebook import keep_pictures, keep_written, read_given, run_in_notebook
from batuta.sandbox.program import MEGABYTE
from batuta.sandbox.python_worker import interruption_text
from batuta.tools.source import ToolContext, ToolError, ToolLimits, ToolOutput

MAX_CODE = 50_000
"""Maximum number of characters of one program."""
_START_SECONDS = 10.0
"""Seconds for starting a sandbox, added to the program's own time."""
CODE_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "code": {
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_CODE,
            "description": "The Python program.",
        }
    },
    "required": ["code"],
    "additionalProperties": False,
}


@final
class CodeInterpreter:
    """A tool source that runs Python without network, with earlier calls' variables and files.

    No process waits between calls: each call first reruns the earlier programs, with their output
    discarded, so its time limit covers all of them. A program that exceeded a limit, or whose
    process ended early, is not rerun.
    """

    name = CODE_INTERPRETER
    description = (
        "Runs a Python program in a sandbox without network and returns what it prints, and the "
        "value of its last line. Variables and files of earlier programs are still there."
    )
    schema = CODE_SCHEMA
    kind = ToolClass.OBSERVE
    price: Decimal | None = Decimal(0)

    def __init__(
        self,
        *,
        seconds: float = 20.0,
        memory: int = 512 * MEGABYTE,
        characters: int = 16_000,
        python: str | Path = sys.executable,
        files: NamedFiles | None = None,
    ) -> None:
        """Create the source without earlier programs; nothing is started yet.

        Args:
            seconds: time limit of the programs of one call, in seconds.
            memory: memory limit of its processes, in bytes.
            characters: maximum number of characters of output to return.
            python: the interpreter, with the packages that programs may import.
            files: the files of the request, which programs can read and add to; None: programs
                have no files, and those that they write are dropped.
        """
        self.limits = ToolLimits(seconds=seconds + _START_SECONDS, characters=characters)
        self._bounds = SandboxLimits(seconds=seconds, memory=memory, output=4 * MEGABYTE)
        self._python = python
        self._files = files
        self._before: list[str] = []
        self._drawn = 0

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Run `code` after the earlier programs.

        Raises:
            ToolError: no sandbox works on this machine, or the files cannot be read.
        """
        code = arguments["code"]
        try:
            run = await run_in_notebook(
                code,
                self._bounds,
                before=self._before,
                given=await read_given(self._files),
                python=self._python,
            )
        except SandboxError as error:
            raise ToolError(f"the program could not be run: {error}") from None
        except StoreError as error:
            raise ToolError(f"the files cannot be read: {error}") from None
        fault = interruption_text(run.outcome.end, self._bounds)
        if run.is_complete and not fault:  # any other program might end the rerun as well
            self._before.append(code)
        if not fault and run.outcome.status:
            fault = run.outcome.stderr.strip() or f"It ended with status {run.outcome.status}."
        files, unkept = await keep_written(run, self._files)
        files += await keep_pictures(run, self._files, self._drawn)
        self._drawn += len(run.pictures)
        printed = "\n".join(filter(None, (run.printed, unkept)))
        parts = (Text(printed), *(Image(url=url) for url in run.pictures))
        return ToolOutput(parts=parts, failure=fault[-4000:], files=files)
