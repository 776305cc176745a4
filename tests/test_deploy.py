"""The container and its compose file: what a linter, a schema and the program itself say of them."""

import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOOLS = Path(sys.executable).parent
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def run(tool, *options):
    if not (TOOLS / tool).exists():
        pytest.skip(f"{tool} is not installed: pip install -e '.[dev]'")
    done = subprocess.run(
        [str(TOOLS / tool), *options], capture_output=True, text=True, cwd=ROOT, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_the_dockerfile_has_no_fault():
    assert run("hadolint", "Dockerfile") == (0, "")


def test_the_compose_file_is_one():
    code, said = run("check-jsonschema", "--builtin-schema", "vendor.compose-spec", "compose.yaml")
    assert code == 0, said


def test_the_container_starts_the_server_with_options_that_exist():
    start = json.loads(re.search(r"^ENTRYPOINT (.*)$", DOCKERFILE, re.MULTILINE)[1])
    assert start[:2] == ["batuta", "serve"]
    shown = subprocess.run([sys.executable, "-m", "batuta", "serve", "--help"], capture_output=True, text=True, check=True,
                           env={"COLUMNS": "200", "PATH": ""}).stdout  # fmt: skip
    for option in (word for word in start if word.startswith("--")):
        assert option in shown, option


def test_the_container_is_not_root_and_writes_to_its_volume_alone():
    assert re.search(r"^USER 10001$", DOCKERFILE, re.MULTILINE) and "VOLUME /data" in DOCKERFILE
    compose = (ROOT / "compose.yaml").read_text(encoding="utf-8")
    assert "read_only: true" in compose and "no-new-privileges:true" in compose


def test_what_is_copied_is_there_and_not_ignored():
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE)
    sources = " ".join(copied).split()
    assert {"pyproject.toml", "README.md", "src"} <= set(sources)
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    for source in sources:
        assert (ROOT / source).exists() and (f"!{source}" in ignored or "*" not in ignored), source
    # What the package's build reads is among it.
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    read = re.findall(r'^(?:readme = "(.+)"|license-files = \["(.+)"\])', project, re.MULTILINE)
    assert {name for pair in read for name in pair if name} <= set(sources)


def test_the_server_started_as_in_the_container_is_healthy_and_stops(tmp_path):
    env = {**os.environ, "BATUTA_HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    start = json.loads(re.search(r"^ENTRYPOINT (.*)$", DOCKERFILE, re.MULTILINE)[1])
    check = json.loads(re.search(r"^ +CMD (.*)$", DOCKERFILE, re.MULTILINE)[1])
    port = start[start.index("--port") + 1]
    assert f":{port}/" in check[-1] and f"EXPOSE {port}" in DOCKERFILE
    batuta = [sys.executable, "-m", *start[:1]]
    subprocess.run([*batuta, "keys", "create", "me"], cwd=tmp_path, env=env, check=True, capture_output=True)  # fmt: skip
    command = [*batuta, *("0" if word == port else word for word in start[1:])]
    with subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True) as server:  # fmt: skip
        limit = threading.Timer(60, server.kill)
        limit.start()
        served = next(found for line in server.stderr if (found := re.search(r"at http://0.0.0.0:(\d+)/v1", line)))[1]  # fmt: skip
        code = check[-1].replace(f":{port}/", f":{served}/")
        done = subprocess.run([sys.executable, *check[1:-1], code], check=False, capture_output=True, text=True)  # fmt: skip
        server.terminate()
        server.stderr.read()
        assert (done.returncode, done.stderr) == (0, "")
        assert server.wait(30) == 0
        limit.cancel()


def test_every_extra_that_the_container_installs_exists():
    wanted = re.search(r"'\.\[([a-z,]+)\]'", DOCKERFILE)[1].split(",")
    extras = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for extra in wanted:
        assert re.search(rf"^{extra} = \[", extras, re.MULTILINE), extra
