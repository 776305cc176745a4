"""An agent that repairs one program: it reads, writes a line, runs the tests, and says that it is done."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from programs import Broken

from batuta.sandbox import AssertionTest, EndReason, Program, Sandbox, SandboxLimits

Json = dict[str, Any]
MOST_ACTIONS = 10
SYSTEM = (
    "You repair a Python program. Exactly one line of it is wrong, so its tests fail. Read the program, run the "
    "tests, write the line that is wrong as it should be, and run the tests again. When all tests pass, you are done."
)
LINE = {"line": {"type": "integer"}, "text": {"type": "string"}}
TOOLS: list[Json] = [
    {"type": "function", "function": {"name": name, "description": told, "parameters": {
        "type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}}}
    for name, told, fields in (
        ("read_program", "Read the program, each line behind its number.", {}),
        ("run_tests", "Run the tests and see the first that fails.", {}),
        ("write_line", "Put this text in the place of the line of that number.", LINE),
    )
]  # fmt: skip
LIMITS = SandboxLimits(seconds=5.0)


async def run_tests(sandbox: Sandbox, source: str, tests: str) -> str:
    """Run the tests in the sandbox and say how they ended, as a shell would."""
    (ended,) = await sandbox.run(Program(source), (AssertionTest(code=tests),), LIMITS)
    if ended.end is EndReason.RETURNED:
        return "All tests passed."
    words = ended.stderr.strip().splitlines()[-1:] or [f"ended by {ended.end}"]
    return f"{words[0]}\nExit code 1"


async def act(call: Json, lines: list[str], sandbox: Sandbox, tests: str) -> str:
    """Do what the call says, and return what the model is told."""
    try:
        given = json.loads(call["arguments"] or "{}")
        if call["name"] == "write_line":
            at = given["line"] - 1 if given["line"] > 0 else len(lines)
            indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
            lines[at] = ("" if given["text"][:1] == " " else indent) + given["text"].rstrip()
            return "Written."
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return "Error: that line cannot be written."
    if call["name"] == "run_tests":
        return await run_tests(sandbox, "\n".join(lines) + "\n", tests)
    return "\n".join(f"{number}: {line}" for number, line in enumerate(lines, 1))


async def repair(
    broken: Broken, ask: Callable[[list[Json], str], Awaitable[Json]], sandbox: Sandbox
) -> Json:
    """Let the model repair the program, and say whether its tests pass in the end."""
    lines, actions, done = broken.source.splitlines(), [], False
    messages: list[Json] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": "Repair the program."},
    ]
    while not done and len(actions) < MOST_ACTIONS:
        said = await ask(messages, "auto" if "write_line" in actions else "required")
        calls = said.get("tool_calls") or []
        messages.append({"role": "assistant", "content": said.get("content") or ("" if calls else "Done.")} | ({"tool_calls": calls} if calls else {}))  # fmt: skip
        for call in calls:
            result = await act(call["function"], lines, sandbox, broken.tests)
            actions.append(call["function"]["name"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        done = not calls
    told = await run_tests(sandbox, "\n".join(lines) + "\n", broken.tests)
    return {"resolved": told == "All tests passed.", "said_done": done, "actions": actions}
