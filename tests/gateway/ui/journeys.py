"""What people come to the page for, each from its beginning to its end, by mouse or by keyboard."""

from __future__ import annotations

import base64
import json
import re
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from gateway.ui.conftest import let_scripts, sound
from gateway.ui.page_server import ADMIN, QUESTION

PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
)
CAUSE = "CUDA out of memory"
_WHERE = """(target) => {
  const here = document.activeElement;
  if (target === here) return 0;
  return here !== document.body && here.compareDocumentPosition(target) & 2 ? -1 : 1;
}"""
_MOST_TABS = 300


@dataclass(frozen=True)
class World:
    """The servers of the journeys and what happened there before."""

    app_state: Any
    keyed: Any
    pool: Any
    """A server of a settings file, which its admin changes."""
    run: str
    """The id of a run of several steps."""
    keys: dict[str, str]
    """A key of each tenant."""
    training: Any
    """The folder of a training that goes on."""


class Visitor:
    """Somebody with a browser, and a mouse or nothing but a keyboard."""

    def __init__(self, page, *, has_mouse: bool, shots: str = "") -> None:
        self.page = page
        self._has_mouse = has_mouse
        self._shots, self._looks = shots, 0

    def find(self, what):
        """Return the first visible element of that selector or locator."""
        found = self.page.locator(what) if isinstance(what, str) else what
        found = found.locator("visible=true").first
        found.wait_for()
        return found

    def reach(self, target):
        """Go to the element by the tabulator key alone."""
        for _ in range(_MOST_TABS):
            where = target.evaluate(_WHERE)
            if not where:
                return
            self.page.keyboard.press("Tab" if where > 0 else "Shift+Tab")
        raise AssertionError(f"no way by the keyboard to {target}")

    def press(self, what):
        """Click it, or go there and press the key that it listens to."""
        target = self.find(what)
        if self._has_mouse:
            target.click()
            return
        self.reach(target)
        kind = target.evaluate("(one) => one.type ?? ''")
        self.page.keyboard.press("Space" if kind in {"checkbox", "radio"} else "Enter")

    def write(self, what, text):
        """Write the text in place of what the field has."""
        target = self.find(what)
        if self._has_mouse:
            target.fill(text)
            return
        self.reach(target)
        self.page.keyboard.press("Control+A")
        self.page.keyboard.insert_text(text)

    def choose(self, what, label):
        """Choose an option of a list by its label."""
        target = self.find(what)
        if self._has_mouse:
            target.select_option(label=label)
            return
        self.reach(target)
        self.page.keyboard.press("Alt+ArrowDown")
        self.page.keyboard.type(label)
        self.page.keyboard.press("Enter")

    def attach(self, what, name, content):
        """Attach a file."""
        target = self.page.locator(what)
        with self.page.expect_file_chooser() as chooser:
            if self._has_mouse:
                self.page.locator("label.attach").click()
            else:
                self.reach(target)
                self.page.keyboard.press("Enter")
        file = {"name": name, "mimeType": "image/png", "buffer": content}
        chooser.value.set_files(file)

    def sign_in(self, key):
        """Sign in with a key or the admin token."""
        self.page.watch.expected.append("401 (Unauthorized)")
        self.page.goto("/ui/sign-in")
        self.write("[name=key]", key)
        self.page.keyboard.press("Enter")
        self.page.wait_for_selector("nav[aria-label=Screens]")

    def look(self):
        """Check what every screen must keep, and take its picture if pictures are wanted."""
        sound(self.page)
        if self._shots:
            self._looks += 1
            self.page.screenshot(path=f"{self._shots}-{self._looks}.png", full_page=True)


def _wait_for_answers(page, count):
    page.wait_for_selector(f".turn:nth-child({count}) [data-links] a")
    assert page.locator(".failure").count() == 0


