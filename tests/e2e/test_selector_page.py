"""docs/selector.md, followed from top to bottom: its commands and its Python, in one folder."""

import json
import re
import shlex
from contextlib import chdir
from pathlib import Path

import pytest
from typer.testing import CliRunner

from batuta.cli import app

PAGE = (Path(__file__).parents[2] / "docs" / "selector.md").read_text(encoding="utf-8")
PARTS = re.findall(
    r"^```sh\n(batuta [^\n]*)\n```$|^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL
)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_page_can_be_followed(tmp_path, monkeypatch):
    monkeypatch.setenv("BATUTA_HOME", str(tmp_path / "home"))
    said = []
    with chdir(tmp_path):
        for command, code in PARTS:
            if command:
                done = CliRunner().invoke(app, shlex.split(command)[1:])
                assert done.exit_code == 0, f"{command}: {done.output} {done.exception!r}"
                said.append(done.stdout)
            else:
                exec(code, {})  # noqa: S102 - the page's own
        assert len(said) == 4 and "held-out" in said[1] and "Answer:" in said[2]
        report = json.loads(Path("out/first/report.json").read_text(encoding="utf-8"))
        assert set(report["systems"]) == {"best-single", "mini", "cascade", "cascade+checker"}
        outcomes = Path("out/first/outcomes.jsonl").read_text(encoding="utf-8").splitlines()
        assert len(outcomes) > 900 and Path("runs/mini-and-newcomer").is_dir()
        asked = {task["question"] for task in map(json.loads, outcomes)}
        saved = b"".join(file.read_bytes() for file in Path("runs/mini").iterdir())
        assert not any(question.encode() in saved for question in asked)
