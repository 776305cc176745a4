"""Several runs of the list at once: exported, made a task file, compared, deleted."""

import json
from dataclasses import replace

import pytest
from tests.store.strategies import make_run

from batuta.core import Question
from gateway.ui.conftest import sound
from gateway.ui.page_server import ADMIN


@pytest.fixture(scope="module")
def app_state(keyed):
    """Runs of two tenants, some of them judged."""

    async def fill():
        for tenant in ("acme", "other"):
            for number in range(6):
                run = make_run(
                    number + 10 * (tenant == "other"), question=f"What is {number} and {number}?"
                )
                question = Question.of(f"What is {number} and {number}?")
                run = replace(run, header=replace(run.header, question=question))
                await keyed.store.append(run, tenant=tenant)
        await keyed.store.flush()
        rows = await keyed.store.list(50, tenant="acme")
        await keyed.store.score(rows[0].id, 0.0, "No.\nExpected: 10")
        await keyed.store.score(rows[1].id, 0.0, "no idea")
        return [row.id for row in rows]

    keyed.runs = keyed.call(fill)
    return keyed


def enter(page, key):
    page.fill("[name=key]", key)
    page.keyboard.press("Enter")
    page.wait_for_selector(".runs")


def lines_of(download):
    return [json.loads(line) for line in download.value.path().read_text().splitlines()]


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark")])
def test_chosen_runs_are_exported_and_made_a_task_file(app_state, visit, width, scheme):
    page = visit(app_state, "/ui/runs?tenant=acme", width=width, scheme=scheme)
    enter(page, ADMIN)
    assert page.locator("[data-least]:disabled").count() == 4
    page.check("[data-choose-all]")
    assert "6 chosen; at most 4 are compared" in page.inner_text("[data-chosen]")
    assert page.locator("[data-least]:disabled").all_inner_texts() == ["Compare"]
    sound(page)
    with page.expect_download() as download:
        page.click("text=Export")
    assert sorted(line["id"] for line in lines_of(download)) == sorted(app_state.runs)
    assert all(line["trace"]["header"]["question"] for line in lines_of(download))
    with page.expect_download() as download:
        page.click("text=Make a task file")
    assert download.value.suggested_filename == "tasks-1-of-6.jsonl"
    (task,) = lines_of(download)
    assert task["answer"] == "10" and task["id"] == app_state.runs[0]
    page.check("[data-choose-all]")
    page.uncheck("[data-choose-all]")
    assert page.inner_text("[data-chosen]") == ""


@pytest.mark.slow
def test_chosen_runs_are_deleted_once_that_was_confirmed(app_state, visit):
    page = visit(app_state, "/ui/runs?tenant=other&sort=cost")
    page.watch.expected.append("dialog: Delete the chosen runs")
    enter(page, ADMIN)
    for at in (0, 1):
        page.locator("[name=run]").nth(at).check()
    page.locator(".chosen >> text=Delete").focus()
    page.keyboard.press("Enter")  # the dialog is dismissed
    assert page.locator(".runs tbody tr").count() == 6
    page.evaluate("window.confirm = () => true")
    page.locator(".chosen >> text=Delete").focus()
    page.keyboard.press("Enter")
    page.locator(".runs tbody tr").nth(4).wait_for(state="detached")
    assert page.locator(".runs tbody tr").count() == 4
    assert page.url.endswith("tenant=other&sort=cost")
    records = app_state.call(app_state.store.audit.list, 50)
    assert [one.action for one in records].count("run.deleted") == 2
