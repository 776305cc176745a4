"""What changes from step to step of a training."""

from types import SimpleNamespace

import pytest

from batuta.lab.train.trainer import ScheduleCallback
from lab.train.stage import settings


def after(schedule, trainer, step, steps=11):
    schedule.on_step_begin(None, SimpleNamespace(global_step=step, max_steps=steps), None)
    return trainer.entropy_coef, trainer.scale_rewards


def test_the_entropy_bonus_moves_in_a_straight_line(tmp_path):
    trainer = SimpleNamespace(entropy_coef=0.02, scale_rewards="group")
    told = settings(tmp_path, optimiser={"entropy": 0.02, "entropy_last": 0.0})
    schedule = ScheduleCallback(trainer, told)
    bonus = [after(schedule, trainer, step)[0] for step in range(11)]
    assert bonus == pytest.approx([0.002 * left for left in range(10, -1, -1)])


def test_an_entropy_bonus_that_begins_at_nothing_is_paid_later(tmp_path):
    """TRL decides at the start whether there is a bonus."""
    trainer = SimpleNamespace(entropy_coef=0.0, scale_rewards="group", _entropy_bonus_enabled=False)
    told = settings(tmp_path, optimiser={"entropy": 0.0, "entropy_last": 0.02})
    schedule = ScheduleCallback(trainer, told)
    assert after(schedule, trainer, 10)[0] == pytest.approx(0.02)
    assert trainer._entropy_bonus_enabled


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_what_is_not_asked_for_stays(tmp_path, scale):
    trainer = SimpleNamespace(entropy_coef=0.02, scale_rewards=scale)
    schedule = ScheduleCallback(trainer, settings(tmp_path, optimiser={"scale": scale}))
    assert {after(schedule, trainer, step) for step in range(11)} == {(0.02, scale)}


def test_advantages_are_divided_by_the_batch_once_a_cost_is_charged(tmp_path):
    trainer = SimpleNamespace(entropy_coef=0.0, scale_rewards="group")
    told = settings(
        tmp_path,
        optimiser={"scale": "group-then-batch"},
        reward={"cost": "tokens", "coefficient": 0.1, "from_step": 4},
    )
    schedule = ScheduleCallback(trainer, told)
    scales = [after(schedule, trainer, step)[1] for step in range(7)]
    assert scales == ["group"] * 4 + ["batch"] * 3
