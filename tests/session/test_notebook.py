"""The quick-start notebook, run by a real kernel."""

import os
from pathlib import Path

NOTEBOOK = Path(__file__).parents[2] / "examples" / "quickstart.ipynb"


def test_the_quickstart_notebook_runs_and_shows_its_runs(tmp_path):
    # Here: to load them takes seconds, and each worker of a test run loads every module.
    import nbclient
    import nbformat

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    where = {"metadata": {"path": str(tmp_path)}}
    env = {**os.environ, "BATUTA_HOME": str(tmp_path), "IPYTHONDIR": str(tmp_path)}
    client = nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3", resources=where)
    client.execute(env=env)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    shown = cells[0].outputs[-1]["data"]
    assert "<svg" in shown["text/html"] and shown["text/plain"].startswith("<Run run_")
    assert "8 answers," in printed(cells[2]) and "RunFinished" in printed(cells[3])


def printed(cell):
    return "".join(output.get("text", "") for output in cell.outputs)
