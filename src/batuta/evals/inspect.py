"""Batuta's systems as models of inspect_ai, for those who evaluate with it (extra `inspect`).

    inspect eval arc.py --model batuta/ultra -M pool=batuta.toml

Any system's name may follow `batuta/`: `ultra`, `best-single`, `moa`, a worker's id. inspect_ai
asks and grades; the run, with its workflow, tokens and dollars, is in the output's metadata and
usage.
"""

# inspect_ai is an extra:
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import secrets
from contextlib import AsyncExitStack
from typing import Any

import anyio

from batuta.baselines import SolverContext
from batuta.clients import HttpTransport
from batuta.config.load import load_config
from batuta.core import Message, Question, Role, Run, Sampling, Text
from batuta.distribution import install_hint
from batuta.errors import ConfigError
from batuta.evals.outage import outage_reason
from batuta.evals.subject import Subject
from batuta.evals.systems import System, find_system

try:
    from inspect_ai.model import (
        ChatMessage,
        GenerateConfig,
        ModelAPI,
        ModelOutput,
        ModelUsage,
        modelapi,
    )
except ImportError:
    raise ConfigError(f"the bridge needs inspect_ai: {install_hint('inspect')}") from None

SEED_BITS = 31
"""Bits of a seed where inspect_ai names none."""


@modelapi(name="batuta")
def batuta_model_api() -> type[ModelAPI]:
    """The provider, as inspect_ai looks for it."""
    return BatutaModelAPI


class BatutaModelAPI(ModelAPI):
    """A system over a pool."""

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
        """Opens nothing yet.

        Args:
            model_name: the system's name.
            base_url: not used.
            api_key: not used; the pool names its own keys.
            config: inspect_ai's defaults.
            pool: as `--pool` of `batuta eval`.
            conductor: as `--conductor` of it.
        """
        super().__init__(model_name, base_url, api_key, [], config or GenerateConfig())
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
        tools: list[Any],
        tool_choice: Any,
        config: GenerateConfig,
    ) -> ModelOutput:
        """The system's answer to the conversation.

        Raises:
            ConfigError: there is no such pool or system, or tools are offered.
            RuntimeError: an outage decided the run, so that there is nothing to grade.
        """
        if tools:
            raise ConfigError("batuta's systems answer without tools: use a solver that has none")
        subject, one = await self._open()
        sampling = Sampling(temperature=config.temperature, max_tokens=config.max_tokens)
        question = Question(messages=tuple(map(_core_message, input)), sampling=sampling)
        seed = secrets.randbits(SEED_BITS) if config.seed is None else config.seed
        players = SolverContext(
            pool=subject.pool, clients=subject.clients_for_run(), limits=subject.limits
        )
        run = await one.solver.answer(question, players, seed)
        if (lost := outage_reason(run)) is not None:
            raise RuntimeError(lost)
        return _model_output(self.model_name, run)

    async def _open(self) -> tuple[Subject, System]:
        """The pool and the system, the same for every question."""
        async with self._lock:
            if self._opened is None:
                http = await self._stack.enter_async_context(HttpTransport())
                pool, conductor = self._wanted
                found = await load_config(http, pool=pool, conductor=conductor, time_scale=0.0)
                subject = Subject(
                    pool=found.pool,
                    clients=found.clients,
                    conductor=found.conductor,
                    limits=found.limits,
                    simulated=found.simulated,
                )
                one = find_system(self.model_name, subject)
                if one.fitter is not None:
                    raise ConfigError(f"{one.name} learns from outcomes, which inspect_ai has not")
                self._opened = subject, one
        return self._opened


def _core_message(message: ChatMessage) -> Message:
    return Message(role=Role(message.role), parts=(Text(message.text),))


def _model_output(name: str, run: Run) -> ModelOutput:
    usage, cost = run.usage, run.cost
    output = ModelOutput.from_content(name, run.answer or "")
    output.usage = ModelUsage(
        input_tokens=usage.input - usage.cached - usage.cache_write,
        output_tokens=usage.output,
        total_tokens=usage.total,
        input_tokens_cache_read=usage.cached,
        input_tokens_cache_write=usage.cache_write,
        reasoning_tokens=usage.reasoning,
        total_cost=None if cost.unpriced_calls else float(cost.usd),
    )
    flows = [played.workflow for played in run.rounds if played.workflow]
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
