"""The page in a real browser, screen by screen."""

import json
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from decimal import Decimal
from types import SimpleNamespace

import aiohttp
import httpx
import pytest
from aiohttp import web

from batuta.core import Cost, Outcome
from batuta.language.approval_rules import ApprovalRule
from gateway.ui.conftest import let_scripts, sound
from gateway.ui.page_server import ADMIN, HOSTILE, QUESTION, PageServer

LIGHTS = """() => {
  window.lights = [];
  new MutationObserver((changes) => {
    for (const change of changes) for (const node of [change.target, ...change.addedNodes]) {
      if (node.dataset?.state) window.lights.push([node.dataset.node, node.dataset.state]);
    }
    if (document.querySelector('[data-answer] .answer:not(.live)')) window.lights.push(['answer', 'there']);
  }).observe(document.body, { subtree: true, childList: true, attributes: true, attributeFilter: ['data-state'] });
}"""


def answered(page):
    page.wait_for_selector("[data-links] a")
    return page.locator("[data-links] a").first.get_attribute("href")


@pytest.fixture(scope="module")
def run_address(browser, app_state):
    """A run that was asked for in the playground."""
    page = browser.new_page(base_url=app_state.url)
    page.goto("/ui/")
    page.fill("#question", QUESTION)
    page.click("[data-go]")
    address = answered(page)
    page.close()
    return address


def test_steps_light_up_before_the_answer_is_there(app_state, visit, ask):
    page = visit(app_state)
    sound(page)
    page.evaluate(LIGHTS)
    ask(page, QUESTION)
    address = answered(page)
    lights = page.evaluate("window.lights")
    first = lights.index(["answer", "there"])
    assert any(state == "running" for _, state in lights[:first])
    assert any(state == "done" for _, state in lights[:first])
    assert "4050" in page.inner_text("[data-answer]")
    page.locator("[data-node]").last.click()
    panel = page.locator("[data-panel]:visible")
    assert panel.count() == 1
    panel.get_by_text("The exact prompt").click()
    assert QUESTION in panel.inner_text()
    assert "tok" in page.inner_text("[data-meter]")
    sound(page)
    page.goto(address)
    assert QUESTION in page.inner_text("h1")


def test_text_streams_into_an_open_step_and_a_run_is_stopped(app_state, visit, ask):
    page = visit(app_state)
    before = app_state.sloth.cancelled
    ask(page, "Will this ever end?", "sloth")
    page.wait_for_selector('[data-state="running"]')
    page.click("[data-node]")
    page.locator("[data-stream]", has_text="I am thinking").wait_for()
    sound(page)
    page.click("[data-stop]")
    address = answered(page)
    assert "Stopped" in page.inner_text("[data-answer]")
    until = time.monotonic() + 30  # the page has said it before the worker's call has ended
    while app_state.sloth.cancelled == before and time.monotonic() < until:
        time.sleep(0.02)
    assert app_state.sloth.cancelled == before + 1
    page.goto(address)
    page.wait_for_selector(".chip:has-text('cancelled')")
    sound(page)


def test_a_run_is_found_again_after_a_reload_and_from_other_screens(app_state, visit, ask):
    """Whoever asked may look elsewhere: the run has its address and goes on until it is stopped."""
    page = visit(app_state)
    before = app_state.sloth.cancelled
    ask(page, "Will this ever end?", "sloth")
    page.wait_for_selector('[data-state="running"]')
    chat = page.url
    assert "/ui/chat/ses_" in chat
    page.reload()
    page.wait_for_selector('[data-state="running"]')
    page.click("[data-node]")
    page.locator("[data-stream]", has_text="I am thinking").wait_for()
    sound(page)
    page.click("nav >> text=Pool")
    page.click("nav >> text=Runs")
    page.click("tr:has-text('running') a")
    page.wait_for_selector('[data-state="running"]')
    assert "/ui/runs/run_" in page.url
    page.reload()
    page.wait_for_selector('[data-state="running"]')
    assert app_state.sloth.cancelled == before
    page.goto("/ui/runs")
    sound(page)
    page.click("tr:has-text('running') >> text=Stop")
    page.wait_for_selector("tbody tr:first-child .chip:has-text('cancelled')")
    assert app_state.sloth.cancelled == before + 1
    page.go_back()


