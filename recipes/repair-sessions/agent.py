"""An agent that repairs one program: it reads, writes, runs the tests, and says that it is done."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from programs import Broken

from batuta.sandbox import AssertionTest, EndReason, Program, Sandbox, SandboxLimits

Json = dict[str, Any]
MOST_ACTIONS = 6
SYSTEM = (
    "You repair a Python program. One line of it is wrong, so a test fails. Find the line, and write the whole program with "
    "that line changed. If a test still fails, look for another change. When all tests pass, you are done."
)
TOOLS: list[Json] = [
    {"type": "function", "function": {"name": name, "description": told, "parameters": {
        "type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}}}
    for name, told, fields in (
        ("read_program", "Read the program.", {}),
        ("run_tests", "Run the tests and see the first that fails.", {}),
        ("write_program", "Put this text in the place of the program, and run the tests.", {"program": {"type": "string"}}),
    )
]  # fmt: skip
LIMITS = SandboxLimits(seconds=5.0)


class Work:
    """The program as it stands, and what its tools do to it."""

    def __init__(self, broken: Broken, sandbox: Sandbox) -> None:
        self.source = self._given = broken.source
        self._tests, self._sandbox = broken.tests, sandbox

    async def run_tests(self) -> str:
        """Run the tests in the sandbox and say how they ended, as a shell would."""
        (ended,) = await self._sandbox.run(Program(self.source), (AssertionTest(code=self._tests),), LIMITS)  # fmt: skip
        if ended.end is EndReason.RETURNED:
            return "All tests passed."
        words = ended.stderr.strip().splitlines()[-1:] or [f"ended by {ended.end}"]
        return f"{words[0]}\nExit code 1"

    async def act(self, call: Json) -> str:
        """Do what the call says, and return what the model is told."""
        if call["name"] == "read_program":
            return self.source
        if call["name"] == "write_program":
            try:
                self.source = json.loads(call["arguments"])["program"].rstrip() + "\n"
            except (ValueError, KeyError, TypeError, AttributeError):
                return "Error: that cannot be written."
        unchanged = "\nNothing is changed yet: write the program." * (self.source == self._given)
        return await self.run_tests() + unchanged


async def repair(
    broken: Broken, ask: Callable[[list[Json], str], Awaitable[Json]], sandbox: Sandbox
) -> Json:
    """Let the model repair the program, and say whether its tests pass in the end."""
    work, actions, done = Work(broken, sandbox), [], False
    messages: list[Json] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": f"{work.source}\n{await work.run_tests()}"},
    ]
    while not done and len(actions) < MOST_ACTIONS:
        said = await ask(messages, "auto" if "write_program" in actions else "required")
        calls = said.get("tool_calls") or []
        messages.append({"role": "assistant", "content": said.get("content") or ("" if calls else "Done.")} | ({"tool_calls": calls} if calls else {}))  # fmt: skip
        for call in calls:
            result = await work.act(call["function"])
            actions.append(call["function"]["name"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        done = not calls
    told = await work.run_tests()
    return {"resolved": told == "All tests passed.", "said_done": done, "actions": actions}
