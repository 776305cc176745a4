"""The settings of a training, chosen from questions, pool, machine and time. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from batuta.train.settings import (
    CurriculumStage,
    LogSettings,
    NetworkSettings,
    OptimiserSettings,
    PolicySettings,
    PoolSettings,
    PromptSettings,
    RejectionSettings,
    RewardSettings,
    TrainSettings,
    WarmupSettings,
)

WARMUP_SHARE, REJECTION_SHARE, END_SHARE = 0.3, 0.65, 0.94
"""Shares of the time by which each stage has ended."""
SMALL_MINUTES = 15.0
"""Up to which a small network learns more than a larger one, which takes longer a step."""
COMPLETION = 96
_GROUP, _QUESTIONS = 8, 16
_STEPS_A_MINUTE = 40
_MOST_STEPS = 1500
_ROUND_QUESTIONS = 600
_CHARACTERS_A_TOKEN = 2
"""Of a vocabulary made from the questions, at the least."""
_LEAST_POSITIONS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFacts:
    """What settings are chosen from."""

    questions: int
    """To learn from."""
    longest: int
    """Characters of the longest question."""
    workers: int
    minutes: float
    cores: int
    source: str
    """Where the questions are."""
    pool: str
    output: Path
    seed: int = 1


@dataclass(frozen=True, slots=True)
class ChosenSetting:
    """A row of the table."""

    name: str
    value: str
    why: str


def choose_settings(facts: TrainingFacts) -> tuple[TrainSettings, list[ChosenSetting]]:
    """The settings, and what was chosen why."""
    small = facts.minutes <= SMALL_MINUTES
    network = _choose_network(facts, small=small)
    rounds = 4 if facts.minutes > 2 else 2  # noqa: PLR2004 - minutes
    asked = min(_ROUND_QUESTIONS, max(2 * facts.questions, _QUESTIONS))
    steps = max(1, min(_MOST_STEPS, round(_STEPS_A_MINUTE * facts.minutes)))
    settings = TrainSettings(
        name="chosen",
        seed=facts.seed,
        output=facts.output,
        policy=PolicySettings(network=network),
        curriculum=[CurriculumStage(tasks={facts.source: 1.0})],
        pool=PoolSettings(source=facts.pool, seconds=120.0),
        prompt=PromptSettings(compact=True),
        reward=RewardSettings(
            cost="calls", unit=1.0, coefficient=0.01, ceiling=0.1, from_step=20, ramp=20
        ),
        warmup=WarmupSettings(
            steps=300 if small else 1200,
            batch=16 if small else 48,
            learning_rate=6e-3 if small else 3e-3,
            hints=0.2,
            revisions=0.0,
            prompt_weight=0.05,
        ),
        rejection=RejectionSettings(
            rounds=rounds, questions=asked, group=_GROUP, steps=150, shorter=1.2
        ),
        optimiser=OptimiserSettings(
            sampler="own",
            steps=steps,
            questions=_QUESTIONS,
            group=_GROUP,
            micro_batch=_QUESTIONS * _GROUP,
            learning_rate=1e-3 if small else 5e-4,
            schedule="constant",
            warmup=0.0,
            loss="dapo",
            scale="group-then-batch",
            max_grad_norm=0.5,
            entropy=0.02,
            completion=COMPLETION,
            threads=facts.cores,
        ),
        log=LogSettings(checkpoint_every=max(steps + 1, 2)),
    )
    return settings, _explain_choice(facts, settings)


def _choose_network(facts: TrainingFacts, *, small: bool) -> NetworkSettings:
    longest = facts.longest // _CHARACTERS_A_TOKEN + 16 * facts.workers + COMPLETION + 64
    positions = _LEAST_POSITIONS
    while positions < longest:
        positions *= 2
    if small:
        return NetworkSettings(vocabulary=512, hidden=64, layers=2, inner=128, positions=positions)
    return NetworkSettings(positions=positions)


def _explain_choice(facts: TrainingFacts, settings: TrainSettings) -> list[ChosenSetting]:
    o, r, net = settings.optimiser, settings.rejection, settings.policy.network
    time = f"{facts.minutes:g} minutes on {facts.cores} core{'' if facts.cores == 1 else 's'}"
    return [
        ChosenSetting("network", f"{net.layers} layers of {net.hidden}", time),
        ChosenSetting(
            "positions",
            f"{net.positions:,}",
            f"the longest question has {facts.longest:,} characters",
        ),
        ChosenSetting(
            "SFT warm-up",
            f"at most {settings.warmup.steps} steps",
            f"ends by {WARMUP_SHARE:.0%} of the time",
        ),
        ChosenSetting(
            "rejection sampling",
            f"{r.rounds} rounds of at most {r.questions} questions x {r.group}",
            f"{facts.questions:,} questions to learn from; ends by {REJECTION_SHARE:.0%}",
        ),
        ChosenSetting(
            "reinforcement",
            f"{o.questions} questions x {o.group} a step, learning rate {o.learning_rate:g}",
            f"at most {o.steps:,} steps; ends by {END_SHARE:.0%} of the time",
        ),
        ChosenSetting(
            "entropy bonus",
            f"{o.entropy:g}",
            "without it one workflow wins everywhere; raised when it does",
        ),
        ChosenSetting(
            "cost of a call",
            f"{settings.reward.coefficient:g} of a right answer",
            f"from step {settings.reward.from_step} on, when accuracy has risen",
        ),
    ]