def test_the_way_back_leads_to_where_the_question_was_asked(app_state, visit, ask):
    page = visit(app_state)
    ask(page, QUESTION)
    answered(page)
    assert "/ui/chat/ses_" in page.url
    page.go_back()
    page.wait_for_url("**/ui/")
    page.wait_for_selector("#question")
    page.go_forward()
    page.wait_for_selector(f".turn:has-text('{QUESTION}')")


def test_one_step_back_leads_out_of_a_conversation_and_of_a_table(app_state, visit, ask):
    page = visit(app_state)
    for turn in (1, 2):
        ask(page, QUESTION)
        page.wait_for_selector(f".turn:nth-child({turn}) [data-links] a")
    page.go_back()
    page.wait_for_selector(".recent")
    page.goto("/ui/compare")
    page.click("summary:has-text('ten questions')")
    page.fill("[name=questions]", f"{QUESTION}\nWhat is 2 + 2?")
    page.select_option("[data-many] [name=first]", "worker/piano")
    page.click("[data-many] .main")
    page.wait_for_selector("[data-many] .main:visible")
    assert page.locator("[data-table] a").count() == 4
    assert "/ui/compare/table" in page.url
    page.go_back()
    page.wait_for_function("() => !document.querySelector('[data-table] a')")  # loaded again
    assert page.url.endswith("/ui/compare")
    page.wait_for_load_state()


def test_questions_are_stopped_that_have_no_address_yet(app_state, visit):
    page = visit(app_state, "/ui/compare")
    page.click("summary:has-text('ten questions')")
    page.fill("[name=questions]", "Will this ever end?")
    for name, model in (("first", "sloth"), ("second", "worker/sloth")):
        page.select_option(f"[data-many] [name={name}]", model)
    page.evaluate("""() => {
      const form = document.querySelector("[data-many]");
      form.requestSubmit();
      form.querySelector("[data-stop]").click();
    }""")
    page.wait_for_selector("[data-many] .main:visible")
    assert page.locator("[data-many] .chip:has-text('cancelled')").count() == 2


def test_a_comparison_is_found_again_after_a_reload(app_state, visit):
    page = visit(app_state, "/ui/compare")
    page.fill("#question", "Will this ever end?")
    page.select_option("[name=first]", "sloth")
    page.click("[data-go]")
    page.wait_for_url("**/ui/compare?a=run_*&b=run_*")
    page.wait_for_selector('[data-stage="a"] [data-state="running"]')
    page.reload()
    page.wait_for_selector('[data-stage="a"] [data-state="running"]')
    page.wait_for_selector('[data-stage="b"] [data-answer] .answer, [data-stage="b"] .failure')
    sound(page)
    page.click("[data-stop]")
    page.wait_for_selector("[data-difference] table")
    page.reload()
    page.wait_for_selector(".versus-table")


@asynccontextmanager
async def balancer(app_state, misses):
    """Before the server and another one, which the first requests for a run's events get."""
    asked = []

    async def passes(request):
        asked.append(request.path)
        is_events = request.path.endswith("/events")
        if is_events and sum(path.endswith("/events") for path in asked) <= misses:
            return web.json_response({"error": {"message": "no such run"}}, status=404)
        async with aiohttp.ClientSession(auto_decompress=False) as http:
            sent = http.request(
                request.method, app_state.url + request.path_qs, headers=request.headers,
                data=await request.read(), allow_redirects=False,
            )  # fmt: skip
            async with sent as response:
                answer = web.StreamResponse(status=response.status, headers=response.headers)
                answer.headers.popall("transfer-encoding", None)
                await answer.prepare(request)
                async for piece in response.content.iter_any():
                    await answer.write(piece)
                return answer

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", passes)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield SimpleNamespace(url=f"http://127.0.0.1:{runner.addresses[0][1]}")
    finally:
        await runner.cleanup()


