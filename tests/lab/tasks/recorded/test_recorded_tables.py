"""From files to arrays; the rows are made up."""

import json

import numpy as np
import pytest

from batuta.errors import SourceError
from batuta.lab.tasks.recorded import load_recorded
from batuta.lab.tasks.recorded.readers import TextColumn

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def write(folder, outcomes, **lines):
    folder.mkdir(parents=True)
    parquet.write_table(pa.Table.from_pylist(outcomes), folder / "outcomes.parquet")
    for name, rows in lines.items():
        text = "".join(json.dumps(row) + "\n" for row in rows)
        with pa.output_stream(str(folder / f"{name}.jsonl.zst"), compression="zstd") as stream:
            stream.write(text.encode())


def outcome(question, model, sample, score, answer="a"):
    return {
        "query_id": f"hard/c/t/{question}",
        "model": model,
        "sample": sample,
        "score": score,
        "answer": answer,
    }


def gym(tmp_path, outcomes, responses=()):
    queries = [
        {"query_id": f"{part}/c/t/{q}", "question": f"{q}?", "expected_answer": "a"}
        for part in ("easy", "hard")
        for q in "xyz"
    ]
    write(tmp_path / "recorded" / "reasoning_gym", outcomes, queries=queries, responses=responses)
    return load_recorded("reasoning_gym/hard", folder=tmp_path)


def test_the_first_of_equal_rows_counts_and_incomplete_questions_go(tmp_path):
    record = gym(
        tmp_path,
        [
            outcome("x", "m1", 0, 1.0),
            outcome("x", "m1", 0, 0.0, "later"),
            outcome("x", "m2", 0, 0.5, ""),
            outcome("x", "m1", 1, 0.0, None),  # pyright: ignore[reportArgumentType]
            outcome("y", "m1", 0, 1.0),
            {**outcome("z", "m1", 0, 1.0), "query_id": "easy/c/t/z"},
        ],
        [
            {"query_id": "hard/c/t/x", "model": "m1", "sample": 0, "response": "first"},
            {"query_id": "hard/c/t/x", "model": "m1", "sample": 0, "response": "second"},
            {"query_id": "easy/c/t/z", "model": "m1", "sample": 0, "response": "other"},
        ],
    )
    assert [task.id for task in record.tasks] == ["hard/c/t/x"]
    assert record.models == ("m1", "m2")
    assert record.scores_qms[0, 0].tolist() == [1.0, 0.0]
    assert record.credit_qm().tolist() == [[1.0, 0.0]]
    assert np.isnan(record.scores_qms[0, 1, 1])
    assert record.answer((0, 0, 0)) == "a"
    assert record.answer((0, 1, 0)) is None
    assert record.answer((0, 0, 1)) is None
    assert record.reply((0, 0, 0)) == "first"
    assert len(record.texts.blob) == len("first")


def test_rows_for_one_place_are_averaged_where_they_are_runs(tmp_path):
    rows = [
        {
            "scenario": "testgen",
            "query_id": "9",
            "model": "m",
            "pass_at_1": value,
            "difficulty": "easy",
            "platform": None,
        }
        for value in (0.0, 50.0, 100.0, 100.0)
    ]
    write(tmp_path / "recorded" / "livecodebench", rows, queries=[])
    record = load_recorded("livecodebench/testgen", folder=tmp_path)
    assert record.scores_qms.tolist() == [[[0.625]]]
    assert record.families == ("easy",)
    assert "was not recorded" in record.tasks[0].question
    assert record.tasks[0].difficulty == 1.0


def test_samples_that_are_only_counted_keep_their_count(tmp_path):
    rows = [
        {"query_id": f"aime_2025_I_{n}", "model": model, "n_trials": 4, "n_success": n}
        for n in range(5)
        for model in ("m", "part")
        if model == "m" or n
    ]
    queries = [
        {"task_id": f"aime_2025_I_{n}", "problem": f"{n}?", "gold_answer": n} for n in range(5)
    ]
    folder = tmp_path / "recorded" / "matharena_aime25"
    write(folder, rows, queries=queries)
    totals = {
        "total_trials": 20,
        "total_input_tokens": 0,
        "total_output_tokens": 400,
        "total_cost": 5.0,
    }
    models = [{"model_config": model, **totals} for model in ("m", "part")]
    (folder / "models.json").write_text(json.dumps(models), encoding="utf-8")
    record = load_recorded("matharena/aime25", folder=tmp_path)
    assert record.models == ("m",)
    assert record.scores_qms.sum(axis=2)[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert (record.usage.output_qms == 20).all()
    assert (record.usage.input_qms == -1).all()
    assert (record.usage.usd_qms == 0.25).all()


def test_a_table_of_another_form_is_refused(tmp_path):
    write(tmp_path / "recorded" / "routerdc", [{"nothing": 1}], queries=[])
    with pytest.raises(SourceError, match="not in the format of routerdc"):
        load_recorded("routerdc/test", folder=tmp_path)


def test_a_missing_string_stays_missing_in_selected_rows():
    column = TextColumn(("a", "b"), np.array([0, -1, 1, -1], np.int32))
    assert column.select(np.array([True, True, False, True])).texts() == ["a", "", ""]
    assert column.select(np.array([True, False, True, False])).texts() == ["a", "b"]
