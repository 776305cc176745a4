"""A plan is edited, priced and played."""

import pytest

from batuta.store.key_permissions import KeyPermissions
from gateway.ui.conftest import sound
from gateway.ui.page_server import ADMIN, QUESTION, PageServer
from gateway.ui.visitors import asked, sign_in, token_of


def plan_of(run, *steps, **options):
    """The body that the editor sends."""
    told = [{"worker": worker, "subtask": "", "access": list(reads)} for worker, *reads in steps]
    return {
        "edit": run,
        "model": "batuta-ultra",
        "orchestration": {"workflow": {"steps": told}, **options},
    }


@pytest.fixture(scope="module")
def app_state(tmp_path_factory):
    with PageServer(tmp_path_factory.mktemp("server")).open() as app_state:
        yield app_state


@pytest.fixture(scope="module")
def keyed(tmp_path_factory):
    with PageServer(tmp_path_factory.mktemp("keyed"), keyed=True).open() as app_state:
        yield app_state


async def send(http, place, body):
    headers = {"x-token": await token_of(http)}
    async with http.post(place, json=body, headers=headers) as response:
        return response.status, await response.text(), response.headers.get("x-batuta-run-id")


async def test_a_plan_is_priced_before_it_is_played(app_state, browse):
    http = browse(app_state)
    run, _ = await asked(http)
    body = plan_of(run, ("cello",), ("piano", 0))
    await house_flush(app_state)
    before = await house_count(app_state)
    status, text, _ = await send(http, "/ui/plan", body)
    assert status == 200 and "Nothing has been called yet" in text and "$" in text
    assert text.count("node-who") == 2
    assert await house_count(app_state) == before, "a price is no run"
    status, text, played = await send(http, "/ui/ask", body)
    assert status == 200 and "event: ended" in text
    assert (await find(app_state, played)).rounds[0].workflow.steps[1].access == (0,)
    found = await find(app_state, played)
    assert found.header.question == (await find(app_state, run)).header.question
    assert [step.worker for step in found.steps] == ["cello", "piano"]


async def find(app_state, run_id):
    return app_state.call(app_state.store.get, run_id)


async def house_flush(app_state):
    app_state.call(app_state.store.flush)


async def house_count(app_state):
    return len(app_state.call(app_state.store.list, 500))


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        ((), "a workflow needs at least one step"),
        ((("nobody",),), "there is no worker 'nobody' here"),
        ((("cello", 0),), "access of step 0 may name only earlier steps"),
        ((("cello",),) * 6, "at most 5"),
    ],
)
@pytest.mark.parametrize("place", ["/ui/plan", "/ui/ask"])
async def test_a_plan_that_cannot_be_played_is_refused_in_a_sentence(
    app_state, browse, steps, told, place
):
    http = browse(app_state)
    run, _ = await asked(http)
    status, text, played = await send(http, place, plan_of(run, *steps))
    assert status == 400 and told in text and played is None


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"edit": "run_0"},
        {"edit": 7},
        {"edit": "RUN"},
        {"edit": "RUN", "model": "batuta-ultra", "orchestration": {"workflow": "x"}},
        {"edit": "RUN", "model": "batuta-ultra", "orchestration": {"workflow": {"steps": [7]}}},
        {"edit": "RUN", "model": "nobody", "orchestration": {"workflow": {"steps": [{"worker": "cello"}]}}},
    ],
)  # fmt: skip
async def test_malformed_plans_are_refused(app_state, browse, body):
    http = browse(app_state)
    run, _ = await asked(http)
    if body.get("edit") == "RUN":
        body = {**body, "edit": run}
    status, text, _ = await send(http, "/ui/plan", body)
    assert 400 <= status < 500 and "error" in text


