"""A session's screen, of a coding agent's session that a real server has conducted."""

from __future__ import annotations

from decimal import Decimal

import httpx
import pytest

from batuta.clients import ScriptedClient
from batuta.conductors.sessions.patterns import Escalate
from batuta.core import Cost, Finish, Price, Reply, ToolCall, Usage, Worker, WorkerId
from gateway.ui.conftest import sound
from gateway.ui.page_server import ADMIN, HOSTILE, PageServer

SMALL = Price(input=Decimal(1), output=Decimal(2), cached=Decimal("0.1"))
BIG = Price(input=Decimal(10), output=Decimal(20), cached=Decimal(1))
TOOLS = [{"type": "function", "function": {"name": "Bash", "parameters": {"type": "object"}}}]
TASK = "Mend the failing test of the parser"
WAYS = [(width, scheme) for width in (1440, 1280, 400) for scheme in ("light", "dark")]


def says(text="", cached=0, usd="0.0012", calls=True):
    """A reply that calls a tool, or one that ends the turn."""
    made = (ToolCall(id="x", name="Bash", arguments="{}"),) if calls else ()
    finish = Finish.TOOL_CALLS if calls else Finish.STOP
    usage = Usage(calls=1, input=1000, cached=cached, output=100)
    cost = Cost(Decimal(usd))
    return Reply(text=text, tool_calls=made, finish=finish, usage=usage, cost=cost)


def workers(small, big):
    """Two workers, the first the cheap one, with what each will say."""
    named = (("small", SMALL, 0.5, small), ("big", BIG, 0.9, big))
    return tuple(
        (
            Worker(id=WorkerId(name), model=name, price=price, strength=strength),
            ScriptedClient(replies),
        )
        for name, price, strength, replies in named
    )


class Agent:
    """A client with tools that sends its whole conversation each time."""

    def __init__(self, app_state, key="", session="s-1"):
        self.app_state, self.said, self.session = app_state, [], ""
        self.headers = {"x-session-id": session}
        if key:
            self.headers["authorization"] = f"Bearer {key}"

    def say(self, words):
        self.said.append({"role": "user", "content": words})
        self.send()

    def bring(self, result):
        calls = self.said[-1]["tool_calls"]
        self.said += [{"role": "tool", "tool_call_id": c["id"], "content": result} for c in calls]
        self.send()

    def send(self):
        body = {"model": "conducted", "messages": self.said, "tools": TOOLS}
        address = f"{self.app_state.url}/v1/chat/completions"
        answer = httpx.post(address, json=body, headers=self.headers, timeout=60)
        assert answer.status_code == 200, answer.text
        self.said.append(answer.json()["choices"][0]["message"])
        self.session = answer.headers["x-batuta-session"]


def work(agent):
    """Two turns; in the first the big worker takes over, in the second the small one again."""
    agent.say(TASK)
    agent.bring("Exit code 1\nE  assert 2 == 3")
    agent.bring("Exit code 2\nE  another")
    agent.bring("3 passed")
    agent.say(f"Now write the docs {HOSTILE[0]}")
    agent.app_state.call(agent.app_state.store.flush)


def script():
    small = [says(), says(cached=600), says("Small is done.", cached=0, calls=False)]
    big = [says(cached=0, usd="0.012"), says("Mended.", cached=900, usd="0.004", calls=False)]
    return workers(small, big)


@pytest.fixture(scope="module")
def agent(tmp_path_factory):
    folder = tmp_path_factory.mktemp("agent")
    with PageServer(folder, pace=0.0, others=script(), conducted=Escalate()).open() as app_state:
        agent = Agent(app_state)
        work(agent)
        yield agent


@pytest.mark.parametrize(("width", "scheme"), WAYS)
def test_a_session_says_who_acted_and_why_the_worker_was_switched(agent, visit, width, scheme):
    page = visit(agent.app_state, f"/ui/sessions/{agent.session}", width=width, scheme=scheme)
    figures = page.inner_text(".stats")
    assert all(text in figures for text in ("Requests\n5", "Turns\n2", "Switches\n2", "$0.020"))
    assert "Saved, estimate" in figures and "Input from a cache\n30" in figures
    assert "best single worker alone, by estimate" in page.inner_text("header .note")
    assert page.locator(".along rect").count() == 3
    first, second = page.locator(".switches li").all_inner_texts()
    assert "small" in first and "big" in first
    assert "after 2 failures big takes over from small: it costs $0.00" in first
    assert "small takes the new task over from big" in second
    turns = page.locator(".turn-head").all_inner_texts()
    assert [text.partition(" <")[0] for text in turns] == [
        f"Turn 1 {TASK}",
        "Turn 2 Now write the docs",
    ]
    rows = page.locator(".course tbody tr:not(.turn-head)")
    assert rows.count() == 5 and page.locator("tr.switched").count() == 2
    fourth = rows.nth(3).inner_text()
    assert "big goes on: 1 tool result arrived" in fourth and "90" in fourth
    sound(page)


