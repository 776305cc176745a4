"""The page over HTTP: its headers, its forms, who sees what."""

import html
import json
import re
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import anyio
import httpx
import pytest
from sqlalchemy import insert
from starlette.routing import Route
from yarl import URL

from batuta.clients import ScriptedClient
from batuta.core import Delta, File, Image, Message, Outcome, Question, Reply, Role, Text
from batuta.core.conductor import NULL_LISTENER
from batuta.core.formatting import format_cost
from batuta.gateway import create_app
from batuta.gateway.access.caller import Authenticator
from batuta.gateway.serving.deliver import RequestScopes
from batuta.gateway.serving.drift import DriftMonitor
from batuta.gateway.ui.keys import LIMIT_FIELDS, PAGE_SIZE
from batuta.gateway.ui.page_runs import PageRuns
from batuta.gateway.ui.pool import PoolPage
from batuta.gateway.ui.pool_forms import PoolForms
from batuta.gateway.ui.question_table import TableCell, arrange_cells
from batuta.gateway.ui.sign_in import _safe_target
from batuta.gateway.ui.usage_activity import UsageSpan
from batuta.store import Store
from batuta.store.approvals import WAITING, PendingPlan
from batuta.store.hours import day_start, utc_hour
from batuta.store.key_hasher import KeyHasher
from batuta.store.key_permissions import KeyPermissions
from batuta.store.ledger import utc_day
from batuta.store.models import LEDGER
from batuta.store.recent_runs import LARGEST_BYTES, recent_runs
from gateway.live_server import Serving, scripted_state
from gateway.ui.page_server import ADMIN, HOSTILE, QUESTION, PageServer
from gateway.ui.seen import Seen
from gateway.ui.visitors import asked, sign_in, token_of
from store.strategies import make_run

SCREENS = (
    "/ui/",
    "/ui/runs",
    "/ui/usage",
    "/ui/compare",
    "/ui/pool",
    "/ui/learning",
    "/ui/nowhere",
    "/ui/sign-in",
)


@pytest.fixture(scope="module")
def app_state(tmp_path_factory):
    with PageServer(tmp_path_factory.mktemp("server")).open() as app_state:
        yield app_state


@pytest.fixture(scope="module")
def keyed(tmp_path_factory):
    with PageServer(tmp_path_factory.mktemp("keyed"), keyed=True).open() as app_state:
        yield app_state


SLOW = {"model": "sloth", "messages": [{"role": "user", "content": "Will this ever end?"}]}


@asynccontextmanager
async def going_on(http, body=SLOW, watched=True):
    """A run of the page that ends when it is stopped: its id."""
    token = await token_of(http)
    follow = {"allow_redirects": watched, "headers": {"x-token": token}}
    async with http.post("/ui/ask", json=body, **follow) as response:
        run_id = response.headers["x-batuta-run-id"]
        assert response.status == 200 if watched else 303
    try:
        yield run_id
    finally:
        await stop(http, run_id, token)


async def stop(http, run_id, token, **fields):
    form = {"token": token, **fields}
    address = f"/ui/runs/{run_id}/stop"
    async with http.post(address, data=form, allow_redirects=False) as response:
        return response.status, response.headers.get("location")


@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.parametrize("model", ["sloth", "worker/sloth"])
async def test_a_run_goes_on_when_its_reader_leaves_until_it_is_stopped(
    app_state, browse, watched, model
):
    """Leaving is no wish to throw away what is paid for; only Stop is."""
    http, cancelled = browse(app_state), app_state.sloth.cancelled
    async with going_on(http, SLOW | {"model": model}, watched) as run_id:
        await anyio.sleep(0.2)
        assert app_state.sloth.cancelled == cancelled
        async with http.get("/ui/runs") as page:
            text = await page.text()
        assert f'action="/ui/runs/{run_id}/stop"' in text and "Will this ever end?" in text
        async with http.get(f"/ui/runs/{run_id}") as page:
            assert page.status == 200 and f'data-follow="{run_id}"' in await page.text()
        for wanted, there in (("model=sloth", model == "sloth"), ("q=ever", True), ("q=x", False)):
            async with http.get(f"/ui/runs?{wanted}") as page:
                assert (f"/ui/runs/{run_id}/stop" in await page.text()) == there
        token = await token_of(http)
        assert await stop(http, run_id, token) == (303, f"/ui/runs/{run_id}")
        assert app_state.sloth.cancelled == cancelled + 1
        async with http.get(f"/ui/runs/{run_id}") as page:
            text = await page.text()
        assert page.status == 200 and "cancelled" in text and "data-follow" not in text
        assert await stop(http, run_id, token, **{"from": "list"}) == (303, "/ui/runs")
    async with http.get("/ui/runs") as page:
        assert f"/ui/runs/{run_id}/stop" not in await page.text()


async def events_until(http, address, name):
    """The events of that address up to the first of that name."""
    text = ""
    async with http.get(address) as response:
        assert response.status == 200
        async for line in response.content:
            text += line.decode()
            if line.startswith(b"event: " + name):
                break
    names = re.findall(r"^event: (\w+)$", text, re.MULTILINE)
    return [name for name in names if name != "answering"], text


async def test_what_a_run_said_is_gone_with_it_and_read_by_an_admin_on_the_record(keyed, browse):
    mine, admin = browse(keyed), browse(keyed)
    _, issued = keyed.call(keyed.store.keys.create, keyed.mint, "heard", "tests")
    await sign_in(mine, issued.text)
    await sign_in(admin, ADMIN)
    run_id, said = await asked(mine)
    address = f"/ui/runs/{run_id}/events"

    async def readings():
        records = [each async for each in keyed.store.audit.read()]
        return [
            each.actor for each in records if (each.action, each.subject) == ("run.read", run_id)
        ]

    async with mine.get(address) as response:
        assert "event: ended" in await response.text() and "event: ended" in said
    assert keyed.call(readings) == []
    async with admin.get(address) as response:
        assert "event: ended" in await response.text()
    assert keyed.call(readings) == ["admin"]
    form = {"token": await token_of(mine), "run": run_id, "act": "delete"}
    async with mine.post("/ui/runs", data=form) as response:
        assert response.status == 200
    for http in (mine, admin):
        async with http.get(address) as response:
            assert response.status == 404


async def test_every_reader_hears_a_run_from_its_beginning(app_state, browse):
    http = browse(app_state)
    async with going_on(http, watched=False) as run_id:
        address = f"/ui/runs/{run_id}/events"
        first, _ = await events_until(http, address, b"spoke")
        assert first == ["opened", "began", "planned", "step", "spoke"]
        again, text = await events_until(http, address + "?scope=b", b"spoke")
        assert again == first and 'id=\\"b-step-1-1\\"' in text

        async def read():
            heard.append(await events_until(http, address, b"stopped"))

        heard = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            tasks.start_soon(read)
            await anyio.sleep(0.2)
            await stop(http, run_id, await token_of(http))
        assert [names for names, _ in heard] == [[*first, "stepped", "stopped"]] * 2


