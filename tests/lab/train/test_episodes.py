"""Who is asked what, and whom it may call: known beforehand, the same on every machine."""

import re
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.errors import ConfigError, SourceError
from batuta.lab import worlds
from batuta.lab.train.episodes import DROPPED_WORD, apply_word_dropout, draw_pool, make_episodes
from batuta.lab.train.questions import draw_from_source, draw_questions
from batuta.lab.train.settings import PoolSettings
from batuta.language import PromptOptions
from lab.train.stage import settings

WHOLE = worlds.rehearsal_pool()
N = len(WHOLE)


@given(seed=st.integers(0, 2**32), fewest=st.integers(1, N), extra=st.integers(0, N))
def test_a_drawn_pool_has_k_of_the_n_workers(seed, fewest, extra):
    most = min(fewest + extra, N)
    drawn = draw_pool(WHOLE, PoolSettings(fewest=fewest, most=most), Random(seed))
    assert fewest <= len(drawn) <= most
    assert set(drawn) <= set(WHOLE)
    assert [w for w in WHOLE if w in set(drawn)] == list(drawn), "unpermuted keeps the order"


@given(seed=st.integers(0, 2**32), fewest=st.integers(1, N))
def test_a_permuted_pool_has_the_same_workers_in_any_order(seed, fewest):
    told = PoolSettings(fewest=fewest, most=fewest)
    plain = draw_pool(WHOLE, told, Random(seed))
    permuted = draw_pool(WHOLE, told.model_copy(update={"permute": True}), Random(seed))
    assert set(plain) == set(permuted)


@given(seed=st.integers(0, 2**32))
def test_the_same_seed_draws_the_same_pools(seed):
    tasks = worlds.draw_tasks("arithmetic", 4, 1)
    told = PoolSettings(fewest=2, most=5, permute=True)
    assert make_episodes(tasks, WHOLE, told, seed) == make_episodes(tasks, WHOLE, told, seed)


def test_every_size_every_worker_and_every_place_comes_up():
    told = PoolSettings(fewest=2, most=4, permute=True)
    drawn = [draw_pool(WHOLE, told, Random(seed)) for seed in range(600)]
    assert {len(pool) for pool in drawn} == {2, 3, 4}
    first = [pool.workers[0].id for pool in drawn]
    assert {w.id for w in WHOLE} == set(first)
    assert max(map(first.count, set(first))) < 2 * len(first) / N, "no worker is preferred"


def test_a_share_of_the_questions_lists_the_whole_pool_all_the_same():
    told = PoolSettings(fewest=1, most=3, whole=0.25)
    sizes = [len(draw_pool(WHOLE, told, Random(seed))) for seed in range(400)]
    assert 60 < sizes.count(N) < 140


def test_without_a_wish_the_pool_is_whole_and_in_its_order():
    assert draw_pool(WHOLE, PoolSettings(), Random(0)) == WHOLE


def test_an_episodes_prompt_lists_its_own_pool():
    (task,) = worlds.draw_tasks("arithmetic", 1, 1)
    told = PoolSettings(fewest=2, most=2, permute=True)
    (episode,) = make_episodes([task], WHOLE, told, 3)
    text = episode.request(PromptOptions(descriptions=False, compact=True)).messages[0].text
    assert task.question in text
    assert [w.id for w in WHOLE if w.id in text] == [w.id for w in WHOLE if w.id in episode.pool]
    assert len(episode.pool) == 2


def test_the_curriculum_is_followed_step_by_step(tmp_path):
    told = settings(
        tmp_path,
        optimiser={"steps": 6, "questions": 8},
        curriculum=[
            {"step": 3, "tasks": {"rehearsal:facts": 1.0, "rehearsal:lists": 3.0}},
            {"step": 0, "tasks": {"rehearsal:arithmetic": 1.0}},
        ],
    )
    assert "rehearsal:arithmetic" in told.curriculum[0].tasks, "other stages learn from the first"
    asked = draw_questions(told)
    assert len(asked) == 48
    assert all("arithmetic" in task.tags for task in asked[:24])
    later = [tag for task in asked[24:] for tag in task.tags]
    assert later.count("facts") + later.count("lists") == 24
    assert later.count("lists") > later.count("facts") > 0
    assert draw_questions(told) == asked
    again = told.model_copy(update={"seed": 2})
    assert draw_questions(again) != asked


