"""`batuta eval` as a person runs it: exit codes, stdout, stderr, the folder."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from batuta.errors import ConfigError, SourceError
from batuta.lab.commands import evaluate
from fakes.environ import clean_environ

FIGURES = {"n", "accuracy", "ci95", "tokens", "usd", "calls", "steps", "seconds"}
MAIN = """
import sys
from batuta.cli import app, main
from batuta.lab.commands import evaluate
app.command("eval")(evaluate.eval_command)
main()
"""
app = typer.Typer()
app.command()(evaluate.eval_command)


@pytest.fixture
def run(tmp_path):
    """The command in this process; its folder is `tmp_path / "out"` unless it is named."""

    def invoke(*args):
        out = () if "--out" in args else ("--out", str(tmp_path / "out"))
        done = CliRunner().invoke(app, [*args, "--pool", "rehearsal", *out], env={"COLUMNS": "100"})
        if done.exception and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done

    return invoke


@pytest.fixture(scope="module")
def calibration(tmp_path_factory):
    """The results of the questions on which the workers of the rehearsal are compared: 7,000."""
    folder = tmp_path_factory.mktemp("calibration")
    args = ["--pool", "rehearsal", "--systems", "best-single", "--limit", "1", "--out", str(folder)]
    done = CliRunner().invoke(app, args)
    assert done.exit_code == 0, done.output
    lines = (folder / "results.jsonl").read_text().splitlines(keepends=True)
    return "".join(line for line in lines if "calibration/" in line)


@pytest.fixture
def calibrated(tmp_path, calibration):
    """The folder of `run`, with what is the same in every evaluation of the rehearsal."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "results.jsonl").write_text(calibration)


@pytest.mark.slow
def test_results_of_other_questions_in_the_folder_are_told_and_count_in_no_figure(run, calibrated):
    def measure(*args):
        done = run("--systems", "best-single", "--json", *args)
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)["systems"]["best-single"]["n"], done.stderr

    told = "also has 4 runs of these systems with other questions, seeds, workers or settings"
    n, said = measure("--limit", "6")
    assert n == 6 and "also has" not in said
    n, said = measure("--limit", "2")
    assert n == 2 and told in said
    n, said = measure("--limit", "6")
    assert n == 6 and "also has" not in said


@pytest.fixture
def environ(tmp_path):
    return clean_environ(BATUTA_HOME=str(tmp_path / "home"), COLUMNS="160")


@pytest.fixture
def shell(tmp_path, environ, command_line):
    """The command line itself, in a process of its own: it must end so, and what it said is returned."""

    def end(status, *args, code=MAIN, **more):
        done = command_line.run("eval", *args, code=code, cwd=tmp_path, env={**environ, **more})
        return told(done, status)

    return end