def test_a_run_at_another_server_is_looked_for(app_state, visit, ask):
    with app_state.portal.wrap_async_context_manager(balancer(app_state, misses=2)) as front:
        page = visit(front)
        page.watch.expected += ["404 (Not Found)"]
        ask(page, QUESTION)
        page.wait_for_selector("text=The run continues on another server")
        assert "/ui/chat/ses_" in page.url
        answered(page)
        assert "4050" in page.inner_text("[data-answer]")


def test_a_connection_that_breaks_is_taken_up_again(app_state, visit, ask):
    page = visit(app_state)
    page.watch.expected += ["ERR_", "Failed to load"]
    broken, half = [], ""

    def breaks(route):
        broken.append(route.request.url)
        if len(broken) == 1:
            route.fulfill(status=200, content_type="text/event-stream",
                          body=half)  # fmt: skip
        else:
            route.continue_()

    ask(page, "Will this ever end?", "sloth")
    page.wait_for_selector('[data-state="running"]')
    page.reload()
    opened = json.dumps({"id": page.get_attribute("[data-follow]", "data-follow"), "seconds": 0})
    half = f"event: opened\ndata: {opened}\n\nevent: half"
    page.route("**/events?**", breaks)
    page.reload()
    page.wait_for_selector('[data-state="running"]')
    assert len(broken) == 2
    page.unroute("**/events?**")
    page.click("text=Stop")


def test_the_keyboard_does_everything_and_is_never_lost(app_state, visit):
    page = visit(app_state)
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # to the content
    page.keyboard.press("Tab")
    page.keyboard.type("Will this ever end?")
    page.select_option("[name=model]", "sloth")
    page.locator("[data-go]").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-stop]:focus")
    page.wait_for_selector('[data-state="running"]')  # until then there is no run to be shown
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-go]:focus")
    page.goto(answered(page))
    page.locator("[data-feedback] button").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-feedback] [aria-pressed=true]:focus")
    page.locator("[data-node]").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-node]:not([data-open])")
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-panel]:focus")


def test_rounds_are_run_side_by_side(app_state, visit):
    page = visit(app_state)
    page.fill("#question", QUESTION)
    page.select_option("[name=effort]", "max")
    page.click("[data-go]")
    answered(page)
    first, second = (page.locator(f"[data-round='{number}']") for number in (0, 1))
    assert first.locator("h3").inner_text() == "Round 1"
    assert "Round 2" in second.inner_text()
    left, right = first.bounding_box(), second.bounding_box()
    assert left["y"] == right["y"]
    assert left["x"] + left["width"] <= right["x"]
    sound(page)


def test_a_refusal_and_a_lost_connection_are_said(app_state, visit, ask):
    page = visit(app_state)
    page.watch.expected += ["400 (Bad Request)", "ERR_CONNECTION", "ERR_FAILED"]
    page.fill("[name=deadline_s]", "1e12")
    ask(page, "Anything?")
    page.wait_for_selector("[data-answer] .failure")
    assert "deadline_s" in page.inner_text("[data-answer]")
    page.fill("[name=deadline_s]", "")
    page.route("**/ui/ask", lambda route: route.abort())
    page.click("[data-go]")
    page.wait_for_selector("text=The server cannot be reached.")


def test_what_is_copied_can_be_run(app_state, visit):
    page = visit(app_state)
    page.fill("#question", 'Is "it\'s" true or null?')
    page.fill("[name=max_cost_usd]", "0.05")
    page.click("[data-copy=python]")
    page.wait_for_selector(".toast")
    text = page.evaluate("navigator.clipboard.readText()")
    compile(text, "copied", "exec")
    assert 'extra_body={"orchestration": {"max_cost_usd":0.05}}' in text
    page.locator(".toast").wait_for(state="detached")
    page.click("[data-copy=curl]")
    page.wait_for_selector(".toast")
    text = page.evaluate("navigator.clipboard.readText()")
    body = json.loads(text.partition("-d '")[2].removesuffix("'").replace("'\\''", "'"))
    assert body["messages"][0]["content"] == 'Is "it\'s" true or null?'


