"""Houses for the page: real servers on the loopback, each in a thread of its own."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path

import anyio
from anyio.from_thread import start_blocking_portal

from batuta.clients import ScriptedClient
from batuta.conductors import FixedConductor, single_worker
from batuta.core import Client, Conductor, Delta, Pool, Step, Worker, WorkerId, Workflow
from batuta.core.conductor import NULL_LISTENER
from batuta.gateway import (
    LOOP_OPTIONS,
    Catalogue,
    PageContext,
    ServedModel,
    ServerState,
    run_server,
    served_models,
)
from batuta.gateway.access.caller import Authenticator
from batuta.gateway.http.request_slots import ConcurrencyLimiter
from batuta.gateway.http.server_limits import ConcurrencyLimits
from batuta.lab.worlds.simulated import rehearsal_config
from batuta.language.approval_rules import ApprovalRule
from batuta.store import Store
from batuta.store.key_hasher import KeyHasher

QUESTION = "Compute the result: begin at 45; square it; double it."
HOSTILE = (
    "<script>window.broken = 1</script>",
    "<img src=x onerror='window.broken = 1'>",
    "<svg/onload=window.broken=1>",
    "</pre></textarea></title></style><script>window.broken = 1</script>",
    "\"'><a href='javascript:window.broken=1' autofocus onfocus=window.broken=1>x</a>",
    "[press](javascript:window.broken=1) ![](https://elsewhere.invalid/read.png)",
    "$\\text{<img src=x onerror=window.broken=1>}$ \\[\\href{javascript:window.broken=1}{x}\\]",
    "```html\n</code></pre><script>window.broken = 1</script>\n```",
    '```"><script>window.broken=1</script>\nx\n```',
    "<iframe srcdoc='<script>parent.broken=1</script>'></iframe><base href=https://elsewhere.invalid/>",
    "{{ 7 * 7 }} {% raw %} ${window.broken=1} <%= 1 %>",
    "&lt;script&gt;window.broken=1&lt;/script&gt; \u202e\u0000 \ud83d\ude00",
    "<style>*{display:none}</style><link rel=stylesheet href=https://elsewhere.invalid/x.css>",
    "<math><mtext><style><img src=x onerror=window.broken=1></style></mtext></math>",
)
ADMIN = "an-admin-token-of-the-tests"


class Sloth:
    """Says a little and then nothing more, until it is cancelled."""

    def __init__(self) -> None:
        self.cancelled = 0

    async def complete(self, request, listener=NULL_LISTENER):
        try:
            await listener.on_delta(Delta(text="I am thinking"))
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            self.cancelled += 1
            raise


def hostile_flow(context):
    """Five steps, each with a subtask that would like to be a script."""
    steps = [
        Step(subtask=f"{text} step", worker=WorkerId("villain"), access=tuple(range(at)))
        for at, text in enumerate(HOSTILE[:5])
    ]
    return Workflow(tuple(steps))


class PageServer:
    """The rehearsal's workers, a villain and a sloth."""

    def __init__(
        self,
        folder: Path,
        *,
        pace: float = 1.0,
        keyed: bool = False,
        running: int | None = None,
        others: tuple[tuple[Worker, Client], ...] = (),
        conducted: Conductor | None = None,
        approvals: tuple[ApprovalRule, ...] = (),
    ) -> None:
        """A server of the rehearsal.

        Args:
            folder: where its store is.
            pace: how fast its workers are.
            keyed: whether visitors must sign in.
            running: runs at the same time; None: any number.
            others: further workers, each also served alone.
            conducted: conducts these others as the model `conducted`; None: there is no such model.
            approvals: which plans wait for approval.
        """
        ensemble = rehearsal_config(None, pace)
        self.sloth = Sloth()
        guests = (
            Worker(
                id=WorkerId("villain"), model="villain", description=HOSTILE[0], tags=(HOSTILE[1],)
            ),
            Worker(id=WorkerId("sloth"), model="sloth", description="Never done."),
        )
        pool = Pool((*ensemble.pool, *guests, *(worker for worker, _ in others)))
        clients = {
            **ensemble.clients,
            "villain": ScriptedClient(lambda _: "\n\n".join(HOSTILE)),
            "sloth": self.sloth,
            **{worker.id: client for worker, client in others},
        }
        served = (
            *served_models(ensemble.pool, ensemble.conductor),
            ServedModel(
                name="villain", conductor=FixedConductor(HOSTILE[2], hostile_flow), pool=pool
            ),
            *(
                ServedModel(
                    name=name,
                    conductor=single_worker("sloth"),
                    pool=pool.subset(("sloth",)),
                    fallback=False,
                    direct=name.startswith("worker/"),
                )
                for name in ("sloth", "worker/sloth")
            ),
            *(
                ServedModel(
                    name=f"worker/{worker.id}",
                    conductor=single_worker(worker.id),
                    pool=pool.subset((worker.id,)),
                    fallback=False,
                    direct=True,
                )
                for worker, _ in others
            ),
        )
        if conducted is not None:
            own = pool.subset([worker.id for worker, _ in others])
            served += (ServedModel(name="conducted", conductor=conducted, pool=own),)
        self.mint = KeyHasher(b"a secret of the tests, long enough for it")
        self.store = Store(folder / "runs.db")
        catalogue = Catalogue(
            pool=pool,
            clients=clients,
            models=served,
            approvals=approvals,
            page_context=PageContext(
                source="the tests",
                simulated=True,
                examples=(QUESTION,),
                folders=(folder / "learning",),
            ),
        )
        keys = Authenticator(self.store, self.mint, ADMIN, cache_seconds=0.0)
        self.state = ServerState(
            catalogue=catalogue,
            store=self.store,
            authenticator=keys if keyed else Authenticator(),
            limiter=ConcurrencyLimiter(
                None if running is None else ConcurrencyLimits(max_running=running, max_waiting=0)
            ),
        )
        self.url = ""
        self.portal = None

    @contextmanager
    def open(self):
        """Served for the length of the block."""
        with start_blocking_portal("asyncio", LOOP_OPTIONS) as portal:
            self.portal = portal
            with portal.wrap_async_context_manager(self.store):
                task, self.url = portal.start_task(self._serve)
                try:
                    yield self
                finally:
                    task.cancel()

    async def _serve(self, *, task_status) -> None:
        await run_server(self.state, port=0, on_ready=task_status.started, grace_seconds=0.0)

    def call(self, work, *arguments, **options):
        """Awaits in the server's loop."""
        return self.portal.call(lambda: work(*arguments, **options))
