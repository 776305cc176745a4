"""Research and slides: who does which step, what each one reads, and what comes out as a file."""

import pytest

from batuta.clients import HttpTransport, ScriptedClient, Secret
from batuta.clients.public_addresses import PublicResolver
from batuta.conductors.research import DRAFT, GAP, QUERY, REPORT, Research, slide_writer
from batuta.config.conductors import FIXED
from batuta.core import (
    Limits,
    MalformedPlan,
    Outcome,
    PlanningContext,
    Pool,
    Question,
    Worker,
    WorkerId,
)
from batuta.engine import conduct
from batuta.language.step_reading import read_step
from batuta.rendering.documents import cited_addresses, render_deck, render_report
from batuta.tools.pages import WebFetch
from batuta.tools.search import WebSearch
from batuta.tools.search_engines import ENGINES, EngineAddress
from batuta.tools.worker import open_reader_worker, open_search_worker
from fakes.web import INJECTION, FakeWeb, Page

pytestmark = pytest.mark.anyio
TASK = "When was the Imola observatory opened?"
MODELS = (
    Worker(id=WorkerId("author"), model="m", strength=0.9),
    Worker(id=WorkerId("critic"), model="m", strength=0.8),
)
TOOLS = (
    Worker(id=WorkerId("search"), model="search", tags=("search",)),
    Worker(id=WorkerId("reader"), model="reader", tags=("reader",)),
)


def writing(request):
    asked = read_step(request.messages).subtask
    if asked in {QUERY, GAP}:
        return "Imola observatory" if asked == QUERY else "Imola observatory 2"
    return {DRAFT: "A draft.", REPORT: "The report."}.get(asked, "Unsupported: all.")


async def research(web, pool=(*MODELS, *TOOLS), **limits):
    author, critic = ScriptedClient(writing), ScriptedClient(writing)
    async with (
        HttpTransport() as http,
        HttpTransport(resolver=PublicResolver({web.host})) as pages,
    ):
        engine = ENGINES["searxng"][0](EngineAddress(http=http, url=web.url, key=Secret("")))
        clients = {
            WorkerId("author"): author,
            WorkerId("critic"): critic,
            WorkerId("search"): open_search_worker(WebSearch(engine)),
            WorkerId("reader"): open_reader_worker(WebFetch(pages, private_hosts={web.host})),
        }
        question = Question.of(TASK)
        settled = Limits(**{"rounds": 3, "seconds": 60, **limits})
        run = await conduct(question, Research(), Pool(pool), clients, limits=settled)
    return run, author, critic


async def test_a_pool_without_a_model_gets_no_plan():
    context = PlanningContext(question=Question.of(TASK), pool=Pool(TOOLS))
    for conductor in (Research(), slide_writer()):
        decision = await conductor.plan(context)
        assert isinstance(decision, MalformedPlan) and "language model" in decision.reason
        assert "'" not in decision.reason


async def test_the_second_round_searches_for_what_the_first_left_open():
    async with FakeWeb() as web:
        run, author, _ = await research(web)
        assert [request.query["q"] for request in web.searches] == [
            "Imola observatory",
            "Imola observatory 2",
        ]
    assert (run.outcome, run.answer) == (Outcome.ANSWERED, "The report.")
    assert [step.worker for step in run.steps] == [
        *("author", "search", "reader", "author"),
        *("critic", "search", "reader", "critic", "author"),
    ]
    asked = [read_step(request.messages).subtask for request in author.requests]
    assert asked == [QUERY, DRAFT, REPORT]
    report = author.requests[-1].messages[-1].text
    assert "A draft." in report and "Unsupported: all." in report and "opened in" in report


async def test_one_round_alone_ends_with_the_draft():
    async with FakeWeb() as web:
        run, _, _ = await research(web, rounds=1)
    assert run.answer == "A draft."


async def test_without_search_and_reader_the_best_model_answers():
    async with FakeWeb() as web:
        run, _, _ = await research(web, pool=MODELS)
        assert not web.searches
    assert run.answer == "Unsupported: all." and run.outcome is Outcome.FALLBACK


async def test_a_page_that_gives_orders_changes_no_step():
    evil = Page("/imola-observatory", "Imola observatory", f"Opened. {INJECTION}", "2026-01-01")
    async with FakeWeb(extra={evil.path: evil}) as web:
        run, author, _ = await research(web)
        assert not web.trespasses
    assert len(run.steps) == 9
    for request in author.requests:
        told = request.messages[-1].text
        assert INJECTION not in read_step(request.messages).subtask
        assert "pirate" not in told or "<fetched_text>" in told


async def test_slides_are_outlined_written_checked_and_written_again():
    heard: list[tuple[str, str]] = []

    def client(name):
        def write(request):
            heard.append((name, read_step(request.messages).subtask[:5]))
            return "## One\n\n- point"

        return ScriptedClient(write)

    clients = {worker.id: client(worker.id) for worker in MODELS}
    limits = Limits(seconds=30)
    run = await conduct(
        Question.of("A talk."), slide_writer(), Pool(MODELS), clients, limits=limits
    )
    assert [name for name, _ in heard] == ["author", "author", "critic", "author"]
    assert run.answer == "## One\n\n- point" and {"research", "slides"} <= FIXED.keys()


def test_a_report_names_what_it_cites_and_nobody_read():
    read, made_up = "https://a.example/one", "https://a.example/made-up"
    page = render_report("T <b>", f"A claim ({read}). Another ({made_up}).", [read])
    assert page.startswith("<!doctype html>") and "T &lt;b&gt;" in page
    told = page.split("Cited, but neither found nor read")[1]
    assert made_up in told and read not in told
    assert "Cited, but neither found nor read" not in render_report(
        "T", f"A claim ({read}).", [read]
    )
    assert cited_addresses(f"({read}). [x]({made_up}) {read}") == (read, made_up)
    paired = "https://en.wikipedia.org/wiki/Mercury_(planet)"
    assert cited_addresses(f"[x]({paired}), ({paired}) and {paired}.") == (paired,)


def test_a_deck_needs_nothing_else_and_runs_nothing():
    deck = render_deck("Talk", "## One\n\n---\n\n## Two\n\n<script>alert(1)</script>\n---\n")
    assert deck.count("<section>") == 2 and "<script" not in deck
    assert "default-src 'none'" in deck and "<link" not in deck and "src=" not in deck