def test_a_session_is_found_from_its_runs_and_read_by_keyboard_alone(agent, visit):
    page = visit(agent.app_state, f"/ui/runs?session={agent.session}")
    link = page.get_by_role("link", name="The session, request by request")
    link.focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/ui/sessions/ses_*")
    page.locator(".switches a").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**#request-3")
    assert page.locator("tr:target").inner_text().startswith("3")
    chart = page.locator("[data-chart]").last.locator(".plot svg")
    chart.focus()
    page.keyboard.press("ArrowLeft")
    assert chart.get_attribute("aria-valuetext") == "request 4: 90\u00a0%"
    page.keyboard.press("Escape")
    page.locator(".skip").focus()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/ui/runs/run_*")
    page.get_by_role("link", name=agent.session).focus()
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/ui/sessions/{agent.session}")
    page.get_by_role("link", name="Conversation", exact=True).focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/ui/chat/ses_*")


def test_a_long_session_is_read_a_page_at_a_time(tmp_path, visit):
    said = [says() for _ in range(60)]
    others = workers(said, [])
    with PageServer(tmp_path, pace=0.0, others=others, conducted=Escalate()).open() as app_state:
        agent = Agent(app_state)
        agent.say(TASK)
        for number in range(53):
            agent.bring(f"line {number} of the file")
        app_state.call(app_state.store.flush)
        page = visit(app_state, f"/ui/sessions/{agent.session}")
        assert page.locator(".course tbody tr").count() == 51
        page.get_by_role("link", name="Further").click()
        page.wait_for_url("**from=51")
        assert page.locator(
            ".course tbody tr:not(.turn-head) td:first-child"
        ).all_inner_texts() == ["51", "52", "53", "54"]
        assert page.inner_text("h1") == TASK
        page.get_by_role("link", name="Earlier").click()
        page.wait_for_url("**from=1")
        page.watch.expected.append("400 (Bad Request)")
        for wrong in ("0", "55", "x", "-1", "9" * 5000):
            page.goto(f"/ui/sessions/{agent.session}?from={wrong}")
            assert "it must be the number of a request, from 1 to 54" in page.inner_text("main")


def test_a_tenant_sees_its_own_sessions_alone(tmp_path, visit):
    with PageServer(
        tmp_path, pace=0.0, keyed=True, others=script(), conducted=Escalate()
    ).open() as app_state:
        keys = {
            tenant: app_state.call(app_state.store.keys.create, app_state.mint, tenant, "laptop")[
                1
            ].text
            for tenant in ("acme", "other")
        }
        agent = Agent(app_state, keys["acme"])
        work(agent)
        address, secret = f"/ui/sessions/{agent.session}", "Mend the failing test"
        seen = {}
        for who, key in (*keys.items(), ("admin", ADMIN)):
            page = visit(app_state, "/ui/sign-in")
            page.watch.expected.append("404 (Not Found)")
            page.fill("[name=key]", key)
            page.keyboard.press("Enter")
            page.wait_for_selector("nav")
            page.goto(address)
            seen[who] = page.inner_text("main")
        assert (
            secret in seen["acme"] and secret in seen["admin"] and "Tenant\nacme" in seen["admin"]
        )
        assert secret not in seen["other"] and "does not exist" in seen["other"]
        assert httpx.get(app_state.url + address).status_code == 303
        headers = {"authorization": f"Bearer {keys['acme']}"}
        runs = httpx.get(f"{app_state.url}/v1/runs?session={agent.session}", headers=headers).json()
        told = [(run["acting"], run["took_over_from"]) for run in reversed(runs["data"])]
        small, big = ("small", None), ("big", None)
        assert told == [small, small, ("big", "small"), big, ("small", "big")]
        assert runs["data"][2]["reason"].startswith("after 2 failures big takes over from small")


@pytest.fixture(scope="module")
def long_named(tmp_path_factory):
    name = "openrouter/" + "a-model-of-a-very-long-name-" * 3
    worker = Worker(id=WorkerId(name), model=name)
    others = ((worker, ScriptedClient(lambda _: "Done.")),)
    with PageServer(tmp_path_factory.mktemp("long"), pace=0.0, others=others).open() as app_state:
        body = {"model": f"worker/{name}", "messages": [{"role": "user", "content": "מה " * 60}]}
        answer = httpx.post(f"{app_state.url}/v1/chat/completions", json=body, timeout=60)
        app_state.call(app_state.store.flush)
        yield app_state, answer.headers["x-batuta-session"]


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), WAYS)
def test_a_long_name_covers_no_other_column(long_named, visit, width, scheme):
    app_state, session = long_named
    page = visit(app_state, f"/ui/sessions/{session}", width=width, scheme=scheme)
    acted = page.locator("[data-name=Acted]")
    assert acted.evaluate("cell => cell.scrollWidth <= cell.clientWidth + 1")
    assert page.locator("h1").evaluate("e => getComputedStyle(e).direction") == "rtl"
    sound(page)
