"""The settings of a training, chosen from questions, pool, machine and time. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from batuta.train.settings import (
    CurriculumStage,
    LogSettings,
    OptimiserSettings,
    PoolSettings,
    PromptSettings,
    RewardSettings,
    TrainSettings,
)

END_SEARCH, END_FITTING, END_REJECTION, END_SHARE = 0.4, 0.65, 0.8, 0.92
"""Shares of the time by which each stage has ended; rejection sampling is left out by default."""
END_FITTING_AT_MOST = 0.87
"""Where the time is short, fitting takes that of reinforcement, which gains less by then."""
SEARCH_CALLS = 6000
"""Calls of workers that the search makes at most."""
_GROUP, _QUESTIONS = 8, 16
_STEPS_A_MINUTE = 40
_MOST_STEPS = 1500


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFacts:
    """What settings are chosen from."""

    questions: int
    """To learn from."""
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
    steps = max(1, min(_MOST_STEPS, round(_STEPS_A_MINUTE * facts.minutes)))
    settings = TrainSettings(
        name="chosen",
        seed=facts.seed,
        output=facts.output,
        curriculum=[CurriculumStage(tasks={facts.source: 1.0})],
        pool=PoolSettings(source=facts.pool, seconds=120.0),
        prompt=PromptSettings(compact=True),
        reward=RewardSettings(
            cost="calls", unit=1.0, coefficient=0.01, ceiling=0.1, from_step=20, ramp=20
        ),
        optimiser=OptimiserSettings(
            sampler="own",
            steps=steps,
            questions=_QUESTIONS,
            group=_GROUP,
            micro_batch=_QUESTIONS * _GROUP,
            learning_rate=5e-4,
            schedule="constant",
            warmup=0.0,
            loss="dapo",
            scale="group-then-batch",
            max_grad_norm=0.5,
            entropy=0.02,
            threads=facts.cores,
        ),
        log=LogSettings(checkpoint_every=max(steps + 1, 2)),
    )
    return settings, _explain_choice(facts, settings)


def _explain_choice(facts: TrainingFacts, settings: TrainSettings) -> list[ChosenSetting]:
    o = settings.optimiser
    return [
        ChosenSetting(
            "search",
            f"at most {SEARCH_CALLS:,} calls of workers",
            f"{facts.questions:,} questions to learn from; ends by {END_SEARCH:.0%} of the time",
        ),
        ChosenSetting(
            "fitting to what was found",
            "as large a network and as many steps as fit",
            f"measured on {facts.cores} core{'' if facts.cores == 1 else 's'}; ends by "
            f"{END_FITTING:.0%}",
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
