"""Loads tasks by the name of their source, and fetches data sets from the Hugging Face hub."""

from __future__ import annotations

import errno
import importlib
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from http import HTTPStatus
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any

from batuta.core import Task, TaskId
from batuta.core.suggestions import suggest_names
from batuta.distribution import install_hint
from batuta.environment import benchmark_folder
from batuta.errors import SourceError
from batuta.files import file_sha256
from batuta.lab.tasks.datasets import reasoning_gym
from batuta.lab.tasks.datasets.catalog import DATASETS
from batuta.lab.tasks.datasets.dataset import (
    Dataset,
    HubDataset,
    MultipleChoiceQuestion,
    distinct_ids,
)
from batuta.lab.tasks.datasets.rows import ROW_FAULTS, Row, read_rows
from batuta.lab.tasks.datasets.task_files import SUITE_ENDINGS, read_task_file, read_task_suite

SUMS_FILE = "SHA256SUMS"
"""The name of a file of checksums, in the format of `sha256sum`. There is one beside this module,
and one in each folder of files from the hub."""


def load_tasks(
    name: str,
    *,
    folder: Path | None = None,
    files: Sequence[Path] = (),
    seed: int | None = 0,
    size: int = 100,
) -> tuple[Task, ...]:
    """Load the tasks of a source.

    The name is a benchmark (`gsm8k`, `gsm8k:train`), a generator (`reasoning-gym:FAMILY`) or the
    path of a user's file. `files`, in a benchmark's own format, are read instead of the files in
    `folder` (None: the data folder). The seed shuffles the options (None keeps the published order)
    and seeds a generator (None: 0), which makes `size` tasks; other sources return all their tasks.

    Raises:
        SourceError: there is no such source, its files are missing, have changed or cannot be read,
            a package that reads or makes them is not installed, or `files` are given for a source
            that is not a benchmark.
    """
    generated = name.startswith(f"{reasoning_gym.NAME}:")
    if files and (generated or is_task_file(name)):
        raise SourceError(f"{name} is not a benchmark, so --from-file does not apply")
    if ".jsonl" in Path(name).suffixes:
        return read_task_file(Path(name), seed)
    if is_task_file(name):
        return read_task_suite(Path(name), seed)
    if generated:
        return reasoning_gym.generate_tasks(name.partition(":")[2], size, seed or 0)
    source, split = find_split(name)
    paths = tuple(files) or _verified_files(source, split, folder or benchmark_folder())
    tasks = tuple(_convert_rows(source, split, paths, seed))
    ids = map(TaskId, distinct_ids(task.id for task in tasks))
    return tuple(replace(task, id=id_) for task, id_ in zip(tasks, ids, strict=True))


def is_task_file(name: str) -> bool:
    """Return whether the name is the path of a user's file and not a benchmark."""
    return ".jsonl" in Path(name).suffixes or Path(name).suffix in SUITE_ENDINGS


def find_split(name: str) -> tuple[Dataset, str]:
    """Find the source and the split that `name` or `name:split` means.

    Raises:
        SourceError: there is no such source or split.
    """
    wanted, _, part = name.partition(":")
    source = DATASETS.get(wanted)
    if source is None:
        known = ("rehearsal", *DATASETS, f"{reasoning_gym.NAME}:FAMILY", "FILE.jsonl", "FILE.yaml")
        raise SourceError(f"there is no source {wanted!r}; {suggest_names(wanted, known)}")
    split = part or next(iter(source.splits))
    if split not in source.splits:
        raise SourceError(f"{wanted} has no split {split!r}; {suggest_names(split, source.splits)}")
    return source, split


def local_files(source: Dataset, split: str, folder: Path) -> tuple[Path, ...]:
    """Return a split's local files, else the files from the hub; empty if both are incomplete."""
    part = source.splits[split]
    local = tuple(folder / path for path in part.local)
    fetched = tuple(hub_folder(source, folder) / path for path in part.hub)
    for paths in (local, fetched):
        if paths and all(path.is_file() for path in paths):
            return paths
    return ()


def hub_folder(source: Dataset, folder: Path) -> Path:
    """Return the folder for a source's files from the hub."""
    return folder / "bench" / source.name / "hub"


def _verified_files(source: Dataset, split: str, folder: Path) -> tuple[Path, ...]:
    paths = local_files(source, split, folder)
    if not paths:
        raise SourceError(
            f"{source.name}:{split} is not in {folder}; {_remedy_text(source, split)}"
        )
    fetched = hub_folder(source, folder)
    sums = {folder / path: total for path, total in _packaged_sums().items()}
    sums |= {fetched / path: total for path, total in _listed_sums(fetched).items()}
    for path in paths:
        if path in sums and sums[path] != file_sha256(path):
            raise SourceError(
                f"{path} has changed (its SHA-256 differs): replace it with the original file, "
                "or read it as it is with --from-file"
            )
    return paths


