"""`batuta eval` on everything that can be asked: a live pool on loopback, and records.

The tables of the package name the cases, so a benchmark, a record, a format or a world that is
added without a fixture fails here.
"""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from typer.testing import CliRunner

from batuta.cli import app
from batuta.lab.task_sources import TASK_SOURCES
from batuta.lab.tasks import recorded
from batuta.lab.tasks.datasets import DATASETS, load_tasks
from batuta.lab.tasks.datasets.reasoning_gym import NAME as REASONING_GYM
from batuta.lab.tasks.recorded import load_recorded, random_split
from batuta.lab.tasks.recorded.importers import FORMATS
from lab.tasks.fixtures.test_fixture_loaders import (
    HERE,
    LOCAL,
    ON_HUB,
    as_said,
    from_hub,
    from_local,
    lay_out,
)
from lab.tasks.recorded.test_own_outcomes import ROUTERBENCH, harness, llmrouterbench

pytestmark = pytest.mark.timeout(180)


@contextmanager
def serve_answers(said):
    """An OpenAI-compatible server; `said` has what each model says to each question."""

    class Model(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            text = said[body["model"]][body["messages"][-1]["content"]]
            choice = {"index": 0, "message": {"role": "assistant", "content": text}}
            usage = {"prompt_tokens": 40, "completion_tokens": 8, "total_tokens": 48}
            reply = {"object": "chat.completion", "model": body["model"], "usage": usage}
            data = json.dumps({**reply, "choices": [{**choice, "finish_reason": "stop"}]}).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def evaluate(tmp_path, monkeypatch, *options):
    """What each system earned, as the command says it."""
    monkeypatch.setenv("BATUTA_HOME", str(tmp_path / "home"))
    command = ["eval", *options, "--out", str(tmp_path / "out"), "--json"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, f"{done.output} {done.exception!r}"
    return json.loads(done.stdout)["systems"]


def evaluate_live(tmp_path, monkeypatch, replies, *options):
    """The same over two workers; `replies` has a right and a wrong reply to each question."""
    said = {
        name: {question: pair[place] for question, pair in replies.items()}
        for place, name in enumerate(("right", "wrong"))
    }
    with serve_answers(said) as url:
        (tmp_path / "batuta.toml").write_text(
            "".join(
                f'[[workers]]\nid = "{name}"\nmodel = "{name}"\nprovider = "compatible"\n'
                f'base_url = "{url}"\nprice = {{ input = 1, output = 2 }}\n'
                for name in said
            )
        )
        pool = str(tmp_path / "batuta.toml")
        return evaluate(
            tmp_path, monkeypatch, "--pool", pool, "--systems", "right,wrong,oracle",
            "--sandbox", "none", *options,
        )  # fmt: skip


def reply_pairs(made, tasks):
    """A right and a wrong reply to each task of a fixture."""
    if "right" in made:
        programs = zip(tasks, made["right"], made["wrong_programs"], strict=True)
        fence = "```python\n{}\n```".format
        return {task.question: (fence(right), fence(wrong)) for task, right, wrong in programs}
    if "answers" in made:
        return {
            task.question: tuple(pair) for task, pair in zip(tasks, made["answers"], strict=True)
        }
    wrong = dict(zip(made.get("targets", ()), made.get("wrong", ()), strict=True))
    return {
        task.question: (
            as_said(task, task.target),
            as_said(task, wrong.get(task.target) or ("A" if task.target != "A" else "B")),
        )
        for task in tasks
    }


def check_live(found):
    assert found["right"]["accuracy"] == 1.0
    assert not found["wrong"]["accuracy"], "nothing right; perhaps nothing that a rule decides"
    assert found["oracle"]["accuracy"] == 1.0 and found["right"]["usd"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", DATASETS)
def test_a_benchmark_is_asked_of_a_live_pool(tmp_path, monkeypatch, name):
    split = next(one for one in DATASETS[name].splits if (name, one) in LOCAL + ON_HUB)
    local = (name, split) in LOCAL
    made, tasks = (from_local if local else from_hub)(tmp_path, name, split)
    if local:  # one's own copy, whose sum is not looked at
        files = [str(tmp_path / path) for path in DATASETS[name].splits[split].local]
        options = [word for file in files for word in ("--from-file", file)]
    else:
        monkeypatch.setenv("BATUTA_DATA", str(tmp_path))
        options = []
    found = evaluate_live(
        tmp_path, monkeypatch, reply_pairs(made, tasks), "--tasks", f"{name}:{split}", *options
    )
    check_live(found)
    written = b"".join(file.read_bytes() for file in (tmp_path / "out").iterdir())
    assert not tasks[0].private or not any(t.question.encode() in written for t in tasks)


def test_generated_questions_are_asked_of_a_live_pool(tmp_path, monkeypatch):
    pytest.importorskip("reasoning_gym", reason="reasoning-gym is not installed")
    tasks = load_tasks(f"{REASONING_GYM}:basic_arithmetic", seed=0, size=8)
    replies = {task.question: (f"Answer: {task.target}", "Answer: no") for task in tasks}
    options = ("--tasks", f"{REASONING_GYM}:basic_arithmetic", "--limit", "4")
    check_live(evaluate_live(tmp_path, monkeypatch, replies, *options))


OWN = {
    "mine.jsonl": '{"question": "What is 7 + 8?", "answer": 15}\n',
    "mine.yaml": 'tasks:\n  - {question: "What is 7 + 8?", answer: 15}\n',
    "rows.yaml": "file: rows.csv\nfields: {question: text, answer: gold}\n",
}


@pytest.mark.parametrize("name", OWN)
def test_questions_of_ones_own_are_asked_of_a_live_pool(tmp_path, monkeypatch, name):
    (tmp_path / "rows.csv").write_text("text,gold\nWhat is 7 + 8?,15\n")
    (tmp_path / name).write_text(OWN[name])
    replies = {"What is 7 + 8?": ("It is 15.", "It is 16.")}
    check_live(evaluate_live(tmp_path, monkeypatch, replies, "--tasks", str(tmp_path / name)))


@pytest.mark.parametrize("name", TASK_SOURCES)
def test_a_simulated_world_is_asked(tmp_path, monkeypatch, name):
    found = evaluate(
        tmp_path,
        monkeypatch,
        "--pool",
        name,
        "--tasks",
        name,
        "--limit",
        "8",
        "--systems",
        "oracle,vote",
    )
    assert found["oracle"]["accuracy"] > 0


def a_seed(record):
    """The first whose test and training both have questions."""
    splits = ((seed, random_split(record, seed)) for seed in range(200))
    return str(next(seed for seed, one in splits if len(one.test) and len(one.train)))


@pytest.mark.parametrize("name", recorded.RECORDED_NAMES)
def test_a_record_is_compared(tmp_path, monkeypatch, name):
    lay_out(tmp_path, name.partition("/")[0])
    monkeypatch.setenv("BATUTA_DATA", str(tmp_path))
    found = evaluate(
        tmp_path, monkeypatch, "--tasks", f"recorded:{name}", "--seed", a_seed(load_recorded(name)),
        "--systems", "best-single,oracle",
    )  # fmt: skip
    assert 0 <= found["best-single"]["accuracy"] <= found["oracle"]["accuracy"] <= 1


IMPORTED = {
    "routerbench": lambda n: {f"r{n}.jsonl": {**ROUTERBENCH, "sample_id": f"m.{n}", "prompt": f"['{n}?']"}},
    "llmrouterbench": lambda n: {
        f"aime{n}-{model}.json": {
            **llmrouterbench(model, score), "dataset_name": f"a{n}",
            "records": [{**llmrouterbench(model, score)["records"][0], "origin_query": f"{n}?"}],
        } for model, score in (("m", 1.0), ("n", 0.0))
    },
    "lm-eval": lambda n: {
        f"{model}/samples_t.jsonl": {**harness(n, exact_match=score), "doc": {"question": f"{n}?"}}
        for model, score in (("m", 1.0), ("n", 0.0))
    },
    "inspect": lambda _: {},
}  # fmt: skip
"""The files of a run on one question, by format; inspect_ai's are those that it wrote."""
assert set(IMPORTED) == set(FORMATS), "a format without a fixture"


@pytest.mark.parametrize("kind", FORMATS)
def test_what_was_imported_is_compared(tmp_path, monkeypatch, kind):
    folder, rows = tmp_path / "runs", {}
    for n in range(12):
        for name, row in IMPORTED[kind](n).items():
            rows.setdefault(name, []).append(json.dumps(row))
    for name, lines in rows.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("\n".join(lines) + "\n")
    named = folder if rows else HERE / "outcomes" / "sums.eval"
    out = tmp_path / "outcomes.jsonl"
    done = CliRunner().invoke(app, ["tasks", "import", kind, str(named), "--out", str(out)])
    assert done.exit_code == 0, done.output
    found = evaluate(
        tmp_path, monkeypatch, "--tasks", f"recorded:{out}", "--seed", a_seed(load_recorded(str(out))),
        "--systems", "best-single,oracle",
    )  # fmt: skip
    assert found["oracle"]["accuracy"] == 1.0 or kind == "inspect"
