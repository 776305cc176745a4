"""The learned selector: what it learns, when it dares, what it forgets and what it keeps."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batuta.conductors.hashed_ngrams import HashedNgrams
from batuta.conductors.selector import is_selector, open_selector, save_selector
from batuta.conductors.selector.model import SelectorGuard
from batuta.conductors.selector.value_model import Smoothing
from batuta.conductors.tensor_folder import write_folder
from batuta.core import (
    AcceptedAnswer,
    Plan,
    PlanningContext,
    Pool,
    Question,
    Round,
    Worker,
    WorkerId,
    assistant_message,
    user_message,
)
from batuta.errors import ConfigError, SourceError
from batuta.lab.learners.history import History
from batuta.lab.learners.selector_training import (
    HeldOutTrial,
    SelectorRecipe,
    fit_guard,
    fit_selector,
    fit_values,
    grouped_folds,
    held_out_values,
    mean_reward_picked,
    random_folds,
)

WORKERS = ("sums", "words", "even")
KINDS = {
    "add": ("Add {} and {}, then double the result.", (0.9, 0.2, 0.6)),
    "rhyme": ("Find a rhyme for the word number {} of poem {}.", (0.2, 0.9, 0.6)),
    "sort": ("Sort the list {} {} 7 in ascending order.", (0.9, 0.3, 0.6)),
    "spell": ("Spell backwards: syllable {} and syllable {}.", (0.1, 0.9, 0.6)),
    "date": ("What day of the week is {} days after day {}?", (0.6, 0.6, 0.65)),
}
FEATURES = HashedNgrams(buckets=1024, dimensions=16)
PLAIN = SelectorRecipe(features=FEATURES)


def asked(kind, number, seed=0):
    rng = Random(f"{kind} {seed}")
    return [KINDS[kind][0].format(rng.randrange(999), rng.randrange(999)) for _ in range(number)]


def world(number=40, seed=0, usd=None):
    """Outcomes of three workers on five kinds of question; one run each."""
    rng = Random(seed)
    questions = [(kind, text) for kind in KINDS for text in asked(kind, number, seed)]
    scores = [[float(rng.random() < p) for p in KINDS[kind][1]] for kind, _ in questions]
    shape = (len(questions), len(WORKERS))
    return History(
        questions=tuple(text for _, text in questions),
        workers=tuple(map(WorkerId, WORKERS)),
        scores_qm=np.asarray(scores, np.float32),
        usd_qm=np.broadcast_to(np.nan if usd is None else usd, shape).astype(float),
        runs_qm=np.ones(shape, np.int32),
        families=tuple(kind for kind, _ in questions),
    )


def pool(*ids):
    return Pool(tuple(Worker(id=WorkerId(id_), model=id_, strength=0.5) for id_ in ids))


@pytest.fixture(scope="module")
def selector():
    return fit_selector(world(), PLAIN)


def test_new_questions_of_known_kinds_go_to_who_is_good_at_them(selector):
    for kind, worker in (("add", "sums"), ("rhyme", "words"), ("sort", "sums"), ("spell", "words")):
        chosen = [selector.workers[place] for place in selector.choose_indices(asked(kind, 30, 1))]
        assert chosen.count(WorkerId(worker)) >= 25, kind


def test_a_question_unlike_any_other_goes_to_the_best_single_worker(selector):
    best = selector.workers[int(selector.mean_credit_m.argmax())]
    assert best == world().best_worker()
    for strange in ("Ωμέγα 漢字 🎼", "", "zzzz qqqq xxxx"):
        assert selector.choose_worker(strange, pool(*WORKERS)) == best


def conversation(*turns):
    said = [
        part
        for turn in turns
        for part in (user_message(turn), assistant_message("Well, it is so."))
    ]
    return Question(messages=tuple(said[:-1]))


async def planned(selector, *turns):
    decided = await selector.plan(
        PlanningContext(question=conversation(*turns), pool=pool(*WORKERS))
    )
    return decided.workflow.steps[0].worker


@pytest.mark.anyio
async def test_a_conversation_stays_with_its_worker_until_another_is_clearly_better(selector):
    (rhyme,), (add,) = asked("rhyme", 1, 5), asked("add", 1, 5)
    begun = await planned(selector, rhyme)
    assert begun == "words" and await planned(selector, add) == "sums"
    assert await planned(selector, rhyme, "And now?") == begun, "the best alone is another"
    assert await planned(selector, rhyme, "And now?", "ωμέγα 漢字", "Thank you.") == begun
    assert await planned(selector, rhyme, "And now?", add) == "sums", "there is much to be won"
    assert await planned(selector, rhyme, add, "And now?") == "sums", "and there it stays"
    many = [rhyme, *(["And now?"] * 200)]
    assert await planned(selector, *many) == begun


async def test_it_plans_one_step_with_the_question_as_it_stands_and_then_lets_it_stand(selector):
    context = PlanningContext(question=Question.of(asked("add", 1, 2)[0]), pool=pool(*WORKERS))
    plan = await selector.plan(context)
    assert isinstance(plan, Plan)
    (step,) = plan.workflow.steps
    assert (step.subtask, step.worker, step.access) == ("", "sums", ())
    later = PlanningContext(
        question=context.question,
        pool=context.pool,
        previous=(Round(decision=plan, workflow=plan.workflow),),
    )
    assert isinstance(await selector.plan(later), AcceptedAnswer)


def test_it_chooses_within_the_pool_whatever_the_pool(selector):
    question = asked("add", 1, 2)[0]
    assert selector.choose_worker(question, pool("words")) == "words"
    assert selector.choose_worker(question, pool("stranger", "words", "even")) in {"words", "even"}
    assert selector.choose_worker(question, pool("stranger")) == "stranger"


def test_a_saved_selector_is_the_same_one(selector, tmp_path):
    save_selector(selector, tmp_path / "mini")
    opened = open_selector(tmp_path / "mini")
    assert is_selector(tmp_path / "mini")
    assert opened.name == selector.name and opened.name.startswith("selector/mini@")
    for ours, theirs in zip(
        *(one.expected_credit(world(3, 5).questions) for one in (selector, opened)), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


def test_a_folder_of_an_earlier_version_is_read_and_what_is_left_out_is_said(
    selector, tmp_path, caplog
):
    """Earlier versions also wrote a correction of the values, and a second way of choosing."""
    card, tensors = selector.state()
    workers, width = len(selector.workers), selector.values.memory_nd.shape[1]
    head = {
        "head.weights_fm": np.zeros((width + workers, workers), np.float32),
        "head.bias_m": np.zeros(workers, np.float32),
    }
    card = {**card, "temperature": 0.5, "rival": None}
    write_folder(tmp_path, card, {**tensors, **head})
    texts = world(3, 5).questions
    assert open_selector(tmp_path).choose_indices(texts) == selector.choose_indices(texts)
    assert not caplog.text
    head["head.weights_fm"][0] = 1
    write_folder(tmp_path, card, {**tensors, **head})
    assert open_selector(tmp_path).choose_indices(texts) == selector.choose_indices(texts)
    assert "batuta train selector" in caplog.text


def test_the_name_is_the_version_of_what_was_learned(selector):
    assert fit_selector(world(), PLAIN).name == selector.name
    assert fit_selector(world(seed=1), PLAIN).name != selector.name


def test_a_folder_that_holds_no_selector_is_an_error_that_says_so(selector, tmp_path):
    assert not is_selector(tmp_path)
    with pytest.raises(ConfigError, match="cannot be read"):
        open_selector(tmp_path)
    save_selector(selector, tmp_path)
    card = (tmp_path / "batuta.json").read_text()
    (tmp_path / "batuta.json").write_text(card.replace('"kind": "selector"', '"kind": "other"'))
    with pytest.raises(ConfigError, match="not the card of a selector"):
        open_selector(tmp_path)
    (tmp_path / "batuta.json").write_text(card.replace('"ridge"', '"bridge"'))
    with pytest.raises(ConfigError, match="no usable selector"):
        open_selector(tmp_path)
    (tmp_path / "batuta.json").write_text(card)
    (tmp_path / "selector.safetensors").write_bytes(b"nothing")
    with pytest.raises(ConfigError, match="cannot be read"):
        open_selector(tmp_path)


def test_a_selector_whose_features_cannot_be_used_here_is_not_opened(selector, tmp_path):
    """A server started, and each question then failed."""
    card, tensors = selector.state()
    features = {"kind": "sentence-embedding", "folder": str(tmp_path / "gone")}
    write_folder(tmp_path / "mini", {**card, "features": features}, tensors)
    with pytest.raises(ConfigError, match="sentence"):
        open_selector(tmp_path / "mini")


def test_a_new_worker_joins_by_a_few_outcomes_and_nothing_is_trained_again(selector):
    few = [(text, kind) for kind in KINDS for text in asked(kind, 6, 7)]
    scores = [1.0 if kind in {"rhyme", "spell", "date"} else 0.0 for _, kind in few]
    joined = selector.add_worker("poet", [text for text, _ in few], scores)
    assert joined.workers == (*selector.workers, "poet")
    assert joined.name != selector.name
    np.testing.assert_array_equal(joined.values.linear_dm, selector.values.linear_dm)
    both = pool("sums", "poet")
    assert joined.choose_worker(asked("rhyme", 1, 8)[0], both) == "poet"
    assert joined.choose_worker(asked("spell", 1, 8)[0], both) == "poet"
    assert joined.choose_worker(asked("add", 1, 8)[0], both) == "sums"
    with pytest.raises(SourceError, match="already"):
        joined.add_worker("poet", ["a"], [1.0])
    with pytest.raises(SourceError, match="no score"):
        selector.add_worker("poet", [], [])
    with pytest.raises(SourceError, match="2 scores for 1"):
        selector.add_worker("poet", ["a"], [1.0, 0.0])


def test_a_joined_worker_is_kept_by_the_file(selector, tmp_path):
    joined = selector.add_worker("poet", asked("rhyme", 6, 7), [1.0] * 6)
    save_selector(joined, tmp_path)
    opened = open_selector(tmp_path)
    assert opened.name == joined.name and opened.workers == joined.workers
    for ours, theirs in zip(
        opened.values(opened.features(["a rhyme"])),
        joined.values(joined.features(["a rhyme"])),
        strict=True,
    ):
        np.testing.assert_array_equal(ours, theirs)


NEWCOMERS = {
    "weak": dict.fromkeys(KINDS, 0.45),
    "even": dict.fromkeys(KINDS, 0.6),
    "strong": dict.fromkeys(KINDS, 0.97),
    "special": {**dict.fromkeys(KINDS, 0.1), "date": 0.95},
}
"""How likely a newcomer is right on each kind of question."""


def with_newcomer(known, chance, seed, count=40):
    """The same history, with one more worker that is known on so many questions alone."""
    rng, number = np.random.default_rng(seed), len(known.questions)
    rows, scores = rng.permutation(number)[:count], np.full((number, 1), np.nan, np.float32)
    likely = np.asarray([chance[family] for family in known.families])
    scores[rows, 0] = rng.random(count) < likely[rows]
    joined = History(
        questions=known.questions,
        workers=(*known.workers, WorkerId("newcomer")),
        scores_qm=np.hstack([known.scores_qm, scores]),
        usd_qm=np.full((number, len(known.workers) + 1), np.nan),
        runs_qm=np.hstack([known.runs_qm, ~np.isnan(scores)]).astype(np.int32),
        families=known.families,
    )
    return joined, rows


def expected_share(selector, newcomer, seed):
    """What its picks earn on new questions in the long run; no luck is in it."""
    earned = []
    for kind, (_, chances) in KINDS.items():
        chance = {**dict(zip(WORKERS, chances, strict=True)), "newcomer": newcomer[kind]}
        picked = selector.choose_indices(asked(kind, 30, seed + 1000))
        earned += [chance[selector.workers[place]] for place in picked]
    return float(np.mean(earned))


@pytest.mark.slow
@pytest.mark.parametrize("strength", NEWCOMERS)
def test_a_newcomer_known_by_forty_outcomes_costs_little_and_is_used_where_it_is_good(strength):
    """Seed 5 has one that is lucky on its forty, and no better than the others."""
    newcomer, more = NEWCOMERS[strength], []
    for seed in (5, 6, 7):
        known = world(seed=seed)
        alone = expected_share(fit_selector(known, PLAIN, seed=seed), newcomer, seed)
        joined, _ = with_newcomer(known, newcomer, seed)
        both = expected_share(fit_selector(joined, PLAIN, seed=seed), newcomer, seed)
        more.append(both - alone)
    assert min(more) >= -0.02
    if strength in {"strong", "special"}:
        assert np.mean(more) > {"strong": 0.05, "special": 0.02}[strength]


@pytest.mark.parametrize("strength", NEWCOMERS)
def test_a_worker_added_later_costs_little_and_is_used_where_it_is_better(strength):
    newcomer = NEWCOMERS[strength]
    for seed in (5, 6, 7):
        known = world(seed=seed)
        selector = fit_selector(known, PLAIN, seed=seed)
        joined, rows = with_newcomer(known, newcomer, seed)
        later = selector.add_worker(
            "newcomer", [known.questions[row] for row in rows], joined.scores_qm[rows, -1].tolist()
        )
        more = expected_share(later, newcomer, seed) - expected_share(selector, newcomer, seed)
        assert more >= (0.05 if strength == "strong" else -0.02)


def test_hard_questions_are_not_given_to_whoever_is_hardly_known():
    """A pick of unknown reward counts as what the others earn there, not as no question."""
    reward = np.asarray([[1, 1, np.nan], [0, 0, np.nan], [0, 0, np.nan], [1, 0, 1]], np.float32)
    assert mean_reward_picked(reward, np.asarray([0, 2, 2, 0])) == 0.5
    assert mean_reward_picked(reward, np.asarray([0, 0, 0, 0])) == 0.5
    assert mean_reward_picked(reward, np.asarray([2, 1, 1, 2])) == 0.5


def test_cost_is_weighed_where_it_is_known():
    dear = world(usd=[1.0, 0.0, 0.0])
    cheap = fit_selector(dear, SelectorRecipe(features=FEATURES, dollar=2.0))
    assert "sums" not in {cheap.workers[place] for place in cheap.choose_indices(dear.questions)}
    with pytest.raises(SourceError, match="cost of some of sums's calls is unknown"):
        fit_selector(world(), SelectorRecipe(features=FEATURES, dollar=2.0))


def test_a_history_without_families_is_enough():
    known = world()
    nameless = History(
        questions=known.questions,
        workers=known.workers,
        scores_qm=known.scores_qm,
        usd_qm=known.usd_qm,
        runs_qm=known.runs_qm,
        families=("",) * len(known.questions),
    )
    found = fit_selector(nameless, PLAIN)
    assert {found.workers[place] for place in found.choose_indices(asked("add", 10, 1))} <= set(
        WORKERS
    )


def test_outcomes_may_be_missing_but_not_all_of_a_worker():
    known = world()
    scores = known.scores_qm.copy()
    scores[::3, 1] = np.nan
    scores[7] = np.nan
    patchy = History(
        questions=known.questions,
        workers=known.workers,
        scores_qm=scores,
        usd_qm=known.usd_qm,
        runs_qm=known.runs_qm,
        families=known.families,
    )
    found = fit_selector(patchy, PLAIN)
    assert found.workers[found.choose_indices(asked("rhyme", 1, 1))[0]] == "words"
    scores[:, 1] = np.nan
    with pytest.raises(SourceError, match="no outcome of words"):
        fit_selector(patchy, PLAIN)


def test_too_few_questions_are_an_error_that_says_how_many_are_needed():
    with pytest.raises(SourceError, match="at least 20 questions, not on 5"):
        fit_selector(world(1), PLAIN)


# -- the parts ----------------------------------------------------------------------------


@given(
    seed=st.integers(0, 10_000),
    shift=st.floats(-0.5, 0.5),
)
@settings(max_examples=30, deadline=None)
def test_the_guard_never_loses_on_held_out_families_nor_by_lot(seed, shift):
    rng = np.random.default_rng(seed)

    def trial():
        value = rng.random((50, 3)).astype(np.float32)
        reward = np.clip(value * shift + rng.random((50, 3)), 0, 1).astype(np.float32)
        close = rng.random(50).astype(np.float32)
        return HeldOutTrial(value_nm=value, close_n=close, reward_nm=reward, best_n=1)

    by_lot, by_family = trial(), trial()
    guard = fit_guard(by_lot, by_family, np.arange(50) % 10)
    assert by_lot.gain_n(guard).mean() >= 0
    assert by_family.gain_n(guard).mean() >= 0


def tried(gain, close):
    """Questions on which leaving the best single worker, the second of two, earns `gain`."""
    gain = np.asarray(gain, np.float32)
    value = np.tile(np.asarray([0.9, 0.5], np.float32), (len(gain), 1))
    reward = np.stack([0.5 + gain, np.full(len(gain), 0.5)], axis=1).astype(np.float32)
    close_n = np.full(len(gain), close, np.float32)
    return HeldOutTrial(value_nm=value, close_n=close_n, reward_nm=reward, best_n=1)


@pytest.mark.parametrize(("wins", "opens"), [(12, False), (20, True)])
def test_what_is_won_at_random_by_two_errors_alone_does_not_open_the_guard(wins, opens):
    family = np.repeat(np.arange(10), 10)
    gain = np.zeros(100)
    gain[:wins], gain[-4:] = 1, -1
    known, new = tried(gain, 0.9), tried(np.zeros(100), 0.4)
    errors = gain.sum() / np.sqrt((gain**2).sum())
    assert errors > 3 if opens else errors == pytest.approx(2)
    guard = fit_guard(known, new, family)
    assert bool(known.gain_n(guard).any()) is opens


def test_what_one_strange_family_wins_by_luck_does_not_open_the_guard():
    family = np.repeat(np.arange(10), 10)
    known = tried(np.full(100, 0.3), 0.9)
    lucky = tried(np.where(family == 0, 0.5, np.where(family < 5, -0.1, 0.0)), 0.4)
    assert lucky.gain_n(SelectorGuard(0.0, 0.0)).sum() > 0
    guard = fit_guard(known, lucky, family)
    assert not lucky.gain_n(guard).any()
    assert known.gain_n(guard).mean() > 0.2


@pytest.mark.parametrize(("winners", "opens"), [(1, False), (2, True)])
def test_one_family_that_wins_alone_does_not_open_the_guard_for_others(winners, opens):
    family = np.repeat(np.arange(10), 10)
    known, new = tried(np.full(100, 0.3), 0.4), tried(np.where(family < winners, 0.4, 0.0), 0.4)
    assert bool(known.gain_n(fit_guard(known, new, family)).any()) is opens


@pytest.mark.parametrize("families", [6, 12])
def test_the_best_worker_of_a_family_held_out_does_not_close_the_guard(families):
    """One large family makes the second worker the best of all; elsewhere the first one is.

    Held out, that family goes to the first, as nothing is known of it: so it would have gone
    anyway, and no guard could have saved it.
    """
    family = np.repeat(np.arange(families), 20)
    loses = family == 0
    new, known = tried(np.where(loses, -2.0, 0.3), 0.4), tried(np.where(loses, 0.0, 0.3), 0.4)
    folds = family % 5
    alone = fit_guard(known, new, family)
    assert not known.gain_n(alone).any(), "the family's loss outweighs all"
    fair = replace(new, best_n=np.where(folds == 0, 0, 1))
    guard = fit_guard(known, fair, family)
    assert known.gain_n(guard).mean() > 0.2


def test_who_is_hardly_better_is_held_below_the_best_worker():
    value = np.asarray([[0.50, 0.55, 0.2], [0.50, 0.70, 0.51], [0.9, 0.1, 0.2]], np.float32)
    held = SelectorGuard(0.1, 0.0).hold_back(value, 0)
    assert held.argmax(axis=1).tolist() == [0, 1, 0]
    assert np.allclose(held, [[0.50, 0.50, 0.2], [0.50, 0.70, 0.50], [0.9, 0.1, 0.2]])
    assert np.array_equal(SelectorGuard(0.0, 0.0).hold_back(value, 0), value)


def mixed_closeness(number, close, gain):
    """Questions held out, half of them exactly as close as `close`, the others at 0.99."""
    trial = tried(np.full(number, gain), close)
    near = np.where(np.arange(number) % 2, close, 0.99).astype(np.float32)
    return replace(trial, close_n=near)


def test_where_nothing_was_tried_the_guard_is_closed():
    """Known questions are at 0.99, new families at 0.3: nothing is known of what lies between."""
    family = np.repeat(np.arange(10), 10)
    known = tried(np.full(100, 0.3), 0.99)
    new = tried(np.zeros(100), 0.3)
    guard = fit_guard(known, new, family)
    between = tried(np.full(100, -0.5), 0.7)
    assert not between.gain_n(guard).any()
    assert known.gain_n(guard).mean() > 0.2


def test_the_guard_that_was_never_fitted_stays_with_the_best():
    value = np.eye(3, dtype=np.float32)
    assert SelectorGuard()(value, np.ones(3, np.float32), 1).tolist() == [1, 1, 1]
    assert SelectorGuard(0.5, 0.5)(value, np.asarray([1, 1, 0.4], np.float32), 1).tolist() == [
        0,
        1,
        1,
    ]


@given(sizes=st.lists(st.integers(1, 30), min_size=5, max_size=20), seed=st.integers(0, 99))
def test_folds_of_families_tear_no_family_and_folds_by_lot_are_even(sizes, seed):
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(len(sizes)), sizes)
    fold = grouped_folds(group, rng)
    assert all(len(set(fold[group == one])) == 1 for one in range(len(sizes)))
    assert len(set(fold)) == 5
    counts = np.bincount(random_folds(len(group), rng), minlength=5)
    assert counts.max() - counts.min() <= 1


def test_a_question_is_held_out_of_what_is_expected_of_it():
    features = np.eye(4, dtype=np.float32)[[0, 0, 1, 1]]
    scores = np.asarray([[1, 0], [0, 1], [1, 1], [0, 0]], np.float32)
    values = fit_values(
        ("a", "b"),  # pyright: ignore[reportArgumentType]
        features,
        scores,
        Smoothing(prior=0.1, neighbours=1.0, sharpness=50),
    )
    expected, close = held_out_values(values, np.asarray([0, 1, 2, 3]))
    assert (expected[0] - expected[1])[0] < -0.3 and (expected[0] - expected[1])[1] > 0.3
    np.testing.assert_allclose(close, 1)
