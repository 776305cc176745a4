"""The page over HTTP: its headers, its forms, who sees what."""

import html
import json
import re
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import anyio
import pytest

from batuta.clients import ScriptedClient
from batuta.core.formatting import format_cost
from batuta.gateway.errors import APIError
from batuta.gateway.serving.drift import DriftMonitor
from batuta.gateway.ui.asked_runs import AskedRuns
from batuta.gateway.ui.keys import PAGE_SIZE
from batuta.gateway.ui.pool import PoolPage
from batuta.gateway.ui.sign_in import _safe_target
from batuta.store import Store
from batuta.store.recent_runs import LARGEST_BYTES, recent_runs
from gateway.house import orchestra
from store.strategies import make_run
from ui.house import ADMIN, HOSTILE, QUESTION, House
from ui.seen import Seen

SCREENS = (
    "/ui/",
    "/ui/runs",
    "/ui/compare",
    "/ui/pool",
    "/ui/learning",
    "/ui/nowhere",
    "/ui/sign-in",
)


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    with House(tmp_path_factory.mktemp("house")).open() as house:
        yield house


@pytest.fixture(scope="module")
def keyed(tmp_path_factory):
    with House(tmp_path_factory.mktemp("keyed"), keyed=True).open() as house:
        yield house


@pytest.fixture
async def browse():
    """A browser without a screen: keeps cookies, follows nothing."""
    sessions = []

    def browse(house):
        jar = aiohttp.CookieJar(unsafe=True)
        session = aiohttp.ClientSession(house.url, cookie_jar=jar)
        sessions.append(session)
        return session

    yield browse
    for session in sessions:
        await session.close()


async def token_of(http, address="/ui/"):
    async with http.get(address) as response:
        return re.search(r'(?:name="token" value|data-token)="([^"]+)"', await response.text())[1]


async def sign_in(http, key):
    form = {"key": key, "token": await token_of(http, "/ui/sign-in"), "then": "/ui/runs"}
    async with http.post("/ui/sign-in", data=form, allow_redirects=False) as response:
        return response.status, response.headers


async def asked(http):
    body = {"model": "batuta-mini", "messages": [{"role": "user", "content": QUESTION}]}
    headers = {"x-token": await token_of(http)}
    async with http.post("/ui/ask", json=body, headers=headers) as response:
        assert response.status == 200
        return response.headers["x-batuta-run-id"], await response.text()


async def test_a_run_that_is_stopped_can_be_opened_at_once(house, browse, monkeypatch):
    """Its page waits for its end, which comes a moment after the connection is cut; not for ever."""
    http = browse(house)
    headers = {"x-token": await token_of(http)}
    body = {"model": "sloth", "messages": [{"role": "user", "content": "Will this ever end?"}]}
    monkeypatch.setattr("batuta.gateway.ui.asked_runs._SECONDS_TO_END", 0.2)
    response = await http.post("/ui/ask", json=body, headers=headers)
    address = f"/ui/runs/{response.headers['x-batuta-run-id']}"
    async with http.get(address) as page:
        assert page.status == 409
        assert "This run goes on; reload the page when it has ended." in await page.text()
    monkeypatch.setattr("batuta.gateway.ui.asked_runs._SECONDS_TO_END", 30.0)
    found = []

    async def open_page():
        async with http.get(address) as page:
            found.append((page.status, await page.text()))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(open_page)
        await anyio.sleep(0.3)
        assert not found
        response.close()
    ((status, text),) = found
    assert status == 200 and "Will this ever end?" in text


async def test_nobody_learns_that_a_strangers_run_goes_on(monkeypatch):
    monkeypatch.setattr("batuta.gateway.ui.asked_runs._SECONDS_TO_END", 0.01)
    asked = AskedRuns()
    one, operator, two = (cast("Any", SimpleNamespace(tenant=t)) for t in ("one", None, "two"))
    with asked.track("run-1", one):
        for session in (one, operator):
            with pytest.raises(APIError, match="goes on"):
                await asked.wait_for_end("run-1", session)
        await asked.wait_for_end("run-1", two)
        await asked.wait_for_end("run-2", one)
    await asked.wait_for_end("run-1", one)


