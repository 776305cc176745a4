"""HTTP downloads that are retried, and resumed if the server supports ranges."""

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
"""Bytes of a page after which no more is read."""
_CONNECT_SECONDS = 10.0
_TRIES = 4
"""Consecutive attempts without progress after which a download fails."""
_THE_DISK = "the disk"
"""Beginning of the messages about a full disk, for which another source is no remedy."""
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


@final
class Downloader:
    """An HTTP client that downloads through the environment's proxies; used in `async with`."""

    def __init__(
        self, environ: Mapping[str, str], *, silence: float = 60.0, pause: float = 1.0
    ) -> None:
        """Read the proxies and certificates; nothing is connected yet.

        Args:
            environ: the environment with the settings of proxies and certificates.
            silence: seconds without data after which a connection is closed.
            pause: seconds before the first retry; each further retry without progress waits twice
                as long.

        Raises:
            ConfigError: a proxy or the certificates in the environment cannot be used.
        """
        self._routes = OutwardRoutes(environ)
        self._silence = silence
        self._pause = pause
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        certificates = self._routes.certificates or True
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=certificates),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(
                total=None, connect=_CONNECT_SECONDS, sock_read=self._silence
            ),
            headers={"User-Agent": "batuta", "Accept-Encoding": "identity"},
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._http is not None:
            await self._http.close()

    async def read_text(self, url: str, accept: str) -> tuple[str, str]:
        """Return a page's text, cut after about 8 MiB, and its content type.

        Raises:
            DownloadError: the page is unavailable; there are no retries.
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

        If the server does not support ranges, the whole file is downloaded again. Interrupted
        downloads and HTTP 429 and 5xx are retried until `_TRIES` attempts in a row bring nothing
        new. While the file is empty, a connection that fails is not tried again, unless it timed
        out.

        Args:
            url: the address of the file.
            path: the file. If it is longer than `size`, it is downloaded from its beginning.
            size: the expected number of bytes; None: not known.
            on_bytes: called with the number of bytes that have arrived, including those that the
                file already had.

        Raises:
            DownloadError: the file is unavailable, has the wrong length, or cannot be written.
        """
        failures, reached = 0, _file_size(path)
        while True:
            at = _file_size(path)
            if size is not None and at == size:
                return
            if size is not None and at > size:
                path.unlink()
                continue
            try:
                if await self._fetch_rest(url, path, at, on_bytes):
                    break
            except _InterruptedError as error:
                arrived = _file_size(path)
                failures = 0 if arrived > reached else failures + 1
                reached = max(reached, arrived)
                if failures >= _TRIES or (error.is_unreachable and not at):
                    raise DownloadError(str(error)) from None
                await anyio.sleep(self._pause * 2 ** max(failures - 1, 0))
        if size is not None and (got := path.stat().st_size) != size:
            path.unlink()
            raise DownloadError(
                f"{_host_name(url)} sent {got:,} bytes, but the file has {size:,}; "
                "the download was removed"
            )

    async def _fetch_rest(self, url: str, path: Path, at: int, on_bytes: OnBytes) -> bool:
        """Append the data from offset `at` on, or replace the file if the server ignores ranges.

        Return True if the file is complete. Return False if the server refuses the range of an
        incomplete file or sends another one; the file is then empty or removed, so that the next
        attempt downloads all of it.

        Raises:
            DownloadError: the server does not provide the file, or the file cannot be written.
            _InterruptedError: the connection broke, or the server may answer later.
        """
        headers = {"Range": f"bytes={at}-"} if at else {}
        try:
            async with self._get(url, headers) as response:
                if response.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and at:
                    if _is_file_size(response, at):
                        return True
                    os.truncate(path, 0)
                    return False
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
        if self._http is None:
            raise RuntimeError("use the Downloader in `async with`")
        if urlsplit(url).scheme not in {"http", "https"}:
            raise DownloadError(
                "the address of the hub (HF_ENDPOINT) or of pip's index does not begin with "
                "https:// or http://: correct it"
            )
        proxy = self._routes.find_proxy(url)
        return self._http.get(
            url, headers=dict(headers), proxy=proxy.url, proxy_headers=proxy.headers
        )