def test_runs_are_found_filtered_and_judged(app_state, visit, run_address):
    page = visit(app_state, "/ui/runs?q=square+it")
    assert page.locator(".runs tbody tr").count() >= 1
    sound(page)
    page.select_option("[name=outcome]", "failed")
    page.wait_for_selector(".empty")
    sound(page)
    page.goto(run_address)
    page.click("text=Right")
    page.wait_for_selector('[aria-pressed="true"]:has-text("Right")')
    run = run_address.rpartition("/")[2]
    assert app_state.call(app_state.store.summary, run).score == 1.0
    page.click("text=Right")
    page.wait_for_selector(".toast:has-text('removed')")
    assert app_state.call(app_state.store.summary, run).score is None


def test_no_figure_of_the_list_is_cut(app_state, visit, run_address):
    run = app_state.call(app_state.store.get, run_address.rpartition("/")[2])
    round_ = run.rounds[0]
    reply = round_.steps[0].result
    usage = replace(reply.usage, input=987_654_321)
    dear = replace(reply, usage=usage, cost=Cost(Decimal("0.000012345"), 3))
    steps = tuple(replace(step, result=dear) for step in round_.steps)
    for number, outcome in enumerate(Outcome):
        header = replace(run.header, id=f"run_cut{number}", started=1e9, model="a-name-" * 20)
        long = replace(
            run,
            header=header,
            outcome=outcome,
            seconds=86_000.0,
            rounds=(replace(round_, steps=steps),) * 3,
        )
        app_state.call(app_state.store.append, long)
    page = visit(app_state, "/ui/runs?model=" + "a-name-" * 20)
    assert page.locator(".runs tbody tr").count() == len(Outcome)
    cut = page.evaluate("""() => [...document.querySelectorAll('.runs td:not(.what, .cut, .pick-run)')]
        .filter((cell) => cell.scrollWidth > cell.clientWidth || cell.offsetWidth < 40)
        .map((cell) => cell.textContent)""")
    assert cut == []
    assert page.locator(".runs .what a").first.bounding_box()["width"] >= 200
    sound(page)


def test_a_plan_is_seen_and_not_run(app_state, visit):
    page = visit(app_state)
    page.fill("#question", QUESTION)
    page.click("text=Plan only")
    page.goto(answered(page))
    page.wait_for_selector(".chip:has-text('planned')")
    assert "was not run" in page.locator("[data-panel]:visible").inner_text()
    sound(page)


def test_a_run_is_read_and_exported(app_state, visit, run_address):
    page = visit(app_state, run_address)
    assert page.locator(".waterfall li").count() >= 2
    page.locator(".waterfall li[data-goto]").first.click()
    assert page.locator("[data-panel]:visible").count() == 1
    page.locator("[data-node]").first.focus()
    page.keyboard.press("Enter")
    sound(page)
    with page.expect_download() as download:
        page.click("text=Export JSON")
    assert json.loads(download.value.path().read_bytes())["header"]["question"]


def test_a_run_is_asked_again_and_replayed(app_state, visit, run_address):
    page = visit(app_state, run_address)
    page.click("text=Ask again")
    assert page.input_value("#question") == QUESTION
    page.goto(run_address)
    page.click("text=Replay")
    assert page.locator("[name=model], [name=worker], [data-copy]").count() == 0
    assert not page.locator("#question").is_editable()
    page.click("[data-go]")
    page.goto(answered(page))
    assert "recorded/run_" in page.inner_text(".stats")


