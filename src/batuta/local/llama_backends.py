"""Starts a llama.cpp server for each model, on free loopback ports.

With the library xllamacpp all models run in this process; without it, or if a `program` is set,
each model runs in a process of `llama-server`.
"""

from __future__ import annotations

import importlib
import shutil
import signal
import socket
import subprocess
from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import aiohttp
import anyio
from anyio import to_thread

from batuta.core.formatting import format_bytes, join_words
from batuta.distribution import install_hint
from batuta.environment import available_memory
from batuta.errors import ConfigError
from batuta.local.catalogue import CONTEXT, KnownModel

LOOPBACK = "127.0.0.1"
LOAD_SECONDS = 300.0
"""Seconds that a `llama-server` may take to load its model, enough for a slow disk."""
PROMPT_CACHE_MIB = 256
"""MiB of memory of each model for cached prompts that were evicted from their slots."""
PROGRAM = "llama-server"
LIBRARY = "xllamacpp"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingOptions:
    """Settings with which llama.cpp serves each model."""

    threads: int = 1
    """Threads of each model; on busy cores several threads would wait for each other."""
    slots: int = 8
    """Concurrent calls of each model."""
    program: str = ""
    """The llama-server to start, such as a GPU build; empty: xllamacpp, else the one on PATH."""


def check_llama(program: str = "") -> None:
    """Check that llama.cpp is installed.

    Args:
        program: the llama-server that must exist; empty: xllamacpp, or llama-server on PATH.

    Raises:
        ConfigError: llama.cpp is not installed, or `program` does not exist.
    """
    if program and shutil.which(program) is None:
        raise ConfigError(f"there is no program {program}: --program must name a llama-server")
    if not program and find_spec(LIBRARY) is None and shutil.which(PROGRAM) is None:
        raise ConfigError(
            f"llama.cpp is not installed: {install_hint('local')}, or put {PROGRAM} on your PATH"
        )


def check_memory(models: list[KnownModel], free: int | None = None) -> None:
    """Check that the models fit into memory together.

    Args:
        models: the models to serve.
        free: available bytes; None: the available memory of this machine.

    Raises:
        ConfigError: the models do not fit.
    """
    needed = sum(model.memory for model in models)
    available = available_memory() if free is None else free
    if needed > available:
        names = join_words([model.name for model in models])
        raise ConfigError(
            f"too little memory for {names}: {format_bytes(needed)} are needed and "
            f"{format_bytes(available)} are free: name fewer models, or free some memory"
        )


async def start_backend(
    name: str, path: Path, options: ServingOptions, stack: AsyncExitStack
) -> str:
    """Start a llama.cpp server for a model file, and wait until the model is loaded.

    Closing `stack` stops the server.

    Returns:
        The URL of the server, without a path.

    Raises:
        ConfigError: llama.cpp is not installed, does not start, or does not load the file in time.
    """
    check_llama(options.program)
    by_library = not options.program and find_spec(LIBRARY) is not None
    start = _start_in_process if by_library else _start_program
    return await start(name, path, options, stack)


async def _start_in_process(
    name: str, path: Path, options: ServingOptions, stack: AsyncExitStack
) -> str:
    library = importlib.import_module(LIBRARY)
    params = _set_parameters(library.CommonParams(), name, path, options)
    try:
        server: Any = await to_thread.run_sync(library.Server, params)
    except RuntimeError as error:
        raise _load_error(path, str(error)) from None
    held = [server]
    stack.callback(held.clear)  # the server stops when the last reference to it is dropped
    return str(server.listening_address)


def _set_parameters(params: Any, name: str, path: Path, options: ServingOptions) -> Any:
    params.model.path, params.model_alias = str(path), {name}
    params.hostnames, params.port = [LOOPBACK], 0
    params.n_parallel, params.n_ctx = options.slots, options.slots * CONTEXT
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads
    params.n_threads_http = options.slots + 2
    params.cache_prompt, params.cache_ram_mib = True, PROMPT_CACHE_MIB
    params.n_gpu_layers, params.warmup, params.verbosity = 0, False, 0
    return params


async def _start_program(
    name: str, path: Path, options: ServingOptions, stack: AsyncExitStack
) -> str:
    port = _find_free_port()
    output = stack.enter_context(TemporaryFile())  # noqa: SIM115 - the stack closes it
    sizes = {
        "--port": port,
        "--parallel": options.slots,
        "--ctx-size": options.slots * CONTEXT,
        "--threads": options.threads,
        "--threads-batch": options.threads,
        "--cache-ram": PROMPT_CACHE_MIB,
    }
    command = [str(shutil.which(options.program or PROGRAM)), "--model", str(path), "--alias", name]
    command += ["--host", LOOPBACK, "--no-webui", "--no-warmup"]
    command += [str(part) for option in sizes.items() for part in option]
    try:
        process = await to_thread.run_sync(_open_program, command, output)
    except OSError as error:
        raise ConfigError(f"{command[0]} cannot be started: {error.strerror}") from None
    stack.callback(_end_process, process)
    address = f"http://{LOOPBACK}:{port}"
    async with aiohttp.ClientSession() as session:
        with anyio.move_on_after(LOAD_SECONDS):
            while process.poll() is None:
                if await _is_ready(session, address):
                    return address
                await anyio.sleep(0.1)
    output.seek(0)
    lines = output.read().decode("utf-8", "replace").strip().splitlines()
    last = lines[-1] if lines else "none"
    ended = process.poll()
    if ended is None:
        raise ConfigError(
            f"llama.cpp did not load {path} within {LOAD_SECONDS:.0f} s (its last output: {last})"
        )
    if ended < 0:  # killed by a signal, which is not the file's fault
        signal_name = signal.Signals(-ended).name
        raise ConfigError(
            f"{command[0]} was ended by {signal_name} while it loaded {path} (its last output: "
            f"{last}): it may be built for another processor, or there was too little memory"
        )
    raise _load_error(path, last if lines else "")


def _open_program(command: list[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - the program of that name on the PATH
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=output
    )


async def _is_ready(session: aiohttp.ClientSession, address: str) -> bool:
    try:
        async with session.get(f"{address}/health") as response:
            return response.ok
    except (aiohttp.ClientError, OSError):
        return False


def _end_process(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def _load_error(path: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"llama.cpp cannot load {path} ({reason.strip() or 'it gave no reason'}): remove the file "
        "and pull it again"
    )