def test_training_questions_are_not_those_of_a_test():
    trained = {task.id for task in draw_from_source("rehearsal:arithmetic", 300, 7919)}
    from batuta.lab.evals.task_sets import open_tasks

    tested = open_tasks("rehearsal:arithmetic", 300, 0)
    known = {task.id for task in tested.tasks}
    assert len(trained & known) / len(known) < 0.2, "short questions may fall together, few do"


def test_a_file_of_ones_own_is_asked_over_and_over(tmp_path):
    path = tmp_path / "mine.jsonl"
    lines = [f'{{"question": "What is {n} plus 1?", "answer": {n + 1}}}' for n in range(5)]
    path.write_text("\n".join(lines))
    asked = draw_from_source(str(path), 12, 1)
    assert len(asked) == 12
    assert {t.question for t in asked[:5]} == {t.question for t in asked[5:10]}
    assert len({t.question for t in asked[:5]}) == 5, "all of them before the first comes again"


@pytest.mark.parametrize("name", ["rehearsal:cooking", "rehearsal:lists:x", "no/such/file.jsonl"])
def test_an_unknown_source_is_one_sentence(name):
    with pytest.raises((ConfigError, SourceError)) as caught:
        draw_from_source(name, 1, 1)
    said = str(caught.value)
    assert "\n" not in said and name.split(":")[-1] in said


# -- hidden words -------------------------------------------------------------------------

QUESTIONS = st.text(st.sampled_from('abcÄé 0123456789[](),.;:?-"\n'), max_size=80)


@given(question=QUESTIONS, share=st.floats(0, 0.99), seed=st.integers(0, 1000))
def test_only_words_are_hidden(question, share, seed):
    shown = apply_word_dropout(question, share, Random(seed))
    signs = "".join(sign for sign in question if not sign.isalpha())
    assert "".join(sign for sign in shown if not sign.isalpha() and sign != DROPPED_WORD) == signs
    words = [re.findall(r"[^\W\d_]+|_", text) for text in (shown, question)]
    assert all(s == DROPPED_WORD or sorted(s) == sorted(q) for s, q in zip(*words, strict=True))


@given(question=QUESTIONS, seed=st.integers(0, 1000))
def test_nothing_is_hidden_without_a_wish(question, seed):
    assert apply_word_dropout(question, 0.0, Random(seed)) == question


def test_a_clause_is_mostly_hidden_or_mostly_not():
    clause = "take the whole part of a division by ten and keep it"
    shares = [
        sum(s != q for s, q in zip(shown.split(), clause.split(), strict=True)) / 12
        for seed in range(300)
        for shown in apply_word_dropout(f"{clause}; {clause}; {clause}", 0.35, Random(seed)).split(
            "; "
        )
    ]
    assert 0.3 < sum(shares) / len(shares) < 0.37
    assert sum(0.25 < share < 0.75 for share in shares) < 0.35 * len(shares)


def test_about_the_share_is_hidden_and_only_the_policy_misses_it():
    asked = worlds.draw_tasks(None, 200, 1)
    met = make_episodes(asked, WHOLE, settings=PoolSettings(), seed=3, word_dropout=0.35)
    words = sum(len(re.findall("[a-zA-Z]+", task.question)) for task in asked)
    hidden = sum(episode.policy_question.count(DROPPED_WORD) for episode in met)
    assert 0.13 < hidden / words < 0.21
    changed = (
        s != q
        for episode in met
        for s, q in zip(episode.policy_question.split(), episode.task.question.split(), strict=True)
    )
    assert 0.25 < sum(changed) / words < 0.45
    for task, episode in zip(asked, met, strict=True):
        prompt = episode.request(PromptOptions(descriptions=False, compact=True)).messages[0].text
        assert episode.policy_question in prompt
        assert episode.task.question == task.question
