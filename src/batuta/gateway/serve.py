"""The app on a socket: uvicorn, the loopback unless there are keys, an end that loses no run."""

from __future__ import annotations

import asyncio
import errno
import faulthandler
import gc
import signal
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager, nullcontext, suppress
from functools import partial
from ipaddress import ip_address
from types import FrameType
from typing import Any, cast, final

import anyio
import uvicorn

from batuta.errors import ConfigError, StoreError
from batuta.gateway.app import ServerState, assemble_app
from batuta.gateway.errors import APIError
from batuta.gateway.http.connections import ConnectionTable, GuardedProtocol
from batuta.gateway.http.server_limits import ConnectionLimits
from batuta.gateway.ui import compile_templates

LOOP_OPTIONS: dict[str, Any] = {"use_uvloop": True}
"""Options with which `anyio.run` gives the loop that this server is measured on."""
GRACE_SECONDS = 10.0
"""Seconds that runs may go on once the server was asked to stop."""
_KEEP_ALIVE = 75
_BACKLOG = 2048
_POLL_SECONDS = 0.1
_CANCEL_SECONDS = 5
"""Seconds that cancelled runs have to tell their readers, once the grace is over."""
_STUCK_SECONDS = 2.0
"""Seconds beyond both that a loop may be held before the process ends without it."""
_GC_THRESHOLD = 20_000
"""Objects made and not yet freed that let the garbage collector look for cycles among them."""


async def run_server(
    state: ServerState,
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    on_ready: Callable[[str], None] | None = None,
    grace_seconds: float = GRACE_SECONDS,
    connections: ConnectionLimits | None = None,
    owns_process: bool = False,
) -> None:
    """Serve until the process is asked to stop, or this call is cancelled.

    Args:
        state: what is served.
        host: an address; without keys, one of the loopback.
        port: 0 takes any free one.
        on_ready: is told the URL once connections are accepted.
        grace_seconds: seconds that runs may go on after the server was asked to stop; then they are
            cancelled, their readers informed, and the runs stored.
        connections: how many are taken on, and how long each may make the server wait.
        owns_process: the process does nothing else: its garbage collector is set for requests.

    Raises:
        ConfigError: the address cannot be had, or is not of the loopback and there are no keys.
    """
    keyed = await state.authenticator.needs_key()
    (app, background, shadows), table = assemble_app(state), ConnectionTable(connections)
    with closing(open_socket(host, port, needs_key=keyed)) as listener:
        config = uvicorn.Config(
            app,
            http=cast("type[asyncio.Protocol]", partial(_HttpProtocol, table)),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=_BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE,
            timeout_graceful_shutdown=_CANCEL_SECONDS,
        )
        server = _GracefulServer(config)
        server.exit_after = grace_seconds + _CANCEL_SECONDS + _STUCK_SECONDS
        if state.store is not None:
            with suppress(StoreError):  # it is not open, as /readyz says
                state.store.look_after_budgets()
        async with anyio.create_task_group() as tasks:
            for work in (background.work, shadows.work, state.authenticator.key_watch.work):
                tasks.start_soon(work)
            if app.state.mcp is not None:
                tasks.start_soon(app.state.mcp.work)
            tasks.start_soon(table.watch_deadlines)
            tasks.start_soon(state.rate_limiter.concurrency.renew)
            tasks.start_soon(compile_templates)
            watch = partial(_watch_shutdown, server, state, url=url_of(listener), on_ready=on_ready)
            tasks.start_soon(partial(watch, grace_seconds=grace_seconds))
            try:
                collections = reduce_collections() if owns_process else nullcontext()
                with _absorb_signals(), collections, _cancel_exit_timer():
                    await server.serve(sockets=[listener])
            except anyio.get_cancelled_exc_class():
                with anyio.CancelScope(shield=True):
                    await _stop_server(server, state, listener)
                raise
            tasks.cancel_scope.cancel()


