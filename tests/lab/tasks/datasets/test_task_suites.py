"""Tasks in YAML: worked examples, templates, defaults, rows of another file."""

import json

import pytest

from batuta.errors import SourceError
from batuta.lab.evals.task_sets import open_tasks
from batuta.lab.tasks.datasets import load_tasks

SUITE = """
template: |-
  {examples}

  Question: {question}
example_template: "Question: {question}\\nAnswer: {answer}"
examples:
  - {question: "What is 2 + 3?", answer: 5}
  - {question: "What does {question} mean?", answer: a mark}
tags: [sums]
tasks:
  - {question: "What is 7 + 8?", answer: 15}
  - {question: "Name the {answer}.", answer: Olm, grader: freeform, tags: [rivers]}
  - {question: "Which is green?", answer: B, options: [snow, grass]}
"""


def written(tmp_path, text, name="mine.yaml"):
    (tmp_path / name).write_text(text)
    return str(tmp_path / name)


def test_examples_stand_before_each_question(tmp_path):
    sums, rivers, green = load_tasks(written(tmp_path, SUITE))
    assert sums.question == (
        "Question: What is 2 + 3?\nAnswer: 5\n\n"
        "Question: What does {question} mean?\nAnswer: a mark\n\nQuestion: What is 7 + 8?"
    )
    assert (sums.target, sums.grader, sums.tags) == ("15", "integer", ("sums",))
    assert rivers.question.endswith("Question: Name the {answer}.")
    assert (rivers.grader, rivers.tags) == ("freeform", ("rivers",))
    assert green.grader == "choice" and json.loads(green.data)["options"][0] in {"snow", "grass"}


def test_fewer_shots_and_no_template(tmp_path):
    text = "shots: 1\nexamples: [{question: a, answer: b}, {question: c, answer: d}]\n"
    (task,) = load_tasks(written(tmp_path, text + "tasks: [{question: e, answer: f}]"))
    assert task.question == "a\nb\n\ne"
    (task,) = load_tasks(written(tmp_path, "tasks: [{question: e, answer: f}]"))
    assert task.question == "e"


def test_rows_of_a_file_beside_it_with_columns_of_its_own(tmp_path):
    written(tmp_path, "text,gold\nWhat is 1 + 1?,2\nWhat is 2 + 2?,4\n", "rows.csv")
    suite = "file: rows.csv\nfields: {question: text, answer: gold}\n"
    tasks = load_tasks(written(tmp_path, suite))
    assert [task.target for task in tasks] == ["2", "4"]
    asked = open_tasks(written(tmp_path, suite, "mine.yml"), 1, 1)
    assert [task.target for task in (*asked.tasks, *asked.calibration)] == ["2", "4"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a mapping"),
        ("a: [", "is not YAML"),
        ("tasks: [{question: a, answer: 2024-02-30}]", "is not YAML: day is out of range"),
        ("template: 'Q {question}'\ntasks: [{question: '', answer: b}]", "or is empty"),
        ("tasks: [{question: a, answer: yes}]", "its answer True is neither text nor a number"),
        ("a: 1", "unknown field 'a'"),
        ("scoring: log-likelihood", "unknown field 'scoring'"),
        ("template: no mark\ntasks: []", "has no {question}"),
        ("tasks: []", "no tasks"),
        ("tasks: [1]", "are not a list of mappings"),
        ("tasks: []\nfile: a.csv", "not both"),
        ("grader: math", "`tasks` or `file`"),
        ("tasks: [{question: a}]", "task 1 of"),
        ("examples: 3\ntasks: [{question: a, answer: b}]", "are not a list"),
        ("examples: [{question: a}]\ntasks: [{question: a, answer: b}]", "example 1"),
        ("shots: 2\ntasks: [{question: a, answer: b}]", "write a number from 0 to 0"),
        ("example_template: x\ntasks: [{question: a, answer: b}]", "needs {question} and {answer}"),
        ("file: none.csv", "there is no file"),
        ("file: rows.csv\nfields: {question: missing}", "has no missing; it has text, gold"),
        ("file: rows.csv\nfields: {question: [text]}", "do not map field names to columns"),
        ("file: empty.csv", "in the file that `file` names"),
    ],
)
def test_what_cannot_be_used_is_said_in_a_sentence(tmp_path, text, said):
    written(tmp_path, "text,gold\na,b\n", "rows.csv")
    written(tmp_path, "question,answer\n", "empty.csv")
    with pytest.raises(SourceError) as error:
        load_tasks(written(tmp_path, text))
    assert said in str(error.value)
    assert "\n" not in str(error.value)
