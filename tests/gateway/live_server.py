"""A server of a few scripted workers, on the loopback."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass, field, fields, replace
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import aiohttp
import anyio
import orjson
from openai import AsyncOpenAI

from batuta.clients import ScriptedClient
from batuta.conductors import sequential_chain
from batuta.core import Delta, Pool, Price, Reply, Worker, WorkerId
from batuta.core.conductor import NULL_LISTENER
from batuta.errors import ClientError, StreamInterruptedError
from batuta.gateway import Catalogue, ServerState, StreamTimeouts, run_server, served_models
from batuta.jobs import open_jobs
from batuta.store import Store

PRICE = Price(input=Decimal(1), output=Decimal(2))
HI = [{"role": "user", "content": "hi"}]


@dataclass
class Halting:
    """Says a little, then nothing more until it is cancelled."""

    words: tuple[str, ...] = ()
    started: anyio.Event = field(default_factory=anyio.Event)
    cancelled: anyio.Event = field(default_factory=anyio.Event)

    async def complete(self, request, listener=NULL_LISTENER):
        try:
            for word in self.words:
                await listener.on_delta(Delta(text=word))
            self.started.set()
            await anyio.sleep_forever()
        except BaseException:
            self.cancelled.set()
            raise


@dataclass
class Breaking:
    """Says a little, then its connection breaks."""

    words: tuple[str, ...]
    error: ClientError = field(
        default_factory=lambda: StreamInterruptedError("https://secret.example broke")
    )

    async def complete(self, request, listener=NULL_LISTENER):
        for word in self.words:
            await listener.on_delta(Delta(text=word))
        raise self.error


class Buggy:
    """A conductor with a fault."""

    name = "buggy"

    async def plan(self, context, listener=NULL_LISTENER):
        raise RuntimeError("secret content")


def pool_of(*ids: str, seeing: tuple[str, ...] = ()) -> Pool:
    return Pool(
        tuple(
            Worker(
                id=WorkerId(name),
                model=f"m-{name}",
                description=f"The {name}.",
                tags=("vision",) if name in seeing else (),
                strength=0.9 - at / 10,
                price=PRICE,
            )
            for at, name in enumerate(ids)
        )
    )


def scripted_state(clients: dict[str, Any], *, conductor=None, **options: Any) -> ServerState:
    pool = pool_of(*clients, seeing=options.pop("seeing", ()))
    conductor = conductor or sequential_chain(
        ["Think.", "Answer."], [next(iter(clients)), list(clients)[-1]]
    )
    served = served_models(pool, conductor, **options.pop("limits", {}))
    return server_state(pool, clients, served, **options)


OF_CATALOGUE = {each.name for each in fields(Catalogue)}


def server_state(pool, clients, models, **options: Any) -> ServerState:
    """A server of those models; an option is the catalogue's or the server's own; None: unset."""
    options = {name: value for name, value in options.items() if value is not None}
    given = {name: options.pop(name) for name in OF_CATALOGUE & options.keys()}
    catalogue = Catalogue(pool=pool, clients=clients, models=tuple(models), **given)
    return ServerState(catalogue=catalogue, **options)


class Serving:
    """A server for the length of a block.

    With `background` it runs background jobs, from a folder that goes with it.
    """

    def __init__(
        self,
        app_state: ServerState | None = None,
        *,
        grace: float = 0.0,
        background: bool = False,
        **clients: Any,
    ):
        self.app_state = app_state or scripted_state(
            clients or {"ada": ScriptedClient(lambda _: "Hello there, you.")}
        )
        self.grace, self.background = grace, background
        self.opened = AsyncExitStack()
        self.url = ""

    async def __aenter__(self) -> Self:
        if self.background:
            folder = Path(self.opened.enter_context(TemporaryDirectory()))
            jobs = await self.opened.enter_async_context(open_jobs(folder / "jobs.db"))
            self.app_state = replace(self.app_state, jobs=jobs)
        ready = anyio.Event()

        def told(url: str) -> None:
            self.url = url
            ready.set()

        self.tasks = anyio.create_task_group()
        await self.tasks.__aenter__()
        self.tasks.start_soon(self._serve, told)
        await ready.wait()
        self.http = aiohttp.ClientSession(self.url)
        return self

    @cached_property
    def openai(self) -> AsyncOpenAI:
        """Made when it is wanted: reading the certificates takes longer than most tests."""
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key="any", max_retries=0)

    async def _serve(self, told) -> None:
        await run_server(self.app_state, port=0, on_ready=told, grace_seconds=self.grace)

    async def __aexit__(self, *error: object) -> bool | None:
        with anyio.CancelScope(shield=True):
            if "openai" in self.__dict__:
                await self.openai.close()
            await self.http.close()
        self.tasks.cancel_scope.cancel()
        async with self.opened:
            return await self.tasks.__aexit__(*error)  # pyright: ignore[reportArgumentType]

    async def post(self, path: str = "/v1/chat/completions", **options: Any):
        """Status, headers, decoded body."""
        if "body" in options:
            options["data"] = options.pop("body")
            options["headers"] = {"content-type": "application/json", **options.get("headers", {})}
        async with self.http.post(path, **options) as response:
            return response.status, response.headers, orjson.loads(await response.read())

    async def get(self, path: str, **options: Any):
        """Status, decoded body."""
        async with self.http.get(path, **options) as response:
            return response.status, orjson.loads(await response.read())

    async def frames(self, **body: Any) -> list[str]:
        """The stream's frames as they came, without the blank lines."""
        body = {"stream": True, "messages": HI, **body}
        async with self.http.post("/v1/chat/completions", json=body) as response:
            text = (await response.read()).decode()
        assert text.endswith("\n\n")
        return text[:-2].split("\n\n")


async def stored(store: Store, count: int = 1):
    """The runs, once there are that many; a cancelled one arrives a moment later."""
    with anyio.fail_after(60):
        while len(rows := await store.list()) < count:
            await anyio.sleep(0.01)
    return rows


__all__ = [
    "HI",
    "Breaking",
    "Buggy",
    "Halting",
    "Reply",
    "Serving",
    "StreamTimeouts",
    "scripted_state",
    "server_state",
    "stored",
]
