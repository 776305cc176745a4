"""Serves the local models of all pools in child processes, which end when this process ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from tempfile import TemporaryFile
from typing import IO, Any, final

from anyio import to_thread

from batuta.clients import HttpTransport, WorkerHealth, WorkerSpec, open_client
from batuta.clients.providers import LOCAL, Identity, spec_identity
from batuta.core import CallListener, Client, Reply, Request
from batuta.core.conductor import NULL_LISTENER
from batuta.errors import ConfigError, ProviderUnreachableError
from batuta.local.catalogue import choose_known, pulled_file
from batuta.local.llama_backends import check_llama, check_memory


@final
class PoolServer:
    """`batuta local serve` in a child process, which is started by the first call to a model.

    A model that a reload of the settings adds later is served by another process, so that calls to
    the other models are not interrupted.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = {**os.environ, **environ}
        self._names: list[str] = []
        self._lock = threading.Lock()
        self._served: dict[str, tuple[subprocess.Popen[bytes], str]] = {}

    def add_model(self, name: str) -> None:
        """Add a model to those that the next process serves; nothing is started yet.

        Raises:
            ConfigError: the model is unknown or was not pulled, or llama.cpp is not installed.
        """
        (model,) = choose_known([name])
        if pulled_file(model, self._environ) is None:
            raise ConfigError(f"{name} has not been pulled: run batuta local pull {name}")
        check_llama()
        if name not in self._names:
            self._names.append(name)

    async def find_address(self, name: str) -> str:
        """Return the URL that serves the model, without a path; start a process if there is none.

        The model must have been added by `add_model`.

        Raises:
            ProviderUnreachableError: there is too little memory, or the process does not start.
        """
        return await to_thread.run_sync(self._find_or_start, name)

    async def close(self) -> None:
        """End the processes; a later call starts a new one."""
        processes = {id(process): process for process, _ in self._served.values()}.values()
        self._served.clear()
        for process in processes:
            if process.stdin is not None:
                process.stdin.close()  # tells the process to end
        for process in processes:
            try:
                await to_thread.run_sync(process.wait, 5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _find_or_start(self, name: str) -> str:
        with self._lock:
            if not self._is_served(name):
                names = [known for known in self._names if not self._is_served(known)]
                try:
                    check_memory(choose_known(names))
                except ConfigError as error:
                    raise ProviderUnreachableError(str(error)) from None
                with TemporaryFile() as errors:
                    self._served |= dict.fromkeys(names, self._open_process(names, errors))
            return self._served[name][1]

    def _is_served(self, name: str) -> bool:
        return name in self._served and self._served[name][0].poll() is None

    def _open_process(
        self, names: Sequence[str], errors: IO[bytes]
    ) -> tuple[subprocess.Popen[bytes], str]:
        command = [sys.executable, "-m", "batuta", "local", "serve", *names]
        try:
            process = subprocess.Popen(  # noqa: S603 - this program
                [*command, "--port", "0", "--with-parent"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=self._environ,
                start_new_session=True,  # Ctrl-C should reach the parent only
            )
        except OSError as error:
            reason = error.strerror or str(error)
            raise ProviderUnreachableError(
                f"the local models could not be served: {reason}"
            ) from None
        line = process.stdout.readline() if process.stdout else b""
        try:
            greeting: Any = json.loads(line)
            return process, str(greeting["address"])
        except (ValueError, KeyError, TypeError):
            process.kill()
            process.wait()
        errors.seek(0)
        lines = errors.read().decode("utf-8", "replace").strip().splitlines()
        reason = lines[-1].removeprefix("batuta: ") if lines else "the process printed nothing"
        raise ProviderUnreachableError(f"the local models could not be served: {reason}")


@final
class LocalClient:
    """The client of a worker with a local model; its first call starts the server if needed."""

    def __init__(
        self, spec: WorkerSpec, http: HttpTransport, health: WorkerHealth | None, server: PoolServer
    ) -> None:
        """Register the model; nothing is started yet.

        Raises:
            ConfigError: the model is unknown or was not pulled, or llama.cpp is not installed.
        """
        server.add_model(spec.worker.model)
        self._spec = spec
        self._http = http
        self._health = health
        self._server = server
        self._opened: tuple[str, Client] = "", self

    def __repr__(self) -> str:
        return f"LocalClient({self._spec.worker.model!r})"

    @property
    def identity(self) -> Identity:
        """The worker's identity; it does not contain the server's port."""
        return spec_identity(self._spec)

    async def complete(self, request: Request, listener: CallListener = NULL_LISTENER) -> Reply:
        """Return the model's reply.

        Raises:
            ClientError: the call failed, or the server could not be started.
            LimitReachedError: the listener forbade another attempt.
        """
        address = await self._server.find_address(self._spec.worker.model)
        if self._opened[0] != address:
            spec = replace(self._spec, provider="llamacpp", base_url=f"{address}/v1")
            self._opened = address, open_client(spec, self._http, health=self._health)
        return await self._opened[1].complete(request, listener)


def pool_server(http: HttpTransport, environ: Mapping[str, str]) -> PoolServer:
    """Return the server of all pools that use this transport; closing `http` stops the server."""
    return http.companion(LOCAL, lambda: PoolServer(environ))
