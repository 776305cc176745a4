"""Options that several commands share.

An option group is a dataclass whose fields declare options as the arguments of a command do:
`Annotated[int, typer.Option(min=1)] = 5`. A field that is itself a dataclass is a nested group.
"""

from __future__ import annotations

import getpass
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from typing import Annotated, Any, ClassVar, TypeVar, cast, get_args, get_type_hints
from urllib.parse import urlsplit

import typer
from typer.models import ParameterInfo

from batuta.clients.providers import LOCAL
from batuta.errors import ConfigError

ACCESS_PANEL = "Access"
BASELINES_PANEL = "Baselines"
BUDGET_PANEL = "Dollars"
EXECUTION_PANEL = "Execution"
GRADING_PANEL = "Grading"
LIMITS_PANEL = "Limits"
OUTPUT_PANEL = "Output and records"
POOL_PANEL = "Pool and conductor"
QUESTIONS_PANEL = "Questions"
RATE_PANEL = "Rates"
RUNS_PANEL = "Questions from stored runs"
SYSTEMS_PANEL = "Systems"


def format_example(command: str) -> str:
    """Return the example that ends a command's help, with `[` escaped for rich."""
    return f"Example: {command.replace('[', chr(92) + '[')}"


MOST_USD = 1e9
"""Maximum amount in dollars; a larger or infinite amount is a mistake."""
MOST_SECONDS = 1e9
"""Maximum time limit in seconds; a longer or infinite limit is a mistake."""
_JSON_HELP = "Print JSON on stdout."
_DATABASE = re.compile(r"(postgres[\w+]*://)(?:\S*@)?([^\s?]*)\S*")
"""Matches a PostgreSQL URL; a password may be before the host or among the options."""

Json = Annotated[bool, typer.Option("--json", help=_JSON_HELP)]
JsonOutput = Annotated[bool, typer.Option("--json", help=_JSON_HELP, rich_help_panel=OUTPUT_PANEL)]
"""The same option, for commands whose options are in panels."""
SimulatedQuestions = Annotated[
    bool,
    typer.Option(
        "--simulated-questions",
        help="Allow that real models are asked questions of a simulated world.",
        rich_help_panel=QUESTIONS_PANEL,
    ),
]
ConcurrentRuns = Annotated[
    int,
    typer.Option(min=1, help="Maximum number of concurrent runs.", rich_help_panel=EXECUTION_PANEL),
]
ExecutorName = Annotated[
    str,
    typer.Option(
        help="Where runs are executed: local, ray, ray:local, ray:HOST:PORT.",
        rich_help_panel=EXECUTION_PANEL,
    ),
]
RayProcesses = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Number of Ray processes; default: one per free core.",
        rich_help_panel=EXECUTION_PANEL,
    ),
]


POOL_HELP = (
    "rehearsal or world2 (simulated), local, discover (keys, local servers, pulled models), or a "
    "TOML file; default: BATUTA_CONFIG, else ./batuta.toml, else what is found."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """Options for the pool and its conductor."""

    panel: ClassVar = POOL_PANEL

    pool: Annotated[str | None, typer.Option(help=POOL_HELP)] = None
    conductor: Annotated[
        str | None,
        typer.Option(
            help="A worker's id, best, vote, fusion, critique, research, slides, "
            "plan-solve-verify, escalate, advise, gate, lead-and-hands, single/<id>, "
            "chain/<id>><id>, a file with a workflow (*.txt), a trained conductor's folder or GGUF "
            "file, or a trained selector's folder."
        ),
    ] = None
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Pull the models of --pool local without asking.")
    ] = False

    def pull_missing(self) -> None:
        """Pull the models that `--pool local` lacks, after asking unless --yes was given.

        Raises:
            ConfigError: a name is unknown, the user declines, or stdin is not a terminal and --yes
                was not given.
            DownloadError: a model cannot be downloaded.
        """
        if (self.pool or "").partition(":")[0] == LOCAL:
            from batuta.cli.model_pulls import offer_models  # noqa: PLC0415 - rarely needed

            offer_models(self.pool or "", yes=self.yes)


