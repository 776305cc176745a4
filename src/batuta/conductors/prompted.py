"""Conductors whose drafts a worker's model writes: their prompt and sampling settings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from batuta.clients.resilience import WorkerHealth
from batuta.conductors.draft_breaker import DRAFT_BREAKER
from batuta.conductors.llm_conductor import PAPER_SAMPLING, LLMConductor, StructuredDrafts
from batuta.core import Client, Sampling, Worker
from batuta.core.cost_bound import reasons_unasked
from batuta.language import PromptOptions

REASONING_TOKENS = 8192
"""Default maximum tokens of a draft, reasoning included, for a model that reasons by default."""
REASONING_EFFORT = "low"
"""Default effort of a model that reasons by default; the workers should do the reasoning."""
_WINDOW_DIVISOR = 4
"""By default a draft takes at most 1/4 of the model's context window."""
SMALL_MODEL = 4.0
"""Billions of parameters up to which a model gets the brief prompt, if the size is `auto`."""
BRIEF_TOKENS = 400
"""Default limit on the tokens of a draft after the brief prompt; a small model may not stop itself.
"""
BRIEF_TEMPERATURE = 0.5
"""Default temperature with the brief prompt; at the paper's, small models' drafts are often
malformed."""

PromptSize = Literal["auto", "full", "brief"]
"""The size of the prompt; `auto`: brief for a model that is known to be small."""


def is_brief(worker: Worker, size: PromptSize) -> bool:
    """Return True if the worker's model gets the brief prompt."""
    if size == "auto":
        return worker.parameters is not None and worker.parameters <= SMALL_MODEL
    return size == "brief"


def drafting_sampling(worker: Worker, sampling: Sampling, *, brief: bool = False) -> Sampling:
    """Return the sampling settings with which the worker's model writes drafts.

    Args:
        worker: the worker with the conducting model.
        sampling: explicit settings; settings that it lacks follow from the model.
        brief: whether the model gets the brief prompt.
    """
    reasons = reasons_unasked(worker)
    plain = BRIEF_TOKENS if brief else PAPER_SAMPLING.max_tokens or REASONING_TOKENS
    tokens = REASONING_TOKENS if reasons else plain
    if worker.context_window is not None:
        tokens = max(min(tokens, worker.context_window // _WINDOW_DIVISOR), 16)
    default = Sampling(
        temperature=BRIEF_TEMPERATURE if brief else PAPER_SAMPLING.temperature,
        max_tokens=tokens,
        effort=REASONING_EFFORT if reasons else None,
    )
    return sampling.with_defaults(default)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConductorOptions:
    """The options of a prompted conductor."""

    rendering: PromptOptions = PromptOptions(prices=True)
    size: PromptSize = "full"
    """The size of the prompt; a trained conductor's prompt is set in `rendering` instead."""
    sampling: Sampling = Sampling()
    """Explicit settings; settings that it lacks follow from the model."""
    rounds: int | None = None
    """Maximum number of rounds that the model plans; None: any number."""
    structured: StructuredDrafts | None = None
    """How drafts are constrained; None: they are not."""
    health: WorkerHealth | None = None
    """The breaker for malformed drafts; None: the conductor gets a new one."""


def prompted_conductor(
    name: str, worker: Worker, client: Client, options: ConductorOptions
) -> LLMConductor:
    """Return the worker's model as a conductor with a breaker for malformed drafts."""
    brief = is_brief(worker, options.size)
    sampling = drafting_sampling(worker, options.sampling, brief=brief)
    return LLMConductor(
        name=name,
        client=client,
        rendering=replace(options.rendering, brief=True) if brief else options.rendering,
        sampling=sampling,
        rounds=options.rounds,
        structured=options.structured,
        worker=replace(worker, sampling=sampling),
        health=options.health or WorkerHealth(DRAFT_BREAKER),
    )
