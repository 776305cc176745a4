"""The usage screen: what a tenant has spent, by day, system, worker and key."""

import time
from decimal import Decimal

import httpx
import pytest

from batuta.core import RunId
from batuta.gateway.ui.budget_bars import BudgetBar
from batuta.store.key_permissions import KeyPermissions
from batuta.store.ledger import Bucket, usd_to_nano, utc_day
from gateway.ui.conftest import sound
from gateway.ui.page_server import ADMIN, QUESTION


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark")])
def test_spending_is_shown_by_day_system_and_worker(app_state, visit, width, scheme):
    page = visit(app_state, "/ui/usage?days=7", width=width, scheme=scheme)
    assert page.locator(".days figure").count() == 7
    sound(page)
    page.watch.expected.append("400 (Bad Request)")
    page.goto("/ui/usage?days=9000")
    assert "it must be one of 1, 7, 14, 30" in page.inner_text("main")


def test_a_run_is_in_the_tables_of_its_system(app_state, visit, ask):
    page = visit(app_state)
    ask(page, "Compute the result: begin at 45; square it; double it.")
    page.wait_for_selector("[data-links] a")
    app_state.call(app_state.store.flush)
    page.goto("/ui/usage")
    assert "batuta-ultra" in page.inner_text("[aria-label='By system']")
    assert page.locator("[aria-label='By worker or conductor'] tbody tr").count() >= 1
    sound(page)


def test_spending_is_chosen_by_system_and_key(keyed, visit):
    """A tenant asks two systems, looks at one of them, and sees what its budgets have left."""
    limits = KeyPermissions(per_day=Decimal("0.5"), per_month=Decimal(5))
    _, issued = keyed.call(keyed.store.keys.create, keyed.mint, "spender", "notebook", limits)
    page = visit(keyed, "/ui/sign-in")
    page.fill("[name=key]", issued.text)
    page.keyboard.press("Enter")
    page.wait_for_selector("nav")
    for model in ("batuta-ultra", "batuta-mini"):
        page.goto("/ui/")
        page.fill("#question", "Compute the result: begin at 45; square it; double it.")
        page.select_option("[name=model]", model)
        page.click("[data-go]")
        page.wait_for_selector("[data-links] a")
    keyed.call(keyed.store.flush)
    page.goto("/ui/usage")
    assert page.locator(".legend li").count() == 2
    assert page.locator(".days rect[class^=f]").count() == 2
    bars = page.locator("[aria-label=Budgets] .budget-bar")
    assert bars.count() == 2 and "notebook" in bars.first.inner_text()
    assert "of $0.50 a day" in bars.first.inner_text()
    sound(page)
    page.locator("details.pick summary").first.focus()
    page.keyboard.press("Enter")
    page.get_by_role("checkbox", name="batuta-mini").focus()
    page.keyboard.press("Space")
    page.get_by_role("button", name="Show").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**model=batuta-mini*")
    assert page.locator("[aria-label='By system'] tbody tr").count() == 1
    sound(page)
    page.watch.expected.append("400 (Bad Request)")
    page.goto("/ui/usage?" + "&".join(f"model=m{n}" for n in range(51)))
    assert "Invalid value for 'model': select at most 50 values." in page.inner_text("main")


def test_a_budget_is_drawn_as_it_is_counted():
    def bar(spent):
        return BudgetBar(name="k", period="day", spent=Decimal(spent), cap=Decimal(2))

    assert [(b.share, b.state) for b in map(bar, ("0", "1", "1.6", "2", "3"))] == [
        (0, "good"), (50, "good"), (80, "warn"), (100, "bad"), (100, "bad"),
    ]  # fmt: skip
    assert BudgetBar(name="k", period="day", spent=Decimal(0), cap=Decimal(0)).state == "bad"


@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (400, "light")])
def test_refusals_and_times_are_shown_to_their_tenant(keyed, visit, width, scheme):
    """Refused at its rate, a tenant sees why, when, and how long its runs take, and no other does."""
    tenant = f"hasty-{width}"
    _, issued = keyed.call(
        keyed.store.keys.create, keyed.mint, tenant, "robot", KeyPermissions(rpm=1)
    )
    headers = {"authorization": f"Bearer {issued.text}"}
    body = {
        "model": "batuta-mini",
        "messages": [{"role": "user", "content": QUESTION}],
    }
    answers = [
        httpx.post(f"{keyed.url}/v1/chat/completions", json=body, headers=headers) for _ in "abc"
    ]
    assert [answer.status_code for answer in answers] == [200, 429, 429]
    page = visit(keyed, "/ui/sign-in", width=width, scheme=scheme)
    page.fill("[name=key]", issued.text)
    page.keyboard.press("Enter")
    page.wait_for_selector("nav")
    page.goto("/ui/usage?days=1")
    assert page.locator("[aria-label='Spent by hour'] figure").count() == 24
    refused = page.inner_text("[aria-label=Refusals]")
    assert "rate_limit_exceeded" in refused and "robot" in refused
    assert refused.rstrip().endswith("2")
    runs = page.locator("[aria-label='Runs by hour']")
    assert "Median time" in runs.inner_text()
    runs.locator("summary").click()
    assert page.locator("[aria-label='Activity by hour'] tbody tr").count() == 1
    assert page.locator("[aria-label='By session'] a[href^='/ui/sessions/ses_']").count() == 1
    sound(page)
    reports = (
        (
            "refusals?by=tenant,code",
            {"tenant": tenant, "code": "rate_limit_exceeded", "requests": 2},
        ),
        ("activity?by=tenant,model", {"tenant": tenant, "model": "batuta-mini", "runs": 1}),
        ("spend?by=tenant,model", {"tenant": tenant, "model": "batuta-mini", "runs": 1}),
    )
    admin = {"authorization": f"Bearer {ADMIN}"}
    for address, wanted in reports:
        answer = httpx.get(f"{keyed.url}/v1/admin/{address}&tenant={tenant}", headers=admin)
        [row] = answer.json()["data"]
        assert wanted.items() <= row.items()
        assert httpx.get(f"{keyed.url}/v1/admin/{address}", headers=headers).status_code == 403
    for wrong in (
        "activity?by=colour",
        "refusals?by=colour",
        "activity?since=today",
        "refusals?x=1",
    ):
        answer = httpx.get(f"{keyed.url}/v1/admin/{wrong}", headers=admin)
        assert answer.status_code == 400, wrong


@pytest.mark.slow
def test_what_running_requests_hold_is_said(keyed, visit):
    limits = KeyPermissions(per_day=Decimal("0.5"))
    key, issued = keyed.call(keyed.store.keys.create, keyed.mint, "holds", "laptop", limits)
    day = utc_day(time.time())
    bucket = Bucket(f"key:{key.id}", day, usd_to_nano(Decimal("0.5")))
    held = keyed.call(
        keyed.store.budgets.reserve,
        RunId("run_held"), usd_to_nano(Decimal("0.04")), (bucket,), tenant="holds", key=key.id, model="m",
    )  # fmt: skip
    page = visit(keyed, "/ui/sign-in")
    page.fill("[name=key]", issued.text)
    page.keyboard.press("Enter")
    page.wait_for_selector("nav")
    page.goto("/ui/usage")
    assert "$0.040 is held by 1 running request" in page.inner_text("[aria-label=Budgets]")
    keyed.call(keyed.store.budgets.release, held)
    page.reload()
    assert "is held" not in page.inner_text("[aria-label=Budgets]")
