"""Histories: what is known of the workers, from a record or from a file, and back."""

import numpy as np
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batuta.core import Task, TaskId, WorkerId
from batuta.errors import SourceError, StoreError
from batuta.lab.learners.history import History, history_from_record, read_history, write_history
from batuta.lab.tasks.recorded import GRADER, RecordedOutcomes, RecordedUsage

NAN = np.nan


def record(answers: bool = True) -> RecordedOutcomes:
    """Three questions, two models, two samples; the second model has one sample at most."""
    scores = np.array([[[1, 0.5], [0, NAN]], [[0.2, 1], [1, NAN]], [[0, 0], [NAN, NAN]]], "f4")
    codes = np.array([[[0, 1], [1, -1]], [[1, 2], [2, -1]], [[0, 0], [-1, -1]]], np.int32)
    usd = np.where(np.isnan(scores), NAN, [[[0.1, 0.3], [NAN, NAN]]] * 3)
    tokens = np.full(scores.shape, -1, np.int32)
    return RecordedOutcomes(
        name="made/up",
        tasks=tuple(
            Task(id=TaskId(f"q{n}"), question=f"question {n}", target="?", grader=GRADER)
            for n in range(3)
        ),
        families=("one", "two", "one"),
        models=("big", "small"),
        scores_qms=scores,
        solved_from=0.5,
        answers_qms=codes if answers else None,
        answers=("a", "b", "c") if answers else (),
        usage=RecordedUsage(
            input_qms=tokens, output_qms=tokens, usd_qms=usd, seconds_qms=np.full(scores.shape, NAN)
        ),
    )


def test_a_record_gives_the_means_of_what_is_known_and_leaves_the_rest_unknown():
    history = history_from_record(record())
    np.testing.assert_allclose(history.scores_qm, [[1, 0], [0.5, 1], [0, NAN]])
    np.testing.assert_allclose(history.usd_qm, [[0.2, NAN]] * 3)
    assert history.runs_qm.tolist() == [[2, 1], [2, 1], [2, 0]]
    assert history.answers == (("a", "b"), ("b", "c"), ("a", None))
    assert (
        history.samples.answer_at((1, 0, 1)) == "c" and history.samples.answer_at((2, 1, 0)) is None
    )
    assert history_from_record(record(answers=False)).answers is None


def test_a_selection_has_the_questions_and_workers_in_the_order_asked_for():
    history = history_from_record(record()).select([2, 0], ["small", "big"])
    assert history.questions == ("question 2", "question 0")
    assert history.families == ("one", "one")
    np.testing.assert_allclose(history.scores_qm, [[NAN, 0], [0, 1]])
    assert history.answers == ((None, "a"), ("b", "a"))
    assert history.samples.credit_qms.shape == (2, 2, 2)
    assert history_from_record(record(), [1]).questions == ("question 1",)
    with pytest.raises(SourceError, match="no worker 'tiny'"):
        history.select(workers=["tiny"])


def test_the_best_worker_has_the_highest_mean_of_what_is_known_and_the_first_of_equals_wins():
    history = history_from_record(record())
    assert history.best_worker() == "big"  # 0.5 and 0.5
    assert history.select([1, 2]).best_worker() == "small"
    with pytest.raises(SourceError, match="no score"):
        history.select([2], ["small"]).best_worker()


def test_questions_of_which_no_score_is_known_can_be_left_out():
    history = history_from_record(record()).select(workers=["small"])
    assert history.drop_unscored().questions == ("question 0", "question 1")
    assert (
        history_from_record(record()).drop_unscored().questions
        == history_from_record(record()).questions
    )


def test_a_record_survives_the_file(tmp_path):
    history = history_from_record(record())
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
    said = [
        history.samples.answer_at((q, m, s)) for q in range(3) for m in range(2) for s in range(2)
    ]
    assert said == [
        read.samples.answer_at((q, m, s)) for q in range(3) for m in range(2) for s in range(2)
    ]
    assert read.answers == history.answers


def test_scores_without_answers_survive_the_file_beside_scores_with_answers(tmp_path):
    (tmp_path / "h.jsonl").write_text(
        '{"question": "q", "workers": {"a": {"scores": [1], "answers": ["7"]}, '
        '"b": {"score": 0.5, "runs": 2}}}'
    )
    history = read_history(tmp_path / "h.jsonl")
    write_history(history, tmp_path / "again.jsonl")
    read = read_history(tmp_path / "again.jsonl")
    assert read.scores_qm.tolist() == history.scores_qm.tolist() == [[1.0, 0.5]]
    assert read.runs_qm.tolist() == [[1, 2]] and read.answers == (("7", None),)


outcome = st.tuples(st.floats(0, 1, width=32), st.none() | st.floats(0, 9), st.integers(1, 9))


@given(
    rows=st.lists(
        st.tuples(st.text(), st.text(), outcome, st.none() | outcome), min_size=1, max_size=5
    )
)
@settings(
    max_examples=settings().max_examples * 40 // 100,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
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
        questions=tuple(row[0] for row in rows),
        workers=(WorkerId("ann"), WorkerId("bob")),
        scores_qm=scores,
        usd_qm=usd,
        runs_qm=runs,
        families=tuple(row[1] for row in rows),
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
        ("[]", "line 2 of .* is not a JSON object"),
        ("{", "line 2 of .* is not JSON"),
        ('{"question": "q"}', "question 2 cannot be used: it has no 'workers'"),
        ('{"question": 7, "workers": {}}', "its question is not a string"),
        (
            '{"question": "q", "workers": [1]}',
            r"the field workers is \[1\], which is not an object",
        ),
        ('{"question": "q", "workers": {"a": 1}}', "the outcome of a is 1, which is not an object"),
        ('{"question": "q", "workers": {"a": {}}}', "question 2 cannot be used: it has no 'score'"),
        ('{"question": "q", "workers": {"a": {"scores": 1}}}', "scores is not a list"),
        ('{"question": "q", "workers": {"a": {"score": 1, "usd": [1, 2]}}}', "2 usd with 1 scores"),
        (
            '{"question": "q", "workers": {"a": {"score": 1, "usd": -1}}}',
            "usd of -1 is not an amount",
        ),
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
    with pytest.raises(SourceError, match="there is no file"):
        read_history(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(SourceError, match="no outcomes"):
        read_history(tmp_path / "empty.jsonl")
    with pytest.raises(StoreError, match="cannot be written"):
        write_history(history_from_record(record()), tmp_path / "no" / "h.jsonl")
    zeros = np.zeros((2, 1))
    with pytest.raises(ValueError, match="do not fit"):
        History(
            questions=("q",),
            workers=(WorkerId("a"),),
            scores_qm=zeros,  # pyright: ignore[reportArgumentType]
            usd_qm=zeros,
            runs_qm=zeros,  # pyright: ignore[reportArgumentType]
            families=("",),
        )


@pytest.mark.parametrize(
    ("outcome", "graded"),
    [
        ({"score": 0.5}, 1),
        ({"score": 0.5, "runs": 4}, 4),
        ({"score": None}, 0),
        ({"scores": [1, None, 0]}, 2),
        ({"scores": [None, None]}, 0),
    ],
)
def test_only_graded_runs_count(tmp_path, outcome, graded):
    rows = [{"question": "q", "workers": {"oboe": outcome}}]
    rows.append({"question": "r", "workers": {"oboe": {"score": 1}}})
    path = tmp_path / "outcomes.jsonl"
    path.write_bytes(b"\n".join(map(orjson.dumps, rows)))
    assert read_history(path).runs_qm[:, 0].tolist() == [graded, 1]
