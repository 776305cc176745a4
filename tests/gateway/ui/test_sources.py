"""The screen of claims and their sources, and reports as files, of a research run over the loopback web."""

import io

import pypdf
import pytest

from batuta.clients import HttpTransport, ScriptedClient, Secret
from batuta.clients.public_addresses import PublicResolver
from batuta.conductors.research import GAP, QUERY, Research
from batuta.core import Limits, Pool, Question, Worker, WorkerId
from batuta.engine import conduct
from batuta.language.step_reading import read_step
from batuta.rendering.report_pdf import LOST, render_report_pdf
from batuta.tools.pages import WebFetch
from batuta.tools.search import WebSearch
from batuta.tools.search_engines import ENGINES, EngineAddress
from batuta.tools.worker import open_reader_worker, open_search_worker
from fakes.web import FakeWeb
from gateway.ui.conftest import sound
from gateway.ui.page_server import ADMIN

LYING = "<script>window.broken = 1</script>"


async def research(store):
    """A run whose report has a claim that is held, one that is not, one of a page that nobody read, and one without."""
    async with (
        FakeWeb() as web,
        HttpTransport() as http,
        HttpTransport(resolver=PublicResolver({web.host})) as pages,
    ):
        page = f"{web.url}/imola-observatory"

        def write(request):
            if read_step(request.messages).subtask in {QUERY, GAP}:
                return "Imola observatory opened"
            told = request.messages[-1].text
            said = (
                told.split("The Imola observatory was ", 1)[1].split(".")[0]
                if page in told
                else "unknown."
            )
            return "\n\n".join([
                "# Imola", f"The Imola observatory was {said} ({page})",
                f"It has exactly 987654 windows ({page}).", "It burnt down in 1901 (https://unread.example/x).",
                f"It is a pretty place. {LYING}",
            ])  # fmt: skip

        engine = ENGINES["searxng"][0](EngineAddress(http=http, url=web.url, key=Secret("")))
        pool = Pool((
            Worker(id=WorkerId("author"), model="scripted"),
            Worker(id=WorkerId("search"), model="search", tags=("search",)),
            Worker(id=WorkerId("reader"), model="reader", tags=("reader",)),
        ))  # fmt: skip
        clients = {
            WorkerId("author"): ScriptedClient(write),
            WorkerId("search"): open_search_worker(WebSearch(engine)),
            WorkerId("reader"): open_reader_worker(WebFetch(pages, private_hosts={web.host})),
        }
        run = await conduct(
            Question.of("When was it opened?"), Research(), pool, clients, limits=Limits(rounds=3)
        )
    await store.append(run)
    await store.flush()
    return run, page


@pytest.fixture(scope="module")
def researched(app_state):
    return app_state.call(research, app_state.store)


def test_claims_stand_beside_their_sources(app_state, visit, researched):
    run, page = researched
    shown = visit(app_state, f"/ui/runs/{run.id}")
    sound(shown)
    shown.get_by_text("Claims and sources").click()
    shown.wait_for_url("**/sources")
    sound(shown)
    held, unheld, unread, bare = (shown.locator(".claims > li").nth(at) for at in range(4))
    assert held.get_attribute("data-held") == "yes" and "supports it" in held.inner_text()
    assert "Imola observatory" in held.locator("blockquote").first.inner_text()
    assert held.locator(f"a[href='{page}']").count() == 1
    assert (
        "does not support it" in unheld.inner_text() and unheld.get_attribute("data-held") == "no"
    )
    assert "was not fetched" in unread.inner_text()
    assert "No source is cited" in bare.inner_text()
    assert LYING in shown.inner_text(".claims") and shown.evaluate("window.broken") is None
    with shown.expect_download() as got:
        shown.get_by_text("PDF", exact=True).click()
    data = got.value.path().read_bytes()
    text = pypdf.PdfReader(io.BytesIO(data)).pages[0].extract_text()
    assert "987654 windows" in text and "Cited, but neither found nor read" in text


def test_reports_are_files_of_the_run_and_of_no_other_tenant(app_state, keyed, visit, researched):
    run, _ = researched
    page = visit(app_state)
    for form, kind in (("md", "text/markdown"), ("html", "text/html"), ("pdf", "application/pdf")):
        got = page.request.get(f"{app_state.url}/ui/runs/{run.id}/report.{form}")
        assert (got.status, got.headers["content-type"].split(";")[0]) == (200, kind)
        assert got.headers["content-disposition"] == f'attachment; filename="report.{form}"'
    assert page.request.get(f"{app_state.url}/ui/runs/{run.id}/report.exe").status == 404
    assert page.request.get(f"{app_state.url}/ui/runs/run_none/sources").status == 404
    assert page.request.get(f"{keyed.url}/ui/runs/{run.id}/sources", max_redirects=0).status != 200
    assert ADMIN not in page.content()


@pytest.mark.slow
def test_a_pdf_loads_nothing_and_says_what_it_cannot_show():
    pytest.importorskip("fpdf")
    text = "# Über\n\n![p](https://evil.example/x.png) <img src=file:///etc/passwd> Привет \U00013000 `code` $\\frac{1}{2}$\n\n```\nx = 1\n    y = \u0436\n```"
    data = render_report_pdf("Title", text, [])
    told = pypdf.PdfReader(io.BytesIO(data)).pages[0].extract_text()
    assert "Über" in told and LOST in told and b"/Subtype /Image" not in data
    assert "\\frac{1}{2}" in told and "x = 1\n    y = \u0436\n" in told
