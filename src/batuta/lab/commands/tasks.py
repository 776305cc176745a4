"""`batuta tasks`: list, show, fetch, import and export questions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import orjson
import typer
from rich.text import Text

from batuta.cli import json_output
from batuta.cli.options import Json, format_example
from batuta.core import Task
from batuta.core.suggestions import suggest_names
from batuta.environment import benchmark_folder
from batuta.errors import ConfigError, SourceError
from batuta.lab.task_sources import REHEARSAL
from batuta.lab.tasks import RECORDED_PREFIX, datasets
from batuta.lab.tasks.datasets import Dataset, HubDataset, reasoning_gym
from batuta.rendering.console import new_table, open_console, print_table
from batuta.rendering.terminal import write_error, write_output

if TYPE_CHECKING:
    from batuta.lab.evals.router_arena import ChoosesWorkers

EXPORT_FORMATS = ("routerarena",)
SEARCHED = 1000
"""Minimum number of generated tasks among which a task is searched by its id."""


def export_choices(
    kind: Annotated[str, typer.Argument(metavar="FORMAT", help="routerarena.")],
    data: Annotated[Path, typer.Argument(help="The benchmark's data file, with the prompts.")],
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("predictions.json"),
    conductor: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="Folder of a selector (batuta train selector)."),
    ] = None,
    history: Annotated[
        Path | None, typer.Option(help="Outcomes to fit --system on, in place of --conductor.")
    ] = None,
    system: Annotated[str, typer.Option(help="With --history: mini, knn, avengers-pro …")] = "mini",
    *,
    names: Annotated[
        Path | None,
        typer.Option(help="JSON object that maps workers' ids to the benchmark's model names."),
    ] = None,
    rephrased: Annotated[
        Path | None, typer.Option(help="A data file with the same questions rephrased.")
    ] = None,
) -> None:
    """Write the worker that a selector or router chooses for each prompt; no model is called.

    With --rephrased, print the share of rephrased questions with the same choice.
    """
    from batuta.lab.evals import router_arena as arena  # noqa: PLC0415 - loads numpy

    if kind not in EXPORT_FORMATS:
        raise ConfigError(f"there is no format {kind!r}; {suggest_names(kind, EXPORT_FORMATS)}")
    chooser = _open_chooser(conductor, history, system)
    known = _read_names(names)
    predictions = arena.predict_arena(chooser, arena.read_arena_questions(data), known)
    again = rephrased and arena.predict_arena(chooser, arena.read_arena_questions(rephrased), known)
    arena.write_predictions(predictions, out)
    chosen = len({entry["prediction"] for entry in predictions})
    write_output(f"{out}: {len(predictions):,} predictions, {chosen} models\n")
    if again is not None:
        share = arena.choice_robustness(predictions, again)
        coverage = "none is in the data file" if share is None else f"{100 * share:.1f} % stay"
        write_output(f"choices for rephrased questions: {coverage}\n")


def _open_chooser(conductor: Path | None, history: Path | None, system: str) -> ChoosesWorkers:
    """Open the selector in the folder, or fit a router or selector to the history.

    Raises:
        ConfigError: neither or both are named, the folder has no selector, or the system cannot
            choose by the question.
        SourceError: the history cannot be read, or lacks something that the system needs.
    """
    from batuta.conductors.selector import Selector, open_selector  # noqa: PLC0415 - loads numpy
    from batuta.lab.baselines import ConductorSolver  # noqa: PLC0415 - same
    from batuta.lab.baselines.routing.router import Router  # noqa: PLC0415 - same
    from batuta.lab.evals.learned_methods import LEARNED_METHODS  # noqa: PLC0415 - same
    from batuta.lab.learners.history import read_history  # noqa: PLC0415 - same

    if (conductor is None) == (history is None):
        raise ConfigError(
            "name one system that chooses: --conductor FOLDER, or --history FILE and --system"
        )
    if conductor is not None:
        return open_selector(conductor)
    if system not in LEARNED_METHODS:
        raise ConfigError(f"{system} does not learn; {suggest_names(system, LEARNED_METHODS)}")
    assert history is not None  # noqa: S101 - checked above
    solver = LEARNED_METHODS[system](read_history(history))
    found = solver.conductor if isinstance(solver, ConductorSolver) else None
    if isinstance(found, Selector | Router):
        return found
    raise ConfigError(f"{system} does not choose by the question's text: use mini or knn")


def _read_names(path: Path | None) -> dict[str, str]:
    if path is None:
        return {}
    try:
        found: Any = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise SourceError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(found, dict):
        raise SourceError(f"{path} is not a JSON object of ids and names")
    return {str(key): str(value) for key, value in cast("dict[Any, Any]", found).items()}


def import_results(
    kind: Annotated[
        str,
        typer.Argument(metavar="FORMAT", help="routerbench, llmrouterbench, inspect or lm-eval."),
    ],
    files: Annotated[list[Path], typer.Argument(help="Files, or folders that are searched.")],
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("outcomes.jsonl"),
    worker: Annotated[
        str, typer.Option(help="The worker that answered, if the files do not name it.")
    ] = "",
) -> None:
    """Convert recorded answers to a file for --tasks recorded:FILE and --history FILE."""
    from batuta.lab.tasks.recorded.importers import FORMATS, describe_left_out, import_outcomes  # noqa: PLC0415 - loads numpy
    from batuta.lab.tasks.recorded.outcome_lines import read_outcome_lines, write_outcome_rows  # noqa: PLC0415 - same

    collected = import_outcomes(kind, files, worker)
    rows = collected.rows()
    write_outcome_rows(rows, out)
    read_outcome_lines(out)
    workers = {name for row in rows for name in row["workers"]}
    write_output(f"{out}: {len(rows):,} questions, {len(workers)} workers\n")
    if collected.differing:
        write_error(
            f"{collected.differing:,} runs had another text for the id of an earlier question; "
            "the first text was kept\n"
        )
    if collected.left_out:
        write_error(f"{describe_left_out(collected)}\n")
    write_error(f"Licence: {FORMATS[kind].licence}.\n")


HIDDEN_TEXT = "[its text is not shown]"

app = typer.Typer(help="Questions: list, show, fetch, import, export.", no_args_is_help=True)

app.command("import", epilog=format_example("batuta tasks import inspect logs"))(import_results)
app.command(
    "export",
    epilog=format_example("batuta tasks export routerarena router_data.json --conductor runs/mini"),
)(export_choices)

Name = Annotated[
    str,
    typer.Argument(
        help="rehearsal[:FAMILY], SOURCE, SOURCE:SPLIT, reasoning-gym:FAMILY, recorded:SET/PART or "
        "FILE.jsonl."
    ),
]
Files = Annotated[
    list[Path] | None,
    typer.Option("--from-file", help="Your own copy of the source's file; may be repeated."),
]
Seed = Annotated[int, typer.Option(help="Seed of the order of options and of generated questions.")]


@app.command("list", epilog=format_example("batuta tasks list"))
def list_sources(json: Json = False) -> None:
    """List the sources with their splits, their licences and the splits that are here."""
    folder = benchmark_folder()
    rows = [_source_json(source, folder) for source in datasets.DATASETS.values()]
    rows += [*_rehearsal_json(), *_generated_json(), *_recorded_json(folder)]
    if json:
        json_output.print_json({"folder": str(folder), "sources": rows})
        return
    table = new_table("source", "splits", "here", "licence", "about")
    for row in rows:
        splits: list[str] = row["splits"]
        here: list[str] = row["here"]
        shown = "all" if here == splits else ", ".join(here) or "-"
        table.add_row(row["name"], ", ".join(splits), shown, row["licence"], row["about"])
    console = open_console()
    console.print(str(folder), style="dim")
    print_table(console, table)


@app.command("show", epilog=format_example("batuta tasks show rehearsal:lists --limit 3"))
def show_tasks(
    name: Name,
    id_: Annotated[
        str | None, typer.Argument(metavar="ID", help="The id of one task; default: the first.")
    ] = None,
    limit: Annotated[int, typer.Option(help="Maximum number of tasks.", min=1)] = 1,
    from_file: Files = None,
    *,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Show tasks of a source as a model receives them, with their answers.

    For a recorded set, show each model's accuracy; for reasoning-gym alone, its families.
    """
    if name.startswith(RECORDED_PREFIX):
        _show_recorded(name.removeprefix(RECORDED_PREFIX), json=json)
    elif name == reasoning_gym.NAME:
        _print_families(json=json)
    else:
        size = limit if id_ is None else max(limit, SEARCHED)
        tasks = _load_tasks(name, from_file or (), seed=seed, size=size)
        if id_ is not None:
            searched, tasks = len(tasks), tuple(task for task in tasks if task.id == id_)
            if not tasks:
                raise SourceError(
                    f"{name} has no task {id_!r} among {searched:,} tasks of seed {seed}"
                )
        _print_tasks(name, tasks, limit, json=json)


