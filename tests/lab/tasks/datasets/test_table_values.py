"""Answers, options and tags as tables have them, and the encodings that files come in."""

import csv
import gzip
import json
import math
from decimal import Decimal

import pytest

from batuta.errors import SourceError
from batuta.lab.tasks.datasets.answer_values import (
    answer_text,
    read_options,
    read_tags,
    whole_number,
)
from batuta.lab.tasks.datasets.dataset import as_json
from batuta.lab.tasks.datasets.loader import load_tasks
from batuta.lab.tasks.datasets.rows import read_rows
from batuta.lab.tasks.datasets.task_files import make_tasks

pytestmark = pytest.mark.anyio

BIG = 123456789012345678901234567890
ROWS = [
    {"question": "one", "answer": 391.0, "id": 1.0, "tags": None, "difficulty": math.nan},
    {"question": "two", "answer": "−1,234", "id": None, "options": None},
    {"question": "three", "answer": BIG, "grader": None, "data": None},
    {"question": "four", "answer": "1.50", "tags": ["a", None]},
]


def one_task(path, row):
    (task,) = make_tasks([row], path, None)
    return task


def write_suite(tmp_path, name):
    suite = tmp_path / "suite.yaml"
    suite.write_text(f"file: {name}\nfields: {{question: q, answer: a}}\n", encoding="utf-8")
    return suite


def write_csv(path, values):
    with path.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([("q", "a"), *((f"q{n}", v) for n, v in enumerate(values))])


def write_parquet(path, values):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {"q": [f"q{n}" for n in range(len(values))], "a": values}
    parquet.write_table(pyarrow.table(columns), path)


def write_json(path, values):
    path.write_text(json.dumps([{"q": f"q{n}", "a": v} for n, v in enumerate(values)]))


def write_by_pandas(path, values):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"q": [f"q{n}" for n in range(len(values))], "a": values})
    frame.to_json(path, orient="records") if path.suffix == ".json" else frame.to_csv(path)


@pytest.mark.parametrize(
    ("name", "write", "values"),
    [
        ("t.csv", write_csv, ["391.0", "-7.0"]),
        ("t.csv", write_csv, ["391", "\u22127"]),
        ("t.csv", write_csv, ["３９１", "- 7"]),
        ("t.parquet", write_parquet, [391.0, -7.0]),
        ("t.json", write_json, [391.0, -7.0]),
        ("t.json", write_by_pandas, [391.0, -7.0]),
        ("t.csv", write_by_pandas, [391.0, -7.0]),
    ],
)
async def test_whole_numbers_that_a_table_has_as_floats_are_whole(
    graders, tmp_path, name, write, values
):
    write(tmp_path / name, values)
    tasks = load_tasks(str(write_suite(tmp_path, name)))
    assert [(task.grader, task.target) for task in tasks] == [("integer", "391"), ("integer", "-7")]
    assert (await graders.grade(tasks[0], "Answer: 391")).score == 1
    assert (await graders.grade(tasks[0], "Answer: 392")).score == 0
    assert (await graders.grade(tasks[1], "Answer: −7")).score == 1


def test_null_nan_and_empty_are_left_out(tmp_path):
    path = tmp_path / "own.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    first, second, third, fourth = load_tasks(str(path))
    assert (first.id, first.target, first.tags, first.difficulty) == ("1", "391", (), None)
    assert (second.grader, second.target) == ("integer", "-1234")
    assert second.id.startswith("own/") and third.data == ""
    assert (third.grader, third.target) == ("integer", str(BIG))
    assert (fourth.grader, fourth.target, fourth.tags) == ("exact", "1.50", ("a",))


async def test_a_whole_number_beyond_64_bits_keeps_its_digits(graders, tmp_path):
    path = tmp_path / "own.jsonl"
    path.write_text('{"question": "q", "answer": %d, "data": {"seed": %d}}\n' % (BIG, BIG))  # noqa: UP031 - braces
    (task,) = load_tasks(str(path))
    assert json.loads(task.data) == {"seed": BIG}
    assert (await graders.grade(task, f"Answer: {BIG}")).score == 1
    assert (await graders.grade(task, f"Answer: {BIG + 1}")).score == 0
    assert as_json({"a": [BIG]}) == f'{{"a":[{BIG}]}}'
    path.write_text('{"question": "q", "answer": %s}\n' % ("9" * 5000))
    assert load_tasks(str(path))[0].target == "9" * 5000


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (391.0, "391"),
        (-0.0, "0"),
        (0.5, "0.5"),
        (1e20, "1e+20"),
        (2, "2"),
        (" x ", "x"),
        ("391.0", "391.0"),
    ],
)
def test_an_answer_as_text(value, text):
    assert answer_text(value) == text


@pytest.mark.parametrize(
    "value",
    [None, True, math.nan, math.inf, Decimal("NaN"), Decimal("-Infinity"), 1.2345678901234568e29],
)
def test_what_is_no_answer_is_refused(value):
    with pytest.raises(ValueError, match="its answer"):
        answer_text(value)


@pytest.mark.parametrize(
    ("text", "digits"),
    [
        ("1,234", "1234"), ("1 234", "1234"), ("1\u202f234", "1234"), ("１２", "12"), ("−5", "-5"), ("+5", "5"),
        ("391.00", "391"), ("1e20", str(10**20)), ("007", "007"), ("1,2", None), ("1.5", None), ("", None),
        ("5 km", None), ("²", None),
    ],
)  # fmt: skip
def test_a_whole_number_in_every_spelling(text, digits):
    assert whole_number(text) == digits