def ask_three_turns_with_a_picture(visitor, world):
    page = visitor.page
    page.goto("/ui/")
    visitor.choose("#ask [name=model]", "worker/eye")
    visitor.write("#question", "What is a pixel?")
    visitor.press("[data-go]")
    _wait_for_answers(page, 1)
    visitor.attach("[data-attach]", "dot.png", PICTURE)
    page.wait_for_selector(".composer .files >> text=dot.png")
    visitor.write("#question", "What is on this picture?")
    visitor.press("[data-go]")
    _wait_for_answers(page, 2)
    visitor.write("#question", "And in one word?")
    visitor.press("[data-go]")
    _wait_for_answers(page, 3)
    page.reload()
    assert page.locator(".turn").count() == 3
    picture = page.locator(".turn:nth-child(2) img")
    assert picture.evaluate("async (one) => (await one.decode(), one.naturalWidth)") == 1
    visitor.look()


def find_yesterdays_slowest(visitor, world):
    _find_first_of_yesterday(visitor, "Time", "The slowest of yesterday")


def find_yesterdays_dearest(visitor, world):
    _find_first_of_yesterday(visitor, "Cost", "The dearest of yesterday")


def _find_first_of_yesterday(visitor, column, question):
    page = visitor.page
    page.goto("/ui/runs")
    visitor.press(".filters summary:has-text('More filters')")
    visitor.write("[name=since]", "yesterday")
    visitor.write("[name=until]", "yesterday")
    visitor.press(".filters > button")
    page.wait_for_url("**since=yesterday**")
    assert "95th percentile" in page.inner_text(".totals")
    if page.viewport_size["width"] > 640:
        visitor.press(f".runs thead a:has-text('{column}')")
    else:
        visitor.choose("[name=sort]", f"by {column.lower()}")
    page.wait_for_url("**sort=**")
    visitor.look()
    visitor.press(".runs .what a")
    page.wait_for_selector(".run-head")
    assert question in page.inner_text("h1")


def see_why_a_run_failed(visitor, world):
    page = visitor.page
    page.goto("/ui/runs")
    visitor.choose("[name=outcome]", "failed")
    page.wait_for_url("**outcome=failed**")
    visitor.press(".runs .what a")
    page.wait_for_selector(".run-head")
    assert page.locator(".chip:has-text('failed')").count() >= 1
    assert page.locator(f"text={CAUSE}").locator("visible=true").count() >= 1
    visitor.look()


def edit_a_plan_and_play_it(visitor, world):
    page = visitor.page
    page.goto(f"/ui/runs/{world.run}")
    visitor.press(".run-head a:has-text('Edit the plan')")
    page.wait_for_selector("[data-preview] .stats")
    steps = page.locator("[data-step]").count()
    visitor.write("[data-subtask]", "Square the number and say nothing else.")
    visitor.press("[data-add]")
    page.locator("[data-preview] .node").nth(steps).wait_for()
    visitor.look()
    visitor.press("[data-go]")
    page.wait_for_selector("[data-answer] .answer:not(.live)")
    assert page.locator("[data-stage] [data-node]").count() == steps + 1
    assert re.search("/ui/runs/run_", page.url)
    visitor.look()


def read_a_wrong_question(visitor, world):
    page = visitor.page
    page.route("**/questions", let_scripts)
    page.goto("/ui/learning")
    visitor.press(".cards a:has-text('measured')")
    page.wait_for_selector(".ranking")
    visitor.look()
    visitor.press("text=Question by question")
    page.wait_for_selector("text=Which questions >> xpath=..")
    rows = page.locator("tbody tr:has(.wrong)")
    visitor.press(rows.first.locator("a"))
    section = page.locator("section:target")
    visitor.press(section.locator("summary:has(.wrong)"))
    visitor.press(section.locator("details[open] > div > details > summary"))
    assert "replied" in section.inner_text()
    visitor.look()


