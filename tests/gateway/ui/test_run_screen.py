"""The screen of one run: its steps' addresses, copies, the conductor, the conversation, judgements."""

import httpx
import pytest

from batuta.gateway.ui import run_view
from gateway.ui.conftest import sound
from gateway.ui.page_server import HOSTILE, QUESTION

TALK = (
    {"role": "system", "content": f"Be brief. {HOSTILE[0]}"},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": {"name": "clock", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "c", "content": "It is noon."},
    {"role": "assistant", "content": "It is noon."},
    {"role": "user", "content": QUESTION},
)  # fmt: skip


@pytest.fixture(scope="module")
def told(app_state):
    """The address of a run that was asked by the API, behind a conversation."""
    body = {
        "model": "batuta-ultra",
        "messages": TALK,
        "orchestration": {"max_cost_usd": 0.5},
        "temperature": 0.5,
    }
    answer = httpx.post(f"{app_state.url}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 200
    return f"/ui/runs/{answer.headers['x-batuta-run-id']}"


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (400, "dark")])
def test_a_click_sets_the_address_of_a_step(visit, app_state, told, width, scheme):
    page = visit(app_state, told, width=width, scheme=scheme)
    page.locator("[data-node='0.0']").click()
    page.wait_for_url("**#step-1-1")  # the driver hears of an address of the same page later
    page.reload()
    assert page.locator("[data-panel='0.0']").is_visible()
    page.locator(".node.conductor").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**#plan-1")
    panel = page.locator("[data-panel='0.plan']")
    panel.locator("summary").click()
    text = panel.inner_text()
    assert "subtasks" in text and "Compute the result" in text
    sound(page)
    if width > 1000:
        page.mouse.wheel(0, 1500)
        page.wait_for_timeout(300)
        assert page.locator("[data-node='0.0']").bounding_box()["y"] > 0, "the graph stays in sight"


def test_the_whole_conversation_is_shown_and_asked_again(visit, app_state, told):
    page = visit(app_state, told)
    thread = page.inner_text("[aria-label=Conversation]")
    for said in ("System prompt", "Be brief.", "Hello", "clock({})", "It is noon.", QUESTION):
        assert said in thread
    assert "5 steps" in page.inner_text(".stats") and "$0.50" in page.inner_text(".stats")
    page.click("text=Ask again")
    assert page.input_value("[name=temperature]") == "0.5"
    assert page.input_value("[name=max_cost_usd]") == "0.5"
    assert page.input_value("[name=system]").startswith("Be brief.")
    assert "1 earlier turn" in page.inner_text(".composer")
    page.click("[data-go]")
    page.wait_for_selector(".turn [data-links] a")
    run = page.locator(".turn [data-links] a").first.get_attribute("href").rpartition("/")[2]
    question = app_state.call(app_state.store.get, run).header.question
    assert [m.role.value for m in question.messages] == [each["role"] for each in TALK]


def test_answers_and_prompts_are_copied_raw(visit, app_state, told):
    page = visit(app_state, told)
    page.click("[data-copy-raw]")
    page.wait_for_selector(".toast:has-text('Copied')")
    assert "Answer: 4050" in page.evaluate("navigator.clipboard.readText()")
    page.click("[data-raw]")
    assert page.locator("[data-raw-text]").is_visible()
    assert not page.locator(".said .answer").is_visible()
    page.locator("[data-panel]:visible [data-copy-below]").first.click()
    assert "4050" in page.evaluate("navigator.clipboard.readText()")


def test_the_reply_of_a_step_is_rendered_or_raw(visit, app_state):
    body = {"model": "villain", "messages": TALK[-1:]}
    answer = httpx.post(f"{app_state.url}/v1/chat/completions", json=body, timeout=60)
    address = f"/ui/runs/{answer.headers['x-batuta-run-id']}"
    page = visit(app_state, f"{address}#step-1-1")
    reply = page.locator("[data-panel='0.0']")
    switch = reply.locator("[data-rendered]")
    switch.click()
    reply.locator(".answer").wait_for()
    assert not reply.locator("[aria-label=Reply]").is_visible()
    assert switch.get_attribute("aria-pressed") == "true"
    assert page.evaluate("window.broken") is None
    sound(page)
    reply.locator("[data-copy-below]").first.click()
    page.wait_for_selector(".toast:has-text('Copied')")
    assert page.evaluate("navigator.clipboard.readText()").startswith(HOSTILE[0])
    switch.click()
    assert reply.locator("[aria-label=Reply]").is_visible()
    assert not reply.locator(".answer").is_visible()
    for place in ("0.99", "9.0", "0", "0.0.0", "x.y"):
        missing = httpx.get(f"{app_state.url}{address}/replies/{place}")
        assert missing.status_code == 404


