"""GET /docs shows the whole API to anybody, in a real browser."""

import pytest

from batuta.gateway.openapi.document import OPERATIONS
from gateway.ui.conftest import sound
from gateway.ui.page_server import PageServer


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark")])
def test_every_address_is_shown_with_its_fields_and_no_key(tmp_path, visit, width, scheme):
    with PageServer(tmp_path, pace=0.0, keyed=True).open() as app_state:
        page = visit(app_state, "/docs", width=width, scheme=scheme)
        heads = {text.strip() for text in page.locator("summary code").all_inner_texts()}
        assert heads == {f"{method} {path}" for method, path in OPERATIONS}
        chat = page.locator("#post--v1-chat-completions")
        chat.locator("summary").focus()
        page.keyboard.press("Enter")
        told = chat.inner_text()
        assert "messages, required" in told and "orchestration" in told and "object" in told
        runs = page.locator("#get--v1-runs")
        runs.locator("summary").click()
        assert "integer, at least 0" in runs.inner_text()
        sound(page)
