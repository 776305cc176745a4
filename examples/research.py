"""Research offline: two rounds of searching, reading, criticising and writing over a small web on this machine.

The models are scripted; in batuta.toml real ones take their places:

    [models.research]
    conductor = "research"
    limits = { max_cost_usd = 0.50 }

python examples/research.py    # writes report.md and report.html
"""

import re
import sys
from pathlib import Path

import anyio

from batuta.clients import HttpTransport, ScriptedClient, Secret
from batuta.clients.public_addresses import PublicResolver
from batuta.conductors.research import GAP, QUERY, REPORT, Research
from batuta.core import Limits, Pool, Question, Reply, Request, Worker, WorkerId
from batuta.engine import conduct
from batuta.language.step_reading import find_addresses, read_step
from batuta.rendering.documents import render_report
from batuta.tools.pages import WebFetch
from batuta.tools.search import WebSearch
from batuta.tools.search_engines import ENGINES, EngineAddress
from batuta.tools.worker import open_reader_worker, open_search_worker

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from fakes.web import FakeWeb  # pyright: ignore[reportMissingImports] - of our tests

_PAGE = re.compile(r"(http\S+/imola-observatory)\s.*?(The Imola observatory was [^\n]*)", re.DOTALL)
TASK = "When was the Imola observatory opened, and what do its sources say of it?"


def write(request: Request) -> str:
    """What a model might write: it does its subtask with the pages that it was given."""
    words = read_step(request.messages)
    if words.subtask in {QUERY, GAP}:
        return f"Imola observatory {'opened' if words.subtask == QUERY else 'history'}"
    told = request.messages[-1].text
    page, said = next(iter(_PAGE.findall(told)), ("", "Nothing was found."))
    sources = f"\n\n## Sources\n\n- {page}" if words.subtask == REPORT else ""
    return f"{said} ({page}){sources}"


async def main() -> None:
    async with (
        FakeWeb() as web,
        HttpTransport() as http,
        HttpTransport(resolver=PublicResolver({web.host})) as pages,
    ):
        engine = ENGINES["searxng"][0](EngineAddress(http=http, url=web.url, key=Secret("")))
        workers = [
            Worker(id=WorkerId("author"), model="scripted", strength=0.8),
            Worker(id=WorkerId("critic"), model="scripted", strength=0.7),
            Worker(id=WorkerId("search"), model="search", tags=("search",)),
            Worker(id=WorkerId("reader"), model="reader", tags=("reader",)),
        ]
        clients = {
            WorkerId("author"): ScriptedClient(write),
            WorkerId("critic"): ScriptedClient(write),
            WorkerId("search"): open_search_worker(WebSearch(engine)),
            WorkerId("reader"): open_reader_worker(WebFetch(pages, private_hosts={web.host})),
        }
        limits = Limits(rounds=3, seconds=120)
        run = await conduct(
            Question.of(TASK), Research(), Pool(tuple(workers)), clients, limits=limits
        )
    replies = [s.result.text for s in run.steps if isinstance(s.result, Reply)]
    fetched = [url for text in replies for url in find_addresses(text)]
    answer = run.answer or run.error or ""
    await anyio.Path("report.md").write_text(answer)
    await anyio.Path("report.html").write_text(render_report(TASK, answer, fetched))
    print(answer)
    print(f"{len(web.searches)} searches, {len(run.steps)} steps; see report.html")


anyio.run(main)
