"""Option groups: frozen dataclasses whose fields are the options of a command.

A field says its option as an argument of a command does: `Annotated[int, typer.Option(min=1)] = 5`.
A field that is a dataclass itself is a group within the group.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from typing import Annotated, Any, TypeVar, cast, get_args, get_type_hints

from typer.models import ParameterInfo

_T = TypeVar("_T")


def with_option_groups(command: Callable[..., _T]) -> Callable[..., _T]:
    """Return the command as typer reads it: an argument that is a group stands for its options.

    The class variable `panel` of a group names the help panel of those of its options that name
    none.

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
    """Yield the options of a group as parameters of a function."""
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
    """Return an option's annotation with that panel, if it names none itself."""
    kind, *notes = get_args(hint)
    shown: list[Any] = [copy(note) if isinstance(note, ParameterInfo) else note for note in notes]
    for note in shown:
        if isinstance(note, ParameterInfo) and note.rich_help_panel is None:
            note.rich_help_panel = panel
    return Annotated[(kind, *shown)]


def _build_group(group: type[_T], given: dict[str, Any]) -> _T:
    """Make a group of the values that its options were given, which are taken out of `given`."""
    inner = _find_groups(get_type_hints(group))
    made = {name: _build_group(one, given) for name, one in inner.items()}
    own = (field.name for field in fields(cast("Any", group)) if field.name not in inner)
    return group(**made, **{name: given.pop(name) for name in own})
