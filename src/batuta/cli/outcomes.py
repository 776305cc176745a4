"""`batuta tasks import`: another program's results as a file of outcomes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def import_results(
    kind: Annotated[
        str,
        typer.Argument(metavar="FORMAT", help="routerbench, llmrouterbench, inspect or lm-eval."),
    ],
    files: Annotated[list[Path], typer.Argument(help="Files, or folders that are searched.")],
    out: Annotated[Path, typer.Option(help="The file that is written.")] = Path("outcomes.jsonl"),
    worker: Annotated[str, typer.Option(help="Who answered, where the files do not say so.")] = "",
) -> None:
    """Turn recorded answers into a file for --tasks recorded:FILE and --history FILE."""
    from batuta.tasks.recorded.importers import FORMATS, import_outcomes  # noqa: PLC0415 - loads numpy
    from batuta.tasks.recorded.outcome_lines import (  # noqa: PLC0415 - same
        read_outcome_lines,
        write_outcome_rows,
    )

    collected = import_outcomes(kind, files, worker)
    rows = collected.rows()
    write_outcome_rows(rows, out)
    read_outcome_lines(out)
    workers = {name for row in rows for name in row["workers"]}
    typer.echo(f"{out}: {len(rows):,} questions, {len(workers)} workers")
    if collected.differing:
        typer.echo(
            f"{collected.differing:,} runs had another text under the id of an earlier question; "
            "the first text is kept",
            err=True,
        )
    typer.echo(f"Licence: {FORMATS[kind].licence}.", err=True)
