"""The command line as a person runs it: exit codes, stdout, stderr, the store."""

import json
import os
import pty
import re
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fakes.environ import clean_environ

SUM = "Start with 7, add 5, then multiply by 3. What is the result?"


@pytest.fixture
def batuta(tmp_path, command_line):
    env = clean_environ(BATUTA_HOME=str(tmp_path / "home"), COLUMNS="160")

    def run(*args, stdin=None, **more):
        if not (tmp_path / "batuta.toml").exists():
            more = {"BATUTA_CONFIG": "rehearsal", **more}
        return command_line.run(*args, stdin=stdin, cwd=tmp_path, env={**env, **more})

    run.env = env
    return run


def question():
    from batuta.lab.worlds import draw_tasks

    return draw_tasks(None, 1, seed=1, difficulty=2)[0]


def test_an_answer_on_stdout_its_workflow_on_stderr(batuta):
    done = batuta("ask", question().question, "--pool", "rehearsal")
    assert done.returncode == 0, done.stderr
    assert (
        done.stdout.strip()
        and "✓" in done.stderr
        and "simulated" in done.stderr
        and "✓" not in done.stdout
    )


def test_json_and_the_stored_run(batuta):
    done = batuta("ask", question().question, "--json", "--seed", "3")
    run = json.loads(done.stdout)
    assert (
        run["outcome"] == "answered"
        and run["answer"]
        and run["usage"]["total"] > 0
        and done.stderr == ""
    )
    assert run["rounds"][0]["workflow"] and run["cost"]["unpriced_calls"] == 0

    listed = json.loads(batuta("runs", "list", "--json").stdout)
    assert [r["id"] for r in listed] == [run["id"]]
    shown = json.loads(batuta("runs", "show", run["id"], "--json").stdout)
    assert shown["answer"] == run["answer"] and shown["header"]["id"] == run["id"]
    assert question().question in batuta("runs", "show", run["id"]).stdout
    prompt = batuta("runs", "show", run["id"], "--step", "1").stdout
    assert "overall_task" in prompt

    again = json.loads(batuta("runs", "replay", run["id"], "--recorded", "--json").stdout)
    assert again["answer"] == run["answer"] and again["cost"]["usd"] == 0
    live = json.loads(batuta("runs", "replay", run["id"], "--json").stdout)
    assert live["answer"] == run["answer"] and live["cost"]["usd"] > 0
    assert len(json.loads(batuta("runs", "list", "--json").stdout)) == 3


def test_a_list_has_a_line_a_run_and_room_for_the_question(batuta):
    asked = "Compute the result: begin at 45; square it; double it.\nSay how you found it. " * 9
    for _ in range(2):
        batuta("ask", asked)
    ids = [run["id"] for run in json.loads(batuta("runs", "list", "--json").stdout)]
    for columns in ("100", "80"):
        _, *lines, empty, _ = batuta("runs", "list", COLUMNS=columns).stdout.strip().splitlines()
        assert len(lines) == 2 and not empty
        for run_id, line in zip(ids, lines, strict=True):
            shown, _, hour, *rest = line.split()
            assert run_id.startswith(shown) and len(shown) == 12
            assert re.fullmatch(r"\d\d:\d\d", hour)
            assert "  Compute the result" in line and rest
    for columns in ("20", "40", "60"):
        _, *lines, empty, _ = batuta("runs", "list", COLUMNS=columns).stdout.strip().splitlines()
        assert [line.split()[0] for line in lines] == [run_id[:12] for run_id in ids], columns
        assert max(map(len, lines)) <= int(columns)
        shown = json.loads(batuta("runs", "show", lines[0].split()[0], "--json").stdout)
        assert shown["header"]["id"] == ids[0]


def test_a_run_is_found_by_the_beginning_of_its_id(batuta):
    ids = [json.loads(batuta("ask", question().question, "--json").stdout)["id"] for _ in range(2)]
    beginning = ids[0][: next(n for n, (a, b) in enumerate(zip(*ids, strict=True)) if a != b)]
    own = ids[0][: len(beginning) + 1]
    for name in (own, own.removeprefix("run_")):
        assert json.loads(batuta("runs", "show", name, "--json").stdout)["header"]["id"] == ids[0]
    both = batuta("runs", "show", beginning)
    assert both.returncode == 2 and all(run_id in both.stderr for run_id in ids)
    assert "there is no run" in batuta("runs", "show", "run_zz").stderr
    assert "there is no run" in batuta("runs", "show", "").stderr


