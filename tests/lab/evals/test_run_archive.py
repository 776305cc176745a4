"""One question of an evaluation can be read: its prompts, its replies, how it was graded."""

import csv
import json
import re
import sqlite3
from contextlib import closing

import anyio
import pytest

from batuta.core import Reply
from batuta.errors import ProviderOverloadedError, StoreError
from batuta.lab.evals import EvalOptions, ResultLog
from batuta.lab.evals.question_page import MOST_QUESTIONS, write_question_page
from batuta.lab.evals.run_archive import RUNS_FILE, MeasuredRun, RunArchive
from batuta.store import Store
from batuta.store.run_filter import RunFilter
from fakes.openai import FakeOpenAI
from fakes.server import KEY
from lab.evals.evaluated import evaluate_task_set, subject, task_set

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]
SYSTEMS = ("good", "bad", "vote", "oracle", "best-single", "self-consistency@3", "ultra")


async def measured(folder, names=SYSTEMS, tasks=None, tested=None):
    async with RunArchive.open(folder) as archive:
        with ResultLog(folder) as log:
            terms = EvalOptions(archive=archive)
            return await evaluate_task_set(
                tested or subject(), tasks or task_set(3, 4), names, terms, log
            )


async def test_every_run_is_there_under_the_id_that_its_result_names(tmp_path):
    found = await measured(tmp_path)
    async with Store.open(tmp_path / RUNS_FILE) as store:
        assert len(await store.list(limit=500)) == 3 * len(SYSTEMS), "and no run that calibrates"
        for name in SYSTEMS:
            for result in found.results[name]:
                run = await store.get(str(result.run))
                said = await store.summary(str(result.run))
                assert run.header.model == name and run.usage.calls == result.calls
                assert f"number {result.task[1:]}?" in run.header.question.text
                assert said.score == result.score and result.task in said.score_comment
                assert f"Expected: {result.task[1:]}" in said.score_comment
                for step in run.steps:
                    assert isinstance(step.result, Reply) and step.request.messages
                    assert step.worker in run.header.pool
        assert len((await store.find(RunFilter(model="vote"))).rows) == 3


async def test_nothing_is_kept_twice_and_an_interrupted_evaluation_keeps_what_it_has(tmp_path):
    first = await measured(tmp_path, ("good",))
    again = await measured(tmp_path, ("good", "bad"))
    assert [r.run for r in again.results["good"]] == [r.run for r in first.results["good"]]
    async with Store.open(tmp_path / RUNS_FILE) as store:
        assert len(await store.list(limit=500)) == 6

    async with Store.open(tmp_path / RUNS_FILE) as store:
        run = await store.get(str(first.results["good"][0].run))
    with anyio.CancelScope() as scope:
        async with RunArchive.open(tmp_path / "cut") as archive:
            archive.put(MeasuredRun(first.results["good"][0], run))
            scope.cancel()
            await anyio.sleep_forever()
    async with Store.open(tmp_path / "cut" / RUNS_FILE) as store:
        assert [one.score for one in await store.list()] == [1.0]


async def test_a_run_that_could_not_be_written_at_once_is_written_later(tmp_path):
    (result,) = (await measured(tmp_path, ("good",), task_set(1))).results["good"]
    async with Store.open(tmp_path / RUNS_FILE) as store:
        run = await store.get(str(result.run))

    class BusyOnce:
        """A store that fails at the first run."""

        def __init__(self, store):
            self.store, self.fails = store, True

        async def append(self, run):
            if self.fails:
                self.fails = False
                raise StoreError("the database is busy")
            await self.store.append(run)

        async def score_runs(self, judgements):
            await self.store.score_runs(judgements)

    async with Store.open(tmp_path / "busy.db") as store:
        archive = RunArchive(BusyOnce(store))  # pyright: ignore[reportArgumentType]
        archive.put(MeasuredRun(result, run))
        with pytest.raises(StoreError, match="busy"):
            await archive.flush()
        await archive.flush()
        assert [one.score for one in await store.list()] == [1.0]


async def test_the_page_has_runs_that_ended_in_an_outage(tmp_path):
    dead = subject(lambda worker, request: ProviderOverloadedError("full"))
    found = await measured(tmp_path, ("good",), task_set(1), dead)
    assert found.results["good"][0].unscored == "outage"
    page = await write_question_page(tmp_path / "page", found, tmp_path / RUNS_FILE)
    assert page is not None and "The run was not stored." not in page.read_text()


async def test_only_the_runs_of_the_questions_on_the_page_are_read(tmp_path):
    """Else a page of 200 questions would take the time and the memory of all of them."""
    found = await measured(tmp_path, ("good",), task_set(MOST_QUESTIONS + 3))
    (*_, last) = found.results["good"]
    with closing(sqlite3.connect(tmp_path / RUNS_FILE)) as file, file:
        file.execute("UPDATE run_contents SET format = 999 WHERE run_id = ?", (str(last.run),))
    page = await write_question_page(tmp_path / "page", found, tmp_path / RUNS_FILE)
    assert page is not None
    text = page.read_text()
    assert f"{MOST_QUESTIONS} of {MOST_QUESTIONS + 3} questions" in text
    assert "The run was not stored." not in text