@final
class _GracefulServer(uvicorn.Server):
    """uvicorn, told by a signal to stop soon and not at once: its socket stays open meanwhile."""

    stop_requested = False
    """Whether somebody asked it to stop."""
    exit_after = 0.0
    """Seconds after which a process that was asked to stop ends, whatever holds its loop."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Ask the server to end at the first signal, and insist at the second."""
        if self.stop_requested:
            super().handle_exit(sig, frame)
        else:
            # A thread of C that needs neither the loop nor the interpreter's lock; what held
            # them is written to the standard error.
            with suppress(OSError, ValueError, RuntimeError):
                faulthandler.dump_traceback_later(self.exit_after, exit=True)
        self.stop_requested = True


@final
class _HttpProtocol(GuardedProtocol):
    """uvicorn's, which says in the API's form that what came is no HTTP."""

    def send_400_response(self, msg: str) -> None:
        """Send the last words on this connection; nothing of it has reached the app."""
        self.send_refusal(APIError(400, "invalid_request", msg))


def open_socket(host: str, port: int, *, needs_key: bool = False) -> socket.socket:
    """Return a listening socket, on the loopback unless a key is needed to be served.

    Raises:
        ConfigError: the host is elsewhere and no key is needed, or the port cannot be had.
    """
    address = "127.0.0.1" if host == "localhost" else host.strip("[]")
    if not needs_key and not _is_loopback(address):
        raise ConfigError(
            f"host {host} is not a loopback address: without keys only this machine is served; "
            "make a key first: batuta keys create NAME"
        )
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        listener = socket.create_server((address, port), family=family, backlog=_BACKLOG)
    except (OSError, OverflowError) as error:
        if getattr(error, "errno", None) == errno.EADDRINUSE:
            raise ConfigError(
                f"port {port} on {host} cannot be had: another program has it; stop that one, "
                "or name another port with --port"
            ) from None
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"port {port} on {host} cannot be had: {reason}") from None
    # Accepted connections inherit it; asyncio would not set it on them, and each small write
    # would wait 40 ms for an acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def url_of(listener: socket.socket) -> str:
    """Return the address of that socket."""
    address, port = listener.getsockname()[:2]
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


@contextmanager
def _absorb_signals() -> Generator[None]:
    """Let the caller's blocks close after a signal has stopped the server.

    uvicorn raises again, at its end, every signal it caught; without this the process would die
    there, before the store has written what is queued.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    wanted = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, _ignore_signal) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def reduce_collections() -> Generator[None]:
    """Let the garbage collector look at what requests make, and seldom.

    What is there before the first request - the code, mostly - stays, so looking through it
    again and again finds nothing; and requests free nearly all that they make without it.
    """
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


@contextmanager
def _cancel_exit_timer() -> Generator[None]:
    """Take back, at the server's end, what a signal set to end the process."""
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _ignore_signal(_number: int, _frame: FrameType | None) -> None:
    """Do nothing, as uvicorn has seen the signal already."""


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False


async def _watch_shutdown(
    server: _GracefulServer,
    state: ServerState,
    url: str,
    on_ready: Callable[[str], None] | None,
    *,
    grace_seconds: float,
) -> None:
    """Tell when the server is ready, and stop it once it is asked to.

    What has begun is served to its end, as long as that takes no longer than `grace`; whoever
    comes meanwhile is told that the server stops, and so is who looks whether it is ready.
    """
    while not server.started:  # noqa: ASYNC110 - uvicorn tells by a flag
        await anyio.sleep(_POLL_SECONDS / 10)
    if on_ready is not None:
        on_ready(url)
    while not (server.stop_requested or server.should_exit):  # noqa: ASYNC110 - same
        await anyio.sleep(_POLL_SECONDS)
    state.limiter.close()
    with anyio.move_on_after(grace_seconds):
        await state.limiter.wait_until_empty()
    state.request_scopes.close()
    server.should_exit = True


async def _stop_server(server: uvicorn.Server, state: ServerState, listener: socket.socket) -> None:
    """End a server whose task was cancelled, waiting for nobody."""
    state.request_scopes.close()
    if server.started:
        await server.shutdown([listener])