def check_url(option: str, url: str) -> None:
    """Check that an option's value is a web URL.

    Raises:
        ConfigError: it is not.
    """
    try:
        is_url = url.startswith(("http://", "https://")) and urlsplit(url).hostname
    except ValueError:  # an invalid IPv6 address
        is_url = False
    if not is_url:
        raise ConfigError(f"{option}: {url[:80]} is not a URL, such as http://127.0.0.1:8765")


def hide_passwords(words: Iterable[str]) -> list[str]:
    """Return the words without the user, password and options of each PostgreSQL URL."""
    return [_DATABASE.sub(r"\1\2", word) for word in words]


def command_actor() -> str:
    """Return the name of the command line's user in the audit trail: `cli:NAME`, or `cli`."""
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):  # a container's user may have no name
        return "cli"


@dataclass(frozen=True, slots=True, kw_only=True)
class GradingOptions:
    """Options for grading answers."""

    panel: ClassVar = GRADING_PANEL

    judge: Annotated[
        str | None, typer.Option(help="The worker that grades answers that no rule can grade.")
    ] = None
    sandbox: Annotated[
        str, typer.Option(help="Where programs run: auto, bubblewrap, landlock, or none.")
    ] = "auto"


_T = TypeVar("_T")


def with_option_groups(command: Callable[..., _T]) -> Callable[..., _T]:
    """Return the command with each argument that is a group replaced by the group's options.

    A group's class variable `panel` names the help panel of the options that name no other panel.

    Raises:
        ValueError: two groups have an option of the same name.
    """
    signature, hints = inspect.signature(command), get_type_hints(command, include_extras=True)
    groups = _find_groups(hints)

    @wraps(command)
    def run(**given: Any) -> _T:
        made = {name: _build_group(group, given) for name, group in groups.items()}
        return command(**made, **given)

    parameters: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        if name in groups:
            parameters += _group_parameters(groups[name])
        else:
            by_name = inspect.Parameter.KEYWORD_ONLY
            parameters.append(parameter.replace(kind=by_name, annotation=hints[name]))
    plain = signature.replace(parameters=parameters)
    run.__signature__ = plain  # pyright: ignore[reportAttributeAccessIssue]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def _find_groups(hints: dict[str, Any]) -> dict[str, type[Any]]:
    return {n: hint for n, hint in hints.items() if isinstance(hint, type) and is_dataclass(hint)}


def _group_parameters(group: type[Any]) -> Iterator[inspect.Parameter]:
    """Yield the options of a group, and of its nested groups, as parameters of a function."""
    hints = get_type_hints(group, include_extras=True)
    inner = _find_groups(hints)
    for field in fields(group):
        if field.name in inner:
            yield from _group_parameters(inner[field.name])
            continue
        yield inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=_in_panel(hints[field.name], getattr(group, "panel", None)),
        )


def _in_panel(hint: Any, panel: str | None) -> Any:
    """Return an option's annotation, with that help panel unless it names another."""
    kind, *notes = get_args(hint)
    shown: list[Any] = [copy(note) if isinstance(note, ParameterInfo) else note for note in notes]
    for note in shown:
        if isinstance(note, ParameterInfo) and note.rich_help_panel is None:
            note.rich_help_panel = panel
    return Annotated[(kind, *shown)]


def _build_group(group: type[_T], given: dict[str, Any]) -> _T:
    """Build a group from its options' values, which are removed from `given`."""
    inner = _find_groups(get_type_hints(group))
    made = {name: _build_group(one, given) for name, one in inner.items()}
    own = (field.name for field in fields(cast("Any", group)) if field.name not in inner)
    return group(**made, **{name: given.pop(name) for name in own})
