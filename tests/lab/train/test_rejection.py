"""Rejection sampling: what is kept of a group, and that fitting it makes the policy better."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.core import Pool, Step, Workflow
from batuta.errors import ConfigError, WorkerLostError
from batuta.lab.learners.random_workflows import random_workflow
from batuta.lab.train.episodes import Episode
from batuta.lab.train.model import load_policy, require_policy_start
from batuta.lab.train.questions import draw_from_source
from batuta.lab.train.rejection_sampling import (
    DraftGroup,
    RejectionContext,
    keep_right_drafts,
    random_drafts,
    replace_missing_workers,
    run_rejection_sampling,
)
from batuta.lab.train.reward import draft_weights
from batuta.lab.train.rollouts import PolicyDraft
from batuta.lab.worlds.pools import rehearsal_pool as seven
from batuta.language import ACCEPTED, parse_workflow, render_workflow
from lab.train.stage import LIBRARIES, NETWORK, ONE, POOL, SIX_TIMES_SEVEN, TWO, runner, settings

pytestmark = LIBRARIES
EPISODE = Episode(number=0, task=SIX_TIMES_SEVEN, pool=POOL, seed=0)
REHEARSAL = seven()


CALLS = st.lists(st.integers(1, 5), max_size=12)


@given(CALLS, st.integers(0, 12), st.sampled_from([1.0, 1.4, 3.0]))
def test_a_shorter_right_draft_never_counts_less(calls, wrong, shorter):
    weights = draft_weights(calls, len(calls) + wrong, shorter)
    ranked = sorted(zip(calls, weights, strict=True))
    assert [weight for _, weight in ranked] == sorted(weights, reverse=True)
    assert all(weight >= -1e-9 for weight in weights)


@given(CALLS, st.integers(0, 12))
def test_without_a_price_on_calls_the_weights_sum_to_the_share_that_was_wrong(calls, wrong):
    weights = draft_weights(calls, len(calls) + wrong, 1.0)
    share = wrong / max(1, len(calls) + wrong)
    assert sum(weights) == pytest.approx(share if calls else 0.0)


def test_what_takes_more_calls_than_needed_is_unlearned_even_where_all_are_right():
    assert draft_weights([1, 3], 2, 2.0) == pytest.approx([0.8 * 0.375, 0.2 * 0.375])


async def test_right_drafts_are_kept_with_their_prompt_and_wrong_ones_are_not():
    say = runner(lambda asked: "42" if "Solve it" in str(asked) else "a plan")
    drafts = [
        PolicyDraft(text=ONE),
        PolicyDraft(text=TWO),
        PolicyDraft(text="no workflow"),
        PolicyDraft(text=TWO.replace("Solve", "Plan")),
    ]
    rollouts = await say.run_drafts([(EPISODE, draft) for draft in drafts], range(4), 0)
    kept = keep_right_drafts(["prompt"], rollouts, 4, 2.0)
    assert [one.draft for one in kept] == [ONE, TWO] and {one.prompt for one in kept} == {"prompt"}
    assert kept[0].weight == pytest.approx(2 * kept[1].weight)


@pytest.mark.long
def test_the_fitted_policy_writes_better_workflows(tmp_path, warm):
    """The second round is run by the policy that the first one fitted."""
    told = []
    rejection = {
        "rounds": 2, "random": 0, "questions": 240, "group": 8,
        "steps": 80, "batch": 16, "learning_rate": 3e-3,
    }  # fmt: skip
    stage = settings(tmp_path, rejection=rejection, policy={"start": str(warm), "network": NETWORK})
    folder = run_rejection_sampling(stage, lambda *said: told.append(said))
    right = {doing: figures["right"] for doing, _, _, figures in told if "running" in doing}
    assert right["round 2: running"] > right["round 1: running"] + 0.05
    assert load_policy(str(folder), None)  # pyright: ignore[reportAssertAlwaysTrue]


async def test_random_workflows_are_what_the_first_round_can_do_without_a_policy(tmp_path):
    stage = RejectionContext(
        settings=settings(tmp_path, rejection={"group": 40}),
        model=None,
        tokenizer=None,
        on_progress=lambda *said: None,
        pool=POOL,
    )
    drafts = random_drafts(stage, DraftGroup(episode=EPISODE, seed=0))
    assert len({draft.text for draft in drafts}) > 20
    say = runner(lambda _: "42")
    rows = await say.run_drafts([(EPISODE, draft) for draft in drafts], range(40), 0)
    assert {row.reward for row in rows} == {1.0}, "all of them are well formed"


@given(st.integers(0, 10_000), st.integers(1, 6))
def test_a_stand_in_changes_who_and_nothing_else(seed, size):
    rng = Random(seed)
    flow = random_workflow(rng, REHEARSAL)
    few = Pool(tuple(rng.sample(REHEARSAL.workers, size)))
    group = DraftGroup(episode=replace(EPISODE, pool=few), seed=0)
    text = replace_missing_workers(
        render_workflow(flow, REHEARSAL, names=True), group, REHEARSAL, rng
    )
    changed = parse_workflow(text, few)
    assert [(s.subtask, s.access) for s in changed.steps] == [  # pyright: ignore[reportAttributeAccessIssue]
        (s.subtask, s.access) for s in flow.steps
    ]
    who = {(old.worker, new.worker) for old, new in zip(flow.steps, changed.steps, strict=True)}  # pyright: ignore[reportAttributeAccessIssue]
    assert len(who) == len({old for old, _ in who}), "one stand-in for each"
    assert all(old == new for old, new in who if old in few)


def test_a_number_counts_the_workers_that_the_prompt_lists():
    few = REHEARSAL.subset([REHEARSAL.workers[4].id, REHEARSAL.workers[1].id])
    group = DraftGroup(episode=replace(EPISODE, pool=few), seed=0)
    flow = Workflow(tuple(Step(subtask="Solve it.", worker=worker.id) for worker in few))
    text = render_workflow(flow, few, names=False)
    assert replace_missing_workers(text, group, REHEARSAL, Random(0), compact=False) == text


def test_what_needs_no_stand_in_stays_as_it_was_written():
    spoken = f"Let me think.\n{ONE}"
    for text in (spoken, "no workflow", ACCEPTED, ONE.replace("flute", "nobody")):
        assert (
            replace_missing_workers(text, DraftGroup(episode=EPISODE, seed=0), POOL, Random(0))
            == text
        )


async def test_letting_a_right_answer_stand_counts_more_than_correcting_it():
    say = runner(lambda asked: "42" if "Solve it" in str(asked) else "a plan")
    right, wrong = PolicyDraft(text=ONE), PolicyDraft(text=ONE.replace("Solve", "Plan"))
    for root, expected in ((right, [ACCEPTED, ONE]), (wrong, [ONE])):
        again = [PolicyDraft(text=ACCEPTED, root=root), PolicyDraft(text=ONE, root=root)]
        rollouts = await say.run_drafts([(EPISODE, draft) for draft in again], [3, 3], 0)
        kept = keep_right_drafts(["prompt"], rollouts, 2, 1.4)
        assert [one.draft for one in kept] == expected
    assert DraftGroup(episode=EPISODE, seed=3, root=right).seed_of(5) == 3, (
        "the first round is run as it was"
    )


@pytest.mark.slow
def test_second_rounds_are_fitted_too(tmp_path, warm):
    told = []
    rejection = {
        "rounds": 2, "random": 1, "questions": 96, "group": 8,
        "steps": 20, "batch": 16, "learning_rate": 1e-3,
    }  # fmt: skip
    stage = settings(
        tmp_path, rejection=rejection, recursion={"share": 0.5},
        policy={"start": str(warm), "network": NETWORK},
    )  # fmt: skip
    run_rejection_sampling(stage, lambda *said: told.append(said))
    stands = [figures["second/stands"] for doing, _, _, figures in told if "running" in doing]
    assert len(stands) >= 4, "two rounds of two parts each"
    assert all(share >= 1 / 4 for share in stands), "letting it stand is always tried"


def test_workers_that_do_not_answer_end_it_before_anything_is_kept(tmp_path, random_policy):
    """Otherwise the policy that was there would be taken for the result of this stage."""
    pool = tmp_path / "pool.toml"
    pool.write_text(
        """[[workers]]
