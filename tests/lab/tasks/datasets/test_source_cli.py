"""`batuta tasks` as a person runs it."""

import json
import os

import pytest

SECRET = (
    "Record ID,Question,Correct Answer,Incorrect Answer 1,Incorrect Answer 2,"
    "Incorrect Answer 3,High-level domain\nrec1,zanzibar?,quicksilver,w1,w2,w3,Physics\n"
)


@pytest.fixture
def batuta(tmp_path, command_line):
    env = {key: value for key, value in os.environ.items() if "BATUTA" not in key}
    env |= {
        "BATUTA_DATA": str(tmp_path / "data"),
        "COLUMNS": "200",
        "HF_ENDPOINT": "http://127.0.0.1:9",
    }

    def run(*args):
        return command_line.run("tasks", *args, cwd=tmp_path, env=env)

    return run


def test_list_names_every_source(batuta):
    done = batuta("list", "--json")
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in json.loads(done.stdout)["sources"]}
    for name in ("math", "gpqa-diamond", "livecodebench", "reasoning-gym", "recorded:mmlu_pro"):
        assert name in rows
    assert rows["gsm8k"]["here"] == []
    assert rows["gsm8k"]["vendor"] is True
    assert rows["math"]["vendor"] is False
    shown = batuta("list")
    assert shown.returncode == 0
    assert "bigcodebench-hard" in shown.stdout


def test_show_a_task_of_ones_own(batuta, tmp_path):
    line = {"question": "What is [2]+2?", "answer": 4, "id": "sum"}
    (tmp_path / "own.jsonl").write_text(json.dumps(line), encoding="utf-8")
    done = batuta("show", "own.jsonl", "sum")
    assert done.returncode == 0, done.stderr
    assert "What is [2]+2?" in done.stdout
    assert "→ 4" in done.stdout
    (task,) = json.loads(batuta("show", "own.jsonl", "--json").stdout)["tasks"]
    assert (task["id"], task["target"], task["grader"]) == ("sum", "4", "integer")


def test_a_generated_task_is_found_by_its_id_beyond_the_limit(batuta):
    listed = json.loads(batuta("show", "rehearsal", "--limit", "3", "--json").stdout)
    third = listed["tasks"][2]["id"]
    done = batuta("show", "rehearsal", third)
    assert done.returncode == 0 and third in done.stdout, done.stderr


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_private_task_is_shown_without_its_text(batuta, tmp_path, options):
    (tmp_path / "mine.csv").write_text(SECRET, encoding="utf-8")
    done = batuta("show", "gpqa-diamond", "--from-file", "mine.csv", *options)
    assert done.returncode == 0, done.stderr
    assert "gpqa-diamond/rec1" in done.stdout
    for text in ("zanzibar", "quicksilver", "w1"):
        assert text not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("show", "nope"), "there is no source 'nope'"),
        (("show", "gsm8k"), "run `batuta tasks fetch gsm8k:test`"),
        (("show", "recorded:nope"), "there is no recorded set 'nope'"),
        (
            ("show", "recorded:mmlu_pro/seven"),
            "has no outcomes.parquet: this set is not distributed",
        ),
        (("fetch", "gpqa-diamond"), "get your own copy from"),
        (("fetch", "gsm8k"), "the hub could not be reached for openai/gsm8k"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(batuta, args, said):
    if args[0] == "fetch":
        pytest.importorskip("huggingface_hub")
    done = batuta(*args)
    assert done.returncode == 2
    assert done.stdout == ""
    assert said in done.stderr
    assert done.stderr.startswith("batuta: ")
    assert done.stderr.count("\n") == 1