@pytest.fixture
def start(tmp_path, environ):
    """As `shell`, a process that goes on."""

    def start(*args, **more):
        return subprocess.Popen([sys.executable, "-c", MAIN, "eval", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                stdin=subprocess.DEVNULL, text=True, cwd=tmp_path, env={**environ, **more})  # fmt: skip

    return start


def told(done, status):
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout, done.stderr


def test_json_and_nothing_else_on_stdout(run, calibrated, tmp_path):
    names = "harp,best-single,self-consistency@3,ultra,hand-written,oracle"
    done = run(
        "--tasks", "rehearsal", "--systems", names, "--limit", "12", "--seeds", "2", "--json",
        "--conductor", "hand-written",
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert done.exit_code == 0 and list(found["systems"]) == names.split(",")
    for figures in found["systems"].values():
        assert figures.keys() >= FIGURES and figures["n"] == 24
        assert 0 <= figures["ci95"][0] <= figures["accuracy"] <= figures["ci95"][1] <= 1
        assert figures["usd"] > 0
    assert found["systems"]["ultra"]["conductor_tokens"] > 0
    assert found["systems"]["ultra"]["accuracy"] == found["systems"]["hand-written"]["accuracy"]
    assert found == json.loads((tmp_path / "out" / "report.json").read_text())
    lines = (tmp_path / "out" / "results.jsonl").read_text().splitlines()
    assert len([line for line in lines if "calibration/" not in line]) == 6 * 24


def test_a_table_for_people_and_a_report_in_the_folder(run, tmp_path):
    done = run("--systems", "random,ultra,oracle", "--limit", "5")
    assert "ultra" in done.stdout and "(oracle)" in done.stdout and "right %" in done.stdout
    assert "simulated" in done.stdout and "report.md are in" in done.stderr
    assert (tmp_path / "out" / "report.md").read_text().startswith("# rehearsal: 5 questions")


def test_the_folder_is_gone_on_with(run, tmp_path):
    run("--systems", "ultra", "--limit", "4", "--json")
    size = (tmp_path / "out" / "results.jsonl").stat().st_size
    first = run("--systems", "ultra", "--limit", "4", "--json")
    assert (tmp_path / "out" / "results.jsonl").stat().st_size == size
    more = run("--systems", "ultra", "--limit", "6", "--json")
    lines = (tmp_path / "out" / "results.jsonl").read_text().splitlines()
    assert len(lines) == 6 and json.loads(more.stdout)["systems"]["ultra"]["n"] == 6
    assert json.loads(first.stdout)["systems"]["ultra"]["n"] == 4


def test_ones_own_questions(run, tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"question": "Start with 7. Add 3. What number do you get?", "answer": 10, "tags": ["sums"]}\n'
                    '{"question": "Start with 2. Double it. What number do you get?", "answer": "5"}\n')  # fmt: skip
    found = json.loads(run("--tasks", str(path), "--systems", "cello,ultra", "--json").stdout)
    assert found["tasks"] == "mine.jsonl" and found["questions"] == 2
    assert found["systems"]["cello"]["accuracy"] == 0.5
    assert found["systems"]["cello"]["by_family"]["sums"]["accuracy"] == 1.0


def test_sub_pools_and_equal_calls(run, calibrated):
    done = run(
        "--systems", "best-single,oracle", "--limit", "8", "--pools", "3", "--equal-calls", "--json"
    )
    found = json.loads(done.stdout)
    (budget,) = found["budgets"]
    k = budget["k"]
    assert (budget["of"], budget["what"]) == ("ultra", "calls") and k - 1 < budget["amount"] <= k
    assert list(found["systems"]) == [
        "ultra",
        "best-single",
        "oracle",
        f"self-consistency@{k}",
        f"best-of-{k}",
    ]
    assert found["systems"]["oracle"]["calls"] == 3 and found["sub_pool"] == 3
    assert found["systems"][f"self-consistency@{k}"]["calls"] == k


class Page(HTMLParser):
    """What a page is made of."""

    def __init__(self):
        super().__init__()
        self.tags, self.asked = Counter(), []

    def handle_starttag(self, tag, attributes):
        self.tags[tag] += 1
        self.asked += [
            v for k, v in attributes if k in {"src", "href", "xlink:href"} and v[0] != "#"
        ]


@pytest.mark.slow
def test_figures_and_a_page_that_needs_no_other_file(run, calibrated, tmp_path):
    pytest.importorskip("matplotlib")
    page = ("--report", str(tmp_path / "shown"))
    run("--systems", "ultra,harp,oracle", "--limit", "8", "--plots", *page)
    drawn = {"accuracy", "front", "difficulty", "team", "calls", "depth", "curves"}
    assert {p.stem for p in (tmp_path / "out").glob("*.png")} == drawn
    text = (tmp_path / "shown" / "report.html").read_text()
    page = Page()
    page.feed(text)
    assert page.tags["svg"] == 7 and page.tags["table"] >= 2 and not page.asked
    assert not page.tags["script"] and not page.tags["link"] and "url(http" not in text
    assert "prefers-color-scheme: dark" in text and "simulated" in text
    for name in ("report.md", "report.json", "front.png", "front.svg"):
        assert (tmp_path / "shown" / name).stat().st_size > 0
    assert "](front.png)" in (tmp_path / "shown" / "report.md").read_text()


DATA = pytest.mark.skipif(
    not os.environ.get("BATUTA_DATA"), reason="BATUTA_DATA names no folder with recorded sets"
)


@pytest.mark.slow
@DATA
def test_a_record_is_the_pool(tmp_path):
    args = (
        "--tasks", "recorded:routellm/gsm8k", "--systems", "best-single,knn,oracle", "--seeds", "2",
        "--limit", "30", "--out", str(tmp_path / "out"), "--json",
    )  # fmt: skip
    done = CliRunner().invoke(app, args)
    found = json.loads(done.stdout)
    assert found["recorded"] and found["split"] == "random" and found["seeds"] == [0, 1]
    assert [s["n"] for s in found["systems"].values()] == [60] * 3
    best, oracle = (found["systems"][name]["accuracy"] for name in ("best-single", "oracle"))
    assert best <= oracle and found["systems"]["oracle"]["calls"] == 2


@DATA
def test_every_recorded_set_that_is_here_at_the_same_time(shell, tmp_path):
    (tmp_path / "data" / "recorded").mkdir(parents=True)
    there = Path(os.environ["BATUTA_DATA"]) / "recorded" / "routellm"
    (tmp_path / "data" / "recorded" / "routellm").symlink_to(there)
    args = ("--tasks", "recorded:all", "--systems", "best-single,oracle", "--limit", "10", "--json")
    args = (*args, "--out", "out", "--report", "page")
    out, err = shell(0, *args, BATUTA_DATA=str(tmp_path / "data"))
    assert [one["tasks"] for one in json.loads(out)] == [
        "recorded:real-benchmarks",
        "recorded:routellm/mmlu",
        "recorded:routellm/gsm8k",
    ]
    assert (tmp_path / "out" / "routellm-mmlu" / "report.json").exists() and "out" in err
    assert json.loads((tmp_path / "out" / "report.json").read_text()) == json.loads(out)
    page = (tmp_path / "page" / "report.html").read_text()
    for name in ("routellm-mmlu", "routellm-gsm8k"):
        assert f'href="{name}/report.html"' in page
        assert (tmp_path / "page" / name / "report.html").exists()


@DATA
def test_nobody_goes_on_measuring_when_the_command_was_killed(start, tmp_path):
    (tmp_path / "data" / "recorded").mkdir(parents=True)
    there = Path(os.environ["BATUTA_DATA"]) / "recorded" / "routellm"
    (tmp_path / "data" / "recorded" / "routellm").symlink_to(there)
    args = ("--tasks", "recorded:all", "--systems", "routerdc,masrouter", "--seeds", "9")
    command = start(*args, BATUTA_DATA=str(tmp_path / "data"))
    workers = []
    while len(workers) < 2:
        assert command.poll() is None, command.stderr.read()
        time.sleep(0.1)
        workers = [pid for pid in children(command.pid) if "spawn_main" in said_of(pid)]
    time.sleep(2)  # they measure
    command.kill()
    command.communicate()
    deadline = time.monotonic() + 20
    while any(said_of(pid) for pid in workers):
        assert time.monotonic() < deadline, "it measures on, for nobody"
        time.sleep(0.1)


def children(pid):
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def said_of(pid):
    """The command line of a process; empty: it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def test_without_the_folder_of_recorded_sets_only_the_one_that_comes_with_batuta_is_measured(
    shell, tmp_path
):
    args = ("--tasks", "recorded:all", "--systems", "best-single,oracle", "--limit", "10", "--json")
    out, _ = shell(0, *args, "--out", "out", BATUTA_DATA=str(tmp_path))
    found = json.loads(out)
    assert [one["tasks"] for one in (found if isinstance(found, list) else [found])] == [
        "recorded:real-benchmarks"
    ]
    _, err = shell(2, "--tasks", "recorded:routellm/mmlu", BATUTA_DATA=str(tmp_path))
    assert "has no outcomes.pa" in err and "a folder that has it" in err


@pytest.mark.parametrize(
    ("pool", "words"),
    [
        ("real.toml", "there is no system 'opera'; choose among: cello, "),
        ("nowhere.toml", "'opera' is not a method, and whether it is a worker is unknown: "),
    ],
)
def test_an_unknown_system_is_named_before_what_the_pool_may_not_do(tmp_path, pool, words):
    text = '[[workers]]\nid = "cello"\nmodel = "m"\nbase_url = "http://127.0.0.1:9/v1"\n'
    (tmp_path / "real.toml").write_text(text)
    args = ["--systems", "best-single,opera", "--pool", str(tmp_path / pool)]
    done = CliRunner().invoke(app, [*args, "--out", str(tmp_path / "out")])
    assert isinstance(done.exception, ConfigError) and str(done.exception).startswith(words)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--tasks", "recorded:chess", "--from-file", "own.csv"], "--from-file is for benchmarks"),
        (["--tasks", "recorded:chess"], "there is no recorded set 'chess'"),
        (["--tasks", "recorded:routellm/gsm8k", "--conductor", "vote"], "GGUF file of a trained"),
    ],
)
def test_a_record_that_cannot_be_replayed_is_a_sentence(tmp_path, args, words):
    done = CliRunner().invoke(app, [*args, "--out", str(tmp_path / "out")])
    assert isinstance(done.exception, ConfigError) and words in str(done.exception)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--systems", "opera"], "there is no system 'opera'; choose among: cello"),
        (["--systems", " , "], "name at least one system"),
        (["--tasks", "rehearsal:opera"], "there are no tasks"),
        (["--tasks", "nowhere.jsonl"], "there is no file nowhere.jsonl"),
        (["--systems", ""], "name at least one system"),
        (["--systems", "cascade@2"], "the price of a call must be below 1 and have"),
        (["--tasks", "no-benchmark"], "there is no source 'no-benchmark'; choose among"),
        (["--from-file", "own.csv"], "rehearsal generates its questions: --from-file does not"),
        (["--pools", "9"], "--pools 9 is more than the pool's 7 workers"),
    ],
)
def test_wrong_use_is_a_sentence(run, args, words):
    with pytest.raises((ConfigError, SourceError)) as caught:
        run("--limit", "2", *args)
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--sandbox", "glass"], "no sandbox 'glass'; choose among: auto"),
        (["--judge", "hal"], "there is no worker 'hal' for the judge; choose among: cello"),
    ],
)
def test_who_grades_is_told_before_anything_is_run(run, tmp_path, args, words):
    (tmp_path / "own.jsonl").write_text('{"question": "One and one?", "answer": 2}\n')
    with pytest.raises(ConfigError, match=words):
        run("--tasks", str(tmp_path / "own.jsonl"), *args)
    assert not (tmp_path / "out" / "results.jsonl").exists()


def test_a_copy_without_rows_is_refused(run, tmp_path):
    (tmp_path / "mine.csv").write_text("question,answer\n")
    with pytest.raises(SourceError, match=r"there is no question of gsm8k in .*mine\.csv"):
        run("--tasks", "gsm8k", "--from-file", str(tmp_path / "mine.csv"))


def test_an_unknown_system_is_exit_2_with_the_list(shell):
    out, err = shell(2, "--pool", "rehearsal", "--systems", "ultra,opera")
    assert out == "" and len(err.strip().splitlines()) == 1
    for name in ("opera", "best-single", "self-consistency@5", "ultra+recursion", "oracle", "harp"):
        assert name in err


def test_nothing_but_outages_is_exit_1(shell, tmp_path):
    (tmp_path / "batuta.toml").write_text(
        "[[workers]]\nid='a'\nmodel='m'\nbase_url='http://127.0.0.1:9/v1'"
    )
    (tmp_path / "own.jsonl").write_text('{"question": "One and one?", "answer": 2}\n')
    out, err = shell(1, "--tasks", "own.jsonl", "--systems", "a", "--json", "--out", "out")
    figures = json.loads(out)["systems"]["a"]
    assert (figures["n"], figures["accuracy"], figures["unscored"]) == (0, None, 1)
    assert "no run could be scored" in err


def test_without_matplotlib_one_sentence_before_anything_is_run(shell, tmp_path):
    code = f"import sys\nsys.modules['matplotlib'] = None\n{MAIN}"
    _, err = shell(2, "--plots", "--out", "out", code=code)
    assert "pip install -e '.[plots]'" in err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_an_interrupt_is_exit_130_and_keeps_the_results(start, tmp_path):
    args = ("--systems", "ultra", "--limit", "6000", "--out", "out", "--pool", "rehearsal")
    process = start(*args)
    results = tmp_path / "out" / "results.jsonl"
    deadline = time.monotonic() + 90
    while not results.exists() or len(results.read_bytes().splitlines()) < 20:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=100)
    out, err = told(subprocess.CompletedProcess(args, process.returncode, *said), 130)
    assert out == "" and "resume with --out out" in err
    kept = [json.loads(line) for line in results.read_text().splitlines()]
    assert len(kept) >= 20 and {one["system"] for one in kept} == {"ultra"}


def test_in_a_log_lines_say_how_far_each_system_is(shell):
    _, err = shell(0, "--systems", "random", "--limit", "4", "--pool", "rehearsal", "--out", "out")
    assert re.search(r"^random  2/4  \d+ s$", err, re.MULTILINE)


def test_on_a_terminal_bars_are_drawn_on_stderr(tmp_path):
    parent, child = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", MAIN, "eval", "--systems", "ultra,random", "--limit", "30", "--pool", "rehearsal", "--json", "--out", "out"],
                               stderr=child, stdout=subprocess.PIPE, cwd=tmp_path, env={**os.environ, "TERM": "xterm-256color"})  # fmt: skip
    os.close(child)
    seen = b""
    while True:
        try:
            piece = os.read(parent, 65536)
        except OSError:
            break
        if not piece:
            break
        seen += piece
    out = process.stdout.read()
    process.stdout.close()
    assert process.wait(60) == 0 and json.loads(out)["systems"]
    os.close(parent)
    assert b"ultra" in seen and b"random" in seen and b"30/30" in seen


def test_a_narrow_terminal_folds_a_long_name_and_cuts_no_figure(tmp_path):
    long = "a-model-with-a-name-of-" + "many-words-" * 5
    rows = [
        {"question": f"{n}?", "workers": {long: {"score": n % 3 > 0, "usd": 0.0000123}}}
        for n in range(60)
    ]
    (tmp_path / "o.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    args = ["--tasks", f"recorded:{tmp_path / 'o.jsonl'}", "--split", "all", "--systems", long]
    told = {
        width: CliRunner().invoke(
            app, [*args, "--out", str(tmp_path / "out")], env={"COLUMNS": width}
        )
        for width in ("80", "200")
    }
    narrow, wide = (told[width].stdout.splitlines() for width in told)
    (row,) = (line.split() for line in wide if line.startswith(long))
    (folded,) = (line.split() for line in narrow if row[-2] in line)
    assert folded[1:] == row[1:] and "…" not in "".join(narrow[:8])


def test_a_method_that_lacks_torch_is_told_before_a_worker_is_called(tmp_path):
    program = "import sys; sys.modules['torch'] = None\nfrom batuta.__main__ import main\nsys.exit(main())"
    args = ["eval", "--pool", "rehearsal", "--systems", "routerdc", "--out", str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, "-c", program, *args],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2 and "routerdc is fitted with torch: install it" in done.stderr
    assert not (tmp_path / "out" / "results.jsonl").read_text()


@pytest.mark.parametrize(
    "option",
    [
        ("--calibrate", "c.json"),
        ("--equal-calls",),
        ("--equal-cost",),
        ("--executor", "ray"),
        ("--from-file", "own.jsonl"),
        ("--joins", "cello"),
        ("--judge", "cello"),
        ("--leaves", "cello"),
        ("--pools", "2"),
        ("--simulate",),
        ("--split", "unseen"),
    ],
)
def test_what_a_task_of_inspect_cannot_follow_is_refused_before_it_asks(run, tmp_path, option):
    (tmp_path / "task.py").write_text("raise SystemExit('inspect_ai has opened the task')")
    with pytest.raises(ConfigError, match=f"{option[0]} cannot be used with --tasks inspect:"):
        run("--tasks", f"inspect:{tmp_path / 'task.py'}", "--systems", "cello", *option)
