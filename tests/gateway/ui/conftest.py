"""A browser for the tests of the page, and what every page must keep."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import aiohttp
import pytest
from anyio.from_thread import start_blocking_portal

from batuta.gateway.ui.learning import ResultFolder
from gateway.ui.learned import measure_report, write_learning
from gateway.ui.page_server import PageServer

AXE = (Path(__file__).parent / "axe" / "axe.min.js").read_text(encoding="utf-8")
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SERIOUS = ("serious", "critical")


def chromium() -> str | None:
    """The browser that is installed here; empty for the one that Playwright brought."""
    named = os.environ.get("BATUTA_CHROMIUM")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


@pytest.fixture(scope="module")
def browser():  # no longer than a module: while it is open no other test can have a loop
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="no Playwright: pip install -e '.[dev]'"
    )
    with playwright.sync_playwright() as driver:
        try:
            browser = driver.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        except playwright.Error:
            pytest.skip(
                "no Chromium: apt-get install chromium, or playwright install chromium, or set BATUTA_CHROMIUM"
            )
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="module")
def app_state(folder):
    with PageServer(folder, pace=2.0).open() as app_state:
        yield app_state


@pytest.fixture(scope="module")
def learning(folder):
    """The addresses of what is learned."""
    run, report = (ResultFolder(path, path.name, 0.0).mark for path in write_learning(folder))
    return (
        "/ui/learning",
        f"/ui/learning/training/{run}",
        f"/ui/learning/report/{report}",
        f"/ui/learning/report/{report}/whole",
    )


@pytest.fixture(scope="module")
def measured(folder):
    """The address of a report that was really measured, as it was written."""
    pytest.importorskip("matplotlib")
    with start_blocking_portal() as portal:  # the browser has this thread
        path = portal.call(measure_report, folder)
    return f"/ui/learning/report/{ResultFolder(path, path.name, 0.0).mark}/whole"


@pytest.fixture(scope="module")
def keyed(tmp_path_factory):
    with PageServer(tmp_path_factory.mktemp("keyed"), keyed=True).open() as app_state:
        yield app_state


@pytest.fixture
async def browse():
    """A browser without a screen: keeps cookies, follows nothing."""
    sessions = []

    def browse(app_state):
        jar = aiohttp.CookieJar(unsafe=True)
        session = aiohttp.ClientSession(app_state.url, cookie_jar=jar)
        sessions.append(session)
        return session

    yield browse
    for session in sessions:
        await session.close()


class Watch:
    """Hears whatever a page must never do."""

    def __init__(self, context, url: str) -> None:
        self.url, self.faults, self.expected = url, [], []
        context.on("console", self._console)
        context.on("weberror", lambda error: self.faults.append(f"error: {error.error}"))
        context.on("request", self._request)
        context.on(
            "dialog",
            lambda dialog: (self.faults.append(f"dialog: {dialog.message}"), dialog.dismiss()),
        )

    def _console(self, message) -> None:
        if message.type in {"error", "warning"}:
            self.faults.append(f"console: {message.text}")

    def _request(self, request) -> None:
        if not request.url.startswith((self.url, "data:")):
            self.faults.append(f"request: {request.url}")

    def check(self) -> None:
        faults = [f for f in self.faults if not any(text in f for text in self.expected)]
        assert not faults, faults


@pytest.fixture
def visit(browser):
    """Opens pages of a server; in the end nothing may have gone wrong in any of them."""
    opened = []

    def visit(app_state, address="/ui/", *, width=1280, scheme="light"):
        context = browser.new_context(
            base_url=app_state.url, viewport={"width": width, "height": 860}, color_scheme=scheme,
            permissions=["clipboard-read", "clipboard-write"],
        )  # fmt: skip
        context.set_default_timeout(30_000)
        watch = Watch(context, app_state.url)
        opened.append((context, watch))
        page = context.new_page()
        page.watch = watch
        page.goto(address)
        return page

    yield visit
    for context, watch in opened:
        for page in context.pages:
            assert page.evaluate("window.broken") is None
        context.close()
        watch.check()


def sound(page) -> None:
    """Nothing serious for a reader with a screen reader or a keyboard, and nothing wider than the screen."""
    if page.evaluate("typeof axe") == "undefined":
        page.evaluate(AXE)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    bad = [
        f"{each['id']}: {each['help']} {[node['html'][:140] for node in each['nodes'][:3]]}"
        for each in found["violations"]
        if each["impact"] in SERIOUS
    ]
    assert not bad, bad
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (
        "the page scrolls sideways"
    )


def let_scripts(route):
    """The report out of its sandbox, in which no script runs, axe neither."""
    response = route.fetch()
    headers = dict(response.headers)
    policy, sandbox, _ = headers["content-security-policy"].partition("; sandbox")
    assert sandbox
    route.fulfill(response=response, headers={**headers, "content-security-policy": policy})


@pytest.fixture
def ask():
    def ask(page, question, model=None):
        page.fill("#question", question)
        if model:
            page.select_option("select[name=model]", model)
        page.click("[data-go]")

    return ask