@pytest.mark.parametrize(
    "place", ["compare?a={}", "compare/figures?a={}&b={}", "?replay={}", "?again={}"]
)
async def test_a_run_that_goes_on_is_not_called_unknown(house, browse, monkeypatch, place):
    """Wherever else a run may be opened from its own page, as soon as it is stopped."""
    monkeypatch.setattr("batuta.gateway.ui.asked_runs._SECONDS_TO_END", 0.2)
    http = browse(house)
    headers = {"x-token": await token_of(http)}
    body = {"model": "sloth", "messages": [{"role": "user", "content": "Will this ever end?"}]}
    response = await http.post("/ui/ask", json=body, headers=headers)
    run_id = response.headers["x-batuta-run-id"]
    address = "/ui/" + place.format(run_id, run_id)
    async with http.get(address) as page:
        assert page.status == 409
    monkeypatch.setattr("batuta.gateway.ui.asked_runs._SECONDS_TO_END", 30.0)
    response.close()
    async with http.get(address) as page:
        assert page.status == 200


@pytest.mark.parametrize("address", SCREENS)
async def test_every_screen_is_kept_to_itself(house, browse, address):
    async with browse(house).get(address, allow_redirects=False) as response:
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


async def test_files_have_names_that_change_with_them(house, browse):
    http = browse(house)
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
    assert total < 20_000, "script, styles and icon stay small, under gzip"
    for gone in (
        "/ui/static/page.000000000000.js",
        "/ui/static/..%2froutes.py",
        "/ui/static/page.js",
    ):
        async with http.get(gone) as response:
            assert response.status == 404


async def test_the_events_of_a_run(house, browse):
    run, text = await asked(browse(house))
    names = re.findall(r"^event: (\w+)$", text, re.MULTILINE)
    assert names[:3] == ["opened", "began", "planned"]
    assert names.index("step") < names.index("stepped") < names.index("ended") == len(names) - 1
    assert run in text
    assert house.call(house.store.get, run).answer


async def test_the_draft_is_seen_while_it_is_written(house, browse):
    http = browse(house)
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


async def test_a_plan_alone_calls_nobody(house, browse):
    http = browse(house)
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


@pytest.mark.parametrize("token", [None, "", "wrong", "é"])
async def test_forms_of_other_pages_are_refused(house, browse, token):
    http = browse(house)
    form = {"score": "1"} if token is None else {"score": "1", "token": token}
    run, _ = await asked(http)
    async with http.post(f"/ui/runs/{run}/feedback", data=form) as response:
        assert response.status == 403
    headers = {} if token is None else {"x-token": token.encode().decode("latin-1")}
    async with http.post("/ui/ask", json={}, headers=headers) as response:
        assert response.status == 403
    async with http.get("/ui/runs", headers={"origin": "https://elsewhere.invalid"}) as response:
        assert response.status == 403
    assert house.call(house.store.summary, run).score is None


@pytest.mark.parametrize("query", ["after=nonsense", "outcome=nonsense", "after=1_", "after=nan_x"])
async def test_odd_queries_are_answered_with_a_page(house, browse, query):
    async with browse(house).get(f"/ui/runs?{query}") as response:
        assert response.status in {200, 400}
        assert "<!doctype html>" in await response.text()


async def test_hostile_runs_are_escaped_everywhere(house, browse):
    http = browse(house)
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


async def test_nobody_sees_anything_without_a_key(keyed, browse):
    http = browse(keyed)
    for address in (
        *SCREENS[:5],
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
    assert (str(found.policy.per_month), found.policy.rpm) == ("7.25", None)
    await post("/ui/budgets", tenant="three", per_day="2")
    assert str(keyed.call(keyed.store.keys.find, key).tenant.per_day) == "2"
    _, text = await post(f"/ui/keys/{key}/rotate")
    assert re.search(r"data-secret>([^<]+)<", text)[1] != secret
    await post(f"/ui/keys/{key}/revoke")
    async with holder.get("/ui/runs", allow_redirects=False) as response:
        assert response.status == 303
    assert (await post("/ui/keys/nothing/revoke"))[0] == 404


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


async def test_the_pool_counts_the_latest_runs(house, browse):
    http = browse(house)
    await asked(http)
    house.call(house.store.flush)
    recent = house.call(recent_runs, house.store.database, 5, "local")
    assert recent
    assert recent[0][0].header.started >= recent[-1][0].header.started
    assert house.call(recent_runs, house.store.database, 5, "other") == []
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
        catalogue = orchestra({"ada": ScriptedClient("x")}).catalogue
        page = PoolPage(catalogue, store, DriftMonitor(catalogue, store))
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
