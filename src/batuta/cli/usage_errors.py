"""Wrong use of the command line, in one plain sentence that says where help is."""

from __future__ import annotations

import re
from collections.abc import Sequence

from typer.exceptions import TyperException

from batuta.core.suggestions import suggest_names

_HINT = re.compile(r"^Invalid value for (.+?): ")


def explain_usage_error(error: TyperException) -> str:
    """The sentence; empty where the help itself was shown."""
    shown = " ".join(error.format_message().split()).rstrip(".")
    if not shown:
        return ""
    known: Sequence[str] | None = getattr(error, "possibilities", None)
    option: str = getattr(error, "option_name", "")
    if option:
        near = f"; {suggest_names(option, known)}" if known else ""
        shown = f"there is no option {option}{near}"
    elif (hint := _HINT.match(shown)) and error.__cause__ is not None:
        shown = _explain_value(hint[1].replace("'", ""), error.__cause__) or shown
    link = " See" if shown.endswith("?") else "; see"
    return f"{shown}{link}: {_command_path(error)} --help"


def _explain_value(name: str, cause: BaseException) -> str:
    """Say what pydantic found wrong with an option's value.

    An empty text if it was not pydantic.
    """
    from pydantic import ValidationError  # noqa: PLC0415 - only when a value is wrong

    from batuta.config.setting_errors import describe_value_error  # noqa: PLC0415 - same

    return describe_value_error(name, cause) if isinstance(cause, ValidationError) else ""


def _command_path(error: TyperException) -> str:
    """The command that was meant, as it is typed."""
    path: str = getattr(getattr(error, "ctx", None), "command_path", "") or "batuta"
    return path
