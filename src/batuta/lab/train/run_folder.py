"""The folder of a training: settings, metrics, evaluations, samples, checkpoints and the policy."""

from __future__ import annotations

import json
import math
import platform
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import monotonic
from typing import Any, cast
from uuid import uuid4

from batuta.cli.options import hide_passwords
from batuta.errors import StoreError, report_unwritable
from batuta.lab.train.rollouts import GradedRollout
from batuta.lab.train.settings import TrainSettings

LIBRARIES = ("batuta", "torch", "transformers", "trl", "accelerate", "peft", "tokenizers", "numpy")
METRICS_FILE, SAMPLES_FILE, SETTINGS_FILE = "metrics.jsonl", "samples.jsonl", "settings.json"
EVALUATION_FILE = "evaluation.jsonl"
WANDB_FILE = "wandb-id.txt"
STOP_FILE, STOPPED_FILE = "stop", "stopped"
"""Names of the file that requests a stop, and of the file that marks a stopped training."""


class RunFolder:
    """Writes and reads the files of a training's folder.

    Methods raise StoreError if a file cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        """Create the folder.

        Raises:
            StoreError: the folder cannot be created.
        """
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"the run folder {path} cannot be created: {error.strerror}") from None

    @property
    def policy(self) -> Path:
        """The folder of the trained model."""
        return self.path / "policy"

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.path / "checkpoints"

    def begin(self, settings: TrainSettings, command: Sequence[str]) -> None:
        """Write the settings, the command and the versions of the libraries.

        Passwords of databases in the settings are left out, as the web page shows the settings.
        """
        found = {name: _package_version(name) for name in LIBRARIES}
        about = {"command": list(command), "python": platform.python_version(), "libraries": found}
        written = _without_passwords(settings.model_dump(mode="json"))
        self._write(SETTINGS_FILE, json.dumps(written, indent=2, ensure_ascii=False))
        self._write("versions.json", json.dumps(about, indent=2))

    def _write(self, name: str, text: str) -> None:
        with report_unwritable(self.path / name):
            (self.path / name).write_text(text + "\n", encoding="utf-8")

    def rewind(self, step: int) -> None:
        """Discard the metrics, evaluations, samples and checkpoints of the steps after `step`."""
        begun = step or -1  # a training that starts over evaluates its start again
        kept_of = ((METRICS_FILE, step), (EVALUATION_FILE, begun), (SAMPLES_FILE, step - 1))
        for name, last in kept_of:  # samples are counted from 0
            kept = [line for line in read_jsonl(self.path / name) if line["step"] <= last]
            self._keep_lines(name, kept)
        for written, path in self.list_checkpoints():
            if written > step:
                shutil.rmtree(path, ignore_errors=True)

    def list_checkpoints(self) -> list[tuple[int, Path]]:
        """Return the step and the folder of each checkpoint, the oldest first.

        Folders with another name, such as copies, are ignored.
        """
        folders = self.checkpoints.glob("checkpoint-*")
        numbered = ((each.name.removeprefix("checkpoint-"), each) for each in folders)
        return sorted((int(step), each) for step, each in numbered if step.isdecimal())

    def add_metrics(self, line: Mapping[str, Any]) -> None:
        """Append a step's metrics."""
        self._add_lines(METRICS_FILE, [line])

    def add_evaluation(self, line: Mapping[str, Any]) -> None:
        """Append the figures of an evaluation."""
        self._add_lines(EVALUATION_FILE, [line])

    def keep_wandb_id(self, wandb_id: str, *, resume: bool) -> str:
        """Store and return the id of the run in Weights & Biases.

        The id is `wandb_id`, the id from the settings, if it is not empty; else the stored id if
        the training resumes; else a new one.
        """
        file = self.path / WANDB_FILE
        known = file.read_text("utf-8").strip() if resume and file.is_file() else ""
        chosen = wandb_id or known or uuid4().hex[:8]
        self._write(WANDB_FILE, chosen)
        return chosen

    def add_samples(self, step: int, rollouts: Iterable[GradedRollout]) -> None:
        """Append executed and graded workflows of a step."""
        self._add_lines(SAMPLES_FILE, [rollout_record(step, each) for each in rollouts])

    def log_losses(self, stage: str) -> Callable[[int, float, float | None], None]:
        """Return a function that appends a step's number, loss and seconds to a file.

        The file is `STAGE.jsonl`. Existing lines from the first reported step on are dropped, so a
        resumed stage has one line per step. The function takes the step, the loss of its drafts (or
        drills, if it has no drafts), and the loss of its drills or None. It raises StoreError if
        the file cannot be written.
        """
        began, name, has_begun = monotonic(), f"{stage}.jsonl", False

        def add(step: int, loss: float, drills: float | None) -> None:
            nonlocal began, has_begun
            if not has_begun:
                kept = [each for each in read_jsonl(self.path / name) if each["step"] < step]
                began -= kept[-1]["seconds"] if kept else 0.0
                self._keep_lines(name, kept)
                has_begun = True
            line = {"step": step, "loss": round(loss, 4), "seconds": round(monotonic() - began, 1)}
            if drills is not None:
                line["drills"] = round(drills, 4)
            self._add_lines(name, [line])

        return add

    def _add_lines(self, name: str, lines: Iterable[Mapping[str, Any]]) -> None:
        with report_unwritable(self.path / name):
            with (self.path / name).open("a", encoding="utf-8") as file:
                file.writelines(_to_json(line) + "\n" for line in lines)

    def _keep_lines(self, name: str, lines: Iterable[Mapping[str, Any]]) -> None:
        """Replace the content of a file by `lines`; on a full disk the file is not changed."""
        path, new = self.path / name, self.path / f"{name}.new"
        with report_unwritable(path):
            new.write_text("".join(_to_json(line) + "\n" for line in lines), encoding="utf-8")
            new.replace(path)


