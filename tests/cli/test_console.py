"""What is printed to a file or a pipe is as wide as it needs."""

import os
import subprocess
import sys
from io import StringIO

import pytest

from batuta.lab.worlds import rehearsal_pool
from batuta.rendering.console import EscapingConsole, new_table, print_table

COMMAND = [sys.executable, "-W", "ignore", "-m", "batuta", "pool", "list", "--pool", "rehearsal"]


@pytest.mark.parametrize("width", [20, 40, 80, 300])
def test_a_narrow_table_folds_what_it_has_no_room_for(width):
    names = ["qwen2.5-coder-1.5b-instruct-q8_0.gguf", "/home/somebody/.cache/batuta/models/x.gguf"]
    table = new_table("model", "where")
    table.add_row(*names)
    written = StringIO()
    console = EscapingConsole(width=width, file=written)
    console.print(table)
    lines = written.getvalue().splitlines()[1:]
    start = max(1, lines[0].find("/"))
    shown = [
        "".join(line[:start].strip() for line in lines),
        "".join(line[start:].strip() for line in lines),
    ]
    assert shown == names


def written_at(width, table):
    written = StringIO()
    print_table(EscapingConsole(width=width, file=written), table)
    return written.getvalue()


@pytest.mark.parametrize("width", [40, 80, 120, 300])
def test_no_word_of_a_list_is_broken_on_a_narrow_terminal(width):
    table = new_table("name", "model", "size", "a long title", "here", right={"size"})
    table.add_row("qwen-1.5b", "Coder-1.5B-Instruct, Q4_K_M", "1.1 GB", "", "no: pull qwen-1.5b")
    table.add_row("smol", "SmolLM2-135M-Instruct", "98 MB", "17", "/home/somebody/smol.gguf")
    said = written_at(width, table)
    for word in ("qwen-1.5b", "Coder-1.5B-Instruct,", "1.1", "smol", "SmolLM2-135M-Instruct"):
        assert word in said.split(), said
    assert "/home/somebody/smol.gguf" in said.replace("\n", "").replace(" ", ""), said
    assert max(map(len, said.splitlines())) <= width
    assert said.count("model") == (2 if width == 40 else 1), said


@pytest.mark.parametrize(("columns", "is_whole"), [(None, True), ("60", False)])
def test_nothing_is_cut_where_there_is_no_terminal(columns, is_whole, tmp_path):
    kept = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    environ = {**kept, "BATUTA_HOME": str(tmp_path), **({"COLUMNS": columns} if columns else {})}
    done = subprocess.run(
        COMMAND, capture_output=True, text=True, check=True, env=environ, cwd=tmp_path
    )
    lines = done.stdout.splitlines()
    shown = [
        all(word in line for word in worker.description.split()[:12])
        for worker in rehearsal_pool()
        for line in lines
        if f"rehearsal/{worker.id}" in line
    ]
    assert len(shown) == 7
    for worker in rehearsal_pool():  # who it is and what it costs is there on any screen
        assert any(
            line.split()[1:4] == [worker.id, worker.model, f"{worker.price.input:.2f}"]
            for line in lines
        ), done.stdout
    assert all(shown) is is_whole