def test_two_systems_and_two_runs_are_compared(app_state, visit, run_address):
    page = visit(app_state, "/ui/compare")
    page.fill("#question", QUESTION)
    page.click("[data-go]")
    page.wait_for_selector("[data-difference] table")
    assert page.locator("[data-stage] [data-node]").count() >= 2
    sound(page)
    runs = [
        href.rpartition("/")[2]
        for href in page.eval_on_selector_all("[data-links] a", "all => all.map((a) => a.href)")
    ]
    offered = page.eval_on_selector_all("#latest option", "all => all.map((o) => o.value)")
    assert run_address.rpartition("/")[2] in offered
    page.goto(f"/ui/compare?a={runs[0]}&b={runs[1]}")
    assert page.locator(".side:visible").count() == 2
    assert "Tokens" in page.inner_text(".versus-table")
    page.locator(".side [data-node]").last.click()
    assert page.locator("[data-panel]:visible").count() == 1
    sound(page)


def test_a_link_asks_nothing_and_stored_runs_give_way_to_new_ones(app_state, visit, run_address):
    asked = "question=Spend&first=worker%2Fpiano&second=worker%2Foboe"
    page = visit(app_state, f"/ui/compare?{asked}#ask")
    assert page.input_value("#question") == "Spend"
    assert not page.locator("[data-versus]").is_visible()
    run = run_address.rpartition("/")[2]
    page.goto(f"/ui/compare?a={run}&b={run}")
    stored = page.url
    page.fill("#question", QUESTION + " " * 100_000)  # longer than an address may be
    page.select_option("[name=second]", "worker/piano")
    page.click("[data-go]")
    page.wait_for_selector("[data-difference] table td:has-text('worker/piano')")
    assert page.locator(".side:visible").count() == 2
    sound(page)
    page.go_back()
    assert page.url == stored
    page.wait_for_selector(".side a:has-text('open the run')")


def test_four_systems_are_compared_by_keyboard(app_state, visit):
    page = visit(app_state, "/ui/compare")
    page.fill("#question", QUESTION)
    for name, model in (("third", "worker/piano"), ("fourth", "worker/piano")):
        page.select_option(f"[name={name}]", model)
    page.locator("[data-go]").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-difference] table")
    assert page.locator(".side:visible").count() == 4
    assert page.locator(".versus-table thead th").all_inner_texts() == ["A", "B", "C", "D"]
    for side in page.locator(".side:visible").all():
        assert "$" in side.locator("[data-cost]").inner_text()
        assert "s" in side.locator("[data-time]").inner_text()
    page.reload()
    assert page.locator(".side:visible").count() == 4
    assert page.input_value("[name=fourth]") == "worker/piano"
    sound(page)


def test_runs_are_chosen_in_the_list_to_be_compared(app_state, visit, run_address):
    page = visit(app_state, "/ui/runs")
    button = page.locator("[data-choose] button:has-text('Compare')")
    assert button.is_disabled()
    boxes = page.locator("[name=run]")
    page.wait_for_selector("[name=run]")
    while boxes.count() < 5:
        page.goto("/ui/")
        page.fill("#question", QUESTION)
        page.click("[data-go]")
        answered(page)
        page.goto("/ui/runs")
    for at in range(5):
        boxes.nth(at).focus()
        page.keyboard.press("Space")
        assert button.is_disabled() == (at in {0, 4})
    assert "at most 4" in page.inner_text("[data-chosen]")
    boxes.nth(4).uncheck()
    button.click()
    assert page.locator(".side:visible").count() == 4


def test_the_pool_is_shown(app_state, visit, run_address):
    page = visit(app_state, "/ui/pool")
    assert page.locator(".workers tbody tr").count() == 9
    assert HOSTILE[0] in page.inner_text("main")
    sound(page)


@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1280, "light")])
def test_every_screen_fits_by_day_and_by_night(
    app_state, visit, learning, run_address, width, scheme
):
    page = visit(app_state, width=width, scheme=scheme)
    for address in (
        "/ui/",
        run_address,
        f"/ui/compare?a={run_address.rpartition('/')[2]}",
        "/ui/runs",
        "/ui/pool",
        *learning[:3],
        "/ui/nowhere",
    ):
        page.watch.expected.append("404 (Not Found)")
        page.goto(address)
        sound(page)


