"""Batuta's systems as models of inspect_ai (extra `inspect`).

    inspect eval arc.py --model batuta/ultra -M pool=batuta.toml

The name of any system that needs no fitting may follow `batuta/`: `ultra`, `best-single`, `moa`, a
worker's id. inspect_ai sends the questions, calls the tools and grades the answers. The run's
workflow is in the output's metadata, and its tokens and dollars in the output's usage. Each reply
in a conversation is a separate run: after a tool's result, the conductor plans again, with the
whole conversation in its prompt.
"""

# inspect_ai is an extra:
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import json
import secrets
from contextlib import AsyncExitStack
from typing import Any

import anyio

from batuta.clients import HttpTransport
from batuta.config.load import load_config
from batuta.core import Message, Question, Role, Run, Sampling, Text, Tool, ToolCall, ToolResult
from batuta.distribution import install_hint
from batuta.errors import ConfigError
from batuta.lab.baselines import ConductorSolver, SingleWorker
from batuta.lab.evals.outage import find_outage
from batuta.lab.evals.served_solver import ServedSolver
from batuta.lab.evals.setup import subject_of
from batuta.lab.evals.subject import Subject
from batuta.lab.evals.systems import System, find_system

try:
    from inspect_ai.model import (
        ChatCompletionChoice,
        ChatMessage,
        ChatMessageAssistant,
        ChatMessageTool,
        GenerateConfig,
        ModelAPI,
        ModelOutput,
        ModelUsage,
        modelapi,
    )
    from inspect_ai.tool import ToolCall as InspectToolCall
    from inspect_ai.tool import ToolFunction, ToolInfo
except ImportError:
    raise ConfigError(f"the bridge needs inspect_ai: {install_hint('inspect')}") from None

SEED_BITS = 31
"""The number of bits of the random seed of a run for which inspect_ai sets no seed."""

_ATTACHMENTS = frozenset({"image", "audio", "video", "document"})
"""The kinds of parts of inspect_ai's messages that are not passed on."""


@modelapi(name="batuta")
def batuta_model_api() -> type[ModelAPI]:
    """Return the provider's class; inspect_ai calls this."""
    return BatutaModelAPI


class BatutaModelAPI(ModelAPI):
    """A system over a pool, as a model of inspect_ai."""

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig | None = None,
        *,
        pool: str | None = None,
        conductor: str | None = None,
    ) -> None:
        """Store the names; the pool is opened when the first question arrives.

        `base_url` and `api_key` are ignored, since the pool has its own keys. `pool` and
        `conductor` are named as for `batuta eval`.
        """
        super().__init__(model_name, base_url, api_key, config=config or GenerateConfig())
        self._wanted = (pool, conductor)
        self._stack = AsyncExitStack()
        self._lock = anyio.Lock()
        self._opened: tuple[Subject, System] | None = None

    async def aclose(self) -> None:
        """Close the connections."""
        self._opened = None
        await self._stack.aclose()

    async def generate(
        self,
        input: list[ChatMessage],  # noqa: A002 - inspect_ai's name
        tools: list[ToolInfo],
        tool_choice: str | ToolFunction,
        config: GenerateConfig,
    ) -> ModelOutput:
        """Return the system's answer to the conversation.

        Raises:
            ConfigError: there is no such pool or system, the system must be fitted, tools are
                offered to a system that chooses among answers, or a message has an attachment.
            RuntimeError: an outage determined the run, so there is no answer to grade.
        """
        subject, one = await self._open()
        if tools and not isinstance(one.solver, SingleWorker | ConductorSolver | ServedSolver):
            raise ConfigError(
                f"{one.name} chooses among answers and calls no tools: use a worker, best-single, "
                "or a conductor such as ultra"
            )
        question = Question(
            messages=tuple(map(_core_message, input)),
            tools=tuple(map(_core_tool, tools)),
            tool_choice=_core_choice(tool_choice) if tools else None,
            parallel_tool_calls=config.parallel_tool_calls if tools else None,
            sampling=Sampling(temperature=config.temperature, max_tokens=config.max_tokens),
        )
        seed = secrets.randbits(SEED_BITS) if config.seed is None else config.seed
        run = await one.solver.answer(question, subject.solver_context(), seed)
        lost = find_outage(run, is_served=isinstance(one.solver, ServedSolver))
        if lost is not None:
            raise RuntimeError(lost)
        return _model_output(self.model_name, run)

    async def _open(self) -> tuple[Subject, System]:
        """Return the pool and the system, opened once for all questions."""
        async with self._lock:
            if self._opened is None:
                async with AsyncExitStack() as opening:
                    http = await opening.enter_async_context(HttpTransport())
                    self._opened = await self._open_system(http)
                    self._stack.push_async_exit(opening.pop_all())
        return self._opened

    async def _open_system(self, http: HttpTransport) -> tuple[Subject, System]:
        pool, conductor = self._wanted
        found = await load_config(http, pool=pool, conductor=conductor, time_scale=0.0)
        subject = subject_of(found)
        one = find_system(self.model_name, subject)
        if one.fitter is not None:
            raise ConfigError(f"{one.name} learns from outcomes, which inspect_ai does not have")
        return subject, one