def _load_tasks(name: str, files: Sequence[Path], *, seed: int, size: int) -> tuple[Task, ...]:
    """Return all tasks of a source, or the first `size` tasks that a generator makes.

    From the rehearsal, return the questions that `batuta eval` would ask with `size` as its limit.
    """
    if name.partition(":")[0] != REHEARSAL:
        return datasets.load_tasks(name, files=files, seed=seed, size=size)
    from batuta.lab.evals import open_tasks  # noqa: PLC0415 - loads numpy

    return open_tasks(name, size, 0, seed).tasks


@app.command("fetch", epilog=format_example("batuta tasks fetch gsm8k:test"))
def fetch_files(
    name: Annotated[str, typer.Argument(help="SOURCE or SOURCE:SPLIT.")],
    revision: Annotated[
        str | None, typer.Option(help="Another commit on the hub than the pinned one.")
    ] = None,
    json: Json = False,
) -> None:
    """Download a source's files from the Hugging Face hub into the data folder."""
    source, split = datasets.find_split(name)
    folder = benchmark_folder()
    console = open_console(stderr=True)
    paths = datasets.fetch_split(
        source,
        split,
        folder,
        revision=revision,
        on_file=lambda path: console.print(str(path), style="dim"),
    )
    if json:
        json_output.print_json(
            {"name": source.name, "split": split, "files": [str(p) for p in paths]}
        )