async def test_the_answer_is_rendered_while_it_streams(tmp_path):
    """What is seen of it is what will be seen of the whole, and no raw Markdown that jumps."""
    gate = anyio.Event()

    class Writer:
        async def complete(self, request, listener=NULL_LISTENER):
            for piece in ("## Approach\n\nWe **add** both", ".\n\n* one"):
                await listener.on_delta(Delta(text=piece))
                await anyio.sleep(0.4)
            await gate.wait()
            return Reply(text="## Approach\n\nWe **add** both.\n\n* one")

    async with Store(tmp_path / "runs.db") as store:
        async with Serving(scripted_state({"ada": Writer()}, store=store)) as server:
            token = {"x-token": await token_of(server.http)}
            body = {"model": "batuta-mini", "messages": [{"role": "user", "content": "How?"}]}
            text = ""
            async with server.http.post("/ui/ask", json=body, headers=token) as response:
                async for line in response.content:
                    text += line.decode()
                    if text.count("event: answering") == 2 and line.startswith(b"data"):
                        gate.set()
    pieces = [
        json.loads(each)["html"] for each in re.findall(r"event: answering\ndata: (.*)", text)
    ]
    assert "<strong>add</strong>" in pieces[0] and "##" not in pieces[0]
    assert "<li>one" in pieces[1]
    assert pieces[1] in json.loads(re.search(r"event: ended\ndata: (.*)", text)[1])["html"]


async def test_a_stored_run_is_told_again(app_state, browse):
    """What a page asks for that comes back when the run is over, or on another server."""
    http = browse(app_state)
    run_id, text = await asked(http)
    told = re.search(r"^event: ended\ndata: (.*)$", text, re.MULTILINE)[1]
    for _ in range(20):  # others push it out of what is remembered
        await asked(http)
    names, text = await events_until(http, f"/ui/runs/{run_id}/events", b"ended")
    async with http.get(f"/ui/runs/{run_id}/events") as response:
        again = await response.text()
    assert names[:3] == ["opened", "began", "planned"] and "stepped" in names
    assert json.loads(re.search(r"^event: ended\ndata: (.*)$", again, re.MULTILINE)[1]) == (
        json.loads(told)
    )
    async with http.get("/ui/runs/run_nothing/events") as response:
        assert response.status == 404


async def test_a_tenants_run_is_stopped_and_heard_by_nobody_else(keyed, browse):
    people = {}
    for tenant in ("stops-own", "stops-others"):
        _, issued = keyed.call(keyed.store.keys.create, keyed.mint, tenant, "tests")
        people[tenant] = browse(keyed)
        await sign_in(people[tenant], issued.text)
    one, two = people.values()
    async with going_on(one, watched=False) as run_id:
        other = await token_of(two)
        assert (await stop(two, run_id, other))[0] == 404
        assert (await stop(one, run_id, "wrong"))[0] == 403
        for place in ("", "/events"):
            async with two.get(f"/ui/runs/{run_id}{place}") as response:
                assert response.status == 404
        async with two.get("/ui/runs") as response:
            assert run_id not in await response.text()
        async with browse(keyed).get(f"/ui/runs/{run_id}/events") as response:
            assert response.status == 401
        admin = browse(keyed)
        await sign_in(admin, ADMIN)
        async with admin.get("/ui/runs?tenant=stops-own") as response:
            assert run_id in await response.text()
        assert (await stop(admin, run_id, await token_of(admin, "/ui/runs")))[0] == 303


async def test_who_watches_a_run_hears_no_more_of_it_once_their_key_has_ended(keyed, browse):
    people, keys = [], []
    for _ in range(2):
        key, issued = keyed.call(keyed.store.keys.create, keyed.mint, "watches", "tests")
        keys.append(key.id)
        people.append(browse(keyed))
        await sign_in(people[-1], issued.text)
    asks, watches = people
    async with going_on(asks, watched=False) as run_id:
        address, heard, begun = f"/ui/runs/{run_id}/events", [], anyio.Event()

        async def watch():
            async with watches.get(address) as response:
                begun.set()
                heard.append(await response.text())

        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(watch)
                await begun.wait()
                await events_until(watches, address, b"opened")
                revoke = f"/v1/admin/keys/{keys[1]}/revoke"
                async with asks.post(revoke, headers={"authorization": f"Bearer {ADMIN}"}) as done:
                    assert done.status == 200
        assert "revoked" in heard[0].rpartition("event: failed")[2]
        names, _ = await events_until(asks, address, b"spoke")
        assert names[-1] == "spoke", "the run goes on"


async def test_a_server_that_stops_keeps_what_a_run_of_the_page_has_spent(tmp_path):
    with PageServer(tmp_path).open() as app_state:
        async with aiohttp.ClientSession(app_state.url) as http:
            token = {"x-token": await token_of(http)}
            asking = http.post("/ui/ask", json=SLOW, headers=token, allow_redirects=False)
            async with asking as response:
                run_id = response.headers["x-batuta-run-id"]
            await events_until(http, f"/ui/runs/{run_id}/events", b"spoke")
    async with Store(tmp_path / "runs.db") as store:
        assert (await store.summary(run_id)).outcome == "cancelled"


async def test_runs_of_the_page_take_the_servers_places(tmp_path):
    """Whoever asks and leaves again and again fills no server: a run has a place to its end."""
    with PageServer(tmp_path, running=1).open() as app_state:
        async with aiohttp.ClientSession(app_state.url) as http:
            token = {"x-token": await token_of(http)}
            first = http.post("/ui/ask", json=SLOW, headers=token, allow_redirects=False)
            async with first as response:
                assert response.status == 303
                run_id = response.headers["x-batuta-run-id"]
            async with http.post("/ui/ask", json=SLOW, headers=token) as response:
                assert response.status == 503
            await stop(http, run_id, token["x-token"])


def test_runs_that_have_ended_hold_little_memory():
    """Sixteen questions of 20 MB would be held for good, and counted nowhere."""
    runs, admin = PageRuns(RequestScopes()), cast("Any", SimpleNamespace(tenant=None))

    def end_run(number, parts, tenant="local"):
        question = Question(messages=(Message(role=Role.USER, parts=parts),))
        prepared = SimpleNamespace(
            run_id=f"run-{number}",
            session=None,
            caller=SimpleNamespace(tenant=tenant),
            served_model=SimpleNamespace(name="m"),
            call=SimpleNamespace(question=question, store=True),
        )
        with runs.track(cast("Any", prepared)):
            pass
        return [at for at in range(99) if runs.find(f"run-{at}", admin)]

    for number in range(20):
        found = end_run(number, (Text("short"),))
    assert found == list(range(4, 20)), "the latest are kept"
    large = (Image(url="x" * 3_000_000),)
    assert end_run(20, large)[-1] == 20
    assert end_run(21, large)[-2:] == [20, 21]
    assert end_run(22, large) == [21, 22], "8 MB hold two of them"
    assert end_run(23, (File(media_type="x/y", data="x" * 9_000_000),)) == []
    end_run(24, (Text("short"),), "acme")
    for number in range(25, 60):
        found = end_run(number, (Text("short"),), "loud")
    assert found == [24, *range(45, 60)], "a tenant pushes out its own"