def test_the_right_answer_is_kept_with_the_judgement(visit, app_state, told):
    page = visit(app_state, told)
    run = told.rpartition("/")[2]
    page.click(".judge summary")
    page.fill("[name=expected]", "4050  ")
    page.fill("[name=comment]", "It is right.\nReally.")
    sound(page)
    page.click(".judge fieldset button")
    page.wait_for_selector(".judge summary:has-text('4050')")
    summary = app_state.call(app_state.store.summary, run)
    assert summary.score_comment == "Expected: 4050\nIt is right.\nReally."
    page.click("text=Right >> nth=0")
    page.wait_for_selector('[aria-pressed="true"]')
    page.reload()
    assert page.input_value("[name=expected]") == "4050"
    assert app_state.call(app_state.store.summary, run).score == 1.0


def test_a_judged_run_is_made_a_task_file(visit, app_state):
    body = {"model": "batuta-mini", "messages": TALK[-1:]}
    answer = httpx.post(f"{app_state.url}/v1/chat/completions", json=body, timeout=60)
    run = answer.headers["x-batuta-run-id"]
    app_state.call(app_state.store.score, run, 0.0, "Expected: 4050")
    page = visit(app_state, f"/ui/runs/{run}")
    with page.expect_download() as download:
        page.click("text=Task file")
    assert "4050" in download.value.path().read_text()


@pytest.mark.parametrize(
    ("comment", "parts"),
    [
        ("", ("", "")),
        ("Expected: 4", ("4", "")),
        ("well\nExpected: 4\ndone", ("4", "well\ndone")),
        ("It was Expected: 4", ("", "It was Expected: 4")),
    ],
)
def test_a_comment_is_read_as_it_is_written(comment, parts):
    assert run_view.split_comment(comment) == parts
    assert run_view.split_comment(run_view.join_comment(*parts)) == parts


def ask_api(app_state, question, **more):
    body = {"model": "batuta-ultra", "messages": [{"role": "user", "content": question}], **more}
    answer = httpx.post(f"{app_state.url}/v1/chat/completions", json=body, timeout=60)
    return answer.headers["x-batuta-run-id"]


DIRECTION = "element => getComputedStyle(element).direction"


@pytest.mark.parametrize(
    ("question", "direction"), [("מה התוצאה? " * 20, "rtl"), ("What? " * 40, "ltr")]
)
def test_a_question_is_read_from_the_side_where_it_begins(visit, app_state, question, direction):
    """What does not fit a list is cut at the end of a text, which may be on the left."""
    run_id = ask_api(app_state, question)
    page = visit(app_state, f"/ui/runs/{run_id}")
    assert page.locator("h1").evaluate(DIRECTION) == direction
    page.goto(f"/ui/runs?q={run_id}")
    assert page.locator(f".what a[href='/ui/runs/{run_id}']").evaluate(DIRECTION) == direction
    page.goto("/ui/")
    page.fill("#question", question)
    assert page.locator("#question").evaluate(DIRECTION) == direction
    sound(page)


def test_each_paragraph_of_an_answer_has_its_own_direction(visit, app_state):
    """A list of another script keeps its marks inside the card."""
    page = visit(app_state, "/ui/")
    text = "<p>שלום</p><p>Hello</p><ul><li>אחת</li></ul><pre>x = 1</pre>"
    page.evaluate(
        """text => {
            const card = document.body.appendChild(document.createElement('div'));
            card.className = 'answer';
            card.dir = 'auto';
            card.innerHTML = text;
        }""",
        text,
    )
    card = page.locator("body > .answer")
    left = (
        card.locator("p")
        .nth(1)
        .evaluate("""element => {
        const range = document.createRange();
        range.selectNodeContents(element);
        return range.getBoundingClientRect().left - element.getBoundingClientRect().left;
    }""")
    )
    assert left < 1, "English stands on the left"
    assert card.locator("ul").evaluate("e => parseInt(getComputedStyle(e).paddingRight)") > 0
    assert card.locator("pre").evaluate(DIRECTION) == "ltr"


@pytest.mark.parametrize("width", [1440, 400])
def test_a_plan_is_called_one_and_its_steps_are_counted(visit, app_state, width):
    run_id = ask_api(app_state, QUESTION, orchestration={"dry_run": True})
    page = visit(app_state, f"/ui/runs/{run_id}", width=width)
    boxes = page.locator("[data-node^='0.']:not(.conductor)")
    assert f"{boxes.count()} planned" in page.inner_text(".stats")
    assert page.inner_text(".said h2") == "Plan"
    if width > 1000:
        drawn, first = (
            one.bounding_box()["width"] for one in (page.locator(".node.conductor"), boxes.first)
        )
        assert abs(drawn - first) < 4, "the conductor's node stands above the first step's"
    page.goto(f"/ui/runs?q={run_id}")
    assert page.inner_text("[data-name=Steps]").startswith("–")
    sound(page)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_figures_of_workers_and_trainings_are_whole_on_a_phone(visit, app_state, learning, scheme):
    page = visit(app_state, "/ui/pool", width=400, scheme=scheme)
    for address in ("/ui/pool", learning[0], learning[2]):
        page.goto(address)
        cells = page.locator(".stacked td")
        assert cells.count() > 5
        cut = cells.evaluate_all("""cells => cells
            .filter(e => e.scrollWidth > e.clientWidth + 1 || e.getBoundingClientRect().right > innerWidth)
            .map(e => e.innerText)""")
        assert not cut, address
        sound(page)
