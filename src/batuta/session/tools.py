"""The caller's tools, run for the workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from batuta.core import Message, Question, Role, ToolCall, ToolResult
from batuta.session.options import ToolRunner


async def answer_tool_calls(
    question: Question, calls: Sequence[ToolCall], run_tool: ToolRunner
) -> Question:
    """The conversation with what the tools returned; a tool that fails says so to the worker."""
    results: list[Message] = []
    for call in calls:
        try:
            said = run_tool(call)
            text = said if isinstance(said, str) else await said
        except Exception as error:  # noqa: BLE001 - the worker may try something else
            text = f"error: {error}"
        results.append(Message(role=Role.TOOL, parts=(ToolResult(call_id=call.id, content=text),)))
    asked = Message(role=Role.ASSISTANT, parts=tuple(calls))
    return replace(question, messages=(*question.messages, asked, *results))