OPTIONS = {
    "a list": ["x", "y"],
    "numbers": [1.0, 2.5],
    "a list that a table has padded": ["x", "y", None, math.nan],
    "an object": {"A": "x", "B": "y"},
    "an object with empty letters": {"A": "x", "B": "y", "C": None},
    "labels and texts": {"label": ["A", "B"], "text": ["x", "y"]},
    "a row an option": [{"label": "A", "text": "x"}, {"label": "B", "text": "y"}],
    "JSON": '["x", "y"]',
    "an object in JSON": '{"A": "x", "B": "y"}',
    "Python": "['x', 'y']",
    "a line an option": "x\ny\n",
    "lettered lines": "A. x\nB) y",
    "letters in one line": "(A) x (B) y",
    "bars": "x | y",
    "semicolons": "x; y",
}


@pytest.mark.parametrize("kind", OPTIONS)
def test_options_in_every_form(tmp_path, kind):
    task = one_task(tmp_path, {"question": "q", "answer": "b", "options": OPTIONS[kind]})
    wanted = ["1", "2.5"] if kind == "numbers" else ["x", "y"]
    assert (task.grader, task.target, json.loads(task.data)["options"]) == ("choice", "B", wanted)


def test_letters_of_an_object_name_its_options(tmp_path):
    row = {"question": "q", "answer": "D", "options": {"B": "x", "D": "y"}}
    task = one_task(tmp_path, row)
    assert (task.target, json.loads(task.data)["options"]) == ("B", ["x", "y"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([f"o{n}" for n in range(27)], "27 options, and there are letters for 26"),
        ("x", "its options are one string"),
        (5, "neither a list nor an object"),
        (["x", None, "y"], "one of its options is empty"),
        ([{"label": "A", "text": "x"}, {"label": "a", "text": "y"}], "two of its options"),
        (["x"], "not the letter of one of its 1 options"),
        ({"label": ["A"], "text": ["x", "y"]}, "1 labels for 2 options"),
    ],
)
def test_options_that_cannot_be_used_are_said(tmp_path, options, said):
    with pytest.raises(SourceError, match=said):
        one_task(tmp_path, {"question": "q", "answer": "b", "options": options})


def test_26_options_have_letters(tmp_path):
    options = [f"o{n}" for n in range(26)]
    assert one_task(tmp_path, {"question": "q", "answer": "z", "options": options}).target == "Z"
    assert list(read_options(options))[-1] == "Z"


@pytest.mark.parametrize(
    ("value", "tags"),
    [(None, ()), (math.nan, ()), ("", ()), ("a", ("a",)), ("a, b;c|d", tuple("abcd")), ('["a", "b"]', ("a", "b")),
     (["a", None, 3], ("a", "3"))],
)  # fmt: skip
def test_tags_in_every_form(value, tags):
    assert read_tags(value) == tags


def test_tags_that_are_a_number_are_refused(tmp_path):
    with pytest.raises(SourceError, match="its tags are not a list"):
        one_task(tmp_path, {"question": "q", "answer": "b", "tags": 3})


ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32")
TEXTS = {
    "t.jsonl": '{"question": "Größe?\u2028", "answer": "5"}\n{"question": "zwei", "answer": "6"}\n',
    "t.json": '[{"question": "Größe?\u2028", "answer": "5"}, {"question": "zwei", "answer": "6"}]',
    "t.csv": 'question,answer\r\n"Größe?\u2028",5\r\nzwei,6\r\n',
    "t.tsv": "Größe?\u2028\t5\nzwei\t6\n",
}


def test_the_header_of_a_table_of_questions_is_no_question(tmp_path):
    path = tmp_path / "t.tsv"
    for header in ("", "question\tanswer\n", "Question\t Answer\n"):
        path.write_text(f"{header}question\tanswer to it\n1+1?\t2\n")
        assert [row["question"] for row in read_rows(path)] == ["question", "1+1?"]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("name", [*TEXTS, "t.jsonl.gz", "t.jsonl.zst"])
def test_a_file_may_have_any_unicode_encoding(tmp_path, name, encoding):
    data = TEXTS[name.removesuffix(".gz").removesuffix(".zst")].encode(encoding)
    path = tmp_path / name
    if name.endswith(".zst"):
        pyarrow = pytest.importorskip("pyarrow")
        with pyarrow.output_stream(str(path), compression="zstd") as stream:
            stream.write(data)
    else:
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    assert list(read_rows(path)) == [
        {"question": "Größe?\u2028", "answer": "5"},
        {"question": "zwei", "answer": "6"},
    ]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_suite_and_its_file_may_have_any_unicode_encoding(tmp_path, encoding):
    (tmp_path / "t.csv").write_text("question,answer\nGröße?,5\n", encoding=encoding)
    (tmp_path / "s.yaml").write_text("file: t.csv\ngrader: integer\n", encoding=encoding)
    (task,) = load_tasks(str(tmp_path / "s.yaml"))
    assert (task.question, task.target) == ("Größe?", "5")


def test_an_empty_cell_leaves_the_default_of_a_suite(tmp_path):
    (tmp_path / "t.csv").write_text("question,answer,grader,tags\nq,5,,\nr,6,exact,x;y\n")
    (tmp_path / "s.yaml").write_text("file: t.csv\ngrader: freeform\ntags: [all]\n")
    first, second = load_tasks(str(tmp_path / "s.yaml"))
    assert (first.grader, first.tags) == ("freeform", ("all",))
    assert (second.grader, second.tags) == ("exact", ("x", "y"))


def test_a_line_that_is_nested_too_deeply_is_named(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"a": NaN, "b": ' + "[" * 100_000 + "]" * 100_000 + "}\n")
    with pytest.raises(SourceError, match=r"line 1 of .* nested too deeply"):
        list(read_rows(path))
