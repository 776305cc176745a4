"""The package files that one request passes through. `python bench/files_per_request.py`

A file counts if a function of it is called, in any thread, while the request is answered: a POST to
/v1/chat/completions (whole, and streamed) and `batuta ask`. The worker is a loopback server in
OpenAI's dialect, the run is stored in SQLite. Each is done once before it is counted, so that what
happens at an import or at the start is left out; so are functions that were called before and only
go on meanwhile, as the server's watch for its end.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import sys
import tempfile
import threading
from pathlib import Path

import aiohttp
import anyio
from anyio.from_thread import start_blocking_portal

import batuta
from batuta.clients import HttpTransport
from batuta.gateway import ServerState, run_server
from batuta.gateway.assemble import ServeOptions
from batuta.store import Store

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from fakes.openai import FakeOpenAI
from fakes.server import KEY

PACKAGE = Path(batuta.__file__).parent
SETTINGS = """
[[workers]]
id = "ada"
provider = "compatible"
base_url = "{url}"
model = "m"
key_env = "PROVIDER_KEY"

[conductor]
worker = "best"
"""
BODY = {"model": "batuta-mini", "messages": [{"role": "user", "content": "Say hello."}]}


@contextlib.contextmanager
def traced_files():
    """The files of the package in which a function is called within the block."""
    called = set()

    def note(frame, event, _):
        code = frame.f_code
        if event != "call" or not code.co_flags & inspect.CO_OPTIMIZED:
            return  # no body of a class or module
        if not code.co_code[frame.f_lasti + 1] & 3:  # of RESUME: a beginning, and no going on
            called.add(code.co_filename)

    found: set[str] = set()
    threading.setprofile_all_threads(note) if hasattr(
        threading, "setprofile_all_threads"
    ) else threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        root = f"{PACKAGE}{os.sep}"
        found |= {name.removeprefix(root) for name in called if name.startswith(root)}


async def trace_chat(settings: Path, folder: Path) -> dict[str, set[str]]:
    """The files of a chat completion, whole and streamed."""
    options = ServeOptions(
        pool=str(settings), conductor=None, history=None, cascade=None, checker=None, folders=()
    )
    ready, urls = anyio.Event(), []

    def tell(url):
        urls.append(url)
        ready.set()

    traced = {}
    async with HttpTransport() as http, Store(folder / "runs.db") as store:
        catalogue = options.build_catalogue(await options.load_config(http))
        state = ServerState(catalogue=catalogue, store=store)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: run_server(state, port=0, on_ready=tell, grace_seconds=0))
            await ready.wait()
            async with aiohttp.ClientSession() as client:
                for name, more in (("whole", {}), ("streamed", {"stream": True})):
                    await post(client, urls[0], {**BODY, **more})
                    await store.flush()
                    with traced_files() as found:
                        await post(client, urls[0], {**BODY, **more})
                        await store.flush()
                    traced[f"POST /v1/chat/completions, {name}"] = found
            tasks.cancel_scope.cancel()
    return traced


async def post(client, url, body):
    async with client.post(f"{url}/v1/chat/completions", json=body) as response:
        text = await response.text()
        assert response.status == 200, text


def trace_ask(settings: Path) -> set[str]:
    """The files of `batuta ask`, from the command line's arguments to the answer."""
    from batuta.cli import main

    sys.argv = ["batuta", "ask", "--pool", str(settings), "Say hello."]
    run_quietly(main)
    with traced_files() as found:
        run_quietly(main)
    return found


def run_quietly(main):
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(SystemExit):
        main()
    assert said.getvalue().strip(), "nothing was answered"


def main() -> None:
    with tempfile.TemporaryDirectory() as name, start_blocking_portal("asyncio") as portal:
        folder = Path(name)
        os.environ |= {"PROVIDER_KEY": KEY, "BATUTA_HOME": name}
        provider = FakeOpenAI(strict_openai=False)
        with portal.wrap_async_context_manager(provider):
            settings = folder / "batuta.toml"
            settings.write_text(SETTINGS.format(url=provider.url))
            traced = anyio.run(trace_chat, settings, folder)
            traced["batuta ask"] = trace_ask(settings)
    for what, found in traced.items():
        print(f"{what}: {len(found)} files\n  " + "\n  ".join(sorted(found)) + "\n")


if __name__ == "__main__":
    main()
