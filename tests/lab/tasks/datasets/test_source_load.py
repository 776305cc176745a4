"""Names, places, sums, files of one's own."""

import json

import pytest

from batuta.environment import benchmark_folder
from batuta.errors import SourceError
from batuta.files import file_sha256
from batuta.lab.tasks.datasets import (
    DATASETS,
    HubDataset,
    find_split,
    load_tasks,
    local_files,
)
from batuta.lab.tasks.datasets.loader import SUMS_FILE, hub_folder, parse_sums

ROW = {"id": "sample_1", "code": "def f(x): return x", "input": "1", "output": "1"}


def write(path, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", DATASETS)
def test_every_source_says_where_it_comes_from(name):
    source = DATASETS[name]
    assert source.licence and source.description and source.splits
    for split in source.splits.values():
        assert split.hub or split.local
        assert not split.hub or isinstance(source.origin, HubDataset)
    if isinstance(source.origin, HubDataset):
        assert len(source.origin.revision) == 40
        int(source.origin.revision, 16)
    assert find_split(name) == (source, next(iter(source.splits)))


def test_the_place_of_data(tmp_path):
    assert benchmark_folder({"BATUTA_DATA": "/d", "BATUTA_HOME": "/h"}).as_posix() == "/d"
    assert benchmark_folder({"BATUTA_HOME": "/h"}).as_posix() == "/h/data"
    assert benchmark_folder({"XDG_DATA_HOME": "/x"}).as_posix() == "/x/batuta/data"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nope", "there is no source 'nope'; choose among: rehearsal, math"),
        ("gsm8k:dev", "gsm8k has no split 'dev'; choose among: test, train"),
        ("gsm8k", "run `batuta tasks fetch gsm8k:test`"),
        ("gpqa-diamond", "get a copy from .*gpqa"),
        ("math:train-12k", "get a copy from EleutherAI/hendrycks_math"),
        ("missing.jsonl", "there is no file missing.jsonl"),
    ],
)
def test_what_is_not_there_is_said(tmp_path, name, said):
    with pytest.raises(SourceError, match=said):
        load_tasks(name, folder=tmp_path)


def test_a_file_that_is_not_what_it_was_is_refused_and_can_be_named(tmp_path):
    path = write(tmp_path / "bench" / "cruxeval" / "test.jsonl", ROW)
    with pytest.raises(SourceError, match="has changed"):
        load_tasks("cruxeval", folder=tmp_path)
    (task,) = load_tasks("cruxeval", files=[path])
    assert (task.id, task.target) == ("cruxeval/1", "1")


def test_a_fetched_file_is_checked_against_its_own_listing(tmp_path):
    source, _ = find_split("livecodebench:v1")
    row = {
        "question_id": "q",
        "question_content": "?",
        "platform": "p",
        "contest_date": "2024-01-01",
        "difficulty": "easy",
        "starter_code": "",
        "metadata": {},
        "public_test_cases": [{"input": "", "output": "", "testtype": "stdin"}],
    }
    folder = hub_folder(source, tmp_path)
    path = write(folder / "test.jsonl", row)
    (folder / SUMS_FILE).write_text(
        f"# a comment\n{file_sha256(path)}  test.jsonl\n", encoding="utf-8"
    )
    assert local_files(source, "v1", tmp_path) == (path,)
    assert local_files(source, "v2", tmp_path) == ()
    assert len(load_tasks("livecodebench:v1", folder=tmp_path)) == 1
    write(path, row, row)
    with pytest.raises(SourceError, match="has changed"):
        load_tasks("livecodebench:v1", folder=tmp_path)


def test_sums_are_read_as_sha256sum_writes_them():
    assert parse_sums("# x@y\nab  a/b.jsonl\ncd  c d.csv\n") == {"a/b.jsonl": "ab", "c d.csv": "cd"}


