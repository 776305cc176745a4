"""Served runs among the questions of a curriculum."""

from __future__ import annotations

from batuta.train.settings import CurriculumStage, TrainSettings


def mix_in_runs(settings: TrainSettings, source: str, share: float) -> TrainSettings:
    """The settings with `share` of every stage's questions from served runs.

    Args:
        settings: whose curriculum keeps its proportions among its own sources.
        source: `runs` or `runs:TARGET`.
        share: in (0, 1].
    """
    stages: list[CurriculumStage] = []
    for stage in settings.curriculum:
        others = {name: weight for name, weight in stage.tasks.items() if name != source}
        whole = sum(others.values())
        kept = {name: weight / whole * (1 - share) for name, weight in others.items() if share < 1}
        stages.append(
            CurriculumStage(step=stage.step, tasks={**kept, source: share if kept else 1.0})
        )
    return settings.model_copy(update={"curriculum": stages})
