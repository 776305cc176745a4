"""Each watchdog is fired by figures that show its trouble, and by no others; and it acts."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from batuta.lab.train.supervision import (
    QUIET_STEPS,
    WINDOW,
    StageClock,
    TimedSupervision,
    Trouble,
    TroubleKind,
    find_troubles,
    most_common_share,
)
from lab.train.stage import settings

WELL = {"valid": 0.95, "right": 0.5, "steps": 2.2, "entropy": 0.4, "same": 0.4}
BAD = {
    TroubleKind.ONE_WORKFLOW: {"same": 0.97},
    TroubleKind.ENTROPY_GONE: {"entropy": 0.01},
    TroubleKind.DEPTH_AT_LIMIT: {"steps": 4.9},
    TroubleKind.VALIDITY_FALLS: {"valid": 0.6},
}


def history(*parts):
    figures = [WELL | changes for changes, count in parts for _ in range(count)]
    return [{"step": number, **one} for number, one in enumerate(figures, 1)]


def test_a_training_that_goes_well_is_left_alone():
    assert find_troubles(history(({}, 40)), [], 5) == []


@pytest.mark.parametrize("kind", list(BAD), ids=str)
def test_each_trouble_is_found_by_its_own_watchdog_alone(kind):
    before, bad = ({}, 10), (BAD[kind], WINDOW)
    (found,) = find_troubles(history(before, bad), [], 5)
    assert found.kind is kind and found.step == 10 + WINDOW and found.seen
    assert find_troubles(history(before, (BAD[kind], 1)), [], 5) == [], "one step is no trouble"


@pytest.mark.parametrize("kind", list(BAD), ids=str)
def test_a_trouble_is_told_again_only_after_a_while(kind):
    seen = history(({}, 10), (BAD[kind], WINDOW))
    now = seen[-1]["step"]
    assert find_troubles(seen, [Trouble(kind, now - QUIET_STEPS + 1, "")], 5) == []
    assert len(find_troubles(seen, [Trouble(kind, now - QUIET_STEPS, "")], 5)) == 1


@given(st.lists(st.lists(st.sampled_from("ab"), max_size=4), max_size=12))
def test_the_share_of_the_commonest_is_a_share(chosen):
    found = most_common_share(chosen)
    assert found is None or 0.5 <= found <= 1


def test_equal_workflows_for_all_questions_are_seen_and_different_ones_too():
    assert most_common_share([["a", "a", "b"]] * 8) == 1.0
    assert most_common_share([["a"], ["b"]] * 4) == 0.5
    assert most_common_share([["a"]] * 2) is None, "too few questions to say so"


class Reward:
    def __init__(self):
        self.cost = 0.01

    def raise_cost(self, times):
        self.cost *= times
        return self.cost


def supervised(tmp_path):
    """A supervision, and what stands for the trainer."""
    clock = StageClock(1.0, 0.0, lambda: 0.0)
    supervisor = TimedSupervision(settings(tmp_path), clock, lambda _: None)
    model = torch.nn.Linear(2, 2)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = SimpleNamespace(
        entropy_coef=0.02,
        optimizer=optimiser,
        lr_scheduler=torch.optim.lr_scheduler.LambdaLR(optimiser, lambda _: 1.0),
        model=model,
        accelerator=SimpleNamespace(unwrap_model=lambda each: each),
    )
    return supervisor, trainer


def test_they_act(tmp_path):
    supervisor, trainer = supervised(tmp_path)
    reward = Reward()
    for kind in (TroubleKind.ONE_WORKFLOW, TroubleKind.ENTROPY_GONE):
        supervisor.act(kind, trainer, reward)
    assert trainer.entropy_coef == pytest.approx(0.08)
    assert "0.03" in supervisor.act(TroubleKind.DEPTH_AT_LIMIT, trainer, reward)
    supervisor.act(TroubleKind.VALIDITY_FALLS, trainer, reward)
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(0.05)
    trainer.optimizer.step()
    trainer.lr_scheduler.step()
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(0.05), "the schedule keeps it"


@pytest.mark.parametrize("kind", [TroubleKind.ENTROPY_GONE, TroubleKind.VALIDITY_FALLS], ids=str)
def test_a_step_s_figures_fire_them(tmp_path, kind):
    supervisor, trainer = supervised(tmp_path)
    for line in history(({}, 6), (BAD[kind], WINDOW)):
        supervisor.watch(trainer, Reward(), line)
    (fired,) = supervisor.report.troubles
    assert fired.kind is kind and fired.done