async def test_private_questions_are_not_kept(tmp_path, command_line):
    secret = "zyzzyva"
    with (tmp_path / "gpqa.csv").open("w", newline="") as file:
        sheet = csv.writer(file)
        sheet.writerow(("Record ID", "Question", "Correct Answer", "High-level domain",
                        *(f"Incorrect Answer {n}" for n in (1, 2, 3))))  # fmt: skip
        for n in range(2):
            sheet.writerow((f"rec{n}", f"Which {secret} {n}?", f"{secret} {n}", "Physics", *"xyz"))
    async with FakeOpenAI(lambda _: f"The {secret}.\nAnswer: A") as server:
        write_pool(tmp_path, server.url)
        done = await batuta(
            command_line, tmp_path, "eval", "--pool", "pool.toml", "--tasks", "gpqa-diamond",
            "--from-file", "gpqa.csv", "--systems", "a,vote,oracle", "--out", "out", "--budget", "9",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert len(server.requests) >= 2
    for path in (tmp_path / "out").rglob("*"):
        assert secret.encode() not in path.read_bytes(), path
    async with Store.open(tmp_path / "out" / RUNS_FILE) as store:
        assert await store.list() == []


def write_pool(folder, url):
    (folder / "pool.toml").write_text(
        "".join(
            f'[[workers]]\nid = "{name}"\nmodel = "model-{name}"\nbase_url = "{url}"\n'
            f'key_env = "TEST_KEY"\nprice = {{ input = 1, output = 2 }}\n'
            for name in ("a", "b")
        )
    )


async def batuta(command_line, folder, *args):
    env = {"BATUTA_HOME": str(folder / "home"), "TEST_KEY": KEY, "COLUMNS": "200"}
    return await anyio.to_thread.run_sync(lambda: command_line.run(*args, cwd=folder, env=env))


async def test_a_question_is_read_with_the_commands_that_read_served_runs(tmp_path, command_line):
    def says(body):
        number = re.findall(r"number (\d+)", json.dumps(body["messages"]))[-1]
        return f"I think hard.\nAnswer: {number if body['model'] == 'model-a' else 7}"

    (tmp_path / "own.jsonl").write_text('{"question": "What is number 3?", "answer": 3}\n')
    async with FakeOpenAI(says, strict_openai=False) as server:
        write_pool(tmp_path, server.url)
        done = await batuta(
            command_line, tmp_path, "eval", "--pool", "pool.toml", "--tasks", "own.jsonl",
            "--systems", "a,b", "--out", "out",
        )  # fmt: skip
        assert done.returncode == 0 and "batuta runs list --store out" in done.stderr
    listed = await batuta(command_line, tmp_path, "runs", "list", "--store", "out", "--json")
    runs = json.loads(listed.stdout)
    assert len(runs) == 2 and {run["question"] for run in runs} == {"What is number 3?"}
    lines = [json.loads(x) for x in (tmp_path / "out" / "results.jsonl").read_text().splitlines()]
    wrong = next(line for line in lines if line["system"] == "b")
    shown = await batuta(
        command_line, tmp_path, "runs", "show", wrong["run"], "--store", "out/runs.db"
    )
    assert "What is number 3?" in shown.stdout and "Answer: 7" in shown.stdout
    assert "score 0" in shown.stdout and "Expected: 3" in shown.stdout
    step = await batuta(
        command_line, tmp_path, "runs", "show", wrong["run"], "--store", "out", "--step", "1"
    )
    assert "What is number 3?" in step.stdout and "I think hard." in step.stdout
    done = await batuta(command_line, tmp_path, "runs", "list", "--store", "nowhere")
    assert done.returncode == 2 and done.stderr.startswith("batuta: there is no store at nowhere; ")


async def test_a_report_shows_each_question_with_every_system_s_run(tmp_path, command_line):
    def says(body):
        number = re.findall(r"number (\d+)", json.dumps(body["messages"]))[-1]
        return f"<script>x()</script>\nAnswer: {number if body['model'] == 'model-a' else 7}"

    rows = [{"question": f"<img src=x> What is number {n}?", "answer": n} for n in (3, 7)]
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, rows)))
    async with FakeOpenAI(says, strict_openai=False) as server:
        write_pool(tmp_path, server.url)
        done = await batuta(
            command_line, tmp_path, "eval", "--pool", "pool.toml", "--tasks", "own.jsonl",
            "--systems", "a,b", "--out", "out", "--report", "report",
        )  # fmt: skip
    assert done.returncode == 0 and "question by question: report/questions.html" in done.stderr
    page = (tmp_path / "report" / "questions.html").read_text()
    assert "<script>x" not in page and "<img" not in page and "&lt;script&gt;x()" in page
    kinds = re.findall(r'<tr data-kind="(\w+)">.*?number (\d)(.*?)</tr>', page, re.DOTALL)
    marks = {number: (kind, re.findall("[✓✗·]", cells)) for kind, number, cells in kinds}
    assert marks == {"3": ("differ", ["✓", "✗"]), "7": ("right", ["✓", "✓"])}
    assert "where systems differ (1)" in page and "where all are wrong (0)" in page
    assert page.count('aria-label="workflow of 1 steps"') == 4  # every run is there
