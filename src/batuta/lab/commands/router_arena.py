"""`batuta tasks export`: a selector's choices in the form of another benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import orjson
import typer

from batuta.core.suggestions import suggest_names
from batuta.errors import ConfigError, SourceError
from batuta.rendering.terminal import write_output

if TYPE_CHECKING:
    from batuta.lab.evals.router_arena import ChoosesWorkers

FORMATS = ("routerarena",)


def export_choices(
    kind: Annotated[str, typer.Argument(metavar="FORMAT", help="routerarena.")],
    data: Annotated[Path, typer.Argument(help="Its data file, with the prompts.")],
    out: Annotated[Path, typer.Option(help="The file that is written.")] = Path("predictions.json"),
    conductor: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="Folder of a selector (batuta train selector)."),
    ] = None,
    history: Annotated[
        Path | None, typer.Option(help="Outcomes that --system is fitted on instead.")
    ] = None,
    system: Annotated[str, typer.Option(help="With --history: mini, knn, avengers-pro …")] = "mini",
    *,
    names: Annotated[
        Path | None,
        typer.Option(help="JSON: from the workers' ids to the benchmark's model names."),
    ] = None,
    rephrased: Annotated[
        Path | None, typer.Option(help="A data file with the same questions rephrased.")
    ] = None,
) -> None:
    """Write which worker a selector or router chooses for each prompt; no model is called.

    With --rephrased, say for what share of the rephrased questions the choice stays.
    """
    from batuta.lab.evals import router_arena as arena  # noqa: PLC0415 - loads numpy

    if kind not in FORMATS:
        raise ConfigError(f"there is no format {kind!r}; {suggest_names(kind, FORMATS)}")
    chooser = _open_chooser(conductor, history, system)
    known = _read_names(names)
    predictions = arena.predict_arena(chooser, arena.read_arena_questions(data), known)
    again = rephrased and arena.predict_arena(chooser, arena.read_arena_questions(rephrased), known)
    arena.write_predictions(predictions, out)
    chosen = len({entry["prediction"] for entry in predictions})
    write_output(f"{out}: {len(predictions):,} predictions, {chosen} models\n")
    if again is not None:
        share = arena.choice_robustness(predictions, again)
        coverage = "none is of the data file" if share is None else f"{100 * share:.1f} % stay"
        write_output(f"choices for rephrased questions: {coverage}\n")


def _open_chooser(conductor: Path | None, history: Path | None, system: str) -> ChoosesWorkers:
    """Return who chooses."""
    from batuta.conductors.selector import Selector, open_selector  # noqa: PLC0415 - same
    from batuta.lab.baselines import ConductorSolver  # noqa: PLC0415 - loads numpy
    from batuta.lab.baselines.routing.router import Router  # noqa: PLC0415 - same
    from batuta.lab.evals.learned_methods import LEARNED_METHODS  # noqa: PLC0415 - same
    from batuta.lab.learners.history import read_history  # noqa: PLC0415 - same

    if (conductor is None) == (history is None):
        raise ConfigError(
            "say which system chooses: --conductor FOLDER, or --history FILE and --system"
        )
    if conductor is not None:
        return open_selector(conductor)
    if system not in LEARNED_METHODS:
        raise ConfigError(f"{system} does not learn; {suggest_names(system, LEARNED_METHODS)}")
    assert history is not None  # noqa: S101 - told above
    solver = LEARNED_METHODS[system](read_history(history))
    found = solver.conductor if isinstance(solver, ConductorSolver) else None
    if isinstance(found, Selector | Router):
        return found
    raise ConfigError(f"{system} does not choose by the question's text: take mini or knn")


def _read_names(path: Path | None) -> dict[str, str]:
    if path is None:
        return {}
    try:
        found: Any = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise SourceError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(found, dict):
        raise SourceError(f"{path} is not a JSON object of ids and names")
    return {str(one): str(other) for one, other in cast("dict[Any, Any]", found).items()}