def test_the_tasks_that_are_evaluated_without_being_named_can_be_shown(batuta):
    assert "rehearsal" in batuta("tasks", "list").stdout
    shown = batuta("tasks", "show", "rehearsal", "--limit", "3", "--json")
    tasks = json.loads(shown.stdout)["tasks"]
    assert len(tasks) == 3 and all(task["question"] and task["target"] for task in tasks)
    assert "arithmetic" in batuta("tasks", "show", "rehearsal:arithmetic").stdout


def test_limits_of_a_key_are_told_in_words(batuta):
    made = batuta(
        "keys",
        "create",
        "laptop",
        "--model",
        "batuta-mini",
        "--per-day",
        "5",
        "--rpm",
        "60",
        "--json",
    )
    key = json.loads(made.stdout)["id"]
    said = batuta("keys", "limit", key, "--deny", "tag:region:us").stderr
    words = "models batuta-mini, not the workers tag:region:us, $5.00 a day, 60 requests a minute"
    assert said == f"the key {key} now has: {words}\n"
    listed = batuta("keys", "list").stdout
    assert "models batuta-mini" in listed and "['" not in listed


def test_a_key_names_models_and_workers_that_there_are(batuta):
    for limit, told in (
        (("--model", "batuta-min"), "there is no model 'batuta-min': you may mean 'batuta-mini'"),
        (("--model", "nope"), "there is no model 'nope': there are batuta-mini, batuta-ultra"),
        (("--model", "piano"), "you may mean 'worker/piano'"),
        (("--allow", "pian"), "there is no worker 'pian': you may mean 'piano'"),
        (("--deny", "pian"), "there is no worker 'pian': you may mean 'piano'"),
    ):
        done = batuta("keys", "create", "me", *limit)
        assert done.returncode == 2 and told in done.stderr and "--pool" in done.stderr
        assert done.stdout == ""
    assert json.loads(batuta("keys", "list", "--json").stdout) == []
    made = batuta("keys", "create", "me", "--model", "worker/*", "--deny", "piano", "--json")
    key = json.loads(made.stdout)["id"]
    done = batuta("keys", "limit", key, "--allow", "pian")
    assert done.returncode == 2 and "you may mean 'piano'" in done.stderr
    assert batuta("keys", "limit", key, "--per-day", "3").returncode == 0


def test_a_plan_calls_no_worker(batuta):
    done = batuta("ask", question().question, "--plan", "--json")
    plan = json.loads(done.stdout)
    assert plan["workflow"] and plan["estimate"]["calls"] == len(plan["workflow"])
    assert json.loads(batuta("runs", "list", "--json").stdout) == []
    assert "no worker was called" in batuta("ask", question().question, "--plan").stdout


def test_stdin(batuta):
    text = question().question
    assert batuta("ask", stdin=text).returncode == 0
    assert batuta("ask", "-", "--json", stdin=text).returncode == 0