def test_what_is_learned_is_shown(app_state, visit, learning):
    page = visit(app_state, learning[0])
    assert "mine" in page.inner_text("main")
    page.click("text=mine")
    assert page.locator(".chart").count() >= 3
    assert page.locator(".sample .graph .node").count() == 4
    dots = page.locator(".sample .graph .dot").evaluate_all("all => all.map((d) => d.className)")
    assert dots[:2] == dots[:1:-1]  # one colour a worker, whatever its number
    assert "No workflow: " in page.inner_text("main")
    page.goto(learning[1])
    page.click("[aria-label=Evaluations] a")
    page.wait_for_url(f"**{learning[2]}")
    assert page.locator(".ranking tbody tr").count() == 2
    page.click("text=The whole report")
    page.wait_for_selector("text=The report")
    page.watch.expected += ["sandboxed", "Blocked script"]


def test_two_trainings_are_compared(app_state, visit, learning, folder):
    """Of different lengths and settings; one that writes a line now and then is a line, too."""
    other = folder / "learning" / "theirs <b>"
    other.mkdir()
    steps = [{"step": n, "reward": n / 10, "entropy": 0.5} for n in range(1, 41, 10)]
    other.joinpath("metrics.jsonl").write_text("\n".join(map(json.dumps, steps)))
    settings = {"optimiser": {"steps": 40, "learning_rate": 1e-5}, "seed": "<script>"}
    other.joinpath("settings.json").write_text(json.dumps(settings))
    page = visit(app_state, learning[1])
    page.locator("[name=with]").focus()
    page.select_option("[name=with]", label="theirs <b>")
    page.wait_for_url("**with=*")
    reward = page.locator(".chart").first
    assert reward.locator(".key").all_inner_texts() == ["mine 0.5", "theirs <b> 3.1"]
    path = reward.locator(".curve").nth(1).get_attribute("d")
    assert path.count("L") == 3 and path.count("M") == 1
    assert "learning_rate" in page.inner_text("[aria-label='Settings that differ'] tbody")
    sound(page)
    page.watch.expected.append("404 (Not Found)")
    page.goto(learning[1] + "?with=nothing")
    assert "The training to compare with" in page.inner_text("main")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark")])
def test_curves_tell_their_values_and_are_looked_at_closely(
    app_state, visit, learning, folder, width, scheme
):
    for name in ("third", "fourth"):
        place = folder / "learning" / name
        place.mkdir(exist_ok=True)
        steps = [{"step": n, "reward": n % 2} for n in range(1, 21)]
        place.joinpath("metrics.jsonl").write_text("\n".join(map(json.dumps, steps)))
    page = visit(app_state, learning[1], width=width, scheme=scheme)
    reward = page.locator("[data-chart]").first
    plot = reward.locator(".plot svg")
    heights = reward.locator(".heights").inner_text().split()
    box = plot.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 40)
    assert reward.locator("output").inner_text() == "step 11: 0.275"
    plot.focus()
    page.keyboard.press("ArrowRight")
    assert plot.get_attribute("aria-valuetext") == "step 12: 0.3"
    page.keyboard.press("+")
    assert reward.locator(".axis text").all_text_contents() == ["step 7", "10", "15", "17"]
    page.click("[data-zoom-out]")
    assert reward.locator(".axis text").all_text_contents() == ["step 1", "5", "10", "15", "20"]
    assert reward.locator(".heights").inner_text().split() == heights
    box = plot.bounding_box()
    page.mouse.move(box["x"] + 2, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 40)
    page.mouse.up()
    assert reward.locator(".axis text").all_text_contents() == ["step 1", "5", "11"]
    sound(page)
    for name in ("third", "fourth"):
        page.select_option("[name=with]:not([type=hidden])", label=name)
        page.wait_for_selector(f"h1:has-text('{name}')")
    flat = page.locator(".curve").nth(1)
    before = flat.get_attribute("d")
    page.fill("[data-smoothing]", "0.9")
    assert flat.get_attribute("d") != before
    assert page.locator("[data-chart]").first.locator(".key").count() == 3
    sound(page)
    page.watch.expected.append("400 (Bad Request)")
    page.goto(learning[1] + "?" + "&".join(f"with={n}" for n in range(4)))
    assert "at most 4" in page.inner_text("main")


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1280, "light")])
def test_a_report_is_readable_by_all(app_state, visit, measured, width, scheme):
    page = visit(app_state, width=width, scheme=scheme)
    page.route("**/whole", let_scripts)
    page.goto(measured)
    assert page.locator("figure svg").count() >= 4
    page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    sound(page)


