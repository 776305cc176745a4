"""Option groups: what the command line shows of a dataclass, and what the command gets of it."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import pytest
import typer
from typer.testing import CliRunner

from batuta.cli.options import hide_passwords, with_option_groups


@dataclass(frozen=True, kw_only=True)
class Limits:
    panel: ClassVar = "How much"

    calls: Annotated[int, typer.Option(min=1, help="Calls at most.")] = 3
    usd: Annotated[float | None, typer.Option("--dollars", rich_help_panel="Money")] = None


@dataclass(frozen=True, kw_only=True)
class Options:
    name: Annotated[str, typer.Option()]
    tags: Annotated[list[str] | None, typer.Option("--tag")] = None
    limits: Limits


def run(command, *words):
    app = typer.Typer()
    app.command()(with_option_groups(command))
    return CliRunner(env={"COLUMNS": "100"}).invoke(app, words)


def print_options(word: Annotated[str, typer.Argument()] = "none", *, options: Options) -> None:
    """Print them."""
    typer.echo(repr((word, options)))


def test_a_command_gets_its_groups_and_its_plain_arguments():
    done = run(print_options, "--name", "a", "--tag", "x", "--tag", "y", "--dollars", "0.5", "w")
    expected = Options(name="a", tags=["x", "y"], limits=Limits(calls=3, usd=0.5))
    assert done.stdout == f"{('w', expected)!r}\n"
    plain = run(print_options, "--name", "a")
    assert plain.stdout == f"{('none', Options(name='a', limits=Limits()))!r}\n"


def test_a_field_without_a_default_is_required_and_limits_are_checked():
    assert run(print_options).exit_code == 2
    assert run(print_options, "--name", "a", "--calls", "0").exit_code == 2


def test_options_stand_in_their_group_s_panel_unless_they_name_one():
    shown = run(print_options, "--help").stdout
    assert "Print them." in shown
    panels = [line.strip("╭─╮ ") for line in shown.splitlines() if line.startswith("╭")]
    assert panels == ["Arguments", "Options", "How much", "Money"]
    assert shown.index("How much") < shown.index("--calls") < shown.index("Money")
    assert "[default: 3]" in shown


def test_two_groups_with_the_same_option_are_refused():
    def command(first: Limits, second: Limits) -> None: ...

    with pytest.raises(ValueError, match="duplicate parameter name: 'calls'"):
        with_option_groups(command)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("postgresql://ada:p@ss@db:5432/runs?sslmode=on&password=x", "postgresql://db:5432/runs"),
        ("--journal=postgresql+psycopg://ada:pass@db/runs", "--journal=postgresql+psycopg://db/runs"),
        ("mine.jsonl", "mine.jsonl"),
    ],
)  # fmt: skip
def test_a_record_of_the_command_has_no_password(given, kept):
    assert hide_passwords(["batuta", "eval", given]) == ["batuta", "eval", kept]