def _without_passwords(value: Any) -> Any:
    """Return the JSON value without the passwords of databases in its texts and names."""
    if isinstance(value, dict):
        named = cast("dict[str, Any]", value).items()
        return {_without_passwords(name): _without_passwords(inner) for name, inner in named}
    if isinstance(value, list):
        return [_without_passwords(inner) for inner in cast("list[Any]", value)]
    return hide_passwords([value])[0] if isinstance(value, str) else value


def _to_json(line: Mapping[str, Any]) -> str:
    """Return the line as JSON, with null for figures that are not finite."""
    return json.dumps(finite_figures(line), ensure_ascii=False, allow_nan=False)


def finite_figures(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the line with None in place of every number that is not finite."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in line.items()
    }


def rollout_record(step: int, rollout: GradedRollout) -> dict[str, Any]:
    """Return a rollout as a line of the samples file."""
    task, run = rollout.episode.task, rollout.run
    return {
        "step": step,
        "task": task.id,
        "tags": list(task.tags),
        "difficulty": task.difficulty,
        "question": task.question,
        "pool": [worker.id for worker in rollout.episode.pool],
        "draft": rollout.draft.text,
        "rounds": len(run.rounds),
        "steps": len(run.steps),
        "tokens": run.usage.total,
        "answer": run.answer,
        "target": task.target,
        "score": None if rollout.grade is None else rollout.grade.score,
        "reward": rollout.reward,
    }


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Read the lines of steps in a JSONL file; return an empty list if there is no file.

    Truncated lines, even within a character, and lines without a step are skipped. Earlier versions
    wrote NaN, which is read as None.

    Raises:
        StoreError: the file cannot be read.
    """
    if not path.is_file():
        return []
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from None
    lines: list[dict[str, Any]] = []
    for text in content.split(b"\n"):
        try:
            line: Any = json.loads(text, parse_constant=lambda _: None)
        except ValueError:
            continue
        if isinstance(line, dict) and isinstance(line.get("step"), int):
            lines.append(line)
    return lines


def _package_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
