"""Prompts and samples a model that was not trained to conduct."""

from __future__ import annotations

from dataclasses import dataclass, replace

from batuta.clients.resilience import WorkerHealth
from batuta.conductors.draft_breaker import DRAFT_BREAKER
from batuta.conductors.llm_conductor import PAPER_SAMPLING, LLMConductor, StructuredDrafts
from batuta.core import Client, Sampling, Worker
from batuta.core.cost_bound import reasons_unasked
from batuta.language import PromptOptions

REASONING_TOKENS = 8192
"""Tokens of a draft, hidden reasoning included, of a model that reasons by default."""
REASONING_EFFORT = "low"
"""A workflow is short; the workers should do the reasoning."""
_SHARE = 4
"""A draft takes at most this fraction of a small context window."""


def drafting_sampling(worker: Worker, wanted: Sampling) -> Sampling:
    """Return the sampling of the worker's model as a conductor.

    Args:
        worker: the worker whose model conducts.
        wanted: explicit choices; the others follow from the model.
    """
    reasons = reasons_unasked(worker)
    most = REASONING_TOKENS if reasons else PAPER_SAMPLING.max_tokens or REASONING_TOKENS
    if worker.context_window is not None:
        most = max(min(most, worker.context_window // _SHARE), 16)
    default = Sampling(
        temperature=PAPER_SAMPLING.temperature,
        max_tokens=most,
        effort=REASONING_EFFORT if reasons else None,
    )
    return wanted.with_defaults(default)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConductorOptions:
    """The options of a prompted conductor."""

    rendering: PromptOptions = PromptOptions(prices=True)
    sampling: Sampling = Sampling()
    rounds: int | None = None
    structured: StructuredDrafts | None = None
    health: WorkerHealth | None = None
    """Skips it after malformed drafts; None for a breaker of its own."""


def prompted_conductor(
    name: str, worker: Worker, client: Client, options: ConductorOptions
) -> LLMConductor:
    """Return the worker's model as a conductor with a breaker for malformed drafts."""
    sampling = drafting_sampling(worker, options.sampling)
    return LLMConductor(
        name=name,
        client=client,
        rendering=options.rendering,
        sampling=sampling,
        rounds=options.rounds,
        structured=options.structured,
        worker=replace(worker, sampling=sampling),
        health=options.health or WorkerHealth(DRAFT_BREAKER),
    )
