"""How a model that was not trained to conduct is prompted and sampled."""

from __future__ import annotations

from dataclasses import dataclass, replace

from batuta.clients.resilience import WorkerHealth
from batuta.conductors.draft_breaker import DRAFT_BREAKER
from batuta.conductors.llm_conductor import PAPER_SAMPLING, LLMConductor, StructuredDrafts
from batuta.core import Client, Sampling, Worker
from batuta.core.cost_bound import reasons_unasked
from batuta.language import PromptOptions

REASONING_TOKENS = 8192
"""Tokens of a draft, hidden reasoning included, of a model that reasons unasked."""
REASONING_EFFORT = "low"
"""A workflow is short; more thought belongs to the workers."""
_SHARE = 4
"""A draft may take this part of a small context window at most."""


def drafting_sampling(worker: Worker, wanted: Sampling) -> Sampling:
    """How the worker's model is sampled when it conducts.

    Args:
        worker: whose model conducts.
        wanted: choices that were made; what is missing follows the model.
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
    """What was chosen for a prompted conductor."""

    rendering: PromptOptions = PromptOptions(prices=True)
    sampling: Sampling = Sampling()
    rounds: int | None = None
    structured: StructuredDrafts | None = None
    health: WorkerHealth | None = None
    """Leaves it alone after malformed drafts; None: one of its own."""


def prompted_conductor(
    name: str, worker: Worker, client: Client, options: ConductorOptions
) -> LLMConductor:
    """The worker's model as a conductor, skipped after malformed drafts in a row."""
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
