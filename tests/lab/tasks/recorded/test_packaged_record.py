"""The record that comes with Batuta: no text of a question, the same splits with and without the sets."""

import gzip
import json
import re

import pytest
from typer.testing import CliRunner

from batuta.errors import SourceError
from batuta.lab.commands import tasks
from batuta.lab.tasks.datasets import load_tasks
from batuta.lab.tasks.recorded import (
    find_outcomes_file,
    load_recorded,
    random_split,
    read_own_record,
    unseen_family_split,
)

NAME = "real-benchmarks"


@pytest.fixture
def sets(tmp_path, monkeypatch):
    """A data folder with two questions of SimpleQA, made up in its format."""
    place = tmp_path / "data" / "bench" / "simpleqa" / "simple_qa_test_set.csv"
    place.parent.mkdir(parents=True)
    about = "{'topic': 'Maths', 'answer_type': 'Number'}"
    rows = "".join(f'"{about}",What is {n} + 1?,{n + 1}\n' for n in (1, 2))
    place.write_text(f"metadata,problem,answer\n{rows}")
    monkeypatch.setenv("BATUTA_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def ids_of(folder):
    return {task.question: str(task.id) for task in load_tasks("simpleqa", folder=folder)}


def named(path, *ids):
    rows = [{"id": id_, "workers": {"a": {"score": 1}, "b": {"score": 0}}} for id_ in ids]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_no_question_and_no_long_answer_is_in_the_packaged_record():
    for line in gzip.decompress(find_outcomes_file(NAME).read_bytes()).decode().splitlines():
        row = json.loads(line)
        assert row.keys() == {"id", "family", "workers"}
        for worker in row["workers"].values():
            assert all(said is None or len(said) <= 80 for said in worker["answers"])
            assert "replies" not in worker


def test_it_opens_without_any_set(tmp_path, monkeypatch):
    monkeypatch.setenv("BATUTA_DATA", str(tmp_path))
    both = load_recorded(NAME)
    assert both.name == NAME and set(both.models) == {"qwen-1.5b", "qwen-0.5b"}
    assert len(both.tasks) + both.incomplete == 914
    assert set(both.unread) == {"gsm8k", "math-500", "mmlu", "bbh", "mbpp", "humaneval"}
    alone = load_recorded(NAME, models=["qwen-1.5b"])
    assert len(alone.tasks) == 914 and round(float(alone.credit_qm().mean()), 3) == 0.418


def test_texts_are_read_where_the_set_is(sets, tmp_path):
    ids = ids_of(sets)
    record = read_own_record(named(tmp_path / "o.jsonl", *ids.values(), "mmlu/law/0123"))
    assert [task.question for task in record.tasks] == [*ids, "mmlu/law/0123"]
    assert record.unread == ("mmlu",)


def test_splits_are_the_same_with_and_without_the_texts(sets, tmp_path, monkeypatch):
    path = named(tmp_path / "o.jsonl", *ids_of(sets).values(), *(f"bbh/x/{n}" for n in range(50)))
    told = read_own_record(path)
    monkeypatch.setenv("BATUTA_DATA", str(tmp_path / "nothing"))
    untold = read_own_record(path)
    assert told.tasks[0].question != untold.tasks[0].question
    for seed in range(5):
        first, second = random_split(told, seed), random_split(untold, seed)
        assert first.test.tolist() == second.test.tolist()
        assert first.train.tolist() == second.train.tolist()


def test_families_can_be_held_out(tmp_path, monkeypatch):
    monkeypatch.setenv("BATUTA_DATA", str(tmp_path))
    record = load_recorded(NAME)
    division = unseen_family_split(record, 0)
    tested = {record.families[q] for q in division.test}
    assert tested and not tested & {record.families[q] for q in division.train}


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"workers": {"a": {"score": 1}}}, "it has no 'question'"),
        ({"id": "", "workers": {"a": {"score": 1}}}, "it has no 'question'"),
        ({"id": "gsm8k/1", "question": None, "workers": {"a": {"score": 1}}}, "not a string"),
    ],
)
def test_a_line_has_a_question_or_an_id(tmp_path, row, told):
    path = tmp_path / "o.jsonl"
    path.write_text(json.dumps(row))
    with pytest.raises(SourceError, match=re.escape(told)):
        read_own_record(path)


def test_a_misspelt_name_is_told_the_right_one():
    with pytest.raises(SourceError, match="real-benchmarks"):
        load_recorded("real-benchmark")


def test_it_is_listed_and_shown(tmp_path):
    env = {"COLUMNS": "200", "BATUTA_DATA": str(tmp_path)}
    assert f"recorded:{NAME}" in CliRunner().invoke(tasks.app, ["list"], env=env).stdout
    shown = CliRunner().invoke(tasks.app, ["show", f"recorded:{NAME}"], env=env)
    assert "qwen-1.5b" in shown.stdout and "oracle" in shown.stdout
