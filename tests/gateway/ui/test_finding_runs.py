"""The list of runs on the page: filters in the address, totals, orders and the keyboard."""

from dataclasses import replace
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.store.strategies import make_run

from batuta.gateway.ui.runs import ShownFilter
from batuta.store.rows import RequestLabels
from batuta.store.run_filter import RUN_PARAMETERS, RunSort
from gateway.ui.conftest import sound

COUNT = 60


@pytest.fixture(scope="module")
def full(app_state):
    """A server with runs whose costs and times are in other orders than their ages."""

    async def fill():
        for number in range(COUNT):
            run = make_run(number, question=f"Question {number} of many")
            header = replace(run.header, model=f"system-{number % 3}")
            run = replace(run, header=header, seconds=float(number * 7 % COUNT))
            said = RequestLabels(user=f"u{number % 2}", tags=("app=web", f"n={number}"))
            await app_state.store.append(run, labels=said)
        await app_state.store.flush()

    app_state.call(fill)
    return app_state


def questions(page):
    return [int(text.split()[1]) for text in page.locator(".runs .what a").all_inner_texts()]


def test_filters_are_in_the_address_and_each_can_be_taken_away(full, visit):
    page = visit(full, "/ui/runs?tag=app%3Dweb")
    page.fill("[name=user]", "u1")
    page.fill("[name=max_seconds]", "20")
    page.click(".filters button:has-text('Search')")
    page.wait_for_url("**user=u1**")
    given = parse_qs(urlsplit(page.url).query)
    assert given == {"tag": ["app=web"], "user": ["u1"], "max_seconds": ["20"]}
    found = [number for number in range(COUNT) if number % 2 and number * 7 % COUNT <= 20]
    assert sorted(questions(page)) == found
    assert str(len(found)) in page.inner_text(".totals")
    assert "95th percentile" in page.inner_text(".totals")
    sound(page)
    page.click("a[aria-label='Remove the filter User u1']")
    page.wait_for_url(lambda url: "user" not in url)
    assert parse_qs(urlsplit(page.url).query) == {"tag": ["app=web"], "max_seconds": ["20"]}
    page.go_back()
    assert sorted(questions(page)) == found


def test_a_column_orders_the_list_and_turns_it(full, visit):
    page = visit(full, "/ui/runs?tag=app%3Dweb")
    page.click("thead >> text=Time")
    page.wait_for_url("**sort=seconds**")
    times = [number * 7 % COUNT for number in questions(page)]
    assert times == sorted(times, reverse=True) and len(times) == 50
    assert page.locator("th[aria-sort=descending]").inner_text().startswith("Time")
    page.click("text=Further")
    assert len(questions(page)) == COUNT - 50
    page.click("text=First page")
    page.click("thead >> text=Time")
    page.wait_for_url("**order=asc**")
    times = [number * 7 % COUNT for number in questions(page)]
    assert times == sorted(times)
    sound(page)
    page.select_option("[name=sort]", "")
    page.wait_for_url(lambda url: "sort=" not in url)
    shown = page.locator("[name=sort] option:checked").inner_text()
    assert shown == "oldest first" and questions(page) == sorted(questions(page))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 400])
def test_a_filter_that_cannot_be_used_says_so(full, visit, width, scheme):
    page = visit(full, "/ui/runs?user=u1&sort=cost", width=width, scheme=scheme)
    sound(page)
    page.watch.expected.append("400 (Bad Request)")
    page.goto("/ui/runs?since=gestern&user=u1")
    assert "Since: it must be an age" in page.inner_text("[role=alert]")
    assert page.input_value("[name=since]") == "gestern" and page.input_value("[name=user]") == "u1"
    sound(page)


def test_the_list_is_walked_by_single_keys(full, visit):
    page = visit(full, "/ui/runs?tag=app%3Dweb")
    for key in ("j", "j", "k", "j"):
        page.keyboard.press(key)
    focused = page.evaluate("document.activeElement.textContent")
    assert focused == page.locator(".runs .what a").nth(1).inner_text()
    page.keyboard.press("?")
    page.wait_for_selector("dialog[open]")
    sound(page)
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    page.keyboard.type("question 7 of?jk/")
    assert page.input_value("[name=q]") == "question 7 of?jk/"
    page.locator("h1").click()
    page.keyboard.press("g")
    page.keyboard.press("p")
    page.wait_for_url("**/ui/pool")
    page.click("[data-shortcuts]")
    page.click("text=Single keys are shortcuts")
    page.click("dialog >> text=Close")
    for _ in range(2):
        page.keyboard.press("?")
        assert page.locator("dialog[open]").count() == 0
        page.reload()


def test_a_run_leads_to_the_runs_of_its_user_and_tags(full, visit):
    page = visit(full, "/ui/runs/run_000007")
    assert page.title().startswith("Question 7 of many")
    page.click(".stats >> text=u1")
    page.wait_for_url("**/ui/runs?user=u1")
    assert len(questions(page)) == COUNT // 2
    page.goto("/ui/runs/run_000007")
    page.click(".stats >> text=n=7")
    page.wait_for_url("**/ui/runs?tag=**")
    assert questions(page) == [7]


values = st.text(max_size=8) | st.sampled_from(["1", "24h", "asc", "cost", "failed"])


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from(RUN_PARAMETERS), values), max_size=5), st.booleans())
def test_addresses_keep_what_was_given(pairs, is_tenant):
    shown = ShownFilter(pairs, "acme" if is_tenant else None)
    assert shown.run_filter.tenant == "acme" or not is_tenant
    given = [pair for pair in shown.given if pair[0] not in {"sort", "order"}]
    assert len(shown.active) == len(given)
    if shown.problem:
        return
    for sort in RunSort:
        query = urlsplit(shown.sorted_by(sort)).query
        again = ShownFilter([(n, v) for n, found in parse_qs(query).items() for v in found], None)
        assert again.run_filter.sort is sort
        turned = shown.run_filter.sort is sort and not shown.run_filter.ascending
        assert again.run_filter.ascending == turned