@pytest.mark.parametrize("place", ["compare?a={}", "compare/figures?a={}&b={}", "?replay={}", "?again={}"])  # fmt: skip
async def test_a_run_that_goes_on_is_not_called_unknown(app_state, browse, place):
    """Wherever else a run may be opened from its own page, as soon as it is stopped."""
    http = browse(app_state)
    async with going_on(http, watched=False) as run_id:
        address = "/ui/" + place.format(run_id, run_id)
        async with http.get(address) as page:
            assert page.status == 409
            assert "This run is still running" in await page.text()
        await stop(http, run_id, await token_of(http))
        async with http.get(address) as page:
            assert page.status == 200


async def test_a_comparison_of_different_questions_says_so_and_shows_both(app_state, browse):
    http = browse(app_state)
    token = {"x-token": await token_of(http)}
    runs = []
    for question in (QUESTION, QUESTION, "Something else: begin at 7; double it."):
        body = {"model": "batuta-mini", "messages": [{"role": "user", "content": question}]}
        async with http.post("/ui/ask", json=body, headers=token) as response:
            runs.append(response.headers["x-batuta-run-id"])
            await response.text()
    told = "These runs answer different questions."
    for other, differ in ((runs[1], False), (runs[2], True)):
        for place in ("compare", "compare/figures"):
            async with http.get(f"/ui/{place}?a={runs[0]}&b={other}") as page:
                text = await page.text()
            assert (told in text) == differ
            if place == "compare":
                shown = re.findall(r'class="asked"[^>]*>([^<]+)<', text)
                wanted = [QUESTION, "Something else: begin at 7; double it."]
                assert [html.unescape(each) for each in shown] == (wanted if differ else [])


async def test_two_runs_that_go_on_are_compared_from_their_beginnings(app_state, browse):
    http = browse(app_state)
    done, _ = await asked(http)
    async with going_on(http, watched=False) as run_id:
        async with http.get(f"/ui/compare?a={done}&b={run_id}") as page:
            text = await page.text()
        assert page.status == 200
        assert f'data-follow="{done}"' in text and f'data-follow="{run_id}"' in text


async def test_at_most_four_runs_are_compared(app_state, browse):
    http = browse(app_state)
    runs = [(await asked(http))[0] for _ in range(2)]
    for many, status in ((1, 200), (2, 200), (4, 200), (5, 400)):
        for place in ("compare", "compare/figures"):
            query = "&".join(f"run={runs[at % 2]}" for at in range(many))
            async with http.get(f"/ui/{place}?{query}") as page:
                text = await page.text()
            assert page.status == status
            if status == 400:
                assert "at most 4 runs can be compared" in text
            elif place == "compare":
                assert text.count('class="side" data-run') == (many if many > 1 else 0)


@pytest.mark.parametrize("address", SCREENS)
async def test_every_screen_is_kept_to_itself(app_state, browse, address):
    async with browse(app_state).get(address, allow_redirects=False) as response:
        headers, text = response.headers, await response.text()
    policy = dict(
        part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == "'self'"
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    for name, value in Seen(text).attributes:
        assert name != "style"
        assert not name.startswith("on")
        assert name not in {"src", "href", "action"} or value.startswith(("/", "?", "#"))


@pytest.mark.parametrize("address", ["/ui/", "/ui/compare"])
async def test_without_the_script_no_question_gets_into_an_address(app_state, browse, address):
    async with browse(app_state).get(address) as response:
        text = await response.text()
    forms = re.findall(r"<form [^>]*data-(?:ask|compare|many)[^>]*>", text)
    assert forms and all('method="dialog"' in form for form in forms)
    assert "Questions are asked by a script" in text


async def test_files_have_names_that_change_with_them(app_state, browse):
    http = browse(app_state)
    async with http.get("/ui/") as response:
        found = re.findall(r'"(/ui/static/[^"]+)"', await response.text())
    assert len(found) == 3
    total = 0
    for address in found:
        async with http.get(address) as response:
            assert response.status == 200
            assert "immutable" in response.headers["cache-control"]
            etag = response.headers["etag"]
            total += int(response.headers["content-length"])
        async with http.get(address, headers={"if-none-match": etag}) as response:
            assert response.status == 304
    assert total < 40_000, "script, styles and icon stay small, under gzip"
    for gone in (
        "/ui/static/page.000000000000.js",
        "/ui/static/..%2froutes.py",
        "/ui/static/page.js",
    ):
        async with http.get(gone) as response:
            assert response.status == 404


async def test_the_events_of_a_run(app_state, browse):
    run, text = await asked(browse(app_state))
    names = re.findall(r"^event: (\w+)$", text, re.MULTILINE)
    assert names[:3] == ["opened", "began", "planned"]
    assert names.index("step") < names.index("stepped") < names.index("ended") == len(names) - 1
    assert run in text
    assert app_state.call(app_state.store.get, run).answer


async def test_the_draft_is_seen_while_it_is_written(app_state, browse):
    http = browse(app_state)
    body = {"model": "batuta-ultra", "messages": [{"role": "user", "content": QUESTION}]}
    async with http.post(
        "/ui/ask", json=body, headers={"x-token": await token_of(http)}
    ) as response:
        text = await response.text()
    names = re.findall(r"^event: (\w+)$", text, re.MULTILINE)
    assert names.index("began") < names.index("drafted") < names.index("planned")
    pieces = [
        json.loads(data)["text"]
        for data in re.findall(r"^event: drafted\ndata: (.*)$", text, re.MULTILINE)
    ]
    planned = json.loads(re.search(r"^event: planned\ndata: (.*)$", text, re.MULTILINE)[1])
    assert planned["draft"]
    assert "".join(pieces).endswith(planned["draft"])


async def test_a_plan_alone_calls_nobody(app_state, browse):
    http = browse(app_state)
    body = {
        "model": "batuta-ultra",
        "messages": [{"role": "user", "content": QUESTION}],
        "orchestration": {"dry_run": True},
    }
    async with http.post(
        "/ui/ask", json=body, headers={"x-token": await token_of(http)}
    ) as response:
        text = await response.text()
    assert "event: planned" in text
    assert "event: step\n" not in text
    assert "no worker was called" in text


@pytest.mark.parametrize("token", [None, "", "wrong", "é", "00", "0" * 128])
async def test_forms_of_other_pages_are_refused(app_state, browse, token):
    http = browse(app_state)
    form = {"score": "1"} if token is None else {"score": "1", "token": token}
    run, _ = await asked(http)
    async with http.post(f"/ui/runs/{run}/feedback", data=form) as response:
        assert response.status == 403
    headers = {} if token is None else {"x-token": token.encode().decode("latin-1")}
    async with http.post("/ui/ask", json={}, headers=headers) as response:
        assert response.status == 403
    async with http.get("/ui/runs", headers={"origin": "https://elsewhere.invalid"}) as response:
        assert response.status == 403
    assert app_state.call(app_state.store.summary, run).score is None


async def test_pages_are_packed_and_no_length_tells_their_token(app_state, browse):
    """A page's token is written anew at each request, and each of them opens the visitor's forms."""
    http = browse(app_state)
    run, _ = await asked(http)
    for address in ("/ui/", f"/ui/runs/{run}", "/ui/runs?q=<b>"):
        async with http.get(address) as page:
            assert page.headers["content-encoding"] == "gzip"
            assert page.headers["vary"] == "accept-encoding"
            text = await page.text()
            assert int(page.headers["content-length"]) < len(text) / 2
        plain = {"accept-encoding": "gzip;q=0, identity"}
        async with http.get(address, headers=plain) as page:
            assert "content-encoding" not in page.headers
            assert int(page.headers["content-length"]) == len(await page.read())
    tokens = {await token_of(http) for _ in range(3)}
    assert len(tokens) == 3
    parts = [{token[at : at + 8] for at in range(len(token) - 7)} for token in tokens]
    assert not parts[0] & parts[1] & parts[2]
    for token in tokens:
        form = {"score": "1", "token": token}
        async with http.post(f"/ui/runs/{run}/feedback", data=form) as response:
            assert response.status == 200


@pytest.mark.parametrize("query", ["after=nonsense", "outcome=nonsense", "after=1_", "after=nan_x"])
async def test_odd_queries_are_answered_with_a_page(app_state, browse, query):
    async with browse(app_state).get(f"/ui/runs?{query}") as response:
        assert response.status in {200, 400}
        assert "<!doctype html>" in await response.text()


async def test_hostile_runs_are_escaped_everywhere(app_state, browse):
    http = browse(app_state)
    body = {"model": "villain", "messages": [{"role": "user", "content": " ".join(HOSTILE)}]}
    async with http.post(
        "/ui/ask", json=body, headers={"x-token": await token_of(http)}
    ) as response:
        run = response.headers["x-batuta-run-id"]
        text = await response.text()
    assert "<script>window" not in text
    for address in (
        f"/ui/runs/{run}",
        "/ui/runs",
        f"/ui/compare?a={run}&b={run}",
        f"/ui/?again={run}",
        "/ui/pool",
    ):
        async with http.get(address) as response:
            text = await response.text()
        assert response.status == 200
        assert "<script>window" not in text
        assert "<img" not in text
        assert "javascript:window" not in text or 'href="javascript' not in text


def test_signing_in_leads_back_to_the_page_alone():
    for given in (
        None,
        "",
        "https://elsewhere.invalid",
        "//elsewhere.invalid",
        "/\\elsewhere",
        "/ui/\\x",
        "/ui/\r\nx",
        "/v1/runs",
        "ui/",
    ):
        assert _safe_target(given) == "/ui/"
    assert _safe_target("/ui/runs?q=x") == "/ui/runs?q=x"


@pytest.mark.parametrize(
    ("scheme", "seen"),
    [("http", "http"), ("https", "https"), ("http", "https")],
    ids=["http", "https", "https to a proxy"],
)
async def test_the_session_is_a_cookie_that_scripts_and_other_sites_do_not_get(
    tmp_path, scheme, seen
):
    async with Store(tmp_path / "runs.db") as store:
        gate = Authenticator(store, KeyHasher(b"x" * 32), ADMIN)
        app = create_app(scripted_state({"ada": ScriptedClient(lambda _: "")}, authenticator=gate))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url=f"{scheme}://127.0.0.1") as http:
            token = re.search(r'name="token" value="([^"]+)"', (await http.get("/ui/sign-in")).text)
            assert token is not None
            form = {"key": ADMIN, "token": token[1], "then": "/ui/runs"}
            origin = {"origin": f"{seen}://127.0.0.1"}
            signed_in = await http.post("/ui/sign-in", data=form, headers=origin)
            assert signed_in.status_code == 303
            cookie = signed_in.headers["set-cookie"]
            bare, *flags = (part.strip().lower() for part in cookie.split(";"))
            assert {"httponly", "samesite=strict", "path=/ui"} <= set(flags)
            assert ("secure" in flags) == (seen == "https")
            assert ADMIN not in cookie
            last = "0" if bare[-1] != "0" else "1"
            name, _, value = cookie.partition(";")[0].partition("=")
            for sent, status in ((value, 200), (value[:-1] + last, 303)):
                http.cookies.clear()
                page = await http.get("/ui/runs", headers={"cookie": f"{name}={sent}"})
                assert page.status_code == status, "its signature is looked at"


