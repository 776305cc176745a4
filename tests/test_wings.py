"""The server's wing serves and asks where the laboratory cannot be imported at all."""

import json
import os
import sys
from pathlib import Path

import anyio
import numpy as np
import pytest

from batuta.conductors.selector import save_selector
from batuta.conductors.workflow_selector import (
    WorkflowSelector,
    fit_reader,
    save_workflow_selector,
)
from batuta.core import Step, WorkerId, Workflow
from batuta.lab.learners.history import History
from batuta.lab.learners.selector_training import fit_selector
from fakes import FakeOpenAI
from fakes.serving import Server

WITHOUT_LAB = """
import sys

class NoLaboratory:
    def find_spec(self, name, path=None, target=None):
        if name == "batuta.lab" or name.startswith("batuta.lab."):
            raise ImportError(f"{name} was imported")

sys.meta_path.insert(0, NoLaboratory())
"""
"""As `sitecustomize`, the interpreter runs it before anything else."""
SUMS = tuple(f"Compute the result: begin at {n}; add {n + 3}; halve it." for n in range(3, 33))
ROADS = tuple(f"Which road leads from village {n} to the inn?" for n in range(30))
PROGRAM = "```python\nprint(6 * 7)\n```"


@pytest.fixture
def environ(tmp_path):
    folder = tmp_path / "without"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(WITHOUT_LAB)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("BATUTA")}
    return clean | {"PYTHONPATH": str(folder), "BATUTA_HOME": str(tmp_path / "home")}


def write_pool(folder: Path, origin: str, conductor: str) -> Path:
    file = folder / "pool.toml"
    file.write_text(f"""
[[workers]]
id = "ada"
model = "m"
provider = "compatible"
base_url = "{origin}/v1"

[[workers]]
id = "python"
provider = "python"

[conductor]
worker = "{conductor}"
""")
    return file


async def ask(environ, *options):
    command = [sys.executable, "-m", "batuta", "ask", *options, "--json"]
    with anyio.fail_after(100):
        done = await anyio.run_process(command, env=environ, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def trained_selector(folder: Path) -> str:
    known = np.array([[1.0, 0.0]] * 60, np.float32)
    history = History(
        questions=(*SUMS, *ROADS),
        workers=(WorkerId("ada"), WorkerId("python")),
        scores_qm=known,
        usd_qm=np.full(known.shape, 0.001),
        runs_qm=np.ones(known.shape, np.int32),
        families=("sums",) * 30 + ("roads",) * 30,
    )
    save_selector(fit_selector(history), folder)
    return str(folder)


def workflow_library(folder: Path) -> str:
    ada, python = WorkerId("ada"), WorkerId("python")
    run = Step(subtask="Run the program.", worker=python, access=(0,))
    selector = WorkflowSelector(
        title="made up",
        reader=fit_reader([*SUMS, *ROADS], np.repeat([0, 1], 30)),
        groups=("sums", "roads"),
        workflows=(Workflow((Step(subtask="", worker=ada), run)), Workflow((Step(subtask="", worker=ada),))),
        rank_glw=np.array([[[0, 1]], [[1, 0]]]),
        safest_w=np.array([0, 1]),
        ease_gl=np.empty((2, 0), np.float32),
    )  # fmt: skip
    save_workflow_selector(selector, folder)
    return str(folder)


@pytest.mark.slow
@pytest.mark.parametrize(("conductor", "answer"), [
    ("best", PROGRAM), ("chain/ada>python", "42"), (trained_selector, PROGRAM), (workflow_library, "42"),
])  # fmt: skip
async def test_a_question_is_answered(tmp_path, environ, conductor, answer):
    name = conductor if isinstance(conductor, str) else conductor(tmp_path / "learned")
    async with FakeOpenAI(PROGRAM, strict_openai=False, check=False) as provider:
        pool = write_pool(tmp_path, provider.origin, name)
        run = await ask(environ, SUMS[0], "--pool", str(pool))
    assert run["answer"].strip() == answer
    assert run["outcome"] == "answered"


async def test_a_server_lists_all_models_and_imports_a_method_only_when_it_is_asked(
    tmp_path, environ
):
    async with FakeOpenAI("Fine.", strict_openai=False, check=False) as provider:
        pool = write_pool(tmp_path, provider.origin, "best")
        async with Server(tmp_path, "--pool", str(pool), **environ) as server:
            assert {"batuta-mini", "worker/ada", "baseline/moa"} <= await server.models()
            body = {"messages": [{"role": "user", "content": "Hello"}]}
            for model, status in (
                ("batuta-mini", 200),
                ("batuta-ultra", 200),
                ("baseline/moa", 404),
            ):
                async with server.http.post(
                    "/v1/chat/completions", json=body | {"model": model}
                ) as got:
                    said = await got.json()
                    assert got.status == status, said
            assert "batuta.lab was imported" in said["error"]["message"]