def test_outside_its_world_it_says_so(batuta):
    done = batuta("ask", "Who wrote Hamlet?")
    assert done.returncode == 3
    assert (
        "rehearsal" in done.stdout
        and "OPENAI_API_KEY" in done.stdout
        and "Shakespeare" not in done.stdout
    )


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["ask", "  "], 2, "the question is empty"),
        (["ask", "q", "--pool", "nowhere.toml"], 2, "nowhere.toml cannot be read"),
        (
            ["ask", "q", "--conductor", "nobody"],
            2,
            "no conductor 'nobody' and no folder of a trained one; choose among: ",
        ),
        (
            ["ask", "q", "--conductor", "."],
            2,
            ". is not the folder of a trained conductor: it has no ",
        ),
        (["ask", "q", "--max-cost", "much"], 2, "--max-cost"),
        (["ask", "q", "--max-tokens", "0"], 4, "no answer yet"),
        (["ask", "q", "--plan", "--max-tokens", "0"], 4, "no workflow"),
        (
            ["ask", "q", "--max-steps", "12"],
            2,
            "--max-steps must be at most 5, not 12; see: batuta ask --help",
        ),
        (
            ["ask", "q", "--rounds", "99"],
            2,
            "--rounds must be at most 3, not 99; see: batuta ask --help",
        ),
        (["aks", "q"], 2, "'ask'? See: batuta --help"),
        (
            ["ask", "q", "--max-stesp", "2"],
            2,
            "there is no option --max-stesp; did you mean --max-steps?",
        ),
        (["runs", "list", "--bogus"], 2, "there is no option --bogus; see: batuta runs list"),
        (["keys", "create", "x", "--max-cost", "a"], 2, "--max-cost is not a number of dollars"),
        (["keys", "budget", "x", "--per-day", "-1"], 2, "--per-day is not a number of dollars"),
        (["keys", "create", "x", "--expires", "9" * 400 + "d"], 2, "is not a duration below 100"),
        (["ask", "q", "--conductor", "violla"], 2, "did you mean viola?"),
        (["ask", "q", "--pool", "rehersal"], 2, "no file rehersal; did you mean rehearsal?"),
        (["keys", "spend", "--since", "x"], 2, "--since must be a day such as 2026-11-21, not 'x'"),
        (["keys", "spend", "--until", "x"], 2, "--until must be a day such as 2026-11-21, not 'x'"),
        (["eval", "--systems", "ulta"], 2, "did you mean ultra?"),
        (["tasks", "show", "rehearsl"], 2, "did you mean rehearsal?"),
        (["tasks", "show", "gsm8"], 2, "did you mean gsm8k?"),
        (["runs", "show", "run_0"], 2, "there is no run run_0"),
        (["runs", "replay", "run_0"], 2, "there is no run run_0"),
        (["serve", "--host", "0.0.0.0"], 2, "loopback"),
        (["nonsense"], 2, "nonsense"),
        (["connect", "nobody"], 2, "'aider'; see: batuta connect --help"),
    ],
)
def test_errors_are_one_sentence(batuta, args, code, words):
    done = batuta(*args)
    assert done.returncode == code, done.stderr
    assert words in done.stderr and "Traceback" not in done.stderr and done.stdout == ""


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ("workers = 3", "workers"),
        ("[[workers]]\nid = 'a'", 'in [[workers]] "a": model is missing'),
        ("[[workers]]\nid = 'a'\nmodel='m'\nprovider='zzz'", "there is no provider 'zzz'; choose among: anthropic, "),
        ("[[workers]]\nid = 'a'\nmodel='m'", "worker a needs a base_url"),
        ("[[workers]]\nid = 'a'\nmodel='m'\nprovider='openai'", "set OPENAI_API_KEY"),
        ("[[workers]]\nid = 'a'\nmodel='m'\nkey_env='NO_SUCH'", "NO_SUCH"),
        ("[[workers]]\nid='a'\nmodel='m'\nbase_url='http://127.0.0.1:9'\n[[workers]]\nid='a'\nmodel='m'\nbase_url='http://127.0.0.1:9'", "same id"),
        ("nonsense = [", "is not TOML"),
        ("colour = 'red'", "colour"),
    ],
)  # fmt: skip
def test_a_pool_file_that_cannot_be_used_is_named(batuta, tmp_path, toml, words):
    (tmp_path / "batuta.toml").write_text(toml)
    done = batuta("ask", "q")
    assert done.returncode == 2 and words in done.stderr, done.stderr
    assert "batuta.toml" in done.stderr or "worker a" in done.stderr or "provider" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_dead_pool_fails_with_one_sentence(batuta, tmp_path):
    (tmp_path / "batuta.toml").write_text(
        "[[workers]]\nid='a'\nmodel='m'\nbase_url='http://127.0.0.1:9/v1'"
    )
    done = batuta("ask", "q", "--conductor", "best", "--max-seconds", "20")
    assert done.returncode == 1 and "no connection" in done.stderr.splitlines()[-1]
    assert "127.0.0.1" not in done.stderr
    checked = batuta("pool", "check", "--json")
    assert checked.returncode == 1 and "127.0.0.1:9: no connection" in checked.stdout


