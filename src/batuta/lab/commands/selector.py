"""`batuta train selector`: a question's text to one worker, learned from outcomes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from batuta.cli.progress import open_progress_bars
from batuta.core.formatting import format_count, format_percent
from batuta.rendering.terminal import write_output

if TYPE_CHECKING:
    from batuta.lab.train.selector_training import SelectorTraining


def selector(
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    history: Annotated[
        Path | None,
        typer.Option(help="Outcomes, a JSON line a question: question, workers, each one's score."),
    ] = None,
    tasks: Annotated[
        str | None, typer.Option(help="A recorded set, such as recorded:reasoning_gym/hard.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the split and the folds.")] = 0,
    *,
    name: Annotated[str, typer.Option(help="Its name in traces.")] = "mini",
    dollar: Annotated[
        float, typer.Option(min=0, help="Credit that a dollar is worth; 0: cost does not count.")
    ] = 0.0,
    embedding: Annotated[
        str | None,
        typer.Option(
            help="Not hashed n-grams: minilm (extra encoder), or a sentence-transformers model."
        ),
    ] = None,
    search: Annotated[bool, typer.Option("--search/--no-search", hidden=True)] = True,  # noqa: ARG001 - earlier versions had a search, and scripts say so
) -> None:
    """Learn from recorded outcomes which worker should answer which question.

    No model is called. A fifth of the questions is held out for the measurement. If the outcomes
    include the answers, the cascade is trained too.
    """
    from batuta.conductors.feature_kinds import choose_features  # noqa: PLC0415 - loads numpy
    from batuta.lab.learners.selector_training import SelectorRecipe  # noqa: PLC0415
    from batuta.lab.train.selector_training import read_outcomes, train_selector  # noqa: PLC0415

    recipe = SelectorRecipe(name=name, features=choose_features(embedding), dollar=dollar)
    known = read_outcomes(history, tasks)
    with open_progress_bars() as bar:
        bar.add_task("features and folds", total=None, status="")
        trained = train_selector(known, out, recipe, seed=seed)
    write_output(f"{training_summary(trained)}\n")


def training_summary(trained: SelectorTraining) -> str:
    """Return the training in one line."""
    credit, best, oracle = (
        format_percent(share, 1) for share in (trained.credit, trained.best_single, trained.oracle)
    )
    also = ""
    if trained.cascade:
        share, calls = trained.cascade
        also = f", the cascade {format_percent(share, 1)} with {calls:.2f} calls"
    return (
        f"{trained.name} in {trained.folder}: {trained.workers} workers, "
        f"{format_count(trained.training_questions)} questions; on "
        f"{format_count(trained.held_out_questions)} held-out ones {credit}, best single worker "
        f"{best}, oracle {oracle}{also}"
    )
