"""The screens of training runs and of evaluation reports.

The folders are set by the operator. A URL names a folder by a hash of its path, so that visitors
never supply a path.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, final

import orjson
from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import Response

from batuta.core import Pool, Round, Worker, WorkerId, Workflow
from batuta.core.formatting import format_percent
from batuta.core.workflow import Plan
from batuta.errors import WorkflowError
from batuta.gateway.errors import invalid_value, not_found
from batuta.gateway.serving.models import Catalogue
from batuta.gateway.ui.curves import CURVES, Chart, draw_chart, draw_charts, step_of
from batuta.gateway.ui.rendering import PAGE_HEADERS, PageResponse, render_fragment, render_page
from batuta.gateway.ui.session import WebSession
from batuta.language import parse_workflow

METRICS, SAMPLES, SETTINGS = "metrics.jsonl", "samples.jsonl", "settings.json"
STOP_FILE, STOPPED_FILE = "stop", "stopped"
REPORT, REPORT_PAGE, QUESTION_PAGE = "report.json", "report.html", "questions.html"
_MAX_DEPTH = 4
"""Number of levels of subfolders that are searched for trainings and reports."""
_MAX_FOLDERS = 300
"""Maximum number of folders that a search returns."""
_MAX_BYTES = 64 * 1024 * 1024
"""Maximum number of bytes of a file; a larger file counts as empty."""
_STALE_SECONDS = 120.0
"""Seconds that a training's files stay unchanged, besides three steps, until it has stopped."""
_RECENT_STEPS = 10
"""Number of latest steps; the longest of them gives the time of a step."""