def test_a_question_that_a_policy_refuses_has_no_answer(batuta, tmp_path):
    (tmp_path / "batuta.toml").write_text(
        "[[workers]]\nid='a'\nmodel='m'\nbase_url='http://127.0.0.1:9/v1'\n"
        "[[policies]]\nname='short'\nkind='size'\non=['input']\naction='block'\nmax_characters=5"
    )
    done = batuta("ask", "Longer than that.", "--conductor", "best")
    assert done.returncode == 1 and not done.stdout and "short" in done.stderr.splitlines()[-1]


def test_a_policy_refuses_a_replay_too(batuta, tmp_path):
    batuta("ask", SUM)
    run = json.loads(batuta("runs", "list", "--json").stdout)[0]
    (tmp_path / "policy.toml").write_text(
        "".join(f"[[workers]]\nid='{name}'\nmodel='m'\nbase_url='http://127.0.0.1:9/v1'\n" for name in run["workers"])
        + "[[policies]]\nname='short'\nkind='size'\non=['input']\naction='block'\nmax_characters=5"
    )  # fmt: skip
    done = batuta("runs", "replay", run["id"], "--pool", "policy.toml")
    assert not done.stdout and "short" in done.stderr.splitlines()[-1]


TOOLS_DOWN = """
[[workers]]
id = "search"
provider = "search"
[[workers]]
id = "reader"
provider = "reader"
[[workers]]
id = "python"
provider = "python"
[[workers]]
id = "ada"
model = "m"
base_url = "http://127.0.0.1:9/v1"
[tools.search]
engine = "searxng"
base_url = "http://127.0.0.1:9"
"""


def test_a_check_tells_that_a_tool_behind_a_worker_is_down(batuta, tmp_path):
    (tmp_path / "batuta.toml").write_text(TOOLS_DOWN)
    checked = batuta("pool", "check", "--json")
    found = {each["id"]: each for each in json.loads(checked.stdout)}
    assert checked.returncode == 1
    assert not found["search"]["ok"] and found["search"]["error"].startswith("the search failed: ")
    assert "Reply with" not in found["search"]["error"]
    assert found["reader"]["ok"]
    assert found["python"]["ok"] or "no sandbox" in found["python"]["error"]


def test_the_pool(batuta):
    listed = json.loads(batuta("pool", "list", "--json").stdout)
    assert len(listed["workers"]) == 7 and all(w["price"] for w in listed["workers"])
    assert "simulated" in batuta("pool", "list").stdout
    assert batuta("pool", "check").returncode == 0
    with_key = json.loads(
        batuta(
            "pool", "list", "--json", BATUTA_CONFIG="", OPENAI_API_KEY="sk-test-0123456789abcdef"
        ).stdout
    )
    assert all(w["id"].startswith("openai/") for w in with_key["workers"])


def test_a_store_that_cannot_be_written_keeps_the_answer(batuta, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "runs.db").write_text(
        "this is no database, but a text of some length" * 99
    )
    done = batuta("ask", question().question)
    assert done.returncode == 0 and done.stdout.strip()
    assert "was not stored" in done.stderr and "Traceback" not in done.stderr


