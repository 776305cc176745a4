"""What an evaluation will take is said before it begins, and its budget is never passed."""

import json
import re
import shlex
from decimal import Decimal
from pathlib import Path

import anyio
import pytest

from fakes.openai import FakeOpenAI
from fakes.server import KEY, Fault, Said

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[3]
QUESTIONS = 6
IN, OUT = 20, 10
PRICES = {"a": (1000, 2000), "b": (500, 1000), "boss": (100, 100)}
"""Dollars a million tokens."""


def says(body):
    if body["model"] == "model-boss":
        text = 'model_id = [1]\nsubtasks = ["Solve it."]\naccess_list = [[]]'
    else:
        number = re.findall(r"number (\d+)|$", json.dumps(body["messages"]))[-2:][0]
        text = f"Answer: {number}"
    usage = {"prompt_tokens": IN, "completion_tokens": OUT, "total_tokens": IN + OUT}
    return Said(text, usage=usage)


def written(folder, url):
    workers = "".join(
        f'[[workers]]\nid = "{name}"\nmodel = "model-{name}"\nbase_url = "{url}"\nkey_env = "TEST_KEY"\n'
        f"price = {{ input = {price[0]}, output = {price[1]} }}\nsampling = {{ max_tokens = 20 }}\n"
        for name, price in PRICES.items()
    )
    (folder / "batuta.toml").write_text(workers + '[conductor]\nworker = "boss"\nmax_tokens = 30\n')
    lines = ({"question": f"What is number {n}?", "answer": n} for n in range(QUESTIONS))
    (folder / "own.jsonl").write_text("\n".join(map(json.dumps, lines)))


async def run(command_line, folder, *args):
    env = {"BATUTA_HOME": str(folder / "home"), "HOME": str(folder), "TEST_KEY": KEY}
    return await anyio.to_thread.run_sync(
        lambda: command_line.run("eval", *args, "--out", "out", cwd=folder, env=env)
    )


def paid(server):
    """Dollars of all that was answered."""
    found = Decimal(0)
    for one in server.requests:
        price = PRICES[one.body["model"].removeprefix("model-")]
        found += Decimal(IN * price[0] + OUT * price[1]) / 1_000_000
    return found


async def test_a_check_asks_nobody_and_writes_nothing(tmp_path, command_line):
    async with FakeOpenAI(says, strict_openai=False) as server:
        written(tmp_path, server.url)
        args = (
            "--tasks",
            "own.jsonl",
            "--limit",
            "4",
            "--systems",
            "best-single,a,vote",
            "--check",
        )
        done = await run(command_line, tmp_path, *args)
        assert done.returncode == 0, done.stderr
        assert not server.requests and not (tmp_path / "out").exists()
        last = done.stdout.splitlines()[-1]
        # 3 workers on the 2 questions left over; then 4 questions of one, one and three workers.
        assert last.startswith("about 26 calls, $") and "6 of them to calibrate" in last
        assert last.endswith("no worker was called")
        found = json.loads((await run(command_line, tmp_path, *args, "--json")).stdout)
        assert found["total"]["calls"] == 26 and found["vote"]["calls"] == 12
        assert float(found["total"]["usd"]) > 0 and found["total"]["unpriced"] == 0
        done = await run(command_line, tmp_path, *args, "--budget", "0.01")
        assert "more than the budget of $0.01" in done.stdout and not server.requests


async def test_it_says_what_it_will_take_before_it_begins_and_counts_only_what_is_left(
    tmp_path, command_line
):
    async with FakeOpenAI(says, strict_openai=False) as server:
        written(tmp_path, server.url)
        args = ("--tasks", "own.jsonl", "--limit", "4", "--systems", "best-single,a,vote")
        done = await run(command_line, tmp_path, *args)
        assert done.returncode == 0 and "batuta: about 26 calls, $" in done.stderr
        assert len(server.requests) <= 26
        done = await run(command_line, tmp_path, *args)
        assert "calls" not in done.stderr, "there is nothing left to ask"
        done = await run(command_line, tmp_path, *args, "--check")
        assert done.stdout.splitlines()[-1].startswith("about 0 calls, $0")


def scores(folder):
    found = map(json.loads, (folder / "results.jsonl").read_text().splitlines())
    return {(one["system"], one["task"]): (one["score"], one["calls"]) for one in found}