def test_a_file_of_ones_own(tmp_path):
    path = write(
        tmp_path / "own.jsonl",
        {"question": "What is 2+2?", "answer": 4},
        {"question": "Say hi.", "answer": "hi", "id": "greet", "tags": ["a"], "difficulty": 2},
        {"question": "Which?", "answer": "b", "options": ["x", "y", "z"]},
        {"question": "JSON?", "answer": "", "grader": "json-schema", "data": {"type": "object"}},
        {"question": "JSON again?", "grader": "json-schema", "data": {"type": "object"}},
        {
            "question": "JSON still?",
            "answer": None,
            "grader": "json-schema",
            "data": {"type": "object"},
        },
    )
    number, words, choice, schema, *others = load_tasks(str(path))
    assert (number.grader, number.target, words.grader) == ("integer", "4", "exact")
    assert (words.id, words.tags, words.difficulty) == ("greet", ("a",), 2.0)
    assert choice.grader == "choice"
    assert json.loads(choice.data)["options"]["ABC".index(choice.target)] == "y"
    assert (schema.grader, json.loads(schema.data)) == ("json-schema", {"type": "object"})
    assert {(task.target, task.data) for task in others} == {("", schema.data)}
    assert load_tasks(str(path)) == load_tasks(str(path))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"answer": "a"}, "task 2 of .* cannot be used: it has no field 'question'"),
        ({"question": " ", "answer": "a"}, "its question is not a string, or is empty"),
        ({"question": "q", "answer": "d", "options": ["a", "b"]}, "not the letter of one of its 2"),
        ({"question": "q", "answer": "a", "difficulty": "hard"}, "task 2"),
        ({"question": "q", "answer": "a", "difficulty": 10**400}, "task 2"),
        ({"question": "q", "answer": "a", "difficulty": "inf"}, "difficulty inf is not finite"),
        ({"question": "q", "answer": "a", "grader": 3}, "its grader 3 is not a name"),
        ({"question": "q", "answer": "a", "grader": ["exact"]}, "is not a name"),
        ({"question": "q", "answer": None}, "its answer is empty"),
        ({"question": "q", "options": ["a", "b"], "data": {}}, "it has no field .answer."),
        ({"question": "first", "answer": "a"}, "has the same id .* as an earlier one: remove one"),
    ],
)
def test_a_line_of_ones_own_that_is_no_task(tmp_path, row, said):
    path = write(tmp_path / "own.jsonl", {"question": "first", "answer": "a"}, row)
    with pytest.raises(SourceError, match=said):
        load_tasks(str(path))


def test_an_empty_file_of_ones_own(tmp_path):
    with pytest.raises(SourceError, match="has no tasks"):
        load_tasks(str(write(tmp_path / "own.jsonl")))


@pytest.mark.parametrize(
    "ending", [".csv", ".parquet", ".jsonl", ".jsonl.gz", ".jsonl.zst", ".json"]
)
def test_a_damaged_file_of_ones_own_is_named_without_a_traceback(tmp_path, ending):
    path = tmp_path / f"mine{ending}"
    path.write_bytes(bytes(range(256)) * 3)
    with pytest.raises(SourceError, match="mine"):
        load_tasks("gsm8k", files=[path])


@pytest.mark.parametrize(
    "name", [f"{s.name}:{split}" for s in DATASETS.values() for split in s.splits]
)
def test_a_file_without_the_columns_is_refused_with_its_own(tmp_path, name):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"unheard_of": 1}\n')
    try:
        assert load_tasks(name, files=[path]) == ()  # no row belongs to the split
    except SourceError as refused:
        assert "mine.jsonl" in str(refused)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"question": "2+2?", "answer": "four"}, "the answer 'four' is not an integer"),
        (
            {"text": "2+2?", "answer": "4"},
            "lacks the column 'question' of gsm8k; its columns are",
        ),
    ],
)
def test_a_row_that_cannot_be_graded_is_refused(tmp_path, row, said):
    with pytest.raises(SourceError, match=said):
        load_tasks("gsm8k", files=[write(tmp_path / "mine.jsonl", row)])


@pytest.mark.parametrize("name", ["own.jsonl", "own.yaml", "reasoning-gym:chain_sum"])
def test_another_copy_of_what_is_no_benchmark_is_refused(tmp_path, name):
    with pytest.raises(SourceError, match="is not a benchmark"):
        load_tasks(name, files=[write(tmp_path / "mine.jsonl", {"question": "q", "answer": "a"})])