IN_THE_BACKGROUND = ("sh", "-c", 'trap "" INT; exec "$@"', "sh")
"""Starts a command as a shell's script starts what it runs in the background."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "code", "start"),
    [
        (signal.SIGINT, 130, ()),
        (signal.SIGTERM, 143, ()),
        (signal.SIGTERM, 143, IN_THE_BACKGROUND),
    ],
    ids=["Ctrl-C", "SIGTERM", "SIGTERM in the background of a script"],
)
def test_a_signal_ends_a_question_at_once_and_its_run_is_kept(batuta, tmp_path, sent, code, start):
    from socketserver import BaseRequestHandler, ThreadingTCPServer
    from threading import Event, Thread

    called = Event()

    class Mute(BaseRequestHandler):
        def handle(self):
            self.request.recv(
                1
            )  # a loop that is interrupted while it connects may print a traceback
            called.set()
            time.sleep(90)

    ThreadingTCPServer.daemon_threads = True
    with ThreadingTCPServer(("127.0.0.1", 0), Mute) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        (tmp_path / "batuta.toml").write_text(f"[[workers]]\nid='a'\nmodel='m'\nbase_url='{url}'")
        process = subprocess.Popen([*start, sys.executable, "-m", "batuta", "ask", "q", "--conductor", "best"], cwd=tmp_path, env=batuta.env,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip
        assert called.wait(60), "the worker is being asked"
        if start:
            process.send_signal(signal.SIGINT)  # as the Ctrl-C that ends the script: of no effect
        process.send_signal(sent)
        _, err = process.communicate(timeout=45)  # half of what the worker would take
        server.shutdown()
    assert process.returncode == code and "interrupted" in err and "Traceback" not in err
    (run,) = json.loads(batuta("runs", "list", "--json").stdout)
    assert run["outcome"] == "cancelled"


def test_on_a_terminal_the_workflow_is_drawn_as_it_is_run(batuta, tmp_path):
    parent, child = pty.openpty()
    done = subprocess.Popen([sys.executable, "-m", "batuta", "ask", question().question, "--pool", "rehearsal"], cwd=tmp_path,
                            env={**batuta.env, "TERM": "xterm-256color"}, stderr=child, stdout=subprocess.PIPE)  # fmt: skip
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
    out = done.stdout.read()
    done.stdout.close()
    assert done.wait(60) == 0 and out.strip()
    os.close(parent)
    assert "▶".encode() in seen and "✓".encode() in seen


MARKDOWN = """
import sys
from fakes import FakeOpenAI
import anyio

async def main():
    text = "# Result\\n\\nThe sum is **42** and `x`."
    async with FakeOpenAI(text, strict_openai=False, check=False, chunk=4, gap=0.05) as server:
        print(server.origin, flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read)