def _source_json(source: Dataset, folder: Path) -> dict[str, Any]:
    origin = source.origin
    return {
        "name": source.name,
        "splits": list(source.splits),
        "here": [split for split in source.splits if datasets.local_files(source, split, folder)],
        "licence": source.licence,
        "about": source.description,
        "vendor": source.redistributable,
        "origin": origin.repo if isinstance(origin, HubDataset) else origin,
        "revision": origin.revision if isinstance(origin, HubDataset) else None,
    }


def _rehearsal_json() -> list[dict[str, Any]]:
    from batuta.lab.worlds import HELD_OUT_FAMILY, TRAINING_FAMILIES  # noqa: PLC0415 - only here

    families = [*TRAINING_FAMILIES, HELD_OUT_FAMILY]
    return [
        {
            "name": REHEARSAL,
            "splits": families,
            "here": families,
            "licence": "Apache-2.0",
            "about": "fresh questions of the simulated world; the default of batuta eval",
            "vendor": True,
            "origin": "generated here",
            "revision": None,
        }
    ]


def _generated_json() -> list[dict[str, Any]]:
    return [
        {
            "name": reasoning_gym.NAME,
            "splits": ["FAMILY"],
            "here": ["FAMILY"] if reasoning_gym.is_installed() else [],
            "licence": "Apache-2.0",
            "about": "procedural generators with their own scorers; show lists the families",
            "vendor": True,
            "origin": "the package reasoning-gym",
            "revision": None,
        }
    ]