def compare_two_systems_on_ten_questions(visitor, world):
    page = visitor.page
    page.goto("/ui/compare")
    visitor.press("summary:has-text('Ask up to ten questions')")
    lines = [f"Compute the result: begin at {n}; square it." for n in range(2, 12)]
    visitor.write("[name=questions]", "\n".join(lines))
    assert "= 20 runs, at most $1 together" in page.inner_text("[data-bound]")
    visitor.press("[data-many] .main")
    page.wait_for_selector("[data-many] .main:visible")
    assert page.locator(".failures li").count() == 0
    page.reload()
    page.wait_for_selector(".by-question tbody tr >> nth=9")
    assert "running" not in page.inner_text(".by-question tbody")
    assert page.locator(".by-question tfoot td").all_inner_texts()[0].startswith("10 of 10")
    assert page.locator(".same").count() >= 1
    visitor.look()
    visitor.press(".by-question tbody a")
    page.wait_for_selector(".run-head")


def follow_a_training(visitor, world):
    page = visitor.page
    last = _add_step(world.training)  # one that has told nothing for two minutes has stopped
    page.goto("/ui/learning")
    visitor.press("td a:has-text('goes on')")
    page.wait_for_selector(f".progress-line:has-text('step {last}')")
    _add_step(world.training)
    page.wait_for_selector(f".progress-line:has-text('step {last + 1}')")
    visitor.look()


def _add_step(folder):
    """Write the line of the training's next step, and return its number."""
    with (folder / "metrics.jsonl").open("r+") as file:
        step = len(file.readlines()) + 1
        file.write(json.dumps({"step": step, "reward": 0.5, "right": 0.6}) + "\n")
    return step


def add_and_test_a_worker(visitor, world):
    page, name = visitor.page, f"cy-{time.monotonic_ns()}"
    before = world.pool.path.read_text()
    visitor.sign_in(ADMIN)
    visitor.press("nav >> text=Pool")
    visitor.press("summary:has-text('Add a worker')")
    form = "form[action='/ui/pool']"
    visitor.write(f"{form} [name=id]", name)
    visitor.write(f"{form} [name=model]", "gpt-cy")
    visitor.write(f"{form} [name=base_url]", world.pool.provider.url)
    visitor.write(f"{form} [name=key_env]", "POOL_KEY")
    visitor.write(f"{form} [name=description]", "Quick and short.")
    visitor.write(f"{form} [name=input]", "2")
    visitor.write(f"{form} [name=output]", "4")
    visitor.look()
    visitor.press(f"{form} button:has-text('Add')")
    page.wait_for_selector(f".workers b:has-text('{name}')")
    visitor.press(f"form[action='/ui/pool/test/{name}'] button")
    page.wait_for_selector(f"summary:has-text('{name}') .chip:has-text('answers')")
    assert f'id = "{name}"' in world.pool.path.read_text()
    told = page.locator(f".change:has(summary:has-text('{name}')) [role=status]")
    assert "answered in" in told.inner_text()
    visitor.look()
    visitor.press("summary:has-text('Changes made here')")
    visitor.press(".history button:has-text('Undo')")
    page.wait_for_selector(f".workers:not(:has-text('{name}'))")
    visitor.look()
    assert world.pool.path.read_text() == before


def limit_a_key_and_see_its_spending(visitor, world):
    page = visitor.page
    visitor.sign_in(ADMIN)
    visitor.press("nav >> text=Keys")
    visitor.press("summary:has-text('Make a key')")
    name = f"notebook {time.monotonic_ns()}"
    visitor.write(".fold [name=tenant]", "spenders")
    visitor.write(".fold [name=name]", name)
    visitor.write(".fold [name=per_day]", "1.50")
    visitor.press(".fold button:has-text('Make the key')")
    secret = page.inner_text("[data-secret]")
    visitor.look()
    visitor.press("text=Sign out")
    page.wait_for_url("**/ui/sign-in")
    visitor.sign_in(secret)
    page.goto("/ui/")
    visitor.write("#question", QUESTION)
    visitor.press("[data-go]")
    _wait_for_answers(page, 1)
    systems = page.locator("[aria-label='By system'] tbody tr")
    for _ in range(50):  # an answer is seen a moment before its run is stored
        world.keyed.call(world.keyed.store.flush)
        visitor.press("nav >> text=Usage")
        page.wait_for_selector("[aria-label=Budgets]")
        if systems.count():
            break
    bars = page.locator("[aria-label=Budgets] .budget-bar", has_text=name)
    assert "of $1.50 a day" in bars.inner_text()
    assert systems.count() >= 1
    assert page.locator(".days rect[class^=f]").count() >= 1
    visitor.look()


