"""Files of a source from the Hugging Face hub, at a pinned commit."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from batuta.errors import SourceError
from batuta.tasks.sources.load import SUMS, hub_folder, parse_sums
from batuta.tasks.sources.rows import sha256
from batuta.tasks.sources.source import Hub, Source

_PATIENCE = 10.0
"""Seconds that the hub has for its first answer."""


def fetch(
    source: Source,
    split: str,
    folder: Path,
    *,
    revision: str | None = None,
    told: Callable[[Path], None] | None = None,
) -> tuple[Path, ...]:
    """The files of a split, downloaded below `folder`; their SHA-256 are kept beside them.

    Args:
        source: the benchmark.
        split: its part.
        folder: the data folder.
        revision: another commit than the pinned one.
        told: called with each file that has arrived.

    Raises:
        SourceError: it is not on the hub, the hub refused or could not be reached, or the
            package that downloads is not installed.
    """
    origin = source.origin
    names = source.splits[split].hub
    if not isinstance(origin, Hub) or not names:
        where = origin.repo if isinstance(origin, Hub) else origin
        raise SourceError(
            f"{source.name}:{split} is not fetched: get your own copy from {where} and name it "
            "with --from-file"
        )
    hub = _hub()
    target = hub_folder(source, folder)
    paths: list[Path] = []
    try:
        commit: str = (
            hub.HfApi()
            .dataset_info(origin.repo, revision=revision or origin.revision, timeout=_PATIENCE)
            .sha
        )
        for name in names:
            got: str = hub.hf_hub_download(
                origin.repo, name, repo_type="dataset", revision=commit, local_dir=target
            )
            paths.append(Path(got))
            if told is not None:
                told(paths[-1])
    except (hub.errors.HTTPError, OSError) as error:
        raise SourceError(_said(origin, revision or origin.revision, error)) from None
    _note(target, paths, f"{origin.repo}@{commit}")
    return tuple(paths)


def _said(origin: Hub, revision: str, error: Exception) -> str:
    wanted = f"{origin.repo} at {revision[:12]}"
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is None:
        return f"the hub could not be reached for {wanted}: check the network and try again"
    if status in {401, 403}:
        return f"the hub refuses {wanted}: accept its terms there and set HF_TOKEN"
    return f"the hub has no file for {wanted} (HTTP {status}): name a commit with --revision"


def _note(target: Path, paths: list[Path], commit: str) -> None:
    listing = target / SUMS
    known = parse_sums(listing.read_text(encoding="utf-8")) if listing.is_file() else {}
    known |= {path.relative_to(target).as_posix(): sha256(path) for path in paths}
    lines = (f"{total}  {name}\n" for name, total in sorted(known.items()))
    listing.write_text(f"# {commit}\n" + "".join(lines), encoding="utf-8")


def _hub() -> Any:
    try:
        importlib.import_module("huggingface_hub.errors")
        return importlib.import_module("huggingface_hub")
    except ModuleNotFoundError:
        raise SourceError("fetching needs the hub's package: pip install 'batuta[tasks]'") from None
