"""Downloads files of a data set from the Hugging Face hub at a pinned commit."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from batuta.distribution import install_hint
from batuta.errors import SourceError
from batuta.lab.tasks.datasets.dataset import Dataset, HubDataset
from batuta.lab.tasks.datasets.loader import SUMS_FILE, hub_folder, parse_sums
from batuta.lab.tasks.datasets.rows import file_sha256

_HUB_TIMEOUT = 10.0
"""Seconds until the hub must have answered first."""


def fetch_split(
    source: Dataset,
    split: str,
    folder: Path,
    *,
    revision: str | None = None,
    on_file: Callable[[Path], None] | None = None,
) -> tuple[Path, ...]:
    """Download the files of a split below `folder`, and record their SHA-256 beside them.

    Args:
        source: the benchmark.
        split: the name of the split.
        folder: the data folder.
        revision: a commit to use instead of the pinned one.
        on_file: called with each downloaded file.

    Raises:
        SourceError: the set is not on the hub, the hub refused or could not be reached, or
            huggingface_hub is not installed.
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
    except (hub.errors.HTTPError, OSError) as error:
        raise SourceError(_hub_error_text(origin, revision or origin.revision, error)) from None
    _record_sums(target, paths, f"{origin.repo}@{commit}")
    return tuple(paths)


def _hub_error_text(origin: HubDataset, revision: str, error: Exception) -> str:
    wanted = f"{origin.repo} at {revision[:12]}"
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is None:
        return f"the hub could not be reached for {wanted}: check the network and try again"
    if status in {401, 403}:
        return f"the hub refuses {wanted}: accept its terms there and set HF_TOKEN"
    return f"the hub has no file for {wanted} (HTTP {status}): name a commit with --revision"


def _record_sums(target: Path, paths: list[Path], commit: str) -> None:
    listing = target / SUMS_FILE
    known = parse_sums(listing.read_text(encoding="utf-8")) if listing.is_file() else {}
    known |= {path.relative_to(target).as_posix(): file_sha256(path) for path in paths}
    lines = (f"{total}  {name}\n" for name, total in sorted(known.items()))
    listing.write_text(f"# {commit}\n" + "".join(lines), encoding="utf-8")


def _import_hub() -> Any:
    try:
        importlib.import_module("huggingface_hub.errors")
        return importlib.import_module("huggingface_hub")
    except ModuleNotFoundError:
        raise SourceError(f"fetching needs the hub's package: {install_hint('tasks')}") from None
