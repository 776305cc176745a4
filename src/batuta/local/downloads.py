"""HTTP downloads that resume where they were interrupted."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import IO, Any, Self, final
from urllib.parse import urlsplit

import aiohttp
import anyio

from batuta.clients.http_target import OutwardRoutes
from batuta.core.redaction import clean_message
from batuta.errors import DownloadError

OnBytes = Callable[[int], None]
"""Called with the number of bytes of a file that have arrived."""
_CHUNK = 1 << 20
_MOST_TEXT = 8 << 20
"""Maximum bytes of a page; the rest is not read."""
_TRIES = 4
"""Consecutive attempts without progress after which a download fails."""
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


@final
class Downloader:
    """An HTTP session for the hub and a package index, with the environment's proxies."""

    def __init__(
        self, environ: Mapping[str, str], *, silence: float = 60.0, pause: float = 1.0
    ) -> None:
        """Create the downloader; the session is opened by `async with`.

        Args:
            environ: the environment with the settings of proxies and certificates.
            silence: seconds without data after which a connection is closed.
            pause: seconds before the first retry; each further retry waits twice as long.
        """
        self._routes = OutwardRoutes(environ)
        self._silence = silence
        self._pause = pause
        self._opened: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        certificates = self._routes.certificates or True
        self._opened = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=certificates),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, connect=10.0, sock_read=self._silence),
            headers={"User-Agent": "batuta", "Accept-Encoding": "identity"},
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._opened is not None:
            await self._opened.close()

    async def read_text(self, url: str, accept: str) -> tuple[str, str]:
        """Return a page's text and its content type.

        Raises:
            DownloadError: the page does not exist or cannot be reached.
        """
        headers = {"Accept": accept}
        try:
            async with self._get(url, headers) as response:
                _check_status(response, url)
                body = await response.content.read(_MOST_TEXT)
                while len(body) < _MOST_TEXT and (more := await response.content.readany()):
                    body += more
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise _connection_error(url, error) from None
        return body.decode("utf-8", "replace"), response.content_type

    async def fetch_file(self, url: str, path: Path, size: int | None, on_bytes: OnBytes) -> None:
        """Complete the file at `path`, resuming after the bytes that it already has.

        If the server does not support ranges, the whole file is downloaded again.

        Args:
            url: the address of the file.
            path: the file.
            size: the expected number of bytes; None: not known.
            on_bytes: called with the number of bytes that have arrived.

        Raises:
            DownloadError: the file is unavailable, has the wrong length, or cannot be written.
        """
        failures, reached = 0, -1
        while True:
            at = path.stat().st_size if path.exists() else 0
            failures = 0 if at > reached else failures
            reached = max(reached, at)
            if size is not None and at == size:
                return
            if size is not None and at > size:
                path.unlink()
                continue
            try:
                if await self._fetch_rest(url, path, at, on_bytes):
                    break
            except _InterruptedError as error:
                failures += 1
                if failures >= _TRIES or (error.is_unreachable and not at):
                    raise DownloadError(str(error)) from None
                await anyio.sleep(self._pause * 2 ** (failures - 1))
        if size is not None and (got := path.stat().st_size) != size:
            path.unlink()
            raise DownloadError(
                f"{_host_name(url)} sent {got:,} bytes, but the file has {size:,}; "
                "the download was removed"
            )

    async def _fetch_rest(self, url: str, path: Path, at: int, on_bytes: OnBytes) -> bool:
        """Append the data from offset `at` on; return False if the download must begin again.

        Raises:
            DownloadError: the server does not provide the file, or the file cannot be written.
            _InterruptedError: the connection broke, or the server may answer later.
        """
        headers = {"Range": f"bytes={at}-"} if at else {}
        try:
            async with self._get(url, headers) as response:
                if response.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and at:
                    return _is_whole(response, path, at)
                _check_status(response, url)
                begins = _first_byte(response) if at else 0
                if begins not in {0, at}:
                    path.unlink()
                    return False
                with _open_for_writing(path, append=bool(begins)) as file:
                    arrived = begins
                    async for piece in response.content.iter_chunked(_CHUNK):
                        write_piece(file, piece, path)
                        arrived += len(piece)
                        on_bytes(arrived)
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
            raise _InterruptedError(url, error) from None
        return True

    def _get(self, url: str, headers: Mapping[str, str]) -> Any:
        if self._opened is None:
            raise RuntimeError("use the Downloader in `async with`")
        proxy = self._routes.find_proxy(url)
        return self._opened.get(
            url, headers=dict(headers), proxy=proxy.url, proxy_headers=proxy.headers
        )


class _InterruptedError(Exception):
    """The connection broke before the end of the file, or could not be made."""

    def __init__(self, url: str, error: BaseException) -> None:
        super().__init__(str(_connection_error(url, error)))
        self.is_unreachable = isinstance(error, aiohttp.ClientConnectorError)


def write_piece(file: IO[bytes], piece: bytes, path: Path) -> None:
    """Write a piece to an unfinished file and flush it.

    Raises:
        DownloadError: the disk is full, or the file cannot be written.
    """
    try:
        file.write(piece)
        file.flush()
    except OSError as error:
        raise disk_error(path, error) from None


def disk_error(path: Path, error: OSError) -> DownloadError:
    """Return the error for a file that cannot be written."""
    if error.errno in _NO_SPACE:
        return DownloadError(
            f"the disk of {path.parent} is full: free some space and pull again, which resumes the "
            "download, or set XDG_CACHE_HOME to another folder"
        )
    return DownloadError(f"{path} cannot be written: {error.strerror or error}")


def _open_for_writing(path: Path, *, append: bool) -> IO[bytes]:
    try:
        return path.open("ab" if append else "wb")
    except OSError as error:
        raise disk_error(path, error) from None


def _check_status(response: aiohttp.ClientResponse, url: str) -> None:
    """Check that the response has the file.

    Raises:
        DownloadError: the server does not provide the file.
        aiohttp.ClientPayloadError: the server may answer later; the caller retries.
    """
    status = response.status
    if status < HTTPStatus.MULTIPLE_CHOICES:
        return
    if status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise aiohttp.ClientPayloadError(f"HTTP {status}")
    if status in {HTTPStatus.NOT_FOUND, HTTPStatus.GONE}:
        raise DownloadError(f"{_host_name(url)} does not have the file (HTTP {status})")
    raise DownloadError(f"{_host_name(url)} refused the download (HTTP {status})")


def _is_whole(response: aiohttp.ClientResponse, path: Path, at: int) -> bool:
    """Return True if a refused range means that the file is complete; else empty the file."""
    total = response.headers.get("Content-Range", "").rpartition("/")[2]
    if total.isdigit() and int(total) == at:
        return True
    os.truncate(path, 0)
    return False


def _first_byte(response: aiohttp.ClientResponse) -> int:
    """Return the offset of the response's first byte in the file; -1 if it is not stated."""
    if response.status != HTTPStatus.PARTIAL_CONTENT:
        return 0
    found = _RANGE.fullmatch(response.headers.get("Content-Range", "").strip())
    return int(found[1]) if found else -1


def _connection_error(url: str, error: BaseException) -> DownloadError:
    reason = clean_message(str(error)) if str(error) else type(error).__name__
    if isinstance(error, aiohttp.ClientConnectorError):
        reason = "no connection"
    elif isinstance(error, TimeoutError):
        reason = "it stopped sending"
    return DownloadError(f"the download from {_host_name(url)} failed ({reason})")


def _host_name(url: str) -> str:
    """Return only host and port, as an index's URL may contain a password."""
    return urlsplit(url).netloc.rpartition("@")[2]