def _remedy_text(source: Dataset, split: str) -> str:
    if isinstance(source.origin, HubDataset) and source.splits[split].hub:
        return (
            f"run `batuta tasks fetch {source.name}:{split}`, set BATUTA_DATA to a folder that "
            "has it, or name your copy with --from-file"
        )
    origin = source.origin.repo if isinstance(source.origin, HubDataset) else source.origin
    return f"get a copy from {origin} and name it with --from-file"


@cache
def _packaged_sums() -> dict[str, str]:
    listing = package_files("batuta.lab.tasks.datasets") / SUMS_FILE
    return parse_sums(listing.read_text(encoding="utf-8"))


def _listed_sums(folder: Path) -> dict[str, str]:
    listing = folder / SUMS_FILE
    return parse_sums(listing.read_text(encoding="utf-8")) if listing.is_file() else {}


def parse_sums(text: str) -> dict[str, str]:
    """Parse a listing of `sha256sum` into the SHA-256 of each file."""
    pairs = (line.split("  ", 1) for line in text.splitlines() if "  " in line)
    return {path: total for total, path in pairs}


def _convert_rows(
    source: Dataset, split: str, paths: Iterable[Path], seed: int | None
) -> Iterator[Task]:
    keep = source.splits[split].keep
    for path in paths:
        for number, row in enumerate(read_rows(path), 1):
            known = {**row, "file": str(path)}
            try:
                item = source.convert(known) if keep is None or keep(known) else None
            except (*ROW_FAULTS, pickle.PickleError) as error:
                where = f"row {number} of {path}"
                raise SourceError(_misfit_message(source, where, row, error)) from None
            if item is not None:
                yield item.to_task(seed) if isinstance(item, MultipleChoiceQuestion) else item


def _misfit_message(source: Dataset, where: str, row: Row, error: Exception) -> str:
    if isinstance(error, KeyError) and error.args and error.args[0] not in row:
        has = ", ".join(map(str, row)) or "nothing"
        return f"{where} lacks the column {error} of {source.name}; its columns are {has}"
    cause = error if isinstance(error, ValueError) else repr(error)
    return f"{where} is not in the format of {source.name}: {cause}"


_HUB_TIMEOUT = 10.0
"""Seconds to wait for the hub's first response."""


def fetch_split(
    source: Dataset,
    split: str,
    folder: Path,
    *,
    revision: str | None = None,
    on_file: Callable[[Path], None] | None = None,
) -> tuple[Path, ...]:
    """Download the files of a split into the data folder, and return their paths.

    Their SHA-256 are written beside them. `revision` replaces the pinned commit; `on_file` is
    called with each downloaded file.

    Raises:
        SourceError: the split is not on the hub, the hub failed or could not be reached, a file
            could not be written, or huggingface_hub is not installed.
    """
    origin = source.origin
    names = source.splits[split].hub
    if not isinstance(origin, HubDataset) or not names:
        where = origin.repo if isinstance(origin, HubDataset) else origin
        raise SourceError(
            f"{source.name}:{split} is not fetched: get your own copy from {where} and name it "
            "with --from-file"
        )
    hub = _import_hub()
    target = hub_folder(source, folder)
    paths: list[Path] = []
    try:
        commit: str = (
            hub.HfApi()
            .dataset_info(origin.repo, revision=revision or origin.revision, timeout=_HUB_TIMEOUT)
            .sha
        )
        for name in names:
            got: str = hub.hf_hub_download(
                origin.repo, name, repo_type="dataset", revision=commit, local_dir=target
            )
            paths.append(Path(got))
            if on_file is not None:
                on_file(paths[-1])
        _record_sums(target, paths, f"{origin.repo}@{commit}")
    except (hub.errors.HTTPError, OSError) as error:
        raise SourceError(_fetch_error_text(origin, revision or origin.revision, error)) from None
    return tuple(paths)


def _fetch_error_text(origin: HubDataset, revision: str, error: Exception) -> str:
    wanted = f"{origin.repo} at {revision[:12]}"
    if isinstance(error, OSError) and (error.filename or error.errno == errno.ENOSPC):
        return f"{error.filename or wanted} cannot be written: {error.strerror}"
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is None:
        return f"the hub could not be reached for {wanted}: check the network and try again"
    if status in {401, 403}:
        return f"the hub refuses {wanted}: accept its terms there and set HF_TOKEN"
    if status == HTTPStatus.NOT_FOUND:
        return f"the hub has no file for {wanted} (HTTP {status}): name a commit with --revision"
    return f"the hub cannot send {wanted} now (HTTP {status}): try again later"


def _record_sums(target: Path, paths: list[Path], commit: str) -> None:
    known = _listed_sums(target)
    known |= {path.relative_to(target).as_posix(): file_sha256(path) for path in paths}
    lines = (f"{total}  {name}\n" for name, total in sorted(known.items()))
    (target / SUMS_FILE).write_text(f"# {commit}\n" + "".join(lines), encoding="utf-8")


def _import_hub() -> Any:
    try:
        importlib.import_module("huggingface_hub.errors")
        return importlib.import_module("huggingface_hub")
    except ModuleNotFoundError:
        raise SourceError(f"fetching needs huggingface_hub: {install_hint('tasks')}") from None
