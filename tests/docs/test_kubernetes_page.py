"""docs/kubernetes.md, followed literally before a stand-in for a cluster; its manifests are what Kubernetes knows."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from anyio.to_thread import run_sync

from batuta.gateway.openapi.document import OPERATIONS
from docs.shell import ROOT, free_port, shell_blocks
from fakes import FakeOpenAI
from store.conftest import SERVER, tell

pytestmark = pytest.mark.anyio
PAGE = ROOT / "docs" / "kubernetes.md"
TEXT = PAGE.read_text(encoding="utf-8")
CLUSTER = Path(__file__).parent / "one_pod_cluster.py"
BASE = ROOT / "deploy" / "kustomize" / "base"
FLOW = 'model_id = [0]\nsubtasks = ["Answer it."]\naccess_list = [[]]'


def answer(body):
    return FLOW if "access_list" in str(body["messages"]) else "Answer: 391"


def sections():
    """The numbered sections with their shell blocks."""
    found = re.split(r"^## (\d)\. .*\n", TEXT, flags=re.MULTILINE)
    return {
        int(number): "\n".join(re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
        for number, text in zip(found[1::2], found[2::2], strict=True)
    }


@pytest.fixture
def database():
    name = f"batuta_kubernetes_{os.getpid()}"
    try:
        tell(SERVER, f"CREATE DATABASE {name}")
    except (OSError, TimeoutError) as error:
        pytest.skip(f"no PostgreSQL server: {error}")
    yield f"{SERVER.rpartition('/')[0]}/{name}"
    tell(SERVER, f"DROP DATABASE {name} WITH (FORCE)")


class Steps:
    """Runs blocks of the page in a folder with a copy of deploy/, one after another."""

    def __init__(self, folder, model):
        self.folder, self.port = folder, str(free_port())
        shutil.copytree(ROOT / "deploy", folder / "deploy")
        (folder / "cluster").mkdir()
        place = folder / "bin"
        place.mkdir()
        for name, text in {
            "kubectl": f'exec {sys.executable} {CLUSTER} "$@"',
            "docker": 'case "$1" in build|push) ;; *) exit 1;; esac',
        }.items():
            (place / name).write_text(f"#!/bin/bash\n{text}\n")
            (place / name).chmod(0o755)
        words = ("API_KEY", "BATUTA", "OLLAMA", "_BASE_URL")
        clean = {k: v for k, v in os.environ.items() if not any(word in k for word in words)}
        self.environ = {
            **clean,
            "PATH": f"{place}:{os.environ['PATH']}",
            "CLUSTER": str(folder / "cluster"),
            "REAL_KUBECTL": shutil.which("kubectl") or "",
            "POD_PORT": self.port,
            "OPENAI_BASE_URL": model.url,
            "no_proxy": "127.0.0.1",
        }

    def run(self, script):
        done = subprocess.run(
            ["bash", "-eu", "-o", "pipefail", "-c", script.replace("8765", self.port)],
            cwd=self.folder, env=self.environ, capture_output=True, text=True, check=False, timeout=200,
        )  # fmt: skip
        log = self.folder / "cluster" / "log"
        said = log.read_text() if log.exists() else ""
        assert done.returncode == 0, done.stdout + done.stderr + said
        return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_the_page_leads_from_nothing_to_an_answer_and_to_replicas(tmp_path, database):
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed: apt-get install kubernetes-client")
    parts = sections()
    async with FakeOpenAI(answer, strict_openai=False, check=False) as model:
        steps = Steps(tmp_path, model)
        try:
            for number in (1, 2, 3, 4):
                await run_sync(steps.run, parts[number])
            said = await run_sync(steps.run, parts[5])
            found = json.loads(said[said.index('{"id"') : said.rindex("}") + 1])
            assert found["choices"][0]["message"]["content"] == "Answer: 391"
            listed, list_again = said[said.rindex("}") :], parts[5].splitlines()[-1]
            while "What is 17 * 23?" not in listed:  # it is stored a moment after it is answered
                listed = await run_sync(steps.run, list_again)
            backup = "".join(re.findall(r"^   kubectl.*backup\.db.*\n", TEXT, re.MULTILINE))
            for _ in range(2):  # a later upgrade takes a backup too
                await run_sync(steps.run, backup)
            assert (tmp_path / "runs.db").read_bytes().startswith(b"SQLite format 3")
            script = parts[7].replace("postgresql://batuta:password@db.internal/batuta", database)
            script = script.replace("redis://redis.internal:6379", "redis://127.0.0.1:6379/9")
            await run_sync(steps.run, script)
            assert json.loads((tmp_path / "cluster" / "pod.json").read_text())[
                "environ"
            ].keys() >= {
                "BATUTA_STORE_FILE",
                "BATUTA_REDIS_FILE",
            }
            said = await run_sync(steps.run, parts[5].partition("\n")[2].rpartition("\nkubectl")[0])
            assert "Answer: 391" in said, "with the key of the new database"
        finally:
            await run_sync(steps.run, "kubectl stop")


def test_every_shell_block_is_in_a_section_that_is_run():
    assert set(sections()) == set(range(1, 10))
    ran = "".join(sections()[number] for number in (1, 2, 3, 4, 5, 7))
    assert ran.replace("\n", "") == shell_blocks(PAGE).replace("\n", "")


def test_the_ingress_is_what_kubernetes_knows(tmp_path):
    tool = Path(sys.executable).parent / "kubernetes-validate"
    if not tool.exists():
        pytest.skip("kubernetes-validate is not installed: pip install -e '.[dev]'")
    (block,) = re.findall(r"^```yaml\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
    (tmp_path / "ingress.yaml").write_text(block)
    done = subprocess.run(
        [tool, "--strict", tmp_path / "ingress.yaml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    service = yaml.safe_load((BASE / "service.yaml").read_text())
    named = yaml.safe_load(block)["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]
    assert named["name"] == service["metadata"]["name"]
    assert named["port"]["name"] == service["spec"]["ports"][0]["name"]


def test_every_secret_of_the_manifests_is_in_the_table_with_its_file():
    table = dict(
        pair
        for line in re.findall(r"^\| (`[^|]+) \| (`[^|]+) \|", TEXT, re.MULTILINE)
        for pair in zip(
            re.findall(r"`([a-z-]+)`", line[0]), re.findall(r"`(\w+)`", line[1]), strict=True
        )
    )
    wanted = {}
    for path in (ROOT / "deploy" / "kustomize").rglob("*.yaml"):
        for name, value in re.findall(r"name: (\w+_FILE)\n\s+value: (\S+)", path.read_text()):
            if name != "BATUTA_JOURNAL_FILE":  # the same as the store's
                wanted[value.removeprefix("/run/secrets/batuta/")] = name
    assert table == wanted


def test_the_image_has_the_extras_that_the_page_names():
    makefile = (ROOT / "Makefile").read_text()
    has = set(
        re.findall(r"--extra (\w+)", re.search(r"^SERVER := (.*)$", makefile, re.MULTILINE)[1])
    )
    said, more = re.search(r"It has the extras (.*?); others .*EXTRAS=([\w,]+)", TEXT).groups()
    assert set(re.findall(r"`(\w+)`", said)) == has
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {*more.split(",")} <= set(project["optional-dependencies"])


def test_the_probes_are_addresses_of_the_server():
    known = {path for _, path in OPERATIONS}
    for path in (ROOT / "deploy" / "kustomize").rglob("*.yaml"):
        if path.parent.name == "vllm":
            continue
        for probed in re.findall(r"httpGet:\n\s+path: (\S+)", path.read_text()):
            assert probed in known, probed