@pytest.mark.parametrize("systems", ["a", "best-single,vote", "ultra", "self-consistency@3,a,knn"])
async def test_the_budget_is_never_passed_and_more_of_it_asks_only_what_is_missing(
    tmp_path, command_line, systems
):
    args = ("--tasks", "own.jsonl", "--systems", systems, "--limit", "4")
    async with FakeOpenAI(says, strict_openai=False) as server:
        written(tmp_path, server.url)
        whole = await run(command_line, tmp_path, *args, "--budget", "100")
        assert whole.returncode == 0, whole.stderr
        everything = paid(server)
        figures = json.loads((tmp_path / "out" / "report.json").read_text())["systems"]
    (tmp_path / "out").rename(tmp_path / "whole")
    async with FakeOpenAI(says, strict_openai=False) as server:
        written(tmp_path, server.url)
        budget = Decimal("0.5") + everything / 10
        while True:
            done = await run(command_line, tmp_path, *args, "--budget", str(budget))
            assert paid(server) <= budget
            if done.returncode == 0:
                break
            assert done.returncode == 4 and "the budget was spent" in done.stderr
            assert "raise --budget" in done.stderr
            assert "Traceback" not in done.stderr
            found, known = scores(tmp_path / "out"), scores(tmp_path / "whole")
            assert found == {run: known[run] for run in found}, "a run that was cut is none"
            budget += everything / 3
        bodies = [json.dumps(one.body, sort_keys=True) for one in server.requests]
        assert len(bodies) == len(set(bodies)), "nothing was paid twice"
    found = json.loads((tmp_path / "out" / "report.json").read_text())
    assert found["systems"] == figures | {
        name: figures[name] | {"seconds": found["systems"][name]["seconds"]} for name in figures
    }
    assert found["unasked"] == 0


@pytest.mark.parametrize("systems", ["best-single", "best-single,vote", "skillorchestra"])
async def test_a_budget_that_ends_before_any_system_runs_is_told_with_its_exit_code(
    tmp_path, command_line, systems
):
    async with FakeOpenAI(says, strict_openai=False) as server:
        written(tmp_path, server.url)
        args = ("--tasks", "own.jsonl", "--systems", systems, "--limit", "4")
        done = await run(command_line, tmp_path, *args, "--budget", "0.001", "--report", "report")
        assert done.returncode == 4 and not server.requests, done.stderr
        missing = re.search(r"the budget was spent: (\d+) runs are missing", done.stderr)
        found = json.loads((tmp_path / "out" / "report.json").read_text())
        assert missing and found["unasked"] == int(missing[1])
        assert found["unasked"] >= 4 * len(systems.split(","))
        assert "Traceback" not in done.stderr and (tmp_path / "report" / "report.html").is_file()


async def test_a_calibration_without_an_outcome_leaves_the_outcomes_of_an_earlier_one(
    tmp_path, command_line
):
    async with FakeOpenAI(says, strict_openai=False) as server:
        written(tmp_path, server.url)
        args = ("--tasks", "own.jsonl", "--systems", "best-single", "--limit")
        assert (await run(command_line, tmp_path, *args, "4")).returncode == 0
        outcomes = (tmp_path / "out" / "outcomes.jsonl").read_text()
        done = await run(command_line, tmp_path, *args, "2", "--seed", "7", "--budget", "0.001")
        assert done.returncode == 4, done.stderr
        assert (tmp_path / "out" / "outcomes.jsonl").read_text() == outcomes


async def test_calls_to_learn_that_the_budget_refuses_are_not_told_as_the_model_s_fault(
    tmp_path, command_line
):
    args = ("--tasks", "own.jsonl", "--systems", "skillorchestra", "--limit", "4")
    async with FakeOpenAI(says, strict_openai=False) as server:
        written(tmp_path, server.url)
        first = await run(command_line, tmp_path, *args, "--check", "--json")
        calibration = json.loads(first.stdout)["calibration"]["usd"]
        done = await run(command_line, tmp_path, *args, "--budget", str(Decimal(calibration) + 2))
        assert done.returncode == 4, done.stderr
        assert "the budget was spent: 4 runs are missing" in done.stderr
        assert "named no skill" not in done.stderr + done.stdout


async def test_a_worker_that_is_replaced_is_paid_from_what_is_left(tmp_path, command_line):
    args = ("--tasks", "own.jsonl", "--systems", "a", "--seeds", "4", "--budget", "1")
    async with FakeOpenAI(says, strict_openai=False) as server:
        written(tmp_path, server.url)
        done = await run(command_line, tmp_path, *args)
        assert done.returncode in {0, 4}, done.stderr
        pool = tmp_path / "batuta.toml"
        known = 'model = "model-a"\n'
        pool.write_text(pool.read_text().replace(known, f"{known}extra_body = {{ top_k = 3 }}\n"))
        again = await run(command_line, tmp_path, *args)
        assert again.returncode == 4 and "the budget was spent" in again.stderr
        assert 0 < paid(server) <= 1


async def test_a_killed_evaluation_counts_the_calls_whose_replies_it_lost(tmp_path, command_line):
    """The journal is gone, as a reply is that came in the moment of a kill."""
    args = ("--tasks", "own.jsonl", "--systems", "a", "--seeds", "4", "--budget", "1")
    async with FakeOpenAI(says, strict_openai=False) as server:
        written(tmp_path, server.url)
        await run(command_line, tmp_path, *args)
        for name in ("calls.db", "results.jsonl"):
            (tmp_path / "out" / name).unlink()
        done = await run(command_line, tmp_path, *args)
        assert done.returncode == 4 and 0 < paid(server) <= 1