async def test_a_plan_is_edited_by_its_owner_alone(keyed, browse):
    one, two, admin, bound = (browse(keyed) for _ in range(4))
    limits = {"bound": KeyPermissions(workers_allow=("cello",)), "one": None, "two": None}
    for name, http in (("one", one), ("two", two), ("bound", bound)):
        tenant = "one" if name == "bound" else name
        made = keyed.call(keyed.store.keys.create, keyed.mint, tenant, name, limits[name])
        await sign_in(http, made[1].text)
    await sign_in(admin, ADMIN)
    run, _ = await asked(one)
    body = plan_of(run, ("cello",))
    assert (await send(one, "/ui/plan", body))[0] == 200
    assert (await send(two, "/ui/plan", body))[0] == 404
    assert (await send(two, "/ui/ask", body))[0] == 404
    status, text, _ = await send(admin, "/ui/plan", body)
    assert status == 403 and "starts no runs" in text
    status, text, _ = await send(bound, "/ui/plan", plan_of(run, ("piano",)))
    assert status == 400 and "there is no worker 'piano' here" in text
    async with bound.get(f"/ui/runs/{run}/edit") as page:
        assert ">cello</option>" in (text := await page.text()) and ">tuba</option>" not in text
    for http, wanted in ((one, 200), (two, 404), (admin, 200)):
        async with http.get(f"/ui/runs/{run}/edit") as page:
            assert page.status == wanted
        async with http.get(f"/ui/runs/{run}/edit?round=9") as page:
            assert page.status == 404
    async with one.post("/ui/plan", json=body) as response:
        assert response.status == 403, "no page of ours"


def priced(page):
    page.wait_for_selector("[data-preview][aria-busy=false] .stats")
    return page.locator("[data-preview] .node").count()


def test_a_plan_is_edited_and_played_by_keyboard(app_state, visit, ask):
    """The plan alone is asked for, gets a step, has two exchanged, and is played."""
    page = visit(app_state)
    page.fill("#question", QUESTION)
    page.click("text=Plan only")
    page.wait_for_selector("[data-links] a")
    page.get_by_role("link", name="Edit the plan").focus()
    page.keyboard.press("Enter")
    steps = page.locator("[data-step]")
    before = priced(page)
    page.locator("[data-add]").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.matches('[data-worker]')")
    page.keyboard.type("tuba")
    page.wait_for_function(
        "n => document.querySelectorAll('[data-preview] .node').length === n", arg=before + 1
    )
    assert steps.count() == before + 1
    last = steps.nth(before)
    last.locator("[data-subtask]").fill("<b>Check</b> it.")
    last.locator("[data-move='-1']").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.matches('[data-move]')")
    assert steps.nth(before).locator("[data-reads] input:checked").count() <= before
    page.wait_for_function(
        "() => document.querySelector('[data-preview]').textContent.includes('<b>Check</b> it.')"
    )
    assert priced(page) == before + 1
    sound(page)
    page.locator("[data-go]").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-links] a")
    assert page.locator(".stage [data-node]").count() == before + 1
    sound(page)
    page.reload()
    assert "by-hand" in page.inner_text(".stats")


def test_a_plan_without_steps_is_not_played(app_state, visit, ask):
    page = visit(app_state)
    ask(page, QUESTION)
    page.wait_for_selector("[data-links] a")
    page.get_by_role("link", name="Edit the plan").click()
    priced(page)
    page.watch.expected.append("400 (Bad Request)")
    while page.locator("[data-remove]").count():
        page.locator("[data-remove]").first.click()
    page.wait_for_selector("[data-preview] .failure")
    assert "a workflow needs at least one step" in page.inner_text("[data-preview]")
    page.click("[data-go]")
    page.wait_for_selector(".stage .failure")
    sound(page)


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1280, "light")])
def test_the_editor_fits(app_state, visit, ask, width, scheme):
    page = visit(app_state, width=width, scheme=scheme)
    ask(page, QUESTION)
    page.wait_for_selector("[data-links] a")
    page.get_by_role("link", name="Edit the plan").click()
    priced(page)
    sound(page)
