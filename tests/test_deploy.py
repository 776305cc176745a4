"""The container and its compose file: what a linter, a schema and the program itself say of them."""

import json
import re
import subprocess
import sys
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


def test_every_extra_that_the_container_installs_exists():
    wanted = re.search(r"'\.\[([a-z,]+)\]'", DOCKERFILE)[1].split(",")
    extras = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for extra in wanted:
        assert re.search(rf"^{extra} = \[", extras, re.MULTILINE), extra