def _recorded_json(folder: Path) -> list[dict[str, Any]]:
    from batuta.lab.tasks.recorded import PACKAGED_RECORDS, RECORDED_SETS  # noqa: PLC0415 - loads numpy

    packaged = [
        {
            "name": f"{RECORDED_PREFIX}{name}",
            "splits": [name],
            "here": [name],
            "licence": "Apache-2.0",
            "about": "recorded answers of models; comes with Batuta, without the questions",
            "vendor": True,
            "origin": None,
            "revision": None,
        }
        for name in PACKAGED_RECORDS
    ]
    return packaged + [
        {
            "name": f"{RECORDED_PREFIX}{name}",
            "splits": list(kept.parts),
            "here": list(kept.parts) if _has_outcomes(folder / "recorded" / kept.folder) else [],
            "licence": kept.licence,
            "about": "recorded answers of models",
            "vendor": False,
            "origin": None,
            "revision": None,
        }
        for name, kept in RECORDED_SETS.items()
    ]


def _has_outcomes(folder: Path) -> bool:
    return (folder / "outcomes.parquet").is_file()


def _show_recorded(name: str, *, json: bool) -> None:
    from batuta.lab.tasks.recorded import load_recorded, reference_scores  # noqa: PLC0415 - loads numpy

    record = load_recorded(name, with_texts=False)
    found = reference_scores(record)
    accuracies = record.credit_qm().mean(axis=0)
    models = {m: round(float(a), 4) for m, a in zip(record.models, accuracies, strict=True)}
    if json:
        json_output.print_json(
            {
                "name": f"{RECORDED_PREFIX}{name}",
                "questions": found.questions,
                "families": len(set(record.families)),
                "samples": record.scores_qms.shape[2],
                "models": models,
                "best": {"model": found.best_model, "accuracy": found.best},
                "vote": found.vote,
                "oracle": found.oracle,
            }
        )
        return
    console = open_console()
    families = len(set(record.families))
    console.print(f"{found.questions} questions of {families} families, {found.models} models")
    for model, accuracy in sorted(models.items(), key=lambda pair: -pair[1]):
        console.print(f"{100 * accuracy:6.2f} %  {model}")
    vote = "" if found.vote is None else f"plurality vote {100 * found.vote:.2f} %, "
    console.print(f"{vote}oracle {100 * found.oracle:.2f} %")


def _print_families(*, json: bool) -> None:
    families = reasoning_gym.generator_names()
    if json:
        json_output.print_json({"name": reasoning_gym.NAME, "families": list(families)})
    else:
        write_output("".join(f"{family}\n" for family in families))


def _print_tasks(name: str, tasks: tuple[Task, ...], limit: int, *, json: bool) -> None:
    if json:
        shown = [_task_json(task) for task in tasks[:limit]]
        json_output.print_json({"name": name, "count": len(tasks), "tasks": shown})
        return
    console = open_console()
    for task in tasks[:limit]:
        question, target = (
            (HIDDEN_TEXT, HIDDEN_TEXT) if task.private else (task.question, task.target)
        )
        about = f"{task.grader}  {', '.join(task.tags)}"
        console.print(Text.assemble((task.id, "cyan"), "  ", (about, "dim")))
        console.print(question, highlight=False)
        console.print(f"\n→ {target or 'judged by its tests'}\n", highlight=False)
    if len(tasks) > limit:
        console.print(f"{limit} of {len(tasks)} tasks; --limit shows more", style="dim")


def _task_json(task: Task) -> dict[str, Any]:
    known = {
        "id": task.id,
        "grader": task.grader,
        "tags": list(task.tags),
        "difficulty": task.difficulty,
        "private": task.private,
    }
    if task.private:
        return known
    data: Any = orjson.loads(task.data) if task.data else None
    return {**known, "question": task.question, "target": task.target, "data": data}