def _core_message(message: ChatMessage) -> Message:
    for part in () if isinstance(message.content, str) else message.content:
        if part.type in _ATTACHMENTS:
            raise ConfigError(
                f"the {message.role}'s message has a part of the kind {part.type!r}, and systems "
                "get only the texts of inspect_ai's messages: use a task without it"
            )
    if isinstance(message, ChatMessageTool):
        result_text = f"error: {message.error.message}" if message.error else message.text
        result = ToolResult(call_id=message.tool_call_id or "", content=result_text)
        return Message(role=Role.TOOL, parts=(result,))
    calls = (message.tool_calls or ()) if isinstance(message, ChatMessageAssistant) else ()
    text = (Text(message.text),) if message.text or not calls else ()
    asked = (
        ToolCall(id=call.id, name=call.function, arguments=json.dumps(call.arguments))
        for call in calls
    )
    return Message(role=Role(message.role), parts=(*text, *asked))


def _core_tool(tool: ToolInfo) -> Tool:
    schema = tool.parameters.model_dump(exclude_none=True)
    return Tool(name=tool.name, description=tool.description, parameters=schema)


def _core_choice(choice: str | ToolFunction) -> str:
    if isinstance(choice, str):
        return {"any": "required"}.get(choice, choice)
    return choice.name


def _inspect_call(call: ToolCall) -> InspectToolCall:
    """Convert a tool call; arguments that are not a JSON object become a parse error."""
    try:
        arguments: Any = json.loads(call.arguments or "{}")
    except ValueError:
        arguments = None
    if isinstance(arguments, dict):
        return InspectToolCall(id=call.id, function=call.name, arguments=arguments)
    wrong = f"the arguments are not a JSON object: {call.arguments}"
    return InspectToolCall(id=call.id, function=call.name, arguments={}, parse_error=wrong)


def _model_output(name: str, run: Run) -> ModelOutput:
    usage, cost = run.usage, run.cost
    calls = run.reply.tool_calls if run.reply else ()
    message = ChatMessageAssistant(
        content=run.answer or "", tool_calls=list(map(_inspect_call, calls)) or None, model=name
    )
    choice = ChatCompletionChoice(message=message, stop_reason="tool_calls" if calls else "stop")
    output = ModelOutput(model=name, choices=[choice])
    output.usage = ModelUsage(
        input_tokens=usage.input - usage.cached - usage.cache_write,
        output_tokens=usage.output,
        total_tokens=usage.total,
        input_tokens_cache_read=usage.cached,
        input_tokens_cache_write=usage.cache_write,
        reasoning_tokens=usage.reasoning,
        total_cost=None if cost.unpriced_calls else float(cost.usd),
    )
    flows = [round_.workflow for round_ in run.rounds if round_.workflow]
    output.metadata = {
        "outcome": run.outcome.value,
        "calls": usage.calls,
        "steps": [
            {"worker": step.worker, "subtask": step.subtask, "reads": list(step.access)}
            for flow in flows
            for step in flow.steps
        ],
    }
    return output
