"""One address for several models: a request goes to the llama.cpp of the model that it names.

A request that names no model goes to the first.
"""

from __future__ import annotations

import errno
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast, final

import aiohttp
import anyio
from aiohttp import web
from anyio.abc import TaskGroup

from batuta.errors import ConfigError
from batuta.local.llama_backends import LOOPBACK, ServingOptions, start_backend
from batuta.offload.tasks import open_background_tasks

MAX_BODY = 32 << 20
"""Maximum bytes of a request."""
_LAST_SECONDS = 1.0
"""Seconds that a server waits for running responses when it shuts down."""
_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "content-encoding"}
"""Headers about the connection and the form of the body, which are not passed on."""


@asynccontextmanager
async def serve_models(
    files: Mapping[str, Path], port: int, options: ServingOptions, *, at_once: bool = True
) -> AsyncGenerator[str]:
    """Serve the files on one loopback port while the block runs.

    Args:
        files: the models' files by name.
        port: the port; 0: any free one.
        options: threads and slots of each model.
        at_once: whether all models are loaded before the block; else each model is loaded at its
            first request.

    Yields:
        The URL of the server, without a path.

    Raises:
        ConfigError: the port cannot be opened; or, with `at_once`, llama.cpp is not installed or
            cannot load a file.
    """
    # llama.cpp is stopped last, since it waits for responses that are still being read.
    async with (
        AsyncExitStack() as backends,
        AsyncExitStack() as stack,
        open_background_tasks() as loading,
    ):
        router = _ModelRouter(files, options, backends, loading)
        stack.push_async_callback(router.session.close)
        runner = web.AppRunner(
            router.build_app(), handler_cancellation=True, shutdown_timeout=_LAST_SECONDS
        )
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        site = web.TCPSite(runner, LOOPBACK, port)
        try:
            await site.start()
        except OSError as error:
            raise _port_error(port, error) from None
        for name in files if at_once else ():
            await router.find_backend(name)
        host, taken = runner.addresses[0][:2]
        yield f"http://{host}:{taken}"


def _port_error(port: int, error: OSError) -> ConfigError:
    if error.errno == errno.EADDRINUSE:
        return ConfigError(f"port {port} is used by another program: choose another with --port")
    return ConfigError(f"cannot listen on port {port}: {error.strerror}")


@final
class _Load:
    """The loading of one model, for which several requests may wait."""

    def __init__(self) -> None:
        self.ended = anyio.Event()
        self.address = ""
        """The address of the model's llama.cpp; empty until the model is loaded."""
        self.reason = ""
        """The reason why the model cannot be loaded; empty if there is none."""


@final
class _ModelRouter:
    """Routes requests by the model that they name."""

    def __init__(
        self,
        files: Mapping[str, Path],
        options: ServingOptions,
        stack: AsyncExitStack,
        group: TaskGroup,
    ) -> None:
        self.session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None), headers={"Accept-Encoding": "identity"}
        )
        self._files = files
        self._options = options
        self._stack = stack
        self._group = group
        """Loads the models: a request that ends early does not end the loading that it began."""
        self._loads: dict[str, _Load] = {}
        self._loading = anyio.Lock()

    def build_app(self) -> web.Application:
        """Return the web application with all routes."""
        app = web.Application(client_max_size=MAX_BODY)
        for path in ("/v1/models", "/models"):
            app.router.add_get(path, self._list_models)
        app.router.add_get("/health", self._report_health)
        app.router.add_get("/props", self._report_properties)
        app.router.add_post("/{path:.*}", self._pass_on)
        return app

    async def find_backend(self, name: str) -> str:
        """Return the address of the model's llama.cpp; the first call for a model starts it.

        Raises:
            ConfigError: the model cannot be loaded.
        """
        load = self._loads.get(name)
        if load is None:
            load = self._loads[name] = _Load()
            self._group.start_soon(self._load_model, name, load)
        await load.ended.wait()
        if load.reason:
            raise ConfigError(load.reason)
        return load.address

    async def _load_model(self, name: str, load: _Load) -> None:
        """Start the model's llama.cpp, one model after another; after a failure forget the load."""
        try:
            async with self._loading:
                load.address = await start_backend(
                    name, self._files[name], self._options, self._stack
                )
        except ConfigError as error:
            load.reason = str(error)
            del self._loads[name]
        load.ended.set()

    @property
    def _addresses(self) -> dict[str, str]:
        """The addresses of the models that are loaded."""
        return {name: load.address for name, load in self._loads.items() if load.address}

    async def _list_models(self, _: web.Request) -> web.Response:
        rows: list[Any] = []
        for name in self._files:
            address = self._addresses.get(name)
            if address is None:
                rows.append({"id": name, "object": "model", "owned_by": "llamacpp"})
                continue
            async with self.session.get(f"{address}/v1/models") as response:
                listing = await response.json()
            rows += listing["data"]
        return web.json_response({"object": "list", "data": rows})

    async def _report_health(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok", "loaded": list(self._addresses)})

    async def _report_properties(self, request: web.Request) -> web.StreamResponse:
        """Return the properties of the model in the query, by default of the first model."""
        name = request.query.get("model") or next(iter(self._files))
        return await self._forward(request, "GET", name, None)

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        try:
            content = json.loads(body)
        except (ValueError, RecursionError):
            return _error_response(400, "the body is not JSON")
        named = cast("dict[str, Any]", content).get("model") if isinstance(content, dict) else None
        name = str(named) if named else next(iter(self._files))
        return await self._forward(request, "POST", name, body)

    async def _forward(
        self, request: web.Request, method: str, name: str, body: bytes | None
    ) -> web.StreamResponse:
        if name not in self._files:
            return _error_response(
                404, f"there is no model {name!r}; served: {', '.join(self._files)}"
            )
        try:
            address = await self.find_backend(name)
        except ConfigError as error:
            return _error_response(404, str(error))
        headers = {"Content-Type": "application/json"} if body is not None else {}
        # llama.cpp closes a connection after five seconds without data, and this process may be
        # blocked for that long while another model is loaded. Then nothing was computed: retry.
        for is_last in (False, True):
            try:
                async with self.session.request(
                    method, f"{address}{request.path}", data=body, headers=headers
                ) as answer:
                    return await _pass_answer(request, answer)
            except aiohttp.ClientConnectorError:
                break
            except aiohttp.ClientError:
                if is_last:
                    break
        return _error_response(502, f"the llama.cpp of {name} does not answer: serve it again")


async def _pass_answer(request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    """Stream a response to the client; if it breaks off, abort the client's connection too."""
    kept = {k: v for k, v in answer.headers.items() if k.lower() not in _HOP}
    reply = web.StreamResponse(status=answer.status, headers=kept)
    await reply.prepare(request)
    try:
        async for piece in answer.content.iter_any():
            await reply.write(piece)
    except aiohttp.ClientPayloadError:
        if request.transport is not None:
            request.transport.abort()
        return reply
    await reply.write_eof()
    return reply


def _error_response(status: int, message: str) -> web.Response:
    """Return an error in OpenAI's form."""
    kind = "invalid_request_error" if status < 500 else "server_error"  # noqa: PLR2004 - HTTP's
    return web.json_response({"error": {"message": message, "type": kind}}, status=status)
