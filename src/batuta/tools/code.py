"""Programs that a model writes while it answers: each goes on where the last one ended."""

from __future__ import annotations

import base64
import binascii
import json
import secrets
import sys
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, final

from batuta.core import Image, Text
from batuta.core.server_tools import CODE_INTERPRETER
from batuta.core.tool_classes import ToolClass
from batuta.errors import SandboxError
from batuta.sandbox import Program, Sandbox, SandboxLimits, ScriptTest
from batuta.sandbox.inside import notebook
from batuta.sandbox.python_worker import limit_text
from batuta.tools.source import ToolContext, ToolError, ToolLimits, ToolOutput

MAX_CODE = 50_000
"""Characters of one program."""
MAX_PICTURES = 4
MAX_PICTURE_BYTES = 512 << 10
MEGABYTE = 1 << 20
_PNG = b"\x89PNG\r\n\x1a\n"
_START_SECONDS = 10.0
"""Seconds in which a sandbox starts, beside the program's own time."""
NOTHING_PRINTED = "The program ended without printing anything."
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
    """A tool source that runs Python without network; variables and files stay for its next call.

    No process waits between two calls: the programs before are run again, unheard, before the next
    one. So each call's limit in seconds holds over all of them together.
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
    ) -> None:
        """Starts nothing yet, and has nothing of an earlier program.

        Args:
            seconds: of one call.
            memory: bytes of its processes.
            characters: of its output that are told.
            python: the interpreter, with the packages that programs may import.
        """
        self.limits = ToolLimits(seconds=seconds + _START_SECONDS, characters=characters)
        self._bounds = SandboxLimits(seconds=seconds, memory=memory, output=4 * MEGABYTE)
        self._python = python
        self._before: list[str] = []

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Run `code` after what ran before.

        Raises:
            ToolError: no sandbox works on this machine.
        """
        mark, code = secrets.token_hex(16), arguments["code"]
        told = json.dumps({"before": self._before, "code": code, "mark": mark})
        source = Path(notebook.__file__).read_text(encoding="utf-8")
        try:
            async with Sandbox.open(slots=1, python=self._python) as sandbox:
                (outcome,) = await sandbox.run(Program(source), (ScriptTest(told),), self._bounds)
        except SandboxError as error:
            raise ToolError(f"no sandbox works here: {error}") from None
        printed, pictures = _split_pictures(outcome.stdout, mark)
        fault = limit_text(outcome.end, self._bounds)
        if not fault:  # what passed a limit would do so again
            self._before.append(code)
        if not fault and outcome.status:
            fault = outcome.stderr.strip() or f"It ended with status {outcome.status}."
        parts = (Text(printed), *(Image(url=url) for url in pictures))
        return ToolOutput(parts=parts, failure=fault[-4000:])


def _split_pictures(printed: str, mark: str) -> tuple[str, tuple[str, ...]]:
    """Return what was printed, and what was drawn, which stands after a mark."""
    text, *drawn = printed.split(mark)
    return text, tuple(filter(None, map(_picture_url, drawn[:MAX_PICTURES])))


def _picture_url(data: str) -> str:
    """Return the address of a picture; empty if it is none, or too large."""
    try:
        picture = base64.b64decode(data.strip(), validate=True)
    except (binascii.Error, ValueError):
        return ""
    if not picture.startswith(_PNG) or len(picture) > MAX_PICTURE_BYTES:
        return ""
    return f"data:image/png;base64,{base64.b64encode(picture).decode()}"