class _InterruptedError(Exception):
    """An attempt failed that may succeed later: no connection, a broken one, HTTP 429 or 5xx."""

    def __init__(self, url: str, error: BaseException) -> None:
        super().__init__(str(_connection_error(url, error)))
        self.is_unreachable = isinstance(error, aiohttp.ClientConnectorError)


def write_piece(file: IO[bytes], piece: bytes, path: Path) -> None:
    """Write a piece to an unfinished file and flush it.

    Raises:
        DownloadError: the file cannot be written, for example because the disk is full.
    """
    try:
        file.write(piece)
        file.flush()
    except OSError as error:
        raise disk_error(path, error) from None


def disk_error(path: Path, error: OSError) -> DownloadError:
    """Return the error for a file that cannot be written; see `is_disk_full` for a full disk."""
    remedies = {
        errno.ENOSPC: f"{_THE_DISK} of {path.parent} is full: free some space",
        errno.EDQUOT: f"{_THE_DISK} quota for {path.parent} is used up: free some space",
        errno.EFBIG: f"{_THE_DISK} of {path.parent} or the limit on a process's files "
        f"(ulimit -f) does not allow {path.name} to be larger: raise the limit",
    }
    if remedy := remedies.get(error.errno or 0):
        return DownloadError(
            f"{remedy} and pull again, which resumes the download, or set XDG_CACHE_HOME to "
            "another folder"
        )
    return DownloadError(f"{path} cannot be written: {error.strerror or error}")


def is_disk_full(message: str) -> bool:
    """Return True if the message of a `DownloadError` is about a full disk or a limit on files."""
    return message.startswith(_THE_DISK)


def _file_size(path: Path) -> int:
    """Return the number of bytes of the file; 0 if there is none."""
    return path.stat().st_size if path.exists() else 0


def _open_for_writing(path: Path, *, append: bool) -> IO[bytes]:
    try:
        return path.open("ab" if append else "wb")
    except OSError as error:
        raise disk_error(path, error) from None


def _check_status(response: aiohttp.ClientResponse, url: str) -> None:
    """Check that the response has the page or file.

    Raises:
        DownloadError: the server does not provide it.
        aiohttp.ClientPayloadError: the server may answer later (HTTP 429 or 5xx).
    """
    status = response.status
    if status < HTTPStatus.MULTIPLE_CHOICES:
        return
    if status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise aiohttp.ClientPayloadError(f"HTTP {status}")
    if status in {HTTPStatus.NOT_FOUND, HTTPStatus.GONE}:
        raise DownloadError(f"{_host_name(url)} does not have the file (HTTP {status})")
    raise DownloadError(f"{_host_name(url)} refused the download (HTTP {status})")


def _is_file_size(response: aiohttp.ClientResponse, size: int) -> bool:
    """Return True if a response that refuses a range states that the file has `size` bytes."""
    total = response.headers.get("Content-Range", "").rpartition("/")[2]
    return total.isdigit() and int(total) == size


def _first_byte(response: aiohttp.ClientResponse) -> int:
    """Return the offset of the response's first byte in the file; -1 if it cannot be read."""
    if response.status != HTTPStatus.PARTIAL_CONTENT:
        return 0
    range_match = _RANGE.fullmatch(response.headers.get("Content-Range", "").strip())
    return int(range_match[1]) if range_match else -1


def _connection_error(url: str, error: BaseException) -> DownloadError:
    reason = clean_message(str(error)) if str(error) else type(error).__name__
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        reason = "its certificate is not trusted"
    elif isinstance(error, aiohttp.ClientConnectorError):
        reason = "no connection"
    elif isinstance(error, aiohttp.ConnectionTimeoutError):
        reason = f"no connection within {_CONNECT_SECONDS:.0f} seconds"
    elif isinstance(error, TimeoutError):
        reason = "it stopped sending"
    return DownloadError(f"the download from {_host_name(url)} failed ({reason})")


def _host_name(url: str) -> str:
    """Return only host and port, because an index's URL may contain a password."""
    return urlsplit(url).netloc.rpartition("@")[2]
