"""How large a network is made from nothing, and how long it is fitted: measured on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice, repeat
from time import monotonic
from typing import Any

import torch

from batuta.train.device import choose_attention, place_model
from batuta.train.fitting import TrainingExample, fit_examples
from batuta.train.model import load_policy, make_policy
from batuta.train.settings import NetworkSettings, TrainSettings
from batuta.train.tokenizer import make_tokenizer
from batuta.train.warmup import render_user_prompt

PromptAndDraft = tuple[str, str]
"""What the policy reads, not yet in its chat format, and what it is to write."""
SMALL = NetworkSettings(vocabulary=512, hidden=64, layers=2, inner=128)
LARGE = NetworkSettings()
LEAST_STEPS = 100
"""Steps of fitting without which even the small network does not know the syntax of workflows."""
ENOUGH_STEPS = 300
"""Steps after which what was found is written nearly everywhere, and sooner than others gain."""
BATCH = 16
_GOOD_STEPS, _MOST_STEPS = 400, 1200
"""Steps for which the time must suffice before a larger network is made; and never more."""
_RATES = {SMALL.hidden: 6e-3, LARGE.hidden: 3e-3}
_START_RATE = 1e-4
"""Of a model that was trained before."""
_TIMED = 3
_ROOM = 16
"""Tokens that a workflow may be longer than the longest that was found."""
_SAMPLED = 2000
"""Texts that a tokenizer is made from at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitPlan:
    """What fits into a time."""

    network: NetworkSettings
    """Not used where the policy is one that was there before."""
    steps: int
    """Fewer than `LEAST_STEPS`: the time is too short."""
    step_seconds: float
    learning_rate: float
    completion: int
    """Tokens of a workflow at most."""

    def apply_to(self, settings: TrainSettings) -> TrainSettings:
        """The settings with the network and the length of workflows that were planned."""
        network = settings.policy.model_copy(update={"network": self.network})
        optimiser = settings.optimiser.model_copy(update={"completion": self.completion})
        return settings.model_copy(update={"policy": network, "optimiser": optimiser})


def plan_fitting(
    settings: TrainSettings, texts: Sequence[PromptAndDraft], seconds: float
) -> FitPlan:
    """The largest network for which the time suffices, and its steps.

    Times a few steps of fitting on some of the texts: what else this machine does counts too.

    Args:
        settings: with the model to start from, or none.
        texts: what is to be learned, or texts like it.
        seconds: that fitting may take.

    Raises:
        ConfigError: the model that the settings name cannot be loaded.
    """
    plan = _plan_network(settings, texts, LARGE, seconds)
    if plan.steps >= _GOOD_STEPS or settings.policy.start:
        return plan
    return _plan_network(settings, texts, SMALL, seconds)


def _plan_network(
    settings: TrainSettings,
    texts: Sequence[PromptAndDraft],
    network: NetworkSettings,
    seconds: float,
) -> FitPlan:
    some = texts[:: max(1, len(texts) // _SAMPLED)]
    model, tokenizer = open_new_policy(settings, network, some)
    reads = _count_longest(tokenizer, [render_user_prompt(tokenizer, prompt) for prompt, _ in some])
    writes = _count_longest(tokenizer, [draft for _, draft in some]) + _ROOM
    step = _time_step(model, tokenizer, some)
    positions = network.positions
    while positions < reads + writes + _ROOM:
        positions *= 2
    return FitPlan(
        network=network.model_copy(update={"positions": positions}),
        steps=max(0, min(_MOST_STEPS, int(seconds / step))),
        step_seconds=step,
        learning_rate=_START_RATE if settings.policy.start else _RATES[network.hidden],
        completion=writes,
    )


def open_new_policy(
    settings: TrainSettings, network: NetworkSettings, texts: Sequence[PromptAndDraft]
) -> tuple[Any, Any]:
    """A network and a tokenizer made from nothing but these texts, or the model that is named.

    Raises:
        ConfigError: it cannot be loaded.
    """
    torch.manual_seed(settings.seed)
    if settings.policy.start:
        model, tokenizer = load_policy(settings.policy.start, settings.policy.revision)
        choose_attention(model, settings)
        return place_model(model), tokenizer
    some = texts[:: max(1, len(texts) // _SAMPLED)]
    tokenizer = make_tokenizer((text for pair in some for text in pair), network.vocabulary)
    return make_policy(tokenizer, network), tokenizer


def _count_longest(tokenizer: Any, texts: Sequence[str]) -> int:
    ids: list[list[int]] = tokenizer(list(texts), add_special_tokens=False)["input_ids"]
    return max(map(len, ids))


def _time_step(model: Any, tokenizer: Any, texts: Sequence[PromptAndDraft]) -> float:
    """Seconds of a step; the first one, which is slower, does not count."""
    batch = [
        TrainingExample(render_user_prompt(tokenizer, prompt), draft)
        for prompt, draft in islice(cycle(texts[:: max(1, len(texts) // BATCH)]), BATCH)
    ]
    ended: list[float] = []
    fit_examples(
        model,
        tokenizer,
        batches=repeat(batch),
        steps=_TIMED + 1,
        learning_rate=1e-6,
        on_step=lambda _step, _loss: ended.append(monotonic()),
    )
    return (ended[-1] - ended[0]) / _TIMED
