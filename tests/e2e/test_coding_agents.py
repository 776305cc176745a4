"""Claude Code, Codex and opencode, as npm installs them, do a task through each way of conducting as they do it without Batuta.

npm install --prefix ~/.cache/batuta-clients @anthropic-ai/claude-code @openai/codex opencode-ai
"""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INSTALLED = Path.home() / ".cache" / "batuta-clients" / "node_modules" / ".bin"
WAYS = ("alone", "escalate", "advise", "gate", "lead", "ultra")
OWN_WAYS = [("claude", "search"), ("claude", "compact"), ("codex", "compact"), ("codex", "own")]

pytestmark = pytest.mark.long


@pytest.mark.parametrize(
    ("client", "way"),
    [*((client, way) for client in ("claude", "codex", "opencode") for way in WAYS), *OWN_WAYS],
)
def test_a_task_is_done_as_without_batuta_and_nothing_is_refused(client, way):
    if not (INSTALLED / client).exists():
        pytest.skip(f"{client} is not installed in {INSTALLED}; see this file")
    command = [sys.executable, "bench/clients.py", "--clients", str(INSTALLED.parents[1])]
    done = subprocess.run(
        [*command, client, way], cwd=ROOT, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{client} by {way}: done, " in done.stdout
    if way != "own":  # Codex with its maker's own model asks what no scripted model answers
        assert ", as without Batuta" in done.stdout