async def test_who_is_not_signed_in_any_more_is_told_what_a_visitor_does(keyed, browse):
    http = browse(keyed)
    for address in ("/ui/ask", "/ui/body", "/ui/plan"):
        async with http.post(address, json={}) as response:
            text = await response.text()
        assert response.status == 401
        assert "reload the page" in text and "Bearer" not in text


async def test_nobody_sees_anything_without_a_key(keyed, browse):
    http = browse(keyed)
    for address in (
        *SCREENS[:6],
        "/ui/keys",
        "/ui/runs/run_x",
        "/ui/runs/run_x/export.json",
        "/ui/compare/figures?a=x",
    ):
        async with http.get(address, allow_redirects=False) as response:
            assert response.status == 303
            assert response.headers["location"].startswith("/ui/sign-in")
    async with http.post("/ui/ask", json={}) as response:
        assert response.status == 401
    for address in ("/ui/keys", "/ui/budgets", "/ui/keys/x/revoke", "/ui/runs/x/feedback"):
        async with http.post(address, data={}, allow_redirects=False) as response:
            assert response.status == 303


async def test_a_tenant_sees_its_own_alone(keyed, browse):
    texts = []
    for tenant in ("one", "two"):
        _, issued = keyed.call(keyed.store.keys.create, keyed.mint, tenant, "tests")
        texts.append(issued.text)
    one, two, admin = browse(keyed), browse(keyed), browse(keyed)
    status, headers = await sign_in(one, texts[0])
    assert status == 303
    assert headers["location"] == "/ui/runs"
    cookie = headers["set-cookie"].lower()
    assert all(part in cookie for part in ("httponly", "samesite=strict", "path=/ui"))
    assert texts[0].lower() not in cookie
    assert (await sign_in(two, texts[1]))[0] == 303
    assert (await sign_in(admin, ADMIN))[0] == 303
    assert (await sign_in(browse(keyed), "batuta_0_wrong"))[0] == 401
    run, _ = await asked(one)
    token = await token_of(two)
    for address in (
        f"/ui/runs/{run}",
        f"/ui/runs/{run}/export.json",
        f"/ui/compare?a={run}",
        f"/ui/compare/figures?a={run}&b={run}",
        f"/ui/?again={run}",
        f"/ui/?replay={run}",
    ):
        seen = {}
        for name, http in (("one", one), ("two", two), ("admin", admin)):
            async with http.get(address) as response:
                seen[name] = response.status
        assert seen == {"one": 200, "two": 404, "admin": 200}, address
    async with two.post(
        f"/ui/runs/{run}/feedback", data={"score": "0", "token": token}
    ) as response:
        assert response.status == 404
    async with two.post("/ui/ask", json={"replay": run}, headers={"x-token": token}) as response:
        assert response.status == 404
    async with two.get("/ui/runs?tenant=one") as response:
        assert run not in await response.text()
    for http, shown in ((one, True), (two, False), (admin, True)):
        async with http.get("/ui/usage") as response:
            assert ("By system" in await response.text()) == shown
        async with http.get("/ui/runs?worker=bob&sort=cost") as response:
            assert response.status == 200
    async with two.get("/ui/runs?q=" + run) as response:
        assert "No runs here" in await response.text()
    async with one.post("/ui/ask", json={}, headers={"x-token": token}) as response:
        assert response.status == 403, "another session's token"
    for http, wanted in ((two, 404), (admin, 200)):
        async with http.get("/ui/keys") as response:
            assert response.status == wanted
    async with two.post("/ui/keys", data={"tenant": "x", "name": "x", "token": token}) as response:
        assert response.status == 404


