"""`batuta tasks import`: another program's results as a file of outcomes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from batuta.rendering.terminal import write_error, write_output


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
    from batuta.lab.tasks.recorded.importers import (  # noqa: PLC0415 - loads numpy
        FORMATS,
        describe_left_out,
        import_outcomes,
    )
    from batuta.lab.tasks.recorded.outcome_lines import (  # noqa: PLC0415 - same
        read_outcome_lines,
        write_outcome_rows,
    )

    collected = import_outcomes(kind, files, worker)
    rows = collected.rows()
    write_outcome_rows(rows, out)
    read_outcome_lines(out)
    workers = {name for row in rows for name in row["workers"]}
    write_output(f"{out}: {len(rows):,} questions, {len(workers)} workers\n")
    if collected.differing:
        write_error(
            f"{collected.differing:,} runs had another text under the id of an earlier question; "
            "the first text is kept\n"
        )
    if collected.left_out:
        write_error(f"{describe_left_out(collected)}\n")
    write_error(f"Licence: {FORMATS[kind].licence}.\n")
