"""Houses for the page: real servers on the loopback, each in a thread of its own."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path

import anyio
from anyio.from_thread import start_blocking_portal

from batuta.clients import Scripted
from batuta.config import rehearsal
from batuta.core import Delta, Pool, Step, Worker, WorkerId, Workflow
from batuta.core.conductor import SILENT
from batuta.gateway import LOOP, Orchestra, Served, Showcase, serve, served_models
from batuta.gateway.gate import Gate
from batuta.solvers import Fixed, single
from batuta.store import Store
from batuta.store.mint import Mint

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

    async def complete(self, request, listener=SILENT):
        try:
            await listener.spoke(Delta(text="I am thinking"))
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            self.cancelled += 1
            raise


def hostile_flow(brief):
    """Five steps, each with a subtask that would like to be a script."""
    steps = [
        Step(f"{text} step", WorkerId("villain"), tuple(range(at)))
        for at, text in enumerate(HOSTILE[:5])
    ]
    return Workflow(tuple(steps))


class House:
    """An orchestra of the rehearsal's workers, a villain and a sloth."""

    def __init__(self, folder: Path, *, pace: float = 1.0, keyed: bool = False) -> None:
        ensemble = rehearsal(None, pace)
        self.sloth = Sloth()
        guests = (
            Worker(WorkerId("villain"), "villain", HOSTILE[0], tags=(HOSTILE[1],)),
            Worker(WorkerId("sloth"), "sloth", "Never done."),
        )
        pool = Pool((*ensemble.pool, *guests))
        clients = {
            **ensemble.clients,
            "villain": Scripted(lambda _: "\n\n".join(HOSTILE)),
            "sloth": self.sloth,
        }
        served = (
            *served_models(ensemble.pool, ensemble.conductor),
            Served("villain", Fixed(HOSTILE[2], hostile_flow), pool),
            Served("sloth", single("sloth"), pool.subset(("sloth",)), fallback=False),
        )
        self.mint = Mint(b"a secret of the tests, long enough for it")
        self.store = Store(folder / "runs.db")
        self.orchestra = Orchestra(
            pool,
            clients,
            served,
            store=self.store,
            showcase=Showcase(
                "the tests", simulated=True, examples=(QUESTION,), folders=(folder / "learning",)
            ),
            gate=Gate(self.store, self.mint, ADMIN, fresh=0.0) if keyed else None,
        )
        self.url = ""
        self.portal = None

    @contextmanager
    def open(self):
        """Served for the length of the block."""
        with start_blocking_portal("asyncio", LOOP) as portal:
            self.portal = portal
            with portal.wrap_async_context_manager(self.store):
                task, self.url = portal.start_task(self._serve)
                try:
                    yield self
                finally:
                    task.cancel()

    async def _serve(self, *, task_status) -> None:
        await serve(self.orchestra, port=0, ready=task_status.started, grace=0.0)

    def call(self, work, *arguments, **options):
        """Awaits in the server's loop."""
        return self.portal.call(lambda: work(*arguments, **options))