async def test_keys_are_made_limited_rotated_and_revoked(keyed, browse):
    admin, holder = browse(keyed), browse(keyed)
    await sign_in(admin, ADMIN)
    token = await token_of(admin, "/ui/keys")

    async def post(address, **form):
        async with admin.post(address, data={**form, "token": token}) as response:
            return response.status, await response.text()

    for wrong in (
        {"tenant": "a b"},
        {"tenant": "x", "rpm": "-1"},
        {"tenant": "x", "per_day": "much"},
        {"tenant": "x", "days": "0"},
        {"tenant": "x", "name": " "},
    ):
        status, text = await post("/ui/keys", **{"name": "n", **wrong})
        assert status == 400
        assert 'role="alert"' in text
    _, text = await post("/ui/keys", tenant="three", name="mine", rpm="100", models="batuta-mini")
    secret = re.search(r"data-secret>([^<]+)<", text)[1]
    key = secret.split("_")[1]
    assert (await sign_in(holder, secret))[0] == 303
    async with holder.get("/ui/") as response:
        text = await response.text()
    assert "batuta-mini" in text
    assert "batuta-ultra" not in text
    await post(f"/ui/keys/{key}/limits", per_month="7.25")
    found = keyed.call(keyed.store.keys.find, key)
    assert (str(found.permissions.per_month), found.permissions.rpm) == ("7.25", None)
    await post("/ui/budgets", tenant="three", per_day="2")
    assert str(keyed.call(keyed.store.keys.find, key).tenant.per_day) == "2"
    _, text = await post(f"/ui/keys/{key}/rotate")
    assert re.search(r"data-secret>([^<]+)<", text)[1] != secret
    await post(f"/ui/keys/{key}/revoke")
    async with holder.get("/ui/runs", allow_redirects=False) as response:
        assert response.status == 303
    assert (await post("/ui/keys/nothing/revoke"))[0] == 404


async def test_every_table_of_spending_has_the_same_hours(keyed, browse):
    """With 24 hours chosen, the tables began with the first day, not with the first hour."""
    span = UsageSpan.of(1, time.time())
    moments = {"early": day_start(span.first_day) + 1, "late": time.time() - 1}
    for name, at in moments.items():
        row = {"run_id": f"run_{name}", "line": 0, "tenant": "local", "at": at, "day": utc_day(at),
               "model": f"{name}-model", "kind": "worker", "name": f"{name}-worker", "usd": Decimal(1),
               "assumed_usd": Decimal(0), "calls": 1, "input_tokens": 1, "output_tokens": 1,
               "estimated_calls": 0, "unpriced_calls": 0}  # fmt: skip
        keyed.call(keyed.store.database.execute, insert(LEDGER).values(row))
    http = browse(keyed)
    await sign_in(http, ADMIN)
    for days in (1, 7):
        async with http.get(f"/ui/usage?days={days}") as response:
            text = await response.text()
        for name, at in moments.items():
            within = days > 1 or utc_hour(at) in span.marks
            assert (f"{name}-model" in text, f"{name}-worker" in text) == (within, within)


async def test_the_list_of_keys_names_every_limit(keyed, browse):
    """Also that of the server tools, which was missing: such a key seemed to have no limit."""
    admin = browse(keyed)
    await sign_in(admin, ADMIN)
    token = await token_of(admin, "/ui/keys")
    values = {"models": "batuta-mini", "workers_allow": "tag:local", "workers_deny": "tag:remote",
              "tags": "patient", "tools": "web_search", "min_confidence": "0.5"}  # fmt: skip
    for name, _, hint in LIMIT_FIELDS:
        value = values.get(name, "17")
        form = {"tenant": "limits", "name": name, name: value, "token": token}
        async with admin.post("/ui/keys", data=form) as response:
            assert response.status == 200, (hint, await response.text())
        async with admin.get("/ui/keys?tenant=limits") as response:
            text = await response.text()
        [row] = [row for row in text.split("<tr>") if f"<b>{name}</b>" in row]
        limits = row.split("limits: </span>")[1].split('<span class="small-bar">')[0]
        assert value in limits.split("</td>")[0], name


async def test_a_form_of_one_replica_is_taken_by_another(tmp_path):
    """The balancer sends the form where it likes; another server's form is refused still."""
    database, statuses = tmp_path / "runs.db", []
    async with Store(database) as one, Store(database) as two:
        _, issued = await one.keys.create(KeyHasher(b"x" * 32), "acme", "tests")
        servers = [(one, b"x" * 32), (two, b"x" * 32), (two, b"y" * 32)]
        async with AsyncExitStack() as stack:
            urls = []
            for store, secret in servers:
                door = Authenticator(store, KeyHasher(secret), ADMIN)
                state = scripted_state({"ada": object()}, store=store, authenticator=door)
                urls.append((await stack.enter_async_context(Serving(state))).url)
            http = await stack.enter_async_context(
                aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))
            )
            for url in urls:
                form = {"key": issued.text, "token": await token_of(http, f"{urls[0]}/ui/sign-in")}
                async with http.post(f"{url}/ui/sign-in", data=form, allow_redirects=False) as done:
                    statuses.append(done.status)
                http.cookie_jar.clear()
    assert statuses == [303, 303, 403]


@pytest.mark.parametrize("who", ["admin", "tenant"])
async def test_a_copied_cookie_is_worth_nothing_after_signing_out(keyed, browse, who):
    _, issued = keyed.call(keyed.store.keys.create, keyed.mint, f"leaves-{who}", "tests")
    key = ADMIN if who == "admin" else issued.text
    http, other = browse(keyed), browse(keyed)
    for each in (http, other):  # at the same second: yet each has a session of its own
        assert (await sign_in(each, key))[0] == 303
    [copied] = [c.value for c in http.cookie_jar if c.key == "batuta_session"]
    headers = {"cookie": f"batuta_session={copied}"}

    async def sees(session, **options):
        async with session.get("/ui/runs", allow_redirects=False, **options) as response:
            return response.status == 200

    assert await sees(browse(keyed), headers=headers)
    form = {"token": await token_of(http, "/ui/runs")}
    async with http.post("/ui/sign-out", data=form, allow_redirects=False) as response:
        assert response.status == 303
    assert not await sees(browse(keyed), headers=headers)
    assert await sees(other)
    fresh = Authenticator(keyed.store, keyed.mint, ADMIN, cache_seconds=0.0)  # another replica
    assert keyed.call(fresh.authenticate, None, copied).role == "nobody"
    assert (await sign_in(browse(keyed), key))[0] == 303