def follow_an_agents_session(visitor, world):
    page = visitor.page
    page.goto("/ui/runs?q=Agent%27s+turn")
    visitor.press(".runs .what a")
    page.wait_for_selector(".run-head")
    visitor.press(".stats a[href*='/ui/sessions/']")
    page.wait_for_selector(".course")
    heads = page.locator(".turn-head").all_inner_texts()
    assert heads == [f"Turn {number} Agent's turn {number}" for number in (1, 2, 3)]
    assert page.locator(".course tbody tr:not(.turn-head)").count() == 3
    assert "Cost" in page.inner_text(".stats")
    visitor.look()
    visitor.press("a[href*='runs?session=']")
    page.wait_for_url("**session=**")
    page.wait_for_selector("text=95th percentile")
    turns = page.locator(".runs .what a").all_inner_texts()
    assert turns == [f"Agent's turn {number}" for number in (3, 2, 1)]
    assert "Cost" in page.inner_text(".totals")
    visitor.look()
    visitor.press(page.locator(".runs .what a").nth(1))
    page.wait_for_selector("h1:has-text('turn 2')")
    visitor.look()


def share_a_link_to_a_step(visitor, world):
    page = visitor.page
    page.goto(f"/ui/runs/{world.run}")
    visitor.press("[data-node='0.0']")
    page.wait_for_url("**#step-1-1")
    shown = page.inner_text("[data-panel]:visible h3")
    other = page.context.new_page()
    other.goto(page.url)
    assert other.inner_text("[data-panel]:visible h3") == shown
    assert other.locator("[data-panel]:visible").count() == 1
    other.close()
    visitor.look()


def look_as_a_tenant(visitor, world):
    page = visitor.page
    page.watch.expected.append("404 (Not Found)")
    visitor.sign_in(world.keys["acme"])
    visitor.press("nav >> text=Runs")
    page.wait_for_selector(".runs")
    texts = page.locator(".runs .what a").all_inner_texts()
    assert texts and all("of acme" in text for text in texts)
    names = page.locator("nav[aria-label=Screens] a").all_inner_texts()
    assert "Usage" in names and not {"Keys", "Audit", "Approvals"} & set(names)
    visitor.look()
    visitor.press("nav >> text=Usage")
    page.wait_for_selector("h1:has-text('Usage')")
    visitor.look()
    others = world.keyed.call(world.keyed.store.list, 9, tenant="other")
    page.goto(f"/ui/runs/{others[0].id}")
    page.wait_for_selector("h1:has-text('Nothing here')")


JOURNEYS = (
    ask_three_turns_with_a_picture,
    find_yesterdays_slowest,
    find_yesterdays_dearest,
    see_why_a_run_failed,
    edit_a_plan_and_play_it,
    read_a_wrong_question,
    compare_two_systems_on_ten_questions,
    follow_a_training,
    add_and_test_a_worker,
    limit_a_key_and_see_its_spending,
    follow_an_agents_session,
    share_a_link_to_a_step,
    look_as_a_tenant,
)
WITH_KEYS = (add_and_test_a_worker, limit_a_key_and_see_its_spending, look_as_a_tenant)


def post_chat(url, text, *, model="batuta-ultra", session=""):
    """Ask the server as a client of its API does, and return the run's id."""
    body = {"model": model, "messages": [{"role": "user", "content": text}]}
    headers = {"content-type": "application/json", "x-claude-code-session-id": session}
    request = urllib.request.Request(  # noqa: S310 - our own loopback server
        f"{url}/v1/chat/completions", json.dumps(body).encode(), headers
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310 - the same
            return response.headers["x-batuta-run-id"]
    except urllib.error.HTTPError as refused:
        return refused.headers["x-batuta-run-id"]