JsonRecord = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ResultFolder:
    """A folder with a training or a report."""

    path: Path
    name: str
    """The path below the searched folder, or the searched folder's own name."""
    modified_at: float
    """Time of the last change of the training or report, in seconds since the epoch."""

    @property
    def mark(self) -> str:
        """The hash of the path that names the folder in URLs."""
        return hashlib.blake2b(str(self.path).encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFolder:
    """A training run, as read from its folder."""

    folder: ResultFolder
    state: str
    """`started` (no step is logged yet), `running`, `stopped` or `finished`."""
    lines: tuple[JsonRecord, ...]
    """The metrics of each logged step, in the order of the log."""
    steps: int | None
    """Planned number of steps; None if unknown."""
    is_asked_to_stop: bool = False
    """True if the training is running and will stop after the current step."""

    @property
    def current_step(self) -> int:
        """The number of the last logged step; 0 if none is logged."""
        return step_of(self.lines[-1]) if self.lines else 0


def find_trainings(folders: Sequence[Path]) -> list[ResultFolder]:
    """Return the folders of training runs, the most recently changed first."""
    return _find_folders(folders, (METRICS, SETTINGS))


def find_reports(folders: Sequence[Path]) -> list[ResultFolder]:
    """Return the folders of reports, the newest first."""
    return _find_folders(folders, (REPORT,))


def drop_copies(found: Sequence[ResultFolder]) -> list[ResultFolder]:
    """Keep one folder of each report, because `--out` and `--report` write the same report.

    The first copy with an HTML page is kept, or else the first copy.
    """
    chosen: dict[bytes, ResultFolder] = {}
    for each in found:
        content = _read_bytes(each.path / REPORT)
        digest = hashlib.sha256(content or str(each.path).encode()).digest()
        before = chosen.get(digest)
        if before is None or (_has_page(each) and not _has_page(before)):
            chosen[digest] = each
    kept = set(chosen.values())
    return [each for each in found if each in kept]


def _has_page(report: ResultFolder) -> bool:
    return (report.path / REPORT_PAGE).is_file()


def folder_by_mark(found: Sequence[ResultFolder], mark: str) -> ResultFolder | None:
    """Return the folder with that mark; None if it is not among those found."""
    return next((each for each in found if each.mark == mark), None)


def read_training(found: ResultFolder, now: float | None = None) -> TrainingFolder:
    """Return the training in the folder, with its state at `now`; None means the current time."""
    logged = read_lines(found.path / METRICS)
    lines = tuple(line for line in logged if isinstance(line.get("step", 0), int))
    steps = _planned_steps(found.path)
    state = _training_state(found, lines, steps, now or time.time())
    return TrainingFolder(
        folder=found,
        state=state,
        lines=lines,
        steps=steps,
        is_asked_to_stop=state == "running" and (found.path / STOP_FILE).exists(),
    )


def read_samples(found: ResultFolder) -> list[JsonRecord]:
    """Return the samples in the folder of a training; empty if there are none."""
    return read_lines(found.path / SAMPLES)


def read_report(found: ResultFolder) -> list[JsonRecord]:
    """Return the reports in the folder's file, which holds one report or a list of reports.

    A report of `batuta tune` is returned in the form of an evaluation's report. The list is empty
    if the file cannot be read or holds something else.
    """
    data = _read_json(found.path / REPORT)
    several = cast("list[Any]", data) if isinstance(data, list) else [data]
    several = [_tuning_report(each) if _is_tuning(each) else each for each in several]
    return [cast("JsonRecord", each) for each in several if _is_report(each)]


def _is_report(value: Any) -> bool:
    """Return True if the value is a report; other programs write files of the same name too."""
    report: JsonRecord = cast("JsonRecord", value if isinstance(value, dict) else {})
    systems: Any = report.get("systems")
    lists: list[Any] = [
        report.get(name) or [] for name in ("why", "references", "seeds", "workflows")
    ]
    if not isinstance(systems, dict) or not all(isinstance(each, list) for each in lists):
        return False
    return all(map(_has_figures, cast("JsonRecord", systems).values()))


def _has_figures(system: Any) -> bool:
    known = cast("JsonRecord", system) if isinstance(system, dict) else {"n": ""}
    figures = (known.get(name) for name in ("accuracy", "n"))
    return all(each is None or isinstance(each, int | float) for each in figures)


def find_evaluations(
    training: ResultFolder, trainings: Sequence[ResultFolder], reports: Sequence[ResultFolder]
) -> list[ResultFolder]:
    """Return the reports in the training's folder, and those about a conductor trained there."""
    own = training.path.resolve()
    paths = {each.path.resolve() for each in trainings}
    return [
        each
        for each in reports
        if each.path.resolve().is_relative_to(own) or _conductor_home(each, paths) == own
    ]


def _conductor_home(report: ResultFolder, paths: set[Path]) -> Path | None:
    """Return the training folder of the report's conductor; None if it cannot be determined.

    The report's command may name the conductor relative to an unknown working directory, so the
    training is found by the end of its path, which must be unique.
    """
    command = next((str(each.get("command") or "") for each in read_report(report)), "")
    try:
        words = [*shlex.split(command.replace("--conductor=", "--conductor ")), ""]
    except ValueError:
        return None
    if "--conductor" not in words[:-1]:
        return None
    path = Path(words[words.index("--conductor") + 1])
    for folder in (path, *path.parents):
        size = len(folder.parts)
        homes = [each for each in paths if size and each.parts[-size:] == folder.parts]
        if homes:
            return homes[0] if len(homes) == 1 else None
    return None


def _is_tuning(data: Any) -> bool:
    return isinstance(data, dict) and cast("JsonRecord", data).get("kind") == "tuning"


def _tuning_report(data: JsonRecord) -> JsonRecord:
    """Return a report of `batuta tune` as an evaluation's report on its last stage's systems."""
    figures: list[Any] = []
    for name in ("selection", "finalists", "judged"):
        stage = data.get(name)
        figures = cast("list[Any]", stage) if isinstance(stage, list) and stage else figures
    known = [cast("JsonRecord", each) for each in figures if isinstance(each, dict)]
    advice = data.get("recommendation")
    return {
        "tasks": "A tuned pool",
        "questions": max(
            (n for each in known if isinstance(n := each.get("questions"), int)), default=0
        ),
        "systems": {
            str(each.get("name")): {
                "accuracy": each.get("share"),
                "ci95": None if None in (ends := (each.get("low"), each.get("high"))) else ends,
                "n": each.get("questions"),
                "calls": each.get("calls"),
                "usd": each.get("usd"),
            }
            for each in known
        },
        "why": cast("JsonRecord", advice).get("why", []) if isinstance(advice, dict) else [],
        "workflows": data.get("workflows") or [],
        "spent": data.get("spent"),
    }


def _read_line(text: bytes) -> Any:
    """Decode a line of JSON; NaN and Infinity, as written by earlier versions, become None.

    Raises:
        ValueError: the line is not JSON.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return json.loads(text, parse_constant=lambda _: None)


def read_lines(path: Path) -> list[JsonRecord]:
    """Return the objects in a JSONL file; lines that are not JSON objects are left out.

    The list is empty if the file cannot be read or is too large.
    """
    lines: list[JsonRecord] = []
    for text in _read_bytes(path).split(b"\n"):
        try:
            value = _read_line(text)
        except ValueError:
            continue
        if isinstance(value, dict):
            lines.append(cast("JsonRecord", value))
    return lines


def _find_folders(folders: Sequence[Path], files: Sequence[str]) -> list[ResultFolder]:
    seen: dict[Path, ResultFolder] = {}
    for root in folders:
        for folder in _walk_folders(root, _MAX_DEPTH):
            changed = [m for name in files if (m := _modified_at(folder / name)) is not None]
            if changed:
                name = folder.name if folder == root else str(folder.relative_to(root))
                seen.setdefault(folder.resolve(), ResultFolder(folder, name, max(changed)))
    return sorted(seen.values(), key=lambda each: -each.modified_at)[:_MAX_FOLDERS]


def _walk_folders(folder: Path, depth: int) -> Iterator[Path]:
    """Yield the folder and `depth` levels of its subfolders.

    Links, hidden folders and checkpoints are left out.
    """
    yield folder
    if not depth:
        return
    try:
        inside = sorted(p for p in folder.iterdir() if p.is_dir() and not p.is_symlink())
    except OSError:
        return
    for path in inside:
        if not path.name.startswith((".", "checkpoint")):
            yield from _walk_folders(path, depth - 1)


def _modified_at(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _planned_steps(folder: Path) -> int | None:
    data = _read_json(folder / SETTINGS)
    try:
        return int(cast("Any", data)["optimiser"]["steps"])
    except (KeyError, TypeError, ValueError):
        return None


def _training_state(
    found: ResultFolder, lines: Sequence[JsonRecord], steps: int | None, now: float
) -> str:
    if not lines:
        return "started"
    if steps is not None and lines[-1].get("step", 0) >= steps:
        return "finished"
    if (found.path / STOPPED_FILE).exists():
        return "stopped"
    times = (line.get("step_time") for line in lines[-_RECENT_STEPS:])
    usual = max((time for time in times if isinstance(time, int | float)), default=0.0)
    return "running" if now - found.modified_at < _STALE_SECONDS + 3 * usual else "stopped"


def _read_json(path: Path) -> object:
    try:
        return orjson.loads(_read_bytes(path))
    except orjson.JSONDecodeError:
        return None


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes() if path.stat().st_size <= _MAX_BYTES else b""
    except OSError:
        return b""


_LONGEST_VALUE = 80
"""Maximum number of characters shown of a setting's value."""
MOST_OVERLAID = 4
"""Maximum number of trainings whose curves are overlaid."""
_MAX_CHANGED = 200
"""Maximum number of differing settings shown."""


def overlay_charts(runs: Sequence[TrainingFolder]) -> list[Chart]:
    """Return a chart for the first metric of each entry of `CURVES`, with a curve per training."""
    found: list[Chart | None] = []
    names = [(str(at), run.folder.name) for at, run in enumerate(runs)]
    for title, ((key, _), *_) in CURVES:
        by_step: dict[int, dict[str, Any]] = {}
        for at, run in enumerate(runs):
            for line in run.lines:
                step = step_of(line)
                by_step.setdefault(step, {"step": step})[str(at)] = line.get(key)
        merged = [by_step[step] for step in sorted(by_step)]
        found.append(draw_chart(title, names, merged, joins_gaps=True) if merged else None)
    return [chart for chart in found if chart]


def compare_settings(folders: Sequence[Path]) -> list[tuple[str, list[str]]]:
    """Return the settings that differ, each with its value in every training's folder.

    For a training without the setting, the value is a dash.
    """
    settings = [dict(_flat_settings(_read_json(path / SETTINGS))) for path in folders]
    rows = [
        (name, [values.get(name, "–") for values in settings])
        for name in sorted({n for t in settings for n in t})
    ]
    return [(name, values) for name, values in rows if len(set(values)) > 1][:_MAX_CHANGED]


def _flat_settings(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for name, inner in cast("Mapping[str, object]", value).items():
            yield from _flat_settings(inner, f"{path}.{name}" if path else name)
    elif path:
        yield path, str(value)[:_LONGEST_VALUE]


REPORT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'; sandbox"
)
"""The policy of report pages: inline styles, images as data, no scripts and no network access."""
_MAX_LISTED = 40
"""Maximum number of trainings, and of reports, in a list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSample:
    """A workflow draft that was sampled in training."""

    line: JsonRecord
    pool: Pool | None = None
    """The workers that the draft could use; None if the draft is not a valid workflow."""
    round: Round | None = None
    """The draft as a round to be drawn; None if the draft is not a valid workflow."""
    reason: str = ""
    """The draft's error; it may be empty even if the draft is not a valid workflow."""


@final
class LearningPages:
    """Serves the screens below /ui/learning."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    async def page(self, request: Request, session: WebSession) -> Response:
        """Show the list of trainings and reports."""
        runs = await run_sync(find_trainings, self._folders)
        seen = [await run_sync(read_training, each) for each in runs[:_MAX_LISTED]]
        found = await run_sync(find_reports, self._folders)
        found = await run_sync(drop_copies, found[: 2 * _MAX_LISTED])
        reports = [(each, await run_sync(_report_headlines, each)) for each in found[:_MAX_LISTED]]
        return render_page(
            request,
            "learning.html.jinja",
            session=session,
            trainings=seen,
            reports=[(each, lines) for each, lines in reports if lines],
            folders=self._folders,
        )

    async def training(self, request: Request, session: WebSession) -> Response:
        """Show one training with its curves and sampled workflows.

        The query parameter `part` selects the curves alone, as a fragment. If `with` has the marks
        of other trainings, a comparison with these trainings is shown instead.

        Raises:
            APIError: a training does not exist, or too many are to be compared.
        """
        found = await self._find_folder(request, find_trainings)
        run = await run_sync(read_training, found)
        beside = [mark for mark in request.query_params.getlist("with") if mark]
        if beside:
            return await self._compare(request, session, run, beside)
        drawn = draw_charts(run.lines)
        if request.query_params.get("part"):
            body = render_fragment("curves.html.jinja", run=run, charts=drawn)
            return PageResponse(body)
        samples = await run_sync(read_samples, found)
        steps = sorted({step for line in samples if isinstance(step := line.get("step"), int)})
        selected = _selected_step(request.query_params.get("step"), steps)
        shown = [_parse_sample(line) for line in samples if line.get("step") == selected]
        return render_page(
            request,
            "training.html.jinja",
            session=session,
            run=run,
            charts=drawn,
            steps=steps,
            step=selected,
            samples=shown,
            everybody=_all_workers(self._catalogue.pool, shown),
            others=await self._list_others(found),
            evaluations=await run_sync(self._list_evaluations, found),
        )

    def _list_evaluations(self, found: ResultFolder) -> list[tuple[ResultFolder, list[str]]]:
        reports = drop_copies(find_reports(self._folders)[: 2 * _MAX_LISTED])
        own = find_evaluations(found, find_trainings(self._folders), reports)
        return [(each, lines) for each in own if (lines := _report_headlines(each))]

    async def _list_others(self, found: ResultFolder) -> list[ResultFolder]:
        known = await run_sync(find_trainings, self._folders)
        return [each for each in known if each.mark != found.mark][:_MAX_LISTED]

    async def _compare(
        self, request: Request, session: WebSession, run: TrainingFolder, marks: Sequence[str]
    ) -> Response:
        if len(marks) >= MOST_OVERLAID:
            raise invalid_value("with", f"at most {MOST_OVERLAID} trainings can be compared.")
        known = await run_sync(find_trainings, self._folders)
        chosen = [folder_by_mark(known, mark) for mark in dict.fromkeys(marks)]
        found = [each for each in chosen if each is not None and each.mark != run.folder.mark]
        if len(found) < len(chosen):
            raise not_found("The training to compare with")
        runs = [run, *[await run_sync(read_training, each) for each in found]]
        shown = {each.folder.mark for each in runs}
        return render_page(
            request,
            "training_versus.html.jinja",
            session=session,
            runs=runs,
            charts=overlay_charts(runs),
            changed=await run_sync(compare_settings, [each.folder.path for each in runs]),
            others=[each for each in known if each.mark not in shown][:_MAX_LISTED]
            if len(runs) < MOST_OVERLAID
            else [],
        )

    async def report(self, request: Request, session: WebSession) -> Response:
        """Show the figures of the reports in one folder.

        Raises:
            APIError: the folder has no report.
        """
        found = await self._find_folder(request, find_reports)
        figures = await run_sync(read_report, found)
        return render_page(
            request,
            "report.html.jinja",
            session=session,
            found=found,
            reports=[(each, rank_systems(each)) for each in figures],
            whole=_has_page(found),
            questions=(found.path / QUESTION_PAGE).is_file(),
        )

    async def report_page(self, request: Request, _: WebSession) -> Response:
        """Send the report's HTML page, as it was written.

        Raises:
            APIError: the report, or its page, does not exist.
        """
        return await self._send_page(request, REPORT_PAGE, "The report's page")

    async def question_page(self, request: Request, _: WebSession) -> Response:
        """Send the HTML page of the report's questions, with each system's grades and answers.

        Raises:
            APIError: the report, or this page of it, does not exist.
        """
        return await self._send_page(request, QUESTION_PAGE, "The page of the report's questions")

    async def _send_page(self, request: Request, name: str, what: str) -> Response:
        path = (await self._find_folder(request, find_reports)).path / name
        if not await run_sync(path.is_file):
            raise not_found(what)
        headers = {**PAGE_HEADERS, "content-security-policy": REPORT_POLICY}
        return PageResponse(await run_sync(path.read_bytes), headers=headers)

    @property
    def _folders(self) -> Sequence[Path]:
        """The folders to search; they may change when the settings are reloaded."""
        return self._catalogue.page_context.folders

    async def _find_folder(self, request: Request, search: Any) -> ResultFolder:
        found = folder_by_mark(await run_sync(search, self._folders), request.path_params["mark"])
        if found is None:
            raise not_found("The training or report")
        return found


def rank_systems(report: JsonRecord) -> list[tuple[str, JsonRecord]]:
    """Return a report's systems with their figures, the most accurate system first."""
    systems: Mapping[str, JsonRecord] = report["systems"]
    return sorted(systems.items(), key=lambda item: -(item[1].get("accuracy") or 0.0))


def _report_headlines(found: ResultFolder) -> list[str]:
    """Return the headlines of the first five reports in the folder's file."""
    return [_report_headline(each) for each in read_report(found)][:5]


def _report_headline(report: JsonRecord) -> str:
    if report.get("why"):
        return " ".join(map(str, report["why"]))
    references = report.get("references") or ()
    known = [
        each for each in rank_systems(report) if each[0] not in references and each[1].get("n")
    ]
    asked = f"{report.get('tasks', 'tasks')}: {report.get('questions', '?')} questions"
    if not known:
        return asked
    name, figures = known[0]
    return f"{asked}; most accurate: {name}, {format_percent(figures.get('accuracy') or 0, 1)}"


def _selected_step(given: str | None, steps: Sequence[int]) -> int | None:
    """Return the requested step if `steps` has it, else the last step; None if there are none."""
    if given and given.isascii() and given.isdigit() and int(given[:9]) in steps:
        return int(given[:9])
    return steps[-1] if steps else None


def _all_workers(pool: Pool, samples: Sequence[TrainingSample]) -> Pool:
    """Return this server's workers followed by the other workers of the samples."""
    seen = {worker.id: worker for sample in samples if sample.pool for worker in sample.pool}
    others = [seen[name] for name in sorted(seen) if name not in pool]
    return Pool((*pool, *others))


def _parse_sample(line: JsonRecord) -> TrainingSample:
    names: Any = line.get("pool")
    try:
        pool = Pool(tuple(Worker(id=WorkerId(str(name)), model=str(name)) for name in names))
        flow = parse_workflow(str(line.get("draft", "")), pool)
    except WorkflowError as error:
        return TrainingSample(line=line, reason=str(error))
    except (TypeError, ValueError):
        return TrainingSample(line=line)
    if not isinstance(flow, Workflow):
        return TrainingSample(line=line)
    return TrainingSample(line=line, pool=pool, round=Round(decision=Plan(flow), workflow=flow))