def test_hostile_text_stays_text(app_state, visit, ask):
    page = visit(app_state)
    ask(page, " ".join(HOSTILE), "villain")
    address = answered(page)
    page.locator("[data-node]").last.click()
    for each in (address, f"{address}#step-1-1", "/ui/runs", f"/ui/compare?a={address.rpartition('/')[2]}", f"/ui/?again={address.rpartition('/')[2]}",
                 "/ui/runs?q=%22%3E%3Cscript%3Ewindow.broken=1%3C/script%3E&model=%3Csvg/onload=window.broken=1%3E", "/ui/compare?question=%3C/textarea%3E%3Cscript%3Ewindow.broken=1%3C/script%3E"):  # fmt: skip
        page.goto(each)
        assert page.evaluate("window.broken") is None
        foreign = page.evaluate(
            "document.querySelectorAll('main script, main iframe, main img, main style, main link, main base, main [onerror], main [onfocus], main [onload], main a[href^=javascript]').length"
        )
        assert foreign == 0
        sound(page)
    page.set_viewport_size({"width": 400, "height": 860})
    page.goto(address)
    sound(page)
    assert HOSTILE[1] in page.inner_text("h1")
    app_state.call(app_state.store.score, address.rpartition("/")[2], 0.5, HOSTILE[0])


def test_signing_in_as_tenant_and_as_admin(keyed, visit, ask):
    _, issued = keyed.call(keyed.store.keys.create, keyed.mint, "acme", "tests")
    page = visit(keyed, "/ui/runs")
    page.watch.expected += ["401 (Unauthorized)", "404 (Not Found)"]
    assert page.url.endswith("/ui/sign-in?then=%2Fui%2Fruns")
    sound(page)
    page.fill("[name=key]", "batuta_wrong_key")
    page.keyboard.press("Enter")
    page.wait_for_selector("[role=alert]")
    page.fill("[name=key]", issued.text)
    page.keyboard.press("Enter")
    page.wait_for_selector(".empty")
    cookie = page.context.cookies()[0]
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Strict"
    assert issued.text not in cookie["value"]
    assert page.get_by_role("link", name="Keys").count() == 0
    page.goto("/ui/keys")
    assert "Nothing here" in page.inner_text("h1")
    page.goto("/ui/")
    ask(page, QUESTION)
    address = answered(page)
    page.click("text=Sign out")
    page.wait_for_url("**/ui/sign-in")

    page.fill("[name=key]", ADMIN)
    page.keyboard.press("Enter")
    page.wait_for_selector("text=admin")
    page.goto("/ui/")
    assert page.locator("[data-go], [data-dry]").evaluate_all("all => all.every((b) => b.disabled)")
    page.goto(address)
    assert "acme" in page.inner_text(".stats")
    page.goto("/ui/keys")
    sound(page)
    page.click("summary:has-text('Make a key')")
    page.fill(".fold [name=tenant]", "other")
    page.fill(".fold [name=name]", HOSTILE[0])
    page.fill(".fold [name=per_day]", "1.50")
    page.click("text=Make the key")
    secret = page.inner_text("[data-secret]")
    assert "$1.50 a day" in page.inner_text(".keys")
    sound(page)

    other = visit(keyed, address)
    other.watch.expected += ["404 (Not Found)"]
    other.fill("[name=key]", secret)
    other.keyboard.press("Enter")
    other.wait_for_selector("h1:has-text('Nothing here')")
    other.goto("/ui/runs")
    other.wait_for_selector(".empty")

    page.watch.expected += ["dialog: Revoke"]
    page.set_viewport_size({"width": 400, "height": 860})
    sound(page)
    page.locator(".more summary").first.click()
    page.evaluate("window.confirm = () => true")
    page.get_by_role("button", name="Revoke").first.click()
    page.wait_for_selector(".chip:has-text('revoked')")
    other.goto("/ui/runs")
    other.wait_for_url("**/ui/sign-in**")


