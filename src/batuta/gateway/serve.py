"""Runs the app with uvicorn; if no key is needed, only the loopback is served.

When the server is asked to stop, its runs may end within a grace period; then they are cancelled.
"""

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
"""Options for `anyio.run`: the event loop on which this server is benchmarked."""
GRACE_SECONDS = 10.0
"""Seconds that runs may continue once the server is asked to stop."""
_KEEP_ALIVE = 75
"""Seconds after a response for which a connection stays open without another request."""
_BACKLOG = 2048
_POLL_SECONDS = 0.1
_CANCEL_SECONDS = 5
"""Seconds after the grace period in which cancelled runs may still inform their clients."""
_STUCK_SECONDS = 2.0
"""Seconds after the grace period and `_CANCEL_SECONDS` at which a blocked process exits anyway."""
_GC_THRESHOLD = 20_000
"""Allocations minus deallocations that start a collection of the youngest generation."""


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
        state: the parts of the server.
        host: an IP address or `localhost`; if no key is needed, one of the loopback.
        port: 0 for any free port.
        on_ready: called with the URL once connections are accepted.
        grace_seconds: seconds that runs may continue after the server is asked to stop; then they
            are cancelled, their clients informed, and the runs stored or left for a later resume.
            If this call is cancelled, there is no such period.
        connections: limits on the number and the timeouts of connections; None: the defaults.
        owns_process: whether the process does nothing else, so that its garbage collector is tuned
            for requests.

    Raises:
        ConfigError: the address cannot be used, or is not a loopback address and no key is needed.
        StoreError: the store cannot say whether a key is needed.
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
            with suppress(StoreError):  # the store is not open; /readyz reports it
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
    """A uvicorn server whose socket stays open during the grace period after the first signal."""

    stop_requested = False
    """Whether a stop signal was received."""
    exit_after = 0.0
    """Seconds after the first stop signal at which the process exits even if its loop is stuck."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin a graceful stop at the first signal; let uvicorn stop at the second."""
        if self.stop_requested:
            super().handle_exit(sig, frame)
        else:
            # A C thread that needs neither the event loop nor the GIL. It writes the stacks of
            # all threads to standard error.
            with suppress(OSError, ValueError, RuntimeError):
                faulthandler.dump_traceback_later(self.exit_after, exit=True)
        self.stop_requested = True


@final
class _HttpProtocol(GuardedProtocol):
    """The guarded protocol, with the API's error body for requests that are not valid HTTP."""

    def send_400_response(self, msg: str) -> None:
        """Refuse the request and close the connection."""
        self.send_refusal(APIError(400, "invalid_request", msg))


def open_socket(host: str, port: int, *, needs_key: bool = False) -> socket.socket:
    """Return a listening socket; if no key is needed, it must be on the loopback.

    Raises:
        ConfigError: the host is not a loopback address and no key is needed, or the address cannot
            be bound.
    """
    address = "127.0.0.1" if host == "localhost" else host.strip("[]")
    if not needs_key and not _is_loopback(address):
        raise ConfigError(
            f"host {host} is not a loopback address: without keys only this machine is served; "
            "create a key first: batuta keys create NAME"
        )
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        listener = socket.create_server((address, port), family=family, backlog=_BACKLOG)
    except (OSError, OverflowError) as error:
        if getattr(error, "errno", None) == errno.EADDRINUSE:
            raise ConfigError(
                f"port {port} on {host} is in use by another program: stop that program, "
                "or choose another port with --port"
            ) from None
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"cannot listen on port {port} of {host}: {reason}") from None
    # Accepted connections inherit this option, which asyncio would not set. Without it each
    # small write would wait 40 ms for an acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def url_of(listener: socket.socket) -> str:
    """Return the base URL of a listening socket."""
    address, port = listener.getsockname()[:2]
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


@contextmanager
def _absorb_signals() -> Generator[None]:
    """Ignore the signals that uvicorn raises again when it ends.

    Such a signal would end the process before the store has written its queue. Only the main thread
    gets signals; in another thread this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    stop_signals = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, _ignore_signal) for number in stop_signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def reduce_collections() -> Generator[None]:
    """Exclude existing objects from garbage collection in the block, and collect more rarely.

    Objects from before the first request (mostly code) live as long as the process. Requests
    free nearly all their objects by reference counting.
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
    """Cancel the timed process exit, set by a stop signal, when the server has ended."""
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _ignore_signal(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: uvicorn has already handled the signal."""


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
    """Call `on_ready` when the server is ready, and stop the server once a stop is requested.

    Running requests may end within `grace_seconds`. During this time new requests that call models
    are refused, and `/readyz` reports that the server is closing.
    """
    while not server.started:  # noqa: ASYNC110 - uvicorn only sets a flag
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
    """Stop a server whose task was cancelled: cancel its requests, without a grace period."""
    state.request_scopes.close()
    if server.started:
        await server.shutdown([listener])
