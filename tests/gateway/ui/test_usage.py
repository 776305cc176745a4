"""The usage screen: what a tenant has spent, by day, system, worker and key."""

from decimal import Decimal

import pytest

from batuta.gateway.ui.budget_bars import BudgetBar
from batuta.store.key_permissions import KeyPermissions
from gateway.ui.conftest import sound


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark")])
def test_spending_is_shown_by_day_system_and_worker(house, visit, width, scheme):
    page = visit(house, "/ui/usage?days=7", width=width, scheme=scheme)
    assert page.locator(".days figure").count() == 7
    sound(page)
    page.watch.expected.append("400 (Bad Request)")
    page.goto("/ui/usage?days=9000")
    assert "it is one of 7, 14, 30" in page.inner_text("main")


def test_a_run_is_in_the_tables_of_its_system(house, visit, ask):
    page = visit(house)
    ask(page, "Compute the result: begin at 45; square it; double it.")
    page.wait_for_selector("[data-links] a")
    house.call(house.store.flush)
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
    assert "at most 50 values are chosen" in page.inner_text("main")


def test_a_budget_is_drawn_as_it_is_counted():
    def bar(spent):
        return BudgetBar(name="k", period="day", spent=Decimal(spent), cap=Decimal(2))

    assert [(b.share, b.state) for b in map(bar, ("0", "1", "1.6", "2", "3"))] == [
        (0, "good"), (50, "good"), (80, "warn"), (100, "bad"), (100, "bad"),
    ]  # fmt: skip
    assert BudgetBar(name="k", period="day", spent=Decimal(0), cap=Decimal(0)).state == "bad"
