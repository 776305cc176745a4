"""The quick-start notebook, run by a real kernel."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "quickstart.ipynb"
RUN = "from nbclient.cli import main; main()"


@pytest.mark.slow
def test_the_quickstart_notebook_runs_and_shows_its_runs(tmp_path):
    # A process of its own: what nbclient loads reads grammars, and until Python 3.11.8 two threads
    # that read one at once fail (https://github.com/python/cpython/issues/106905).
    pytest.importorskip("ipykernel")
    copy = tmp_path / NOTEBOOK.name
    copy.write_bytes(NOTEBOOK.read_bytes())
    env = {**os.environ, "BATUTA_HOME": str(tmp_path), "IPYTHONDIR": str(tmp_path)}
    command = [
        sys.executable,
        "-c",
        RUN,
        "--inplace",
        "--timeout=60",
        "--kernel_name=python3",
        copy,
    ]
    ran = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    cells = [cell for cell in json.loads(copy.read_bytes())["cells"] if cell["cell_type"] == "code"]
    shown = cells[0]["outputs"][-1]["data"]
    assert "<svg" in "".join(shown["text/html"])
    assert "".join(shown["text/plain"]).startswith("<Run run_")
    assert "8 answers," in printed(cells[2]) and "RunFinished" in printed(cells[3])


def printed(cell):
    return "".join("".join(output.get("text", "")) for output in cell["outputs"])
