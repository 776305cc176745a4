"""Screens of training runs as they go, and of reports of what was measured.

The folders are the operator's; a visitor names one only by a mark that is computed from its path,
so that no path comes from outside.
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
"""Folders below one that is searched."""
_MAX_FOLDERS = 300
"""Folders that are shown."""
_MAX_BYTES = 64 * 1024 * 1024
_STALE_SECONDS = 120.0
"""Seconds without a new line, beyond a few steps' time, after which a training has stopped."""
_RECENT_STEPS = 10

JsonRecord = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ResultFolder:
    """A folder with something to show."""

    path: Path
    name: str
    """The path within the searched folder."""
    modified_at: float
    """Seconds since the epoch."""

    @property
    def mark(self) -> str:
        """The folder's name on the page."""
        return hashlib.blake2b(str(self.path).encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingFolder:
    """A training run as its folder tells it."""

    folder: ResultFolder
    state: str
    """`running`, `stopped`, `finished` or `begun`."""
    lines: tuple[JsonRecord, ...]
    """The figures of each step."""
    steps: int | None
    """Steps of the whole training; None if not written down."""
    is_asked_to_stop: bool = False
    """True if it runs and is to end after its step."""

    @property
    def current_step(self) -> int:
        """The step it has come to."""
        return int(self.lines[-1].get("step", 0)) if self.lines else 0


def find_trainings(folders: Sequence[Path]) -> list[ResultFolder]:
    """Return the folders of training runs, the one that changed last first."""
    return _find_folders(folders, (METRICS, SETTINGS))


def find_reports(folders: Sequence[Path]) -> list[ResultFolder]:
    """Return the folders of reports, the newest first."""
    return _find_folders(folders, (REPORT,))


def drop_copies(found: Sequence[ResultFolder]) -> list[ResultFolder]:
    """Keep one of the folders that have the same report, as `--out` and `--report` make them.

    It is the one with the report's own page, if one has it.
    """
    chosen: dict[bytes, ResultFolder] = {}
    for each in found:
        content = _read_bytes(each.path / REPORT)
        digest = hashlib.sha256(content or str(each.path).encode()).digest()
        before = chosen.get(digest)
        if before is None or not (before.path / REPORT_PAGE).is_file():
            has_page = (each.path / REPORT_PAGE).is_file()
            chosen[digest] = each if before is None or has_page else before
    kept = set(chosen.values())
    return [each for each in found if each in kept]


def folder_by_mark(found: Sequence[ResultFolder], mark: str) -> ResultFolder | None:
    """Return the one of that mark."""
    return next((each for each in found if each.mark == mark), None)


def read_training(found: ResultFolder, now: float | None = None) -> TrainingFolder:
    """Read the folder's contents."""
    lines = tuple(read_lines(found.path / METRICS))
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
    """Return the workflows that were sampled."""
    return read_lines(found.path / SAMPLES)


def read_report(found: ResultFolder) -> list[JsonRecord]:
    """Return the report, or the several of an index; none if the file is something else."""
    data = _read_json(found.path / REPORT)
    several = cast("list[Any]", data) if isinstance(data, list) else [data]
    several = [_tuning_report(each) if _is_tuning(each) else each for each in several]
    return [
        cast("JsonRecord", each)
        for each in several
        if isinstance(each, dict) and isinstance(cast("JsonRecord", each).get("systems"), dict)
    ]


def find_evaluations(
    training: ResultFolder, trainings: Sequence[ResultFolder], reports: Sequence[ResultFolder]
) -> list[ResultFolder]:
    """Return the reports in the training's folder, and those of a conductor that came from it."""
    place = training.path.resolve()
    places = {each.path.resolve() for each in trainings}
    return [
        each
        for each in reports
        if each.path.resolve().is_relative_to(place) or _conductor_home(each, places) == place
    ]


def _conductor_home(report: ResultFolder, places: set[Path]) -> Path | None:
    """Return the training that the report's conductor came from; None if it is not sure.

    The command names the conductor relative to the folder it was run in, which nobody knows.
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
        homes = [each for each in places if size and each.parts[-size:] == folder.parts]
        if homes:
            return homes[0] if len(homes) == 1 else None
    return None


def _is_tuning(data: Any) -> bool:
    return isinstance(data, dict) and cast("JsonRecord", data).get("kind") == "tuning"


def _tuning_report(data: JsonRecord) -> JsonRecord:
    """Turn a report of `batuta tune` into the form of an evaluation: the systems judged last."""
    figures: list[Any] = []
    for name in ("selection", "finalists", "judged"):
        stage = data.get(name)
        figures = cast("list[Any]", stage) if isinstance(stage, list) and stage else figures
    known = [cast("JsonRecord", one) for one in figures if isinstance(one, dict)]
    advice = data.get("recommendation")
    return {
        "tasks": "A tuned pool",
        "questions": max((int(one.get("questions") or 0) for one in known), default=0),
        "systems": {
            str(one.get("name")): {
                "accuracy": one.get("share"),
                "ci95": (one["low"], one["high"]) if one.get("high") is not None else None,
                "n": one.get("questions"),
                "calls": one.get("calls"),
                "usd": one.get("usd"),
            }
            for one in known
        },
        "why": cast("JsonRecord", advice).get("why", []) if isinstance(advice, dict) else [],
        "workflows": data.get("workflows") or [],
        "spent": data.get("spent"),
    }


def _read_line(text: bytes) -> Any:
    """Read the value of a line; NaN and Infinity, which earlier versions wrote, are None.

    Raises:
        ValueError: it is not JSON.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return json.loads(text, parse_constant=lambda _: None)


def read_lines(path: Path) -> list[JsonRecord]:
    """Return the whole lines of a JSONL file.

    None if it is not there; a line cut short is left out.
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
    """Yield the folder and those in it; links are not followed."""
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
        return "begun"
    if steps is not None and lines[-1].get("step", 0) >= steps:
        return "finished"
    if (found.path / STOPPED_FILE).exists():
        return "stopped"
    usual = max(float(line.get("step_time") or 0.0) for line in lines[-_RECENT_STEPS:])
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
"""Characters of a setting that are shown."""
MOST_OVERLAID = 4
"""Trainings whose curves are drawn over each other."""
_MAX_CHANGED = 200
"""Settings that are shown where two trainings differ."""


def overlay_charts(runs: Sequence[TrainingFolder]) -> list[Chart]:
    """Draw the curves of several trainings over each other, by their steps."""
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
    """Return the settings in which the trainings differ: each one's name and values."""
    settings = [dict(_flat_settings(_read_json(path / SETTINGS))) for path in folders]
    rows = [
        (name, [one.get(name, "–") for one in settings])
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
"""A report is one file with its own styles; it runs no script and reaches nothing."""
_MAX_LISTED = 40
"""Trainings whose figures are read for the list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSample:
    """A workflow that was sampled in training."""

    line: JsonRecord
    pool: Pool | None
    round: Round | None
    """The picture of the draft; None if it is no workflow."""
    reason: str = ""
    """Why it is none."""


@final
class LearningPages:
    """The screens."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue

    async def page(self, request: Request, session: WebSession) -> Response:
        """Return every training and every report."""
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
        """Return one training: curves and sampled workflows; `part` answers the moving part alone.

        With others' marks in `with` it is all of them, one over the other.
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
        wanted = _selected_step(request.query_params.get("step"), steps)
        shown = [_parse_sample(line) for line in samples if line.get("step") == wanted]
        return render_page(
            request,
            "training.html.jinja",
            session=session,
            run=run,
            charts=drawn,
            steps=steps,
            step=wanted,
            samples=shown,
            everybody=_all_workers(self._catalogue.pool, shown),
            others=await self._list_others(found),
            evaluations=await run_sync(self._list_evaluations, found),
        )

    def _list_evaluations(self, found: ResultFolder) -> list[tuple[ResultFolder, list[str]]]:
        """Return the reports about what this training has made, each with its headlines."""
        reports = drop_copies(find_reports(self._folders)[: 2 * _MAX_LISTED])
        own = find_evaluations(found, find_trainings(self._folders), reports)
        return [(each, lines) for each in own if (lines := _report_headlines(each))]

    async def _list_others(self, found: ResultFolder) -> list[ResultFolder]:
        """Return the trainings that this one can be compared with."""
        known = await run_sync(find_trainings, self._folders)
        return [each for each in known if each.mark != found.mark][:_MAX_LISTED]

    async def _compare(
        self, request: Request, session: WebSession, run: TrainingFolder, marks: Sequence[str]
    ) -> Response:
        if len(marks) >= MOST_OVERLAID:
            raise invalid_value("with", f"at most {MOST_OVERLAID} trainings are compared.")
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
        """Return one report's figures."""
        found = await self._find_folder(request, find_reports)
        figures = await run_sync(read_report, found)
        return render_page(
            request,
            "report.html.jinja",
            session=session,
            found=found,
            reports=[(each, rank_systems(each)) for each in figures],
            whole=(found.path / REPORT_PAGE).is_file(),
            questions=(found.path / QUESTION_PAGE).is_file(),
        )

    async def report_page(self, request: Request, _: WebSession) -> Response:
        """Return the report's own page, with its figures, as it was written."""
        return await self._send_page(request, REPORT_PAGE, "The report's page")

    async def question_page(self, request: Request, _: WebSession) -> Response:
        """Return the page of the report's questions, with each system's grade and answer."""
        return await self._send_page(request, QUESTION_PAGE, "The page of the report's questions")

    async def _send_page(self, request: Request, name: str, what: str) -> Response:
        path = (await self._find_folder(request, find_reports)).path / name
        if not await run_sync(path.is_file):
            raise not_found(what)
        headers = {**PAGE_HEADERS, "content-security-policy": REPORT_POLICY}
        return PageResponse(await run_sync(path.read_bytes), headers=headers)

    @property
    def _folders(self) -> Sequence[Path]:
        """The folders to look in; the settings may be read again while the server runs."""
        return self._catalogue.page_context.folders

    async def _find_folder(self, request: Request, search: Any) -> ResultFolder:
        found = folder_by_mark(await run_sync(search, self._folders), request.path_params["mark"])
        if found is None:
            raise not_found("What you look for")
        return found


def rank_systems(report: JsonRecord) -> list[tuple[str, JsonRecord]]:
    """Return the systems of a report, the best first."""
    systems: Mapping[str, JsonRecord] = report["systems"]
    return sorted(systems.items(), key=lambda item: -(item[1].get("accuracy") or 0.0))


def _report_headlines(found: ResultFolder) -> list[str]:
    """Return a sentence for each report of a file."""
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
    return f"{asked}; right most often: {name}, {format_percent(figures.get('accuracy') or 0, 1)}"


def _selected_step(given: str | None, steps: Sequence[int]) -> int | None:
    """Return the step that was asked for, or the last."""
    if given and given.isascii() and given.isdigit() and int(given[:9]) in steps:
        return int(given[:9])
    return steps[-1] if steps else None


def _all_workers(pool: Pool, samples: Sequence[TrainingSample]) -> Pool:
    """Return the workers of all samples, this server's first, each with its colour."""
    seen = {worker.id: worker for sample in samples if sample.pool for worker in sample.pool}
    others = [seen[name] for name in sorted(seen) if name not in pool]
    return Pool((*pool, *others))


def _parse_sample(writer: JsonRecord) -> TrainingSample:
    names: Any = writer.get("pool")
    try:
        pool = Pool(tuple(Worker(id=WorkerId(str(name)), model=str(name)) for name in names))
        flow = parse_workflow(str(writer.get("draft", "")), pool)
    except WorkflowError as error:
        return TrainingSample(line=writer, pool=None, round=None, reason=str(error))
    except (TypeError, ValueError):
        return TrainingSample(line=writer, pool=None, round=None)
    if not isinstance(flow, Workflow):
        return TrainingSample(line=writer, pool=None, round=None)
    return TrainingSample(line=writer, pool=pool, round=Round(decision=Plan(flow), workflow=flow))
