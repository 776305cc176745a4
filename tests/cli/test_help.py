"""What the commands say of themselves: an example each, groups of options, completion in a shell."""

import os
import re
import shlex
from functools import cache

import pytest
import typer
from rich.text import Text
from typer.testing import CliRunner

from batuta.cli import app

LARGEST_PANEL = 9
"""Options that one group may have."""


def all_commands(group=None, path=()):
    group = group or typer.main.get_command(app)
    for name, command in group.commands.items():  # pyright: ignore[reportAttributeAccessIssue]
        if getattr(command, "commands", None):
            yield from all_commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


COMMANDS = dict(all_commands())


@cache
def help_of(path):
    """What the command says of itself."""
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, [*path.split(), "--help"]).stdout


@pytest.mark.parametrize("path", COMMANDS)
def test_the_help_ends_with_an_example_that_the_command_accepts(path):
    shown = help_of(path)
    (example,) = re.findall(r"Example: (batuta .*)", shown)
    words = shlex.split(example)
    assert words[1 : 1 + len(path.split())] == path.split()
    COMMANDS[path].make_context(path, words[1 + len(path.split()) :])


@pytest.mark.parametrize("path", COMMANDS)
def test_options_are_in_groups_that_can_be_read_at_a_glance(path):
    shown = help_of(path)
    groups = re.split(r"╭─ (.*?) ─+╮", shown)
    for title, text in zip(groups[1::2], groups[2::2], strict=True):
        assert len(re.findall(r"^│ \*? *--", text, re.MULTILINE)) <= LARGEST_PANEL, title


@pytest.mark.parametrize("path", ["", *COMMANDS])
def test_an_option_without_a_value_has_none_in_the_help(path):
    shown = help_of(path)
    assert "--help" in shown and "<bool>" not in shown


@pytest.mark.parametrize("path", COMMANDS)
def test_what_stands_in_brackets_is_shown(path):
    for param in COMMANDS[path].params:
        text = getattr(param, "help", None) or ""
        named = re.findall(r"\\?\[([a-z_.]+)\]", text)
        assert re.findall(r"\[([a-z_.]+)\]", Text.from_markup(text).plain) == named, text


@pytest.mark.parametrize("path", COMMANDS)
def test_the_lines_of_a_paragraph_are_broken_by_the_terminal(path):
    assert re.search(r"(?<!\n)\n(?!\n)", COMMANDS[path].help or "") is None


def test_a_shell_completes_commands_and_options(command_line, tmp_path):
    def complete(words):
        environ = {**os.environ, "_BATUTA_COMPLETE": "complete_bash", "COMP_WORDS": words,
                   "COMP_CWORD": str(len(words.split(" ")) - 1)}  # fmt: skip
        done = command_line.run(cwd=tmp_path, env=environ)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    assert complete("batuta ta") == ["tasks"]
    assert complete("batuta runs rep") == ["replay"]
    assert complete("batuta ask --max-c") == ["--max-cost"]


FOLDERS = [
    (path, option)
    for path, command in COMMANDS.items()
    for option in command.params
    if option.opts[0].startswith("--") and re.match(r"(The f|F|A f)older", option.help or "")
]


@pytest.mark.parametrize(("path", "option"), FOLDERS, ids=[f"{p} {o.opts[0]}" for p, o in FOLDERS])
def test_an_option_for_a_folder_refuses_a_file_before_anything_is_done(path, option, tmp_path):
    """Else it is said after minutes, as "File exists", or never."""
    file = tmp_path / "notes.txt"
    file.write_text("mine", encoding="utf-8")
    said = CliRunner(env={"COLUMNS": "400"}).invoke(app, [*path.split(), option.opts[0], str(file)])
    assert said.exit_code == 2 and f"'{file}' is a file" in said.output