def posting_routes():
    """Every address of the page that takes a POST."""
    routes = [
        r for r in create_app(scripted_state({"ada": object()})).routes if isinstance(r, Route)
    ]
    return {r.path for r in routes if r.path.startswith("/ui") and "POST" in (r.methods or ())}


def enter_user(app_state, identity, tenant):
    """Somebody whom an identity provider has named."""
    values = {"tenant": tenant, "is_admin": False, "permissions": KeyPermissions()}
    return app_state.call(
        app_state.store.keys.enter_user, app_state.mint, identity, "Ann", **values
    )


async def test_whatever_changes_something_is_answered_by_a_redirect(keyed, browse):
    """So that loading the next page again changes nothing."""
    admin, holder, user = browse(keyed), browse(keyed), browse(keyed)
    _, issued = keyed.call(keyed.store.keys.create, keyed.mint, "posts", "tests")
    await sign_in(admin, ADMIN)
    await sign_in(holder, issued.text)
    entry = enter_user(keyed, "id-posts", "posts")
    session = keyed.state.authenticator.open_user_session(entry)
    user.cookie_jar.update_cookies({"batuta_session": session}, URL(keyed.url))
    people = {who: (http, await token_of(http, "/ui/runs")) for who, http in
              (("admin", admin), ("holder", holder), ("user", user))}  # fmt: skip
    stranger = browse(keyed)
    people["stranger"] = (stranger, await token_of(stranger, "/ui/sign-in"))

    async def post(who, address, **form):
        http, token = people[who]
        asked = {"data": {**form, "token": token}}
        if address == "/ui/ask":
            asked = {"json": SLOW, "headers": {"x-token": token}}
        async with http.post(address, allow_redirects=False, **asked) as response:
            assert response.status == 303, (address, await response.text())
            done.add(re.sub(r"/(run_)?[0-9a-f]{12,}", "/{id}", address))
            return response.headers

    done = set()
    asked = await post("holder", "/ui/ask")
    run = f"/ui/runs/{asked['x-batuta-run-id']}"
    assert asked["location"].startswith(f"{run}/events")
    await post("holder", f"{run}/stop")
    await post("holder", f"{run}/feedback", score="1")
    await post("holder", "/ui/runs", act="delete", run=asked["x-batuta-run-id"])
    await post("admin", "/ui/budgets", tenant="posts", per_day="3")
    for what in ("limits", "rotate", "revoke"):
        await post("admin", f"/ui/keys/{issued.id}/{what}")
    await post("user", "/ui/own-keys", name="mine")
    [own] = keyed.call(keyed.store.keys.list_of_user, entry.id, 9)
    await post("user", f"/ui/own-keys/{own.id}/revoke")
    await post("admin", "/ui/keys", tenant="posts", name="made")
    waits = PendingPlan(
        id="0123456789abcdef", run_id="run_1", tenant="posts", rule="r", digest="d1", plan="{}",
        usd="0", state=WAITING, created=1e9, expires=4e9,
    )  # fmt: skip
    keyed.call(keyed.store.approvals.ask, waits)
    await post("admin", f"/ui/approvals/{waits.id}", decision="refuse", digest="d1")
    await post("stranger", "/ui/sign-in", key=ADMIN)
    await post("admin", "/ui/sign-out")
    done = {re.sub("(limits|rotate|revoke)$", "{what}", d) if "/keys/" in d else d for d in done}
    elsewhere = {"/ui/pool", "/ui/pool-undo", "/ui/pool/{what}/{id:path}"}  # test_pool_changes.py
    elsewhere.add("/ui/learning/training/{mark}/stop")  # test_training_stop.py
    assert done | {"/ui/plan", "/ui/body"} | elsewhere == posting_routes()  # two change nothing


@pytest.mark.parametrize("screen", ["keys", "own-keys"])
async def test_loading_again_after_making_a_key_makes_no_second_one(keyed, browse, screen):
    http = browse(keyed)
    tenant = f"again-{screen}"
    if screen == "keys":
        await sign_in(http, ADMIN)
        form = {"tenant": tenant, "name": "notebook"}
    else:
        entry = enter_user(keyed, "id-again", tenant)
        session = keyed.state.authenticator.open_user_session(entry)
        http.cookie_jar.update_cookies({"batuta_session": session}, URL(keyed.url))
        form = {"name": "notebook"}
    form["token"] = await token_of(http, f"/ui/{screen}")
    async with http.post(f"/ui/{screen}", data=form) as response:
        address, text = response.url, await response.text()
    secret = re.search(r"data-secret>([^<]+)<", text)[1]
    assert response.history[0].status == 303
    [passed] = response.history[0].headers.getall("set-cookie")
    assert "HttpOnly" in passed and "SameSite=strict" in passed and "Max-Age" not in passed
    assert keyed.call(keyed.state.authenticator.open_session, secret)
    async with http.get(address) as response:
        assert secret not in await response.text()
    made = [k for k in keyed.call(keyed.store.keys.list, tenant) if k.name == "notebook"]
    assert len(made) == 1
    taken = passed.partition(";")[0]
    forged = taken[:-1] + ("1" if taken.endswith("0") else "0")
    stranger = browse(keyed)
    for cookie in (taken, forged, "batuta_issued=x", "batuta_issued="):
        shown = await token_of(stranger, "/ui/sign-in")
        async with stranger.get(f"/ui/{screen}", headers={"cookie": cookie}) as response:
            assert shown and secret not in await response.text()
        async with http.get(f"/ui/{screen}", headers={"cookie": forged}) as response:
            assert secret not in await response.text()


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("models", "batuta-min", "There is no model &#39;batuta-min&#39;: you may mean &#39;batuta-mini&#39;."),
        ("models", "batuta-mini piano", "you may mean &#39;worker/piano&#39;"),
        ("models", "nope", "There is no model &#39;nope&#39;: there are batuta-mini"),
        ("models", "wrkr/*", "There is no model &#39;wrkr/*&#39;"),
        ("workers_allow", "pian", "There is no worker &#39;pian&#39;: you may mean &#39;piano&#39;."),
        ("workers_deny", "nope", "There is no worker &#39;nope&#39;"),
        ("per_day", "five", "$ a day: &#39;five&#39; is not an amount of dollars"),
        ("max_cost", "-1", "$ a request: &#39;-1&#39; is not an amount of dollars"),
        ("rpm", "0", "Requests a minute: &#39;0&#39; is not a whole number above 0."),
    ],
)  # fmt: skip
async def test_a_limit_that_means_nothing_is_refused_in_a_sentence(
    keyed, browse, field, value, told
):
    admin = browse(keyed)
    await sign_in(admin, ADMIN)
    key, _ = keyed.call(keyed.store.keys.create, keyed.mint, "typos", "tests")
    token = await token_of(admin, "/ui/keys")
    for address in ("/ui/keys", f"/ui/keys/{key.id}/limits"):
        form = {"tenant": "typos", "name": "n", field: value, "token": token}
        async with admin.post(address, data=form) as response:
            text = await response.text()
        assert response.status == 400
        assert told in text, re.findall('role="alert">.*', text)
    assert "n" not in {each.name for each in keyed.call(keyed.store.keys.list, "typos")}
    if field not in {"models", "workers_allow", "workers_deny"}:
        return
    headers = {"authorization": f"Bearer {ADMIN}"}
    limits = {"limits": {field: value.split()}}
    async with aiohttp.ClientSession(keyed.url, headers=headers) as http:
        async with http.post("/v1/admin/keys", json={"name": "n", **limits}) as response:
            made = response.status, (await response.json())["error"]
        async with http.patch(f"/v1/admin/keys/{key.id}", json=limits) as response:
            changed = response.status, (await response.json())["error"]
    assert made == changed and made[0] == 400 and made[1]["param"] == "limits"
    assert html.unescape(told).removeprefix("There").rstrip(".") in made[1]["message"]


