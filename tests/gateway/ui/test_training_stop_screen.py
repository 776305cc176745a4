"""The button that stops a training, in a browser: where it is open, no other test has a loop."""

from __future__ import annotations

import pytest

from gateway.ui.conftest import sound
from gateway.ui.page_server import PageServer
from gateway.ui.test_training_stop import running


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "dark")])
def test_a_training_is_asked_to_stop_by_keyboard_and_says_so(tmp_path, visit, width, scheme):
    place, address = running(tmp_path)
    with PageServer(tmp_path, pace=0.0).open() as app_state:
        page = visit(app_state, address, width=width, scheme=scheme)
        page.wait_for_selector(".chip:has-text('running')")
        sound(page)
        page.get_by_role("button", name="Stop").focus()
        page.keyboard.press("Enter")
        page.wait_for_selector(".chip:has-text('stops after this step')")
        assert page.url.endswith(address) and (place / "stop").is_file()
        assert page.get_by_role("button", name="Stop").count() == 0
        sound(page)
        (place / "stop").replace(place / "stopped")
        page.reload()
        page.wait_for_selector(".chip:has-text('stopped')")
