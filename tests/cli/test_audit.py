"""`batuta audit`: the trail of the commands of keys, verified and exported."""

import json
import os
import re
import sqlite3

import pytest


@pytest.fixture
def batuta(tmp_path, command_line):
    clean = {k: v for k, v in os.environ.items() if "BATUTA" not in k and "API_KEY" not in k}
    env = {**clean, "BATUTA_HOME": str(tmp_path), "BATUTA_CONFIG": "rehearsal", "COLUMNS": "200"}
    return lambda *args: command_line.run(*args, stdin=None, cwd=tmp_path, env=env)


def test_the_trail_from_a_key_to_its_export_and_a_broken_record(batuta, tmp_path):
    assert batuta("keys", "create", "laptop", "--per-day", "5").returncode == 0
    (key,) = json.loads(batuta("keys", "list", "--json").stdout)
    assert batuta("keys", "revoke", key["id"]).returncode == 0
    listed = json.loads(batuta("audit", "list", "--json").stdout)
    assert [one["action"] for one in listed] == ["key.revoked", "key.created"]
    assert all(one["actor"].startswith("cli") for one in listed)
    assert "key.revoked" in batuta("audit", "list").stdout
    done = batuta("audit", "verify")
    head = f"{listed[0]['seq']}:{listed[0]['hash']}"
    assert done.returncode == 0 and head in done.stdout
    lines = batuta("audit", "export").stdout.splitlines()
    assert [json.loads(line)["seq"] for line in lines] == [1, 2, 3]
    assert json.loads(lines[-1])["action"] == "audit.exported"
    cef = batuta("audit", "export", "--format", "cef", "--after", "2").stdout.splitlines()
    assert len(cef) == 2 and all(line.startswith("CEF:0|Batuta|") for line in cef)
    assert batuta("audit", "verify", "--known", head).returncode == 0
    assert batuta("audit", "verify", "--known", "nonsense").returncode == 2
    with sqlite3.connect(tmp_path / "runs.db") as connection:
        connection.execute("UPDATE audit SET actor = 'nobody' WHERE seq = 2")
    connection.close()
    done = batuta("audit", "verify")
    assert done.returncode == 1 and "broken at record 2" in done.stderr
    told = json.loads(batuta("audit", "verify", "--json").stdout)
    assert told["broken_at"] == 2


def test_a_record_of_a_number_that_no_record_can_have_is_refused_or_not_there(batuta):
    number = "9" * 40
    done = batuta("audit", "export", "--after", number)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    done = batuta("audit", "verify", "--known", f"{number}:{'a' * 64}")
    assert done.returncode in {1, 2} and done.stderr.count("\n") == 1


REPORTS = ["audit list", "keys list", "keys spend", "keys activity", "keys refusals", "runs list"]


@pytest.mark.parametrize("report", REPORTS)
def test_a_report_of_nothing_says_so(batuta, report):
    done = batuta(*report.split())
    assert done.returncode == 0
    assert re.match(r"no [a-z ]+ yet[;,] ", done.stdout) and done.stdout.count("\n") == 1
