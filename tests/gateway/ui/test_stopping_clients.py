"""A request that a client of the API waits for is seen on the page while it runs, and stopped there."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from gateway.ui.conftest import sound
from gateway.ui.page_server import ADMIN, PageServer

QUESTION = "Read the whole repository"
DIALECTS = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": QUESTION}]}),
    "messages": ("/v1/messages", {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 99}),
    "responses": ("/v1/responses", {"input": QUESTION}),
}  # fmt: skip


class Waiting:
    """A client that waits for the worker that never ends."""

    def __init__(self, url, key="", dialect="chat", **fields):
        path, body = DIALECTS[dialect]
        body = {"model": "worker/sloth", **body, **fields}
        headers = {
            "x-session-id": "an agent",
            **({"authorization": f"Bearer {key}"} if key else {}),
        }
        self._threads = ThreadPoolExecutor(1)
        self._answer = self._threads.submit(
            httpx.post, url + path, json=body, headers=headers, timeout=60
        )

    @property
    def is_told(self):
        return self._answer.done()

    def answer(self):
        self._threads.shutdown()
        return self._answer.result()


@pytest.fixture
def app_state(tmp_path):
    with PageServer(tmp_path, pace=0.0).open() as app_state:
        yield app_state


def open_running(page, address="/ui/runs"):
    """The screen, once the request is on it."""
    for _ in range(200):
        page.goto(address)
        if page.locator(".stopping").count():
            return
        time.sleep(0.05)
    raise AssertionError("it is on no list")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_client_is_told_that_its_request_was_stopped(app_state, visit, dialect, stream):
    page = visit(app_state)
    client = Waiting(app_state.url, dialect=dialect, stream=stream)
    open_running(page)
    row = page.locator(".going-on")
    assert QUESTION in row.inner_text() and "worker/sloth" in row.inner_text()
    row.locator("button").click()
    answer = client.answer()
    assert "This request was stopped on the server's page." in answer.text
    assert stream or (answer.status_code, answer.headers["x-should-retry"]) == (409, "false")
    page.wait_for_selector(".runs tbody .chip:has-text('cancelled')")
    assert page.locator(".going-on").count() == 0
    assert app_state.sloth.cancelled == 1


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark")])
def test_what_runs_stands_on_its_sessions_screen_from_the_first_request_on(
    app_state, visit, width, scheme
):
    page = visit(app_state, width=width, scheme=scheme)
    client = Waiting(app_state.url)
    open_running(page)
    session = next(iter(app_state.state.request_scopes)).prepared.session
    address = f"/ui/sessions/{session}"
    page.goto(address)
    assert page.inner_text("h1") == QUESTION
    assert "Requests\n0" in page.inner_text(".stats")
    sound(page)
    page.goto(f"/ui/runs?session={session}")
    assert page.locator(".going-on").count() == 1
    page.goto("/ui/runs?session=another")
    assert page.locator(".going-on").count() == 0
    page.goto(address)
    page.locator(".stopping button").focus()
    page.keyboard.press("Enter")
    client.answer()
    page.wait_for_selector(".course tbody .chip:has-text('cancelled')")
    assert page.url.endswith(address) and page.locator(".stopping").count() == 0
    again = Waiting(app_state.url)
    open_running(page, address)
    assert page.locator(".course tbody tr:not(.turn-head)").count() == 1
    sound(page)
    page.locator(".stopping button").click()
    again.answer()


def test_a_tenant_stops_its_own_requests_alone(tmp_path, visit):
    with PageServer(tmp_path, pace=0.0, keyed=True).open() as app_state:
        keys = {}
        for tenant in ("acme", "other"):
            _, issued = app_state.call(
                app_state.store.keys.create, app_state.mint, tenant, "laptop"
            )
            keys[tenant] = issued.text
        client = Waiting(app_state.url, keys["acme"])
        pages = {}
        for who, key in (*keys.items(), ("admin", ADMIN)):
            page = pages[who] = visit(app_state, "/ui/sign-in")
            page.watch.expected.append("404 (Not Found)")
            page.fill("[name=key]", key)
            page.keyboard.press("Enter")
            page.wait_for_selector("nav")
        open_running(pages["acme"])
        open_running(pages["admin"])
        stop = pages["acme"].locator(".stopping").get_attribute("action")
        pages["other"].goto("/ui/runs")
        assert pages["other"].locator(".stopping").count() == 0
        refused = pages["other"].evaluate(
            """async (address) => (await fetch(address, {method: 'POST', redirect: 'manual', body:
            new URLSearchParams({token: document.querySelector('[name=token]').value})})).status""",
            stop,
        )
        assert refused == 404 and not client.is_told
        pages["acme"].locator(".stopping button").click()
        assert client.answer().status_code == 409


@pytest.mark.slow
def test_a_question_that_is_not_kept_is_not_shown(app_state, visit):
    page = visit(app_state)
    client = Waiting(app_state.url, store=False)
    open_running(page)
    assert "content not kept" in page.inner_text(".going-on")
    assert QUESTION not in page.content()
    page.locator(".stopping button").click()
    assert client.answer().status_code == 409
