"""A server that was put together from a settings file, whose admin changes its workers."""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from functools import partial

from anyio.from_thread import start_blocking_portal

from batuta.clients import HttpTransport
from batuta.config.pool_file import PoolFile
from batuta.gateway import LOOP_OPTIONS, ServerState, run_server
from batuta.gateway.access.caller import Authenticator
from batuta.gateway.assemble import ServeOptions
from batuta.gateway.serving.pool_editor import PoolEditor
from batuta.store import Store
from batuta.store.key_hasher import KeyHasher
from fakes.openai import FakeOpenAI
from gateway.ui.page_server import ADMIN

HASHER = KeyHasher(b"a secret of the tests, long enough for it")
KEY_VARIABLE = "POOL_KEY"
"""The environment variable of the workers' key; the caller sets it."""


class EditedPool:
    """The settings file of two workers of one fake provider, and what serves it."""

    def __init__(self, path, provider, store, state):
        self.path, self.provider, self.store, self.state = path, provider, store, state
        self.url = ""

    @classmethod
    @asynccontextmanager
    async def open(cls, folder):
        """The state of a server; it is not served yet."""
        path = folder / "batuta.toml"
        async with (
            FakeOpenAI() as provider,
            HttpTransport() as http,
            Store(folder / "runs.db") as store,
        ):
            path.write_text(
                "# Ours.\n" + "".join(map(partial(_describe, provider), ("ada", "bob")))
            )
            options = ServeOptions(
                pool=str(path), conductor=None, history=None, cascade=None, checker=None, folders=()
            )
            catalogue = options.build_catalogue(await options.load_config(http))
            reread = partial(options.reread, http, store)
            state = ServerState(
                catalogue=catalogue,
                store=store,
                authenticator=Authenticator(store, HASHER, ADMIN, cache_seconds=0.0),
                pool_editor=PoolEditor(PoolFile(path), catalogue, store, reread),
            )
            yield cls(path, provider, store, state)


def _describe(provider, name):
    return (
        f'\n[[workers]]  # {name}\nid = "{name}"\nmodel = "gpt-{name}"\nbase_url = "{provider.url}"\n'
        f'key_env = "{KEY_VARIABLE}"\nprice = {{ input = 1, output = 2 }}\n'
    )


@contextmanager
def serve_edited_pool(folder):
    """Serve it in a thread of its own, for a browser."""
    with (
        start_blocking_portal("asyncio", LOOP_OPTIONS) as portal,
        portal.wrap_async_context_manager(EditedPool.open(folder)) as pool,
    ):

        async def serve(*, task_status):
            ready = task_status.started
            await run_server(pool.state, port=0, on_ready=ready, grace_seconds=0.0)

        task, pool.url = portal.start_task(serve)
        try:
            yield pool
        finally:
            task.cancel()
