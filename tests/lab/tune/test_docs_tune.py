"""The commands of docs/tune.md, run as they stand, on workers on loopback; and kill -9."""

import json
import re
import signal
import time
from collections import Counter

import pytest

from lab.tune.loopback import COMMANDS, KILLED, RESULTS, run, serve_workers, start, write_files
from lab.tune.test_record_tuning import made_record, outcome_lines, vote_everywhere
from lab.tune.worlds import CHECKS

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def workers():
    with serve_workers() as there:
        yield there


@pytest.fixture
def folder(tmp_path, workers):
    """A pool file and questions, as the page has them."""
    workers[1].clear()
    return write_files(tmp_path, workers[0])


@pytest.fixture(scope="module")
def whole(tmp_path_factory, workers):
    """A tuning that nobody killed, and how many calls it had made at the end of each stage."""
    folder = write_files(tmp_path_factory.mktemp("whole"), workers[0])
    workers[1].clear()
    process = start(KILLED, folder)
    _, told = process.communicate(timeout=280)
    assert process.returncode == 0, told
    ends = {  # calls at the end of each stage, as the command says
        stage: int(calls.replace(",", ""))
        for stage, calls in re.findall(r"^(\w+) .*\[([\d,]+) calls", told, re.MULTILINE)
    }
    return folder, ends


def test_the_commands_of_the_page(folder, workers):
    _, answered = workers
    check, tune, cards, limited, _, _, record, ask, other = COMMANDS
    assert "no worker was called" in run(check, folder) and not answered
    assert "2.5 calls per question on average" in run(limited, folder) and not answered
    assert "report: runs/tuned/report.html" in run(tune, folder)
    assert len(answered) <= 1600 and len(set(answered)) == len(answered)
    found = json.loads((folder / "runs/tuned/report.json").read_text())
    assert found["recommendation"]["ultra"] == "selector", found["recommendation"]["why"]
    assert "strength = " in (folder / "runs/tuned/batuta.toml").read_text()
    assert "<svg" in (folder / "runs/tuned/report.html").read_text()
    measured = json.loads(run(cards, folder))
    assert {card["worker"] for card in measured["workers"]} == set(CHECKS.workers)
    assert measured["comparisons"] == []
    (folder / "outcomes.jsonl").write_text(
        "\n".join(outcome_lines(made_record(vote_everywhere))) + "\n"
    )
    answered.clear()
    assert "spent: 0 calls" in run(record, folder) and not answered
    for command in (ask, other):
        said = run(command, folder)
        assert "workflow-selector/tuned@" in said and "Answer:" in said


@pytest.mark.parametrize("stage", ["calibrate", "search", "select", "rewrite", "judge"])
def test_killed_and_begun_again_it_ends_the_same_and_pays_nothing_twice(
    folder, workers, whole, stage
):
    if stage == "rewrite":
        pytest.importorskip("gepa")
    _, answered = workers
    finished, ends = whole
    order = list(ends)
    begun = ends[order[order.index(stage) - 1]] if stage != order[0] else 0
    when = (begun + ends[stage]) // 2
    assert ends[stage] - begun > 8, "there is a stage to be killed in"
    answered.clear()
    process = start(KILLED, folder)
    until = time.monotonic() + 240
    while len(answered) < when and process.poll() is None and time.monotonic() < until:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert when <= len(answered) < ends[stage], f"it was killed in {stage}, before its end"
    run(KILLED, folder)
    again = sum(many - 1 for many in Counter(answered).values())
    assert again <= 4, "only what was in flight is asked again"
    for name in RESULTS:
        one, other = (where / "runs/tuned" / name for where in (finished, folder))
        assert one.read_bytes() == other.read_bytes(), name