async def test_a_report_that_cannot_be_written_is_refused_before_anybody_is_asked(
    tmp_path, command_line
):
    pytest.importorskip("matplotlib")
    async with FakeOpenAI(says, strict_openai=False) as server:
        written(tmp_path, server.url)
        args = ("--tasks", "own.jsonl", "--systems", "a", "--report", "own.jsonl/report")
        done = await run(command_line, tmp_path, *args)
        assert done.returncode == 2 and not server.requests
        assert "own.jsonl/report cannot be written" in done.stderr


@pytest.mark.parametrize("more", [["--pool"], ["--conductor"], ["--judge"], ["--report"]])
async def test_a_name_that_no_file_can_have_is_one_sentence(tmp_path, command_line, more):
    written(tmp_path, "http://127.0.0.1:9/v1")
    args = ("--tasks", "own.jsonl", "--systems", "a", *more, "x" * 300)
    done = await run(command_line, tmp_path, *args)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1


async def test_failed_attempts_and_a_judge_draw_on_the_budget(tmp_path, command_line):
    async with FakeOpenAI(says, strict_openai=False) as server:
        written(tmp_path, server.url)
        server.faults += [Fault.SERVER_ERROR] * 2
        budget = "0.9"
        args = ("--tasks", "own.jsonl", "--systems", "a", "--budget", budget, "--judge", "b")
        done = await run(command_line, tmp_path, *args)
        assert done.returncode in {0, 4}, done.stderr
        assert paid(server) <= Decimal(budget)


@pytest.mark.parametrize("tasks", [(), ("--tasks", "rehearsal"), ("--tasks", "world2:roads")])
async def test_simulated_questions_are_not_asked_of_real_models(tmp_path, command_line, tasks):
    async with FakeOpenAI(says, strict_openai=False) as server:
        written(tmp_path, server.url)
        pool = ("--pool", "batuta.toml") if "world2" in str(tasks) else ()
        args = (*tasks, *pool, "--limit", "3", "--systems", "a")
        done = await run(command_line, tmp_path, *args)
        assert done.returncode == 2 and not server.requests
        assert "--simulated-questions" in done.stderr and "--pool" in done.stderr
        assert done.stderr.count("\n") == 1 and not (tmp_path / "out").exists()
        if not pool:
            done = await run(command_line, tmp_path, *args, "--simulated-questions")
            assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--tasks", "recorded:x", "--budget", "1"], "--budget cannot be used with --tasks recorded"),
        (["--tasks", "recorded:x", "--check"], "nothing is paid for a record"),
        (["--tasks", "inspect:x.py", "--budget", "1"], "inspect_ai asks and grades"),
        (["--tasks", "own.jsonl", "--budget", "1", "--executor", "ray"], "leave out --executor"),
        (["--tasks", "own.jsonl", "--budget", "-1"], "--budget"),
        (["--tasks", "own.jsonl", "--budget", "inf"], "--budget"),
        (["--tasks", "own.jsonl", "--budget", "nan"], "--budget"),
    ],
)  # fmt: skip
async def test_a_budget_that_could_not_be_kept_is_refused(tmp_path, command_line, args, words):
    written(tmp_path, "http://127.0.0.1:9/v1")
    done = await run(command_line, tmp_path, *args)
    assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr


def commands(text):
    """Every `batuta eval` of a document, its lines joined."""
    joined = text.replace("\\\n", " ")
    return [line.strip() for line in joined.splitlines() if line.strip().startswith("batuta eval")]


def test_no_document_asks_simulated_questions_of_an_unnamed_pool():
    found = 0
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for line in commands(path.read_text()):
            words = shlex.split(line, comments=True)
            tasks = words[words.index("--tasks") + 1] if "--tasks" in words else "rehearsal"
            if tasks.partition(":")[0] in {"rehearsal", "world2"}:
                found += 1
                pool = words[words.index("--pool") + 1] if "--pool" in words else ""
                assert pool.partition(":")[0] in {"rehearsal", "world2"}, f"{path.name}: {line}"
    assert found >= 3


async def test_a_reply_that_is_used_again_took_no_time_and_is_not_told_as_fast(
    tmp_path, command_line
):
    latency = 0.2
    async with FakeOpenAI(says, strict_openai=False, latency=latency) as server:
        written(tmp_path, server.url)
        args = ("--tasks", "own.jsonl", "--systems", "b,best-single,oracle,ultra,ultra-solve-only")
        done = await run(command_line, tmp_path, *args, "--limit", "4")
        assert done.returncode == 0, done.stderr
        assert len({json.dumps(one.body) for one in server.requests}) == len(server.requests)
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    seconds = {name: one["seconds"] for name, one in report["systems"].items()}
    assert seconds["b"] >= latency and seconds["ultra"] >= 2 * latency
    repeated = ("best-single", "oracle", "ultra-solve-only")  # the last repeats the drafts of ultra
    assert {seconds[name] for name in repeated} == {None}
    assert "unknown (–) if replies of finished calls were used again" in done.stdout