anyio.run(main)
"""


@pytest.fixture
def model():
    """The address of a model that answers in Markdown, a few letters at a time."""
    paths = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen([sys.executable, "-c", MARKDOWN], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True, env={**os.environ, "PYTHONPATH": paths}) as process:  # fmt: skip
        yield process.stdout.readline().strip()
        process.stdin.close()


def on_a_terminal(batuta, tmp_path, *args):
    """What somebody sees: stdin, stdout and stderr are one terminal."""
    parent, child = pty.openpty()
    done = subprocess.Popen([sys.executable, "-m", "batuta", *args], cwd=tmp_path, stdout=child, stderr=child, stdin=child,
                            env={**batuta.env, "TERM": "xterm-256color"})  # fmt: skip
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
    assert done.wait(60) == 0, seen
    os.close(parent)
    return seen.decode()


@pytest.mark.slow
def test_on_a_terminal_the_answer_streams_and_its_markdown_is_rendered(batuta, tmp_path, model):
    file = tmp_path / "batuta.toml"
    file.write_text(
        f'[[workers]]\nid = "a"\nmodel = "m"\nprovider = "compatible"\nbase_url = "{model}/v1"\n'
        '[conductor]\nworker = "single/a"\n'
    )
    seen = on_a_terminal(batuta, tmp_path, "ask", "What is 40 + 2?")
    streamed, _, end = seen.partition("answered")
    assert "Resu" in streamed and "The sum" in streamed  # while it is written
    assert "\x1b[1m42\x1b[0m" in end and "**42**" not in end  # rendered
    raw = on_a_terminal(batuta, tmp_path, "ask", "What is 40 + 2?", "--raw")
    assert "**42**" in raw.partition("answered")[2]


def test_the_database_is_sqlite(batuta, tmp_path):
    batuta("ask", question().question)
    with sqlite3.connect(tmp_path / "home" / "runs.db") as database:
        assert database.execute("select count(*) from runs").fetchone() == (1,)
    database.close()


@pytest.mark.parametrize("words", [("--version",), ("--help",), ("keys", "list", "--json")])
def test_an_output_that_cannot_be_written_is_one_sentence(batuta, words):
    command = [sys.executable, "-m", "batuta", *words]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, check=False, env=batuta.env, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert done.stderr == "batuta: the output cannot be written: No space left on device\n"


@pytest.mark.slow
@pytest.mark.parametrize("made", [["create", "ci"], ["create", "ci", "--json"], ["rotate"]])
def test_of_a_key_whose_text_could_not_be_written_it_is_said_what_to_do(batuta, made):
    if made == ["rotate"]:
        batuta("keys", "create", "ci")
        made = [*made, json.loads(batuta("keys", "list", "--json").stdout)[0]["id"]]
    command = [sys.executable, "-m", "batuta", "keys", *made]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, check=False, env=batuta.env, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    [key] = json.loads(batuta("keys", "list", "--json").stdout)
    assert (
        f"the key's secret is lost: issue another with: batuta keys rotate {key['id']}"
        in done.stderr
    )
    assert done.stderr.endswith("cannot be written: No space left on device\n")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["ask", "q", "--pool"], "Option '--pool' requires an argument; see: batuta ask --help"),
        (["runs", "list", "--limit"], "see: batuta runs list --help"),
        (["runs", "list", "--json=yes"], "Option '--json' does not take a value; see: batuta runs list --help"),
        (["tune", "--from-runs"], "Option '--from-runs' requires an argument; see: batuta tune --help"),
        (["ask", "q", "--max-cost", "inf"], "--max-cost must be at most 1e+09, not inf"),
        (["ask", "q", "--max-seconds", "inf"], "--max-seconds must be at most 1e+09, not inf"),
        (["mcp", "--max-cost", "inf"], "--max-cost must be at most 1e+09, not inf"),
    ],
)  # fmt: skip
def test_an_option_whose_value_is_wrong_or_missing_says_so(batuta, args, words):
    done = batuta(*args)
    assert done.returncode == 2 and words in done.stderr and "no option" not in done.stderr


@pytest.mark.parametrize("value", ["inf", "nan"])
def test_no_setting_is_infinite(batuta, tmp_path, value):
    worker = "[[workers]]\nid='a'\nmodel='m'\nbase_url='http://127.0.0.1:9'\n"
    (tmp_path / "batuta.toml").write_text(f"{worker}[limits]\nmax_cost_usd = {value}")
    done = batuta("ask", "q")
    assert done.returncode == 2 and "max_cost_usd" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "code"),
    [("runs list >&- 2>&-", 0), ("ask <&-", 2), ("ask '{question}' <&- >&-", 0)],
)
def test_a_stream_that_is_closed_stops_no_command(batuta, tmp_path, command, code):
    words = command.format(question=question().question)
    done = subprocess.run(["sh", "-c", f"exec {sys.executable} -m batuta {words}"], check=False, cwd=tmp_path,
                          env={**batuta.env, "BATUTA_CONFIG": "rehearsal"}, capture_output=True, text=True)  # fmt: skip
    assert done.returncode == code and "Traceback" not in done.stderr, done.stderr


@pytest.mark.slow
def test_an_encoding_that_lacks_a_character_loses_nothing(batuta, tmp_path):
    asked = "Wie viel ist 3 € und 4 € · 😀?"
    env = {**batuta.env, "BATUTA_CONFIG": "rehearsal", "PYTHONIOENCODING": "ascii"}
    told = []
    for words in (("ask", asked), ("runs", "list"), ("runs", "list", "--json")):
        done = subprocess.run([sys.executable, "-m", "batuta", *words], check=False, cwd=tmp_path, env=env, capture_output=True)  # fmt: skip
        assert done.returncode in {0, 3}, done.stderr
        told.append(done.stdout.decode("ascii"))
    assert "3 \\u20ac und" in told[1] and asked in str(json.loads(told[2]))


def test_in_a_log_a_run_without_a_workflow_has_no_spinner(batuta):
    done = batuta("ask", "q", "--max-cost", "0")
    run = re.findall(r"run_\w+", done.stderr)[0]
    shown = batuta("runs", "show", run)
    assert done.returncode == 4 and "writing the workflow" not in done.stderr + shown.stdout


def test_a_command_does_not_look_for_garbage_on_its_way_out(batuta, tmp_path):
    program = (
        "import atexit, gc, sys; sys.argv[1:] = ['--version']\n"
        "atexit.register(lambda: print('frozen', gc.get_freeze_count() > 10_000))\n"
        "from batuta.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path, env=batuta.env, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "frozen True" in done.stdout
