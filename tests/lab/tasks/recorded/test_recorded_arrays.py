"""Records as arrays: credit, grades, selections, lines, splits, and how tables become them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded_made import made

from batuta.core import Task, TaskId
from batuta.errors import SourceError
from batuta.lab.tasks.question_keys import text_key
from batuta.lab.tasks.recorded import (
    RECORDED_NAMES,
    RecordedOutcomes,
    load_recorded,
    plurality_credit,
    random_split,
    rank_models,
    reference_scores,
    unseen_family_split,
)


def test_credit_counts_from_the_bound_and_nothing_recorded_earns_nothing(record):
    assert record.credit_qms[1, 0].tolist() == [1.0, 0.0]
    assert np.isnan(record.credit_qms[0, 2, 1])
    assert record.credit_qm()[2].tolist() == [0.0, 0.0, 0.0]
    assert record.credit_qm(None)[:, 0].tolist() == [1.0, 0.5, 0.5, 1.0]
    assert record.credit_qm(None)[0, 2] == 0.0


def test_a_grade_is_the_records_and_undecided_for_any_other_text(record):
    right, wrong = (
        record.grade(record.tasks[1], " Answer: 4\n"),
        record.grade(record.tasks[1], "Answer: 7"),
    )
    assert (right.score, right.extracted) == (1.0, "4")
    assert (wrong.score, wrong.extracted) == (0.0, "7")
    assert record.grade(record.tasks[1], "4").score is None
    assert (
        record.grade(
            Task(id=TaskId("x"), question="another?", target="", grader="recorded"), "Answer: 4"
        ).score
        is None
    )


def test_a_question_that_comes_twice_is_graded_by_either(record):
    assert record.positions["What is 1+1?"] == (0, 3)
    assert record.grade(record.tasks[3], "One and one make 2.").score == 1.0


def test_what_is_not_recorded_has_a_text_of_its_own(record):
    bare = RecordedOutcomes(
        name="bare",
        tasks=record.tasks,
        families=record.families,
        models=record.models,
        scores_qms=record.scores_qms,
    )
    texts = {bare.reply((0, m, s)) for m in range(3) for s in range(2)}
    assert len(texts) == 6
    assert all("was not recorded" in text for text in texts)


def test_selections_keep_everything_together(record):
    part = record.select([2, 0], ["odd", "big/model"])
    assert [task.id for task in part.tasks] == ["q2", "q0"]
    assert part.families == ("three", "one")
    assert part.reply((1, 1, 0)) == "One and one make 2."
    assert part.usage.usd_qms[1].tolist()[1] == [0.25, 0.25]
    assert part.credit_qm().tolist() == [[0.0, 0.0], [0.0, 1.0]]
    with pytest.raises(SourceError, match="has no model 'none'"):
        record.select(models=["none"])


def test_complete_drops_what_one_model_was_not_asked(record):
    assert [task.id for task in record.drop_incomplete().tasks] == ["q0", "q1", "q3"]


def test_a_pool_with_strengths_from_calibration_questions_only(record):
    assert all(worker.strength is None and worker.price is None for worker in record.pool())
    pool = record.pool(calibration=[1, 2])
    assert record.pool(calibration=(1, 2)) == pool
    assert pool["big/model"].strength == 0.5
    assert pool["small"].strength == 0.0
    assert pool["odd"].tags == ("recorded",)


def test_the_lines(record):
    found = reference_scores(record)
    assert (found.best_model, found.best, found.oracle) == ("big/model", 0.75, 0.75)
    assert plurality_credit(record).tolist() == [1.0, 0.0, 0.0, 1.0]
    assert found.vote == 0.5
    assert rank_models(record) == (0, 2, 1)


def test_ties_of_the_vote_go_to_the_best_model(record):
    two = record.select(models=["small", "big/model"])
    assert plurality_credit(two).tolist() == [1.0, 1.0, 0.0, 1.0]


def wide(count, families):
    tasks = tuple(
        Task(id=TaskId(f"q{n}"), question=f"Question {n}?", target="", grader="recorded")
        for n in range(count)
    )
    named = tuple(f"f{n % families}" for n in range(count))
    return RecordedOutcomes(
        name="wide",
        tasks=tasks,
        families=named,
        models=("m",),
        scores_qms=np.zeros((count, 1, 1), np.float32),
    )


def parts(division):
    return [set(part.tolist()) for part in (division.train, division.calibration, division.test)]


@given(st.integers(3, 200), st.integers(3, 20), st.integers(0, 10**6))
def test_splits_divide_the_questions(count, families, seed):
    record = wide(count, min(families, count))
    for split in (random_split, unseen_family_split):
        train, calibration, test = parts(split(record, seed))
        assert train | calibration | test == set(range(count))
        assert len(train) + len(calibration) + len(test) == count
        assert parts(split(record, seed)) == [train, calibration, test]


@given(st.integers(3, 12), st.integers(0, 10**6))
def test_no_family_is_in_two_parts_of_the_unseen_split(families, seed):
    record = wide(60, families)
    seen = [{record.families[q] for q in part} for part in parts(unseen_family_split(record, seed))]
    assert all(seen)
    assert not seen[0] & seen[1] and not seen[0] & seen[2] and not seen[1] & seen[2]


def test_shares_are_met_about():
    record = wide(5_000, 100)
    for split in (random_split, unseen_family_split):
        sizes = [len(part) / 5_000 for part in parts(split(record, 1, (0.5, 0.1, 0.4)))]
        assert np.allclose(sizes, (0.5, 0.1, 0.4), atol=0.03), split


def test_other_seeds_divide_otherwise():
    record = wide(500, 50)
    for split in (random_split, unseen_family_split):
        assert parts(split(record, 1)) != parts(split(record, 2))


def test_a_question_stays_in_its_part_when_the_record_is_filtered(record):
    whole, some = wide(300, 3), wide(300, 3).select(list(range(0, 300, 7)))
    test = {whole.tasks[q].id for q in random_split(whole, 4).test}
    assert {some.tasks[q].id for q in random_split(some, 4).test} == test & {
        t.id for t in some.tasks
    }
    for seed in range(20):
        divided = parts(random_split(record, seed))
        assert any({0, 3} <= part for part in divided), "one text, one part"


FROZEN = [3, 8, 9, 10, 12, 15, 19, 21, 24, 25, 28, 29, 33, 35, 37]
"""The test of 40 questions as it was before near-duplicates were looked for."""
DRESSES = (
    "Which river, if any, flows through Ulm ({n})?",
    "which river if any flows through ulm {n}",
    "WHICH RIVER — if any — FLOWS THROUGH ULM: {n}!",
    "**Which  river**, if any, flows\nthrough Ulm, {n}…",
    "Ｗhich river, if any, flows through Ulm ({n})?",
)


def dressed(count, families):
    """Every question in several dresses, each dress in another family."""
    plain = wide(count * len(DRESSES), families)
    texts = [dress.format(n=n) for dress in DRESSES for n in range(count)]
    tasks = tuple(replace(t, question=text) for t, text in zip(plain.tasks, texts, strict=True))
    return replace(plain, tasks=tasks)


@pytest.mark.parametrize("split", [random_split, unseen_family_split])
def test_near_duplicates_are_on_one_side(split):
    record = dressed(30, 7)
    for seed in range(10):
        sides = [
            {text_key(record.tasks[q].question) for q in part}
            for part in parts(split(record, seed))
        ]
        assert sides[2], "a test has questions"
        assert not sides[0] & sides[1] and not sides[0] & sides[2] and not sides[1] & sides[2]


def test_near_duplicates_are_not_lost_and_others_stay_where_they_were():
    record = dressed(30, 7)
    assert set.union(*parts(random_split(record, 1))) == set(range(150))
    assert random_split(wide(40, 3), 4).test.tolist() == FROZEN


def test_signs_alone_are_their_own_key():
    assert text_key(" →? ") == "→?" != text_key("←?")


def test_too_few_families_are_refused():
    with pytest.raises(SourceError, match="has 2 task families"):
        unseen_family_split(wide(10, 2), 0)


@pytest.mark.parametrize("name", ["nope", "mmlu_pro", "mmlu_pro/eight"])
def test_unknown_sets_are_named(name):
    with pytest.raises(
        SourceError, match=f"(choose among: {RECORDED_NAMES[0]}|did you mean mmlu_pro/)"
    ):
        load_recorded(name)


def test_a_missing_set_says_where_it_was_looked_for(tmp_path):
    with pytest.raises(SourceError, match=r"no outcomes\.parquet: .*set BATUTA_DATA"):
        load_recorded("routerdc/test", folder=tmp_path)


@pytest.mark.parametrize(("questions", "families"), [(3, 3), (4, 3)])
def test_shapes_that_do_not_fit_are_refused(questions, families):
    record = made()
    fault = f"{families} families do not fit {questions} questions and 3 models"
    with pytest.raises(ValueError, match=fault):
        RecordedOutcomes(
            name="x",
            tasks=record.tasks[:questions],
            families=record.families[:families],
            models=record.models,
            scores_qms=record.scores_qms,
        )
