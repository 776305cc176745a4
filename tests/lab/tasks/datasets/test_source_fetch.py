"""Fetching, from a hub on the loopback that speaks as the real one does."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from batuta.errors import SourceError
from batuta.lab.tasks.datasets import fetch_split, find_split
from batuta.lab.tasks.datasets.loader import SUMS_FILE, parse_sums

pytest.importorskip("huggingface_hub")

COMMIT = find_split("livecodebench:v1")[0].origin.revision  # pyright: ignore[reportAttributeAccessIssue]
REPO = "livecodebench/code_generation_lite"
BODY = (
    json.dumps(
        {
            "question_id": "made-up",
            "question_content": "Print 1.",
            "platform": "none",
            "contest_date": "2024-01-01",
            "difficulty": "easy",
            "starter_code": "",
            "metadata": "{}",
            "public_test_cases": '[{"input": "", "output": "1", "testtype": "stdin"}]',
        }
    )
    + "\n"
).encode()


class FakeHub(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    status = 200

    def do_GET(self):
        self.answer(body=True)

    def do_HEAD(self):
        self.answer(body=False)

    def answer(self, *, body):
        if self.path.startswith(f"/api/datasets/{REPO}/revision/"):
            content = json.dumps({"id": REPO, "sha": COMMIT, "siblings": []}).encode()
        elif self.path == f"/datasets/{REPO}/resolve/{COMMIT}/test.jsonl":
            content = BODY
        else:
            content = b""
        self.send_response(self.status if content else 404)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub():
    class Handler(FakeHub):
        pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield Handler, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


CALL = """
import sys
from pathlib import Path
from batuta.errors import SourceError
from batuta.lab.tasks.datasets import fetch_split, find_split, load_tasks
try:
    paths = fetch_split(*find_split(sys.argv[1]), Path(sys.argv[2]))
    print(*(path.name for path in paths), load_tasks(sys.argv[1], folder=Path(sys.argv[2]))[0].id)
except SourceError as error:
    print("SourceError:", error)
"""


def fetched(endpoint, folder, name="livecodebench:v1"):
    # the package reads its endpoint when it is imported, hence a process of its own
    env = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(folder / "cache"), "HF_HUB_DISABLE_XET": "1"}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", CALL, name, str(folder)],
        capture_output=True, text=True, check=True, env=env, timeout=60,
    )  # fmt: skip
    return done.stdout.strip()


def test_a_file_arrives_with_its_sum_and_is_loaded(hub, tmp_path):
    assert fetched(hub[1], tmp_path) == "test.jsonl livecodebench/made-up"
    folder = tmp_path / "bench" / "livecodebench" / "hub"
    assert (folder / "test.jsonl").read_bytes() == BODY
    listing = (folder / SUMS_FILE).read_text(encoding="utf-8")
    assert parse_sums(listing) == {"test.jsonl": hashlib.sha256(BODY).hexdigest()}
    assert listing.startswith(f"# {REPO}@{COMMIT}\n")


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (401, "accept its terms"),
        (403, "accept its terms"),
        (404, "has no file"),
        (507, "(HTTP 507): try again later"),
    ],
)
def test_a_refusal_is_one_sentence(hub, tmp_path, status, said):
    hub[0].status = status
    told = fetched(hub[1], tmp_path)
    assert told.startswith("SourceError: the hub") and said in told and "\n" not in told


def test_a_folder_that_cannot_be_written_is_no_fault_of_the_network(hub, tmp_path):
    (tmp_path / "bench").write_bytes(b"")
    told = fetched(hub[1], tmp_path)
    assert told.startswith(f"SourceError: {tmp_path / 'bench'}") and "cannot be written" in told


def test_offline_it_says_so(tmp_path):
    told = fetched("http://127.0.0.1:9", tmp_path)
    assert told.startswith(f"SourceError: the hub could not be reached for {REPO}")


@pytest.mark.parametrize("name", ["gpqa-diamond", "leetcode", "math:train-12k"])
def test_what_is_only_ones_own_copy_is_not_fetched(tmp_path, name):
    with pytest.raises(SourceError, match="is not fetched: get your own copy"):
        fetch_split(*find_split(name), tmp_path)