async def test_what_a_key_names_already_may_stay(keyed, browse):
    """A worker that was taken out of the pool does not forbid to change a key's budget."""
    admin = browse(keyed)
    await sign_in(admin, ADMIN)
    old = KeyPermissions(models=("worker/gone",), workers_deny=("gone",))
    key, _ = keyed.call(keyed.store.keys.create, keyed.mint, "stays", "tests", old)
    form = {"models": "worker/gone", "workers_deny": "gone tag:later", "per_day": "3"}
    form["token"] = await token_of(admin, "/ui/keys")
    async with admin.post(f"/ui/keys/{key.id}/limits", data=form) as response:
        assert response.status == 200
    assert str(keyed.call(keyed.store.keys.find, key.id).permissions.per_day) == "3"


async def test_many_keys_and_tenants_come_a_page_at_a_time(keyed, browse):
    admin = browse(keyed)
    await sign_in(admin, ADMIN)
    token = await token_of(admin, "/ui/keys")
    for number in range(PAGE_SIZE + 2):
        form = {"tenant": f"many{number:02}", "name": f"key {number}", "token": token}
        async with admin.post("/ui/keys", data=form) as response:
            assert response.status == 200

    async def links(address):
        async with admin.get(address) as response:
            text = await response.text()
        assert text.count('class="change"') <= PAGE_SIZE
        assert text.count('class="budget"') <= PAGE_SIZE
        found = re.findall(r'href="(/ui/keys\?[^"]+)"', text)
        return text, [html.unescape(link) for link in found]

    text, found = await links("/ui/keys")
    assert f"key {PAGE_SIZE + 1}<" in text and "key 0<" not in text
    [older] = [link for link in found if "?after=" in link]
    [later] = [link for link in found if "tenants_after=" in link]
    text, _ = await links(older)
    assert "key 0<" in text and f"key {PAGE_SIZE + 1}<" not in text
    assert f'value="many{PAGE_SIZE + 1:02}"' in (await links(later))[0]
    text, _ = await links("/ui/keys?tenant=many07")
    assert "key 7<" in text and text.count('class="change"') == 1
    assert re.findall(r'class="cut">(many\d+)<', text) == ["many07"], "and that tenant's budget"
    assert "No keys here" in (await links("/ui/keys?tenant=nobody"))[0]
    async with admin.get("/ui/keys?after=x") as response:
        assert response.status == 400


async def test_the_admin_sees_what_was_spent(keyed, browse):
    _, issued = keyed.call(keyed.store.keys.create, keyed.mint, "spender", "tests")
    holder, admin = browse(keyed), browse(keyed)
    await sign_in(holder, issued.text)
    await sign_in(admin, ADMIN)
    run, _ = await asked(holder)
    keyed.call(keyed.store.flush)
    cost = format_cost(keyed.call(keyed.store.get, run).cost)
    async with admin.get("/ui/keys") as response:
        text = await response.text()
    row = re.search(r"<tr><td>spender</td>(.*?)</tr>", text)[1]
    assert re.findall(r">([^<]+)<", row)[0] == "1"
    assert cost in row


async def test_the_pool_counts_the_latest_runs(app_state, browse):
    http = browse(app_state)
    await asked(http)
    app_state.call(app_state.store.flush)
    recent = app_state.call(recent_runs, app_state.store.database, 5, "local")
    assert recent
    assert recent[0][0].header.started >= recent[-1][0].header.started
    assert app_state.call(recent_runs, app_state.store.database, 5, "other") == []
    async with http.get("/ui/pool") as response:
        assert "not called" in await response.text()


async def test_a_secret_is_shown_once(keyed, browse):
    admin = browse(keyed)
    await sign_in(admin, ADMIN)
    form = {"tenant": "once", "name": "n", "token": await token_of(admin, "/ui/keys")}
    async with admin.post("/ui/keys", data=form) as response:
        secret = re.search(r"data-secret>([^<]+)<", await response.text())[1]
    async with admin.get("/ui/keys") as response:
        assert secret not in await response.text()


async def test_large_runs_do_not_make_the_pool_slow(tmp_path):
    """Reading the latest runs costs a bounded time, whatever they hold: large ones are left out."""
    async with Store(tmp_path / "runs.db") as store:
        for number in range(5):
            text = "long " * LARGEST_BYTES if number % 2 else "short"
            await store.append(make_run(number, question=text), "local")
        await store.flush()
        read = await recent_runs(store.database, 100)
        assert [run.id for run, _ in read] == ["run_000004", "run_000002", "run_000000"]


async def test_visitors_of_the_pool_share_what_was_counted(tmp_path):
    async with Store(tmp_path / "runs.db") as store:
        await store.append(make_run(), "local")
        await store.flush()
        catalogue = scripted_state({"ada": ScriptedClient("x")}).catalogue
        forms = PoolForms(catalogue, store, None)
        page = PoolPage(catalogue, store, DriftMonitor(catalogue, store), forms)
        visitor: Any = SimpleNamespace(tenant="local")
        found = []

        async def visit():
            found.append((await page._worker_stats(visitor))[0])

        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(visit)
        assert len(found) == 8 and all(one is found[0] for one in found)


async def test_the_latest_runs_are_read_in_their_order_over_pages(tmp_path):
    async with Store(tmp_path / "runs.db") as store:
        for number in range(45):
            await store.append(make_run(number), "local")
        await store.flush()
        ids = [run.id for run, _ in await recent_runs(store.database, 43)]
        assert ids == [f"run_{number:06}" for number in range(44, 1, -1)]
        assert len(await recent_runs(store.database, 5)) == 5


async def test_the_form_that_changes_a_key_shows_every_limit_that_it_has(keyed, browse):
    """What the form left out, setting another limit would take away."""
    admin = browse(keyed)
    await sign_in(admin, ADMIN)
    old = KeyPermissions(
        tools=("none",),
        session_max_cost=Decimal("1.75"),
        session_max_turns=40,
        min_confidence=0.9,
    )
    key, _ = keyed.call(keyed.store.keys.create, keyed.mint, "whole", "tests", old)
    async with admin.get("/ui/keys?tenant=whole") as response:
        text = await response.text()
    assert (
        "$1.75 a session" in text
        and "40 turns a session" in text
        and "confidence at least 0.9" in text
    )
    part = text[text.index(f"/ui/keys/{key.id}/limits") :].partition("</form>")[0]
    found = dict(re.findall(r'name="(\w+)"[^>]*?value="([^"]*)"', part))
    async with admin.post(f"/ui/keys/{key.id}/limits", data=found) as response:
        assert response.status == 200
    assert keyed.call(keyed.store.keys.find, key.id).permissions == old


