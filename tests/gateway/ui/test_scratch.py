import time
from gateway.ui.page_server import ADMIN, QUESTION
from gateway.ui.test_browser import answered
def test_a(app_state, visit):
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
    print(page.inner_text("[data-table]"), page.inner_text("[data-failures]"))
    time.sleep(1)
    print(page.inner_text("[data-table]"), page.inner_text("[data-failures]"))
def test_b(app_state, visit, ask):
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
    time.sleep(4)
    print(page.inner_text("[data-table]"), page.inner_text("[data-failures]"))
    print(page.url, page.inner_text("[data-bound]"), page.locator("[data-many] .main").is_visible())
    time.sleep(6)
    print(page.inner_text("[data-table]"), page.inner_text("[data-failures]"))
