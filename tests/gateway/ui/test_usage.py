"""The usage screen: what a tenant has spent, by day, system, worker and key."""

import pytest

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
