"""What the documents say is so."""

import os
import re
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from batuta.cli import app
from batuta.environment import data_folder, models_cache

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "design").glob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_to_files_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_folders_of_the_user_are_those_that_are_used(page):
    """Who makes a backup by the documents must not copy a folder that nothing was ever written to."""
    text = page.read_text(encoding="utf-8")
    named = set(re.findall(r"[~$][\w.{}]*/[\w./-]*batuta[\w./-]*", text))
    data, cache = (
        str(place({})).replace(str(Path.home()), "~") for place in (data_folder, models_cache)
    )
    known = {data, f"{data}/data", "$XDG_DATA_HOME/batuta", cache}
    assert {name.rstrip(".") for name in named} <= known


def test_every_test_that_the_page_on_governance_names_is_there():
    """An answer to a security officer holds as long as its test does."""
    page = (ROOT / "docs" / "governance.md").read_text(encoding="utf-8")
    answers = [row for row in page.splitlines() if row.startswith("| ") and row.count(" | ") == 2]
    answers = [row for row in answers if "?" in row.partition(" | ")[0]]
    assert len(answers) >= 25
    for row in answers:
        last = row.rpartition(" | ")[2]
        file = ""
        named = re.findall(r"`(tests/[\w/]+\.py|…)(?:::(test_\w+))?`", last)
        assert named, row
        for place, test in named:
            file = file if place == "…" else place
            text = (ROOT / file).read_text(encoding="utf-8")
            assert not test or f"def {test}(" in text, f"{file}::{test}"


def test_every_test_that_a_document_names_is_there():
    """A promise holds as long as its test does."""
    documents = (*(ROOT / "docs").glob("*.md"), *(ROOT / "design").glob("*.md"))
    for document in (ROOT / "SECURITY.md", *documents):
        written, file = document.read_text(encoding="utf-8"), ""
        for place, test in re.findall(r"`(tests/[\w/.]+|…)(?:::([\w:]+))?", written):
            file = file if place == "…" else place
            assert (ROOT / file).exists(), (document.name, file)
            text = (ROOT / file).read_text(encoding="utf-8") if test else ""
            for name in filter(None, test.split("::")):
                assert re.search(rf"(def|class) {name}\b", text), (document.name, file, name)


def test_every_promise_on_security_names_its_test():
    written = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    rows = [row for row in written.splitlines() if row.startswith("| ")]
    assert len(rows) > 60
    assert [row for row in rows[1:] if "`tests/" not in row.rpartition(" | ")[2]] == []


def test_the_page_about_storage_names_the_data_folder():
    told = (ROOT / "docs" / "storage.md").read_text(encoding="utf-8")
    for folder in (data_folder({}), data_folder({"XDG_DATA_HOME": "$XDG_DATA_HOME"})):
        assert f"`{folder}`".replace(str(Path.home()), "~") in told


def test_every_package_is_in_the_tree_of_the_tour():
    tour = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
    for package in sorted((ROOT / "src" / "batuta").iterdir()):
        if package.name not in {"__init__.py", "__pycache__", "py.typed"}:
            assert package.name in tour, package.name


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_make_target_and_command_named_exists(page):
    text = page.read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"`make ([a-z-]+)", text):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for command in set(
        re.findall(
            r"batuta ((?:ask|serve|connect|eval|tune|train|tasks|runs|pool|keys)(?: (?:list|show|create|limit|revoke|rotate|budget|spend|check|replay|fetch|warmup|conductor|watch|plots))?)\b",
            text,
        )
    ):
        assert help_of(command), command


@cache
def help_of(command):
    """What the command says of itself; None: there is no such command. In this process: quicker."""
    asked = CliRunner(env={"COLUMNS": "200"}).invoke(app, [*command.split(), "--help"])
    return asked.stdout if asked.exit_code == 0 else None


def every_option():
    """The help of every command that has options which the pages name."""
    return "".join(help_of(c) for c in (  # pyright: ignore[reportArgumentType, reportCallIssue]
        "", "ask", "serve", "connect", "runs list", "runs show", "runs replay", "runs refuse", "runs approve", "pool list", "pool check",
        "eval", "tune", "tasks list", "tasks show", "tasks fetch", "tasks export routerarena", "train import", "train export", "train merge", "train warmup", "train distil", "train rejection", "train selector", "train conductor", "train watch", "train plots",
        "keys create", "keys limit", "keys rotate", "keys spend",
    ))  # fmt: skip


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_options_named_exist(page):
    help_text, text = every_option(), page.read_text(encoding="utf-8")
    for line in re.findall(
        r"batuta (?:ask|serve|connect|eval|tune|train|tasks|runs|pool|keys)[^`\n]*", text
    ):
        for option in re.findall(r"(--[a-z-]+)", line):
            assert option in help_text, option


TRAINING = ROOT / "examples" / "03_train_your_own.py"
PROVIDERS = {*(ROOT / "examples").glob("0[4-7]_*.py")}  # need a server: tests/session
EXAMPLES = sorted({*(ROOT / "examples").glob("*.py")} - {TRAINING} - PROVIDERS)


def said_by(command_line, example, folder):
    """What the example prints, run in that folder."""
    env = {**os.environ, "BATUTA_HOME": str(folder)}
    done = command_line.run_file(example, cwd=folder, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda p: p.name)
def test_examples_run_offline(example, tmp_path, command_line):
    said = said_by(command_line, example, tmp_path).strip()
    assert said
    assert said.endswith("Answer: 40000") or example.name != "01_workflow_by_hand.py"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_example_of_training_learns(tmp_path, command_line):
    said = said_by(command_line, TRAINING, tmp_path)
    before, after = map(float, re.findall(r"mean reward of the .* five steps: ([\d.]+)", said))
    assert after > before + 0.1, said
    own, best = (float(re.search(rf"^{name}(?: \[\S+\])? +([\d.]+)", said, re.MULTILINE)[1])
                 for name in ("ultra", "best-single"))  # fmt: skip
    assert own > best + 25, said


@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_python_blocks_run(page, tmp_path, command_line):
    text = (ROOT / page).read_text(encoding="utf-8")
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", text, re.DOTALL)):
        if "localhost" in block or "127.0.0.1" in block:
            continue  # needs the server; the e2e tests run it
        done = command_line.run(code=block, cwd=tmp_path, env=os.environ)
        assert done.returncode == 0, f"block {number}: {done.stderr}"


PRIVATE_WORDS = re.compile(
    r"\b(warden|turnstile|teller|doorkeeper|shelf|mint|lapses?|veil|deeds?|customs|outlay|chorus|"
    r"(?:hold|holds|held) (?:\w+ )?against|by lot|really slips?|(?:go|goes|gone) on with|orchestra|"
    r"warm start|left alone|told apart|for whom)\b",
    re.IGNORECASE,
)
"""Words of a vocabulary of our own; the field has plain ones: design/0013-names.md."""


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda p: p.name
)
def test_documents_use_the_words_of_the_field(page):
    assert not PRIVATE_WORDS.findall(page.read_text(encoding="utf-8"))


def test_help_uses_the_words_of_the_field():
    assert not PRIVATE_WORDS.findall(every_option())
