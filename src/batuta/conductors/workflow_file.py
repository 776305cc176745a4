"""A workflow that somebody wrote into a file, as a conductor that plays it for every question."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path

from batuta.conductors.fixed_workflows import FixedConductor, named_workflow
from batuta.core import MAX_STEPS, AcceptedAnswer, Pool
from batuta.errors import ConfigError
from batuta.language import parse_workflow

LARGEST = 100_000
"""Characters of a workflow's file at most."""


def read_workflow_conductor(path: Path, pool: Pool, max_steps: int = MAX_STEPS) -> FixedConductor:
    """Return the conductor that writes the workflow of that file for every question.

    Its name ends with a digest of the workflow, so that results of an earlier one are not its own.

    Args:
        path: the file, with a workflow as a conductor writes it.
        pool: the workers that it may name.
        max_steps: the most steps that it may have.

    Raises:
        ConfigError: the file cannot be read.
        WorkflowError: it is no workflow over that pool.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"{path} cannot be read: {reason}") from None
    if len(text) > LARGEST:
        raise ConfigError(f"{path} is too long for a workflow")
    flow = parse_workflow(text, pool, max_steps=max_steps)
    assert not isinstance(flow, AcceptedAnswer)  # noqa: S101 - only a later round may be empty
    digest = blake2b(repr(flow).encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    return named_workflow(f"workflow/{path.stem}@{digest}", flow)