id = "flute"
provider = "compatible"
base_url = "http://127.0.0.1:9/v1"
model = "flute"
""",
        "utf-8",
    )
    told = settings(
        tmp_path / "run",
        policy={"start": str(random_policy)},
        pool={"source": str(pool)},
        rejection={"rounds": 1, "random": 1, "questions": 2, "group": 2},
    )
    with pytest.raises(
        WorkerLostError, match=r"round 1 could be rewarded \(.*run the same command"
    ):
        run_rejection_sampling(told, lambda *_: None)
    assert not (tmp_path / "run" / "rejection").exists()


def test_learning_begins_where_the_last_stage_asked_for_ended(tmp_path):
    stage = settings(tmp_path)
    with pytest.raises(ConfigError, match="batuta train warmup"):
        require_policy_start(stage)
    for name in ("warmup", "rejection"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    assert require_policy_start(stage) == str(tmp_path / "warmup")
    asked = settings(tmp_path, rejection={"rounds": 1})
    assert require_policy_start(asked) == str(tmp_path / "rejection")
    assert require_policy_start(asked, "rejection") == str(tmp_path / "warmup")
    named = settings(tmp_path, rejection={"rounds": 1}, policy={"start": "elsewhere"})
    assert require_policy_start(named) == str(tmp_path / "rejection")
    assert require_policy_start(named, "rejection") == str(tmp_path / "warmup")
    assert require_policy_start(named, "warmup") == "elsewhere"
    (tmp_path / "distilled").mkdir()
    (tmp_path / "distilled" / "config.json").touch()
    assert require_policy_start(named, "rejection") == str(tmp_path / "distilled")
    fresh = settings(tmp_path / "new", policy={"start": "elsewhere"})
    assert require_policy_start(fresh) == "elsewhere"


@pytest.mark.parametrize(
    ("name", "levels"),
    [("rehearsal:4-6", {4, 5, 6}), ("rehearsal:lists:2-2", {2}), ("rehearsal:1-3", {1, 2, 3})],
)
def test_questions_can_be_drawn_by_their_difficulty(name, levels):
    asked = draw_from_source(name, 20, 3)
    assert len(asked) == 20 and {task.difficulty for task in asked} == levels
