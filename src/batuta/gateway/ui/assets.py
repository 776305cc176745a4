"""The UI's script, style sheet and icon, served under names that contain a hash of the content."""

from __future__ import annotations

import gzip
import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import PurePath

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from batuta.gateway.errors import not_found

ROOT = "/ui/static/"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_GZIP = re.compile(r"(?:^|[\s,])gzip(?!\s*;\s*q=0(?:\.0*)?\s*(?:,|$))")
_CACHE_FOREVER = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asset:
    """A static file with its response data."""

    name: str
    """The file's name with the first digits of its hash: `page.1f0c….js`."""
    kind: str
    """The media type."""
    body: bytes
    compressed_body: bytes
    """The body compressed with gzip."""


@cache
def load_assets() -> dict[str, Asset]:
    """Return all files, by their names without the hash."""
    folder = files("batuta.gateway.ui") / "static"
    found = (path for path in folder.iterdir() if PurePath(path.name).suffix in _TYPES)
    return {path.name: _load_asset(path.name, path.read_bytes()) for path in found}


def _load_asset(name: str, body: bytes) -> Asset:
    pure = PurePath(name)
    digest = hashlib.sha256(body).hexdigest()[:12]
    packed = gzip.compress(body, 9, mtime=0)
    return Asset(
        name=f"{pure.stem}.{digest}{pure.suffix}",
        kind=_TYPES[pure.suffix],
        body=body,
        compressed_body=packed,
    )


def asset_url(name: str) -> str:
    """Return the file's URL path."""
    return ROOT + load_assets()[name].name


def takes_gzip(headers: Headers) -> bool:
    """Return True if the headers accept gzip."""
    return _GZIP.search(headers.get("accept-encoding", "")) is not None


async def send_asset(request: Request) -> Response:
    """Return the file of that name.

    Raises:
        APIError: no file has this name, for example because its content has changed.
    """
    name: str = request.path_params["name"]
    asset = next((each for each in load_assets().values() if each.name == name), None)
    if asset is None:
        raise not_found(f"The file '{name[:80]}'")
    headers = {
        "cache-control": _CACHE_FOREVER,
        "etag": f'"{asset.name}"',
        "vary": "accept-encoding",
        "x-content-type-options": "nosniff",
    }
    if request.headers.get("if-none-match") == headers["etag"]:
        return Response(status_code=304, headers=headers)
    if takes_gzip(request.headers):
        headers["content-encoding"] = "gzip"
        return Response(asset.compressed_body, headers=headers, media_type=asset.kind)
    return Response(asset.body, headers=headers, media_type=asset.kind)
