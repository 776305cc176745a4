"""Histories: what is known of the workers, from a record or from a file, and back."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batuta.core import Task, TaskId, WorkerId
from batuta.errors import SourceError, StoreError
from batuta.solvers.history import History, of_record, read_history, write_history
from batuta.tasks.recorded import GRADER, Recorded, Spent

NAN = np.nan


def record(answers: bool = True) -> Recorded:
    """Three questions, two models, two samples; the second model has one sample at most."""
    scores = np.array([[[1, 0.5], [0, NAN]], [[0.2, 1], [1, NAN]], [[0, 0], [NAN, NAN]]], "f4")
    codes = np.array([[[0, 1], [1, -1]], [[1, 2], [2, -1]], [[0, 0], [-1, -1]]], np.int32)
    usd = np.where(np.isnan(scores), NAN, [[[0.1, 0.3], [NAN, NAN]]] * 3)
    tokens = np.full(scores.shape, -1, np.int32)
    return Recorded(
        "made/up",
        tuple(Task(TaskId(f"q{n}"), f"question {n}", "?", GRADER) for n in range(3)),
        ("one", "two", "one"),
        ("big", "small"),
        scores,
        0.5,
        codes if answers else None,
        ("a", "b", "c") if answers else (),
        spent=Spent(tokens, tokens, usd, np.full(scores.shape, NAN)),
    )


def test_a_record_gives_the_means_of_what_is_known_and_leaves_the_rest_unknown():
    history = of_record(record())
    np.testing.assert_allclose(history.scores_qm, [[1, 0], [0.5, 1], [0, NAN]])
    np.testing.assert_allclose(history.usd_qm, [[0.2, NAN]] * 3)
    assert history.runs_qm.tolist() == [[2, 1], [2, 1], [2, 0]]
    assert history.answers == (("a", "b"), ("b", "c"), ("a", None))
    assert history.samples.said((1, 0, 1)) == "c" and history.samples.said((2, 1, 0)) is None
    assert of_record(record(answers=False)).answers is None


def test_a_selection_has_the_questions_and_workers_in_the_order_asked_for():
    history = of_record(record()).select([2, 0], ["small", "big"])
    assert history.questions == ("question 2", "question 0")
    assert history.families == ("one", "one")
    np.testing.assert_allclose(history.scores_qm, [[NAN, 0], [0, 1]])
    assert history.answers == ((None, "a"), ("b", "a"))
    assert history.samples.credit_qms.shape == (2, 2, 2)
    assert of_record(record(), [1]).questions == ("question 1",)
    with pytest.raises(SourceError, match="no worker 'tiny'"):
        history.select(workers=["tiny"])


def test_the_best_worker_has_the_highest_mean_of_what_is_known_and_the_first_of_equals_wins():
    history = of_record(record())
    assert history.best() == "big"  # 0.5 and 0.5
    assert history.select([1, 2]).best() == "small"
    with pytest.raises(SourceError, match="no score"):
        history.select([2], ["small"]).best()


def test_questions_of_which_no_score_is_known_can_be_left_out():
    history = of_record(record()).select(workers=["small"])
    assert history.scored().questions == ("question 0", "question 1")
    assert of_record(record()).scored().questions == of_record(record()).questions


def test_a_record_survives_the_file(tmp_path):
    history = of_record(record())
    write_history(history, tmp_path / "h.jsonl")
    read = read_history(tmp_path / "h.jsonl")
    assert (read.questions, read.workers, read.families) == (
        history.questions,
        history.workers,
        history.families,
    )
    np.testing.assert_allclose(read.scores_qm, history.scores_qm)
    np.testing.assert_allclose(read.usd_qm, history.usd_qm)
    np.testing.assert_array_equal(read.runs_qm, history.runs_qm)
    np.testing.assert_allclose(read.samples.credit_qms, history.samples.credit_qms)
    said = [history.samples.said((q, m, s)) for q in range(3) for m in range(2) for s in range(2)]
    assert said == [
        read.samples.said((q, m, s)) for q in range(3) for m in range(2) for s in range(2)
    ]
    assert read.answers == history.answers


outcome = st.tuples(st.floats(0, 1, width=32), st.none() | st.floats(0, 9), st.integers(1, 9))


@given(
    rows=st.lists(
        st.tuples(st.text(), st.text(), outcome, st.none() | outcome), min_size=1, max_size=5
    )
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_history_of_means_survives_the_file(rows, tmp_path_factory):
    shape = (len(rows), 2)
    scores, usd, runs = np.full(shape, NAN, "f4"), np.full(shape, NAN), np.zeros(shape, np.int32)
    for q, row in enumerate(rows):
        for m, known in enumerate(row[2:]):
            if known:
                scores[q, m], runs[q, m] = known[0], known[2]
                usd[q, m] = NAN if known[1] is None else known[1]
    names = (WorkerId("ann"), WorkerId("bob"))[: 1 + any(row[3] for row in rows)]
    history = History(
        tuple(row[0] for row in rows),
        (WorkerId("ann"), WorkerId("bob")),
        scores,
        usd,
        runs,
        tuple(row[1] for row in rows),
    )
    path = tmp_path_factory.mktemp("history") / "h.jsonl"
    write_history(history, path)
    read = read_history(path)
    known = history.select(workers=names)
    assert (read.questions, read.families, read.workers) == (known.questions, known.families, names)
    np.testing.assert_array_equal(read.scores_qm, known.scores_qm)
    np.testing.assert_array_equal(read.usd_qm, known.usd_qm)
    np.testing.assert_array_equal(read.runs_qm, known.runs_qm)
    assert read.answers is None and read.samples is None


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("[]", "line 2 is no outcome"),
        ("{", "line 2 is no outcome"),
        ('{"question": "q"}', "line 2 is no outcome: 'workers'"),
        ('{"question": "q", "workers": {"a": {}}}', "line 2 is no outcome: 'score'"),
        ('{"question": "q", "workers": {"a": {"score": 2}}}', "a score of 2 is not in"),
        ('{"question": "q", "workers": {"a": {"answers": ["x"], "scores": [1, 0]}}}', "1 answers"),
    ],
)
def test_a_line_that_is_no_outcome_is_named(tmp_path, line, complaint):
    path = tmp_path / "h.jsonl"
    path.write_text('{"question": "q", "workers": {"a": {"score": 1}}}\n' + line + "\n")
    with pytest.raises(SourceError, match=complaint):
        read_history(path)


def test_what_cannot_be_read_or_written_is_an_error_that_says_so(tmp_path):
    with pytest.raises(SourceError, match="cannot be read"):
        read_history(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(SourceError, match="no questions"):
        read_history(tmp_path / "empty.jsonl")
    with pytest.raises(StoreError, match="cannot be written"):
        write_history(of_record(record()), tmp_path / "no" / "h.jsonl")
    with pytest.raises(ValueError, match="do not fit"):
        History(("q",), (WorkerId("a"),), *([np.zeros((2, 1))] * 3), ("",))