def test_what_a_visitor_does_after_the_session_has_ended_is_said_to_have_failed(keyed, visit, ask):
    _, issued = keyed.call(keyed.store.keys.create, keyed.mint, "late", "tests")
    page = visit(keyed, "/ui/")
    page.fill("[name=key]", issued.text)
    page.keyboard.press("Enter")
    ask(page, QUESTION)
    address = answered(page)
    ask(page, "Will this ever end?", "sloth")
    page.wait_for_selector('[data-state="running"]')
    cookies, run = page.context.cookies(), visit(keyed, "/ui/sign-in")
    run.context.add_cookies(cookies)
    run.goto(address)
    for each in (page, run):
        each.context.clear_cookies()
    page.click("[data-stop]")
    page.wait_for_selector(".toast:has-text('could not be stopped')")
    for press, said in (("Right", "stored"), ("Rendered", "rendered")):
        run.locator(f"button:visible:has-text('{press}')").first.click()
        run.wait_for_selector(f".toast:has-text('could not be {said}')")
    assert run.locator("form.sign-in").count() == 0
    stored = keyed.call(keyed.store.summary, address.rpartition("/")[2])
    assert stored.score is None
    page.context.add_cookies(cookies)
    page.click("[data-stop]")
    page.wait_for_selector("[data-answer] .failure:has-text('Stopped')")


def test_a_plan_that_waits_for_approval_says_so_and_an_edited_one_takes_its_place(
    tmp_path, visit, ask
):
    rules = (ApprovalRule(name="four-eyes"),)
    with PageServer(tmp_path, pace=0.0, keyed=True, approvals=rules).open() as server:
        _, issued = server.call(server.store.keys.create, server.mint, "acme", "tests")
        page = visit(server, "/ui/")
        page.fill("[name=key]", issued.text)
        page.keyboard.press("Enter")
        ask(page, QUESTION)
        page.wait_for_selector("[data-phase]:has-text('approval (four-eyes)')")
        plans, boss = server.url + "/v1/admin/approvals", {"authorization": f"Bearer {ADMIN}"}
        edit = {"decision": "edit", "steps": [{"worker": "piano", "subtask": "", "access": []}]}
        shown = ""
        for decision in (edit, {"decision": "approve"}):
            found = [{"digest": shown}]
            while not found or found[0]["digest"] == shown:
                found = httpx.get(plans, headers=boss).json()["data"]
            shown = found[0]["digest"]
            body = {"digest": shown, **decision}
            answer = httpx.post(f"{plans}/{found[0]['id']}", headers=boss, json=body)
            assert answer.status_code == 200, answer.text
        answered(page)
        assert page.locator("[data-round]").count() == 1
        assert page.locator("[data-node]").count() == page.locator("[data-panel]").count() == 1
        assert "piano" in page.inner_text("[data-node]")
        assert not page.locator("[data-planning]").is_visible()
        page.goto("about:blank")


@pytest.mark.slow
def test_the_theme_is_remembered(app_state, visit):
    page = visit(app_state)
    assert page.evaluate("getComputedStyle(document.body).colorScheme") == "light dark"
    page.click("[data-theme-switch]")
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
