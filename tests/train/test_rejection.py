"""Rejection sampling: what is kept of a group, and that fitting it makes the policy better."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.core import Grade
from batuta.errors import ConfigError
from batuta.train.episodes import Episode
from batuta.train.model import load_policy, policy_start
from batuta.train.play import Draft, Played
from batuta.train.questions import source
from batuta.train.rejection import Stage, better, random_drafts, reject
from train.stage import LIBRARIES, NETWORK, POOL, SIX_TIMES_SEVEN, players, settings

pytestmark = LIBRARIES
EPISODE = Episode(0, SIX_TIMES_SEVEN, POOL, 0)


def played(reward, name="draft"):
    """A played draft; right from a reward of 0.6 on, as a cost may be charged."""
    grade = None if reward is None else Grade(float(reward > 0.5))
    return Played(EPISODE, Draft(name), None, grade, reward)


REWARDS = st.lists(st.sampled_from([None, 0.0, 0.5, 0.7, 0.9, 1.0]), min_size=1, max_size=12)


@given(REWARDS)
def test_only_right_drafts_that_earned_more_than_the_mean_are_kept(rewards):
    group = [played(reward, str(at)) for at, reward in enumerate(rewards)]
    kept = better(["prompt"], group, len(group))
    known = [reward for reward in rewards if reward is not None]
    mean = sum(known) / max(1, len(known))
    for one in kept:
        reward = rewards[int(one.draft)]
        assert one.prompt == "prompt" and one.weight > 0
        assert reward is not None and reward > 0.5 and reward > mean


@given(REWARDS)
def test_a_questions_weights_sum_to_the_share_that_was_not_right(rewards):
    group = [played(reward) for reward in rewards]
    kept = better(["prompt"], group, len(group))
    known = [reward for reward in rewards if reward is not None]
    wrong = sum(reward <= 0.5 for reward in known) / max(1, len(known))
    assert sum(one.weight for one in kept) == pytest.approx(wrong if kept else 0.0)


def test_a_question_that_everything_solves_or_nothing_says_nothing():
    assert better(["a", "b"], [played(1.0)] * 4 + [played(0.5)] * 4, 4) == []


def test_of_two_right_drafts_the_cheaper_one_counts_more():
    cheap, dear = better(["a"], [played(1.0), played(0.8), played(0.5), played(0.5)], 4)
    assert cheap.weight > dear.weight


def test_the_fitted_policy_writes_better_workflows(tmp_path, warm):
    """The second round is played by the policy that the first one fitted."""
    told = []
    rejection = {
        "rounds": 2, "random": 0, "questions": 240, "group": 8,
        "steps": 80, "batch": 16, "learning_rate": 3e-3,
    }  # fmt: skip
    stage = settings(tmp_path, rejection=rejection, policy={"start": str(warm), "network": NETWORK})
    folder = reject(stage, lambda *said: told.append(said))
    right = {doing: figures["right"] for doing, _, _, figures in told if "playing" in doing}
    assert right["round 2: playing"] > right["round 1: playing"] + 0.05
    assert load_policy(str(folder), None)


async def test_random_workflows_are_what_the_first_round_can_do_without_a_policy(tmp_path):
    stage = Stage(settings(tmp_path, rejection={"group": 40}), None, None, lambda *said: None)
    drafts = random_drafts(stage, EPISODE)
    assert len({draft.text for draft in drafts}) > 20
    say = players(lambda _: "42")
    rows = await say.play([(EPISODE, draft) for draft in drafts], range(40), 0)
    assert {row.reward for row in rows} == {1.0}, "all of them are well formed"


def test_learning_begins_where_the_last_stage_asked_for_ended(tmp_path):
    stage = settings(tmp_path)
    with pytest.raises(ConfigError, match="batuta train warmup"):
        policy_start(stage)
    for name in ("warmup", "rejection"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    assert policy_start(stage) == str(tmp_path / "warmup")
    asked = settings(tmp_path, rejection={"rounds": 1})
    assert policy_start(asked) == str(tmp_path / "rejection")
    assert policy_start(asked, "warmup") == str(tmp_path / "warmup")


@pytest.mark.parametrize(
    ("name", "levels"),
    [("rehearsal:4-6", {4, 5, 6}), ("rehearsal:lists:2-2", {2}), ("rehearsal:1-3", {1, 2, 3})],
)
def test_questions_can_be_drawn_by_their_difficulty(name, levels):
    asked = source(name, 20, 3)
    assert len(asked) == 20 and {task.difficulty for task in asked} == levels