async def test_a_picture_of_a_number_by_the_thousand_digits_is_not_there(keyed, browse):
    http = browse(keyed)
    _, issued = keyed.call(keyed.store.keys.create, keyed.mint, "talks", "tests")
    await sign_in(http, issued.text)
    run, _ = await asked(http)
    for number in ("9" * 5_000, "\N{ARABIC-INDIC DIGIT ONE}", "-1", "0.0.0"):
        for place in (f"pictures/{number}", f"made/answer.{number}", f"made/0.0.{number}"):
            async with http.get(f"/ui/runs/{run}/{place}") as response:
                assert response.status == 404, (place[:40], response.status)


async def test_a_conversation_and_its_pictures_are_its_tenants(keyed, browse):
    mine, other = browse(keyed), browse(keyed)
    for http, tenant in ((mine, "talks"), (other, "listens")):
        _, issued = keyed.call(keyed.store.keys.create, keyed.mint, tenant, "tests")
        await sign_in(http, issued.text)
    run, _ = await asked(mine)
    session = keyed.call(keyed.store.find_session, run, "talks")
    for http, status in ((mine, 200), (other, 404)):
        for place in (f"chat/{session}", f"runs/{run}/pictures/0"):
            async with http.get(f"/ui/{place}") as response:
                assert response.status == (404 if "pictures" in place else status), place
    body = {"model": "batuta-mini", "messages": [{"role": "user", "content": "And?"}]}
    for name in ("follow", "again"):
        for address in ("/ui/ask", "/ui/body"):
            headers = {"x-token": await token_of(other)}
            async with other.post(address, json={**body, name: run}, headers=headers) as response:
                assert response.status == 404, (name, address)
    async with other.post("/ui/body", json=body, headers={"x-token": "x"}) as response:
        assert response.status == 403


async def test_chosen_runs_are_taken_by_those_alone_who_see_them(keyed, browse):
    async def fill():
        for number in (801, 802):
            await keyed.store.append(make_run(number, question="Whose?"), tenant="chosen")
        await keyed.store.flush()
        runs = [row.id for row in await keyed.store.list(50, tenant="chosen")]
        await keyed.store.score(runs[1], 0.0, "no idea")
        return runs

    runs = keyed.call(fill)
    _, issued = keyed.call(keyed.store.keys.create, keyed.mint, "third", "tests")

    async def press(http, act, *chosen, token=None):
        token = token or await token_of(http)
        fields = [("token", token), ("act", act), *(("run", run) for run in chosen)]
        async with http.post("/ui/runs", data=fields, allow_redirects=False) as response:
            return response.status, await response.text()

    other = browse(keyed)
    await sign_in(other, issued.text)
    for act in ("export", "tasks", "delete", "compare"):
        status, page = await press(other, act, *runs)
        assert status == 404 and "run" in page
        assert (await press(other, act))[0] == 400
        assert (await press(other, act, runs[0], token="forged"))[0] == 403
        assert (await press(other, act, *(f"run_{n}" for n in range(51))))[0] == 400
    assert (await press(other, "burn", runs[0]))[0] == 400
    admin = browse(keyed)
    await sign_in(admin, ADMIN)
    status, page = await press(admin, "tasks", runs[1])
    assert status == 400 and "Expected: ANSWER" in page
    assert (await press(admin, "compare", runs[1]))[0] == 400
    assert len(keyed.call(keyed.store.list, 50, tenant="chosen")) == 2


async def test_two_runs_without_an_answer_have_not_given_the_same(app_state, browse):
    async def fill():
        for number, answer in ((821, None), (822, None), (823, "4"), (824, "4")):
            run = replace(make_run(number), answer=answer)
            await app_state.store.append(run)
        await app_state.store.flush()
        return [make_run(number).id for number in (821, 822, 823, 824)]

    failed, again, one, other = app_state.call(fill)
    for pair, same in (((failed, again), False), ((one, other), True)):
        query = "&".join(f"run={run}" for run in pair)
        async with browse(app_state).get(f"/ui/compare/figures?{query}") as response:
            text = await response.text()
        assert response.status == 200 and ("exactly the same answer" in text) == same


def test_two_failures_are_no_identical_answers():
    failed = replace(make_run(), outcome=Outcome.FAILED, answer=None, error="no worker answered")
    cells = [
        replace(TableCell.of(failed), model=f"system {number}", question="Same?")
        for number in (1, 2)
    ]
    rows, _ = arrange_cells(cells)
    assert [row.common_answer for row in rows] == [""]
    assert [cell.shown for cell in cells] == ["no worker answered"] * 2


async def test_a_table_of_runs_is_made_of_those_that_the_visitor_sees(keyed, browse):
    async def fill():
        for number in (811, 812):
            run = make_run(number, question="Same?")
            header = replace(run.header, model=f"system-{number}")
            await keyed.store.append(replace(run, header=header), tenant="table")
        await keyed.store.flush()
        return [row.id for row in await keyed.store.list(50, tenant="table")]

    runs = keyed.call(fill)
    address = "/ui/compare/table?" + "&".join(f"run={run}" for run in runs)
    mine, other = browse(keyed), browse(keyed)
    for http, tenant in ((mine, "table"), (other, "no-table")):
        _, issued = keyed.call(keyed.store.keys.create, keyed.mint, tenant, "tests")
        await sign_in(http, issued.text)
    async with mine.get(address) as response:
        text = await response.text()
        assert response.status == 200 and text.count("<tr>") == 3
        assert "system-811" in text and "system-812" in text and "0 of 0" not in text
    for http, given, status in (
        (other, address, 404),
        (mine, "/ui/compare/table", 400),
        (mine, "/ui/compare/table?" + "&".join(f"run=run_{n}" for n in range(41)), 400),
        (mine, "/ui/compare/table?run=%00%3Cscript%3E", 404),
    ):
        async with http.get(given) as response:
            assert response.status == status, given
            assert "<script>" not in await response.text()


def test_the_answers_of_a_question_are_the_same_to_the_letter_or_they_differ():
    def cell(question, model, answer, outcome: Outcome | None = Outcome.ANSWERED):
        return TableCell(
            id=f"{question} {model}", question=question, model=model, outcome=outcome, answer=answer
        )

    rows, totals = arrange_cells(
        [
            cell("a", "one", "4"), cell("a", "two", "4"),
            cell("b", "one", "4"), cell("b", "two", "5"),
            cell("c", "one", "4"),
            cell("d", "one", "4"), cell("d", "two", "", None),
        ]
    )  # fmt: skip
    assert [row.common_answer for row in rows] == ["4", "", "", ""]
    assert [row.cells[1] is None for row in rows] == [False, False, True, False]
    assert [(one.answered, one.runs) for one in totals] == [(4, 4), (2, 3)]
